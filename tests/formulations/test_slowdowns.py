"""Entries of workloads that share a GPU."""

from __future__ import annotations

from dovetail.formulations.instance_slowdowns import InstanceSlowdowns
from dovetail.formulations.rounds import Round
from tests.data import small
from tests.formulations.members import coded, find, on


def book(*entries):
    return InstanceSlowdowns(small(slowdowns=list(entries), shares=[30, 60, 70, 100]))


def slowdowns(known, model):
    return list(map(tuple, known.pairs(on(model)).rows.slowdown.tolist()))


def test_an_entry_for_the_model_wins():
    known = book(
        {"pair": ["a", "b"], "slowdown": [1.1, 1.2]},
        {"pair": ["b", "a"], "slowdown": [1.6, 1.5], "gpu_model": "V100"},
    )
    pair = [("a", None), ("b", None)]
    assert find(known, "V100", pair).slowdown == (1.5, 1.6)
    assert find(known, "K80", pair).slowdown == (1.1, 1.2)
    assert slowdowns(known, "V100") == [(1.5, 1.6)]
    assert slowdowns(known, "K80") == [(1.1, 1.2)]


def test_null_for_the_model_wins_over_a_number_for_all():
    known = book(
        {"pair": ["a", "b"], "slowdown": [1.1, 1.2]},
        {"pair": ["a", "b"], "slowdown": None, "gpu_model": "V100"},
    )
    assert find(known, "V100", [("a", None), ("b", None)]) is None
    assert slowdowns(known, "V100") == []
    assert len(slowdowns(known, "K80")) == 1


def test_a_number_for_the_model_wins_over_null_for_all():
    known = book(
        {"pair": ["a", "b"], "slowdown": None},
        {"pair": ["a", "b"], "slowdown": [1.1, 1.2], "gpu_model": "V100"},
    )
    assert find(known, "V100", [("b", None), ("a", None)]).slowdown == (1.2, 1.1)
    assert find(known, "K80", [("a", None), ("b", None)]) is None


def test_a_pair_holds_mirrored_with_all_its_figures():
    entry = {"pair": ["a", "b"], "share": [60, 30], "slowdown": [1.1, 1.2], "power_w": 250}
    known = book({**entry, "upper": [1.3, 1.4], "p99": [1.5, 1.6]})
    found = find(known, "V100", [("b", 30), ("a", 60)])
    assert found.slowdown == (1.2, 1.1)
    assert found.upper == (1.4, 1.3)
    assert found.tail == (1.6, 1.5)
    assert found.power_w == 250
    assert find(known, "V100", [("b", 60), ("a", 30)]) is None


def test_one_workload_at_two_shares():
    known = book({"pair": ["a", "a"], "share": [30, 70], "slowdown": [2.0, 1.2]})
    assert find(known, "V100", [("a", 70), ("a", 30)]).slowdown == (1.2, 2.0)
    assert find(known, "V100", [("a", 30), ("a", 70)]).slowdown == (2.0, 1.2)
    assert find(known, "V100", [("a", 30), ("a", 30)]) is None


def test_no_cap_is_not_a_cap_of_100():
    known = book({"pair": ["a", "b"], "share": [100, None], "slowdown": [1.1, 1.2]})
    assert find(known, "V100", [("a", 100), ("b", None)]) is not None
    assert find(known, "V100", [("a", None), ("b", None)]) is None


def test_a_set_is_not_made_of_its_pairs():
    known = book(
        {"pair": ["a", "b"], "slowdown": [1.1, 1.1]},
        {"set": ["a", "b", "a"], "slowdown": [1.5, 1.7, 1.5]},
    )
    found = find(known, "V100", [("b", None), ("a", None), ("a", None)])
    assert found.slowdown == (1.7, 1.5, 1.5)
    assert find(known, "V100", [("a", None), ("b", None), ("b", None)]) is None


def test_gslas_are_checked_against_p99_then_upper_then_slowdown():
    plain = {"pair": ["a", "b"], "slowdown": [1.1, 1.2]}
    latency = [True, False]
    pair = [("a", None), ("b", None)]
    assert find(book(plain), "V100", pair).bounds(latency) == (1.1, 1.2)
    upper = {**plain, "upper": [1.3, 1.4]}
    assert find(book(upper), "V100", pair).bounds(latency) == (1.3, 1.4)
    p99 = {**upper, "p99": [1.2, 9.0]}  # even where it is below the upper bound
    assert find(book(p99), "V100", pair).bounds(latency) == (1.2, 1.4)


def test_a_sub_batch_stretches_everything_but_power():
    entry = {"pair": ["a", "b"], "slowdown": [1.0, 1.5], "power_w": 250, "upper": [2.0, 2.0]}
    found = find(book(entry), "V100", [("a", None), ("b", None)]).times([1.5, 2.0])
    assert (found.slowdown, found.upper, found.tail) == ((1.5, 3.0), (3.0, 4.0), (3.0, 4.0))
    assert found.power_w == 250


def test_bounds_hold_once_the_others_have_ended():
    """Those of three are raised by what is known of two of them, and alone at the cap."""
    instance = small(
        slowdowns=[
            {"set": ["a", "b", "c"], "share": [30, 30, None], "slowdown": [1.1, 1.1, 1.1]},
            {"pair": ["b", "a"], "share": [30, 30], "slowdown": [1.2, 1.3], "p99": [1.5, 1.0]},
            {"pair": ["a", "c"], "share": [30, None], "slowdown": [1.2, 1.15], "upper": [2, 3]},
            {"pair": ["b", "c"], "share": [60, None], "slowdown": [9, 9]},
            {"pair": ["a", "c"], "share": [30, None], "slowdown": None, "gpu_model": "K80"},
        ],
        shares=[30, 60],
        max_jobs_per_gpu=3,
    )
    capped = instance.workloads["a"].replace(throughput={100: 14.0, 30: 10.0})
    known = InstanceSlowdowns(instance.replace(workloads={**instance.workloads, "a": capped}))
    members = [("a", 30), ("b", 30), ("c", None)]
    found = find(known, "V100", members)
    assert found.slowdown == (1.1, 1.1, 1.1)
    assert found.bounds([False] * 3) == (2, 1.2, 3)
    assert found.bounds([True] * 3) == (2, 1.5, 3)
    assert find(known, "K80", members).bounds([False] * 3) == (1.4, 1.2, 1.1)
    assert known.at_first(on("V100"), coded(known, members)).bounds([False] * 3) == (1.1, 1.1, 1.1)
    assert find(known, "V100", members[1::-1]).bounds([True] * 2) == (1.5, 1.4)


def test_a_small_set_is_found_in_large_ones_of_equal_jobs():
    """What is known of four counts among thirty, which have 27,405 parts of four."""
    known = InstanceSlowdowns(
        small(
            slowdowns=[
                {"set": ["a"] * 30, "slowdown": [1.1] * 30},
                {"set": ["a"] * 4, "slowdown": [1.4] * 4},
                {"set": ["a", "a", "b"], "slowdown": [1.9, 1.9, 1.0]},
            ],
            max_jobs_per_gpu=30,
        )
    )
    assert find(known, "V100", [("a", None)] * 30).bounds([False] * 30) == (1.4,) * 30


def test_a_book_does_not_hold_where_more_is_known_of_workloads_alone():
    instance = small(shares=[30])
    known = InstanceSlowdowns(instance)
    assert known.of(instance.replace(name="again")) is not None
    slower = instance.workloads["a"].replace(throughput={100: 14.0, 30: 10.0})
    assert known.of(instance.replace(workloads={**instance.workloads, "a": slower})) is None


def test_a_book_serves_rounds_on_other_nodes_and_needs():
    instance = small(slowdowns=[{"pair": ["a", "b"], "slowdown": [1.1, 1.2]}])
    first = Round.of(instance)
    joins = first.slowdowns.joins(on("V100"), ())
    node = instance.cluster.nodes[0].replace(id="more")
    cluster = instance.cluster.replace(nodes=(*instance.cluster.nodes, node))
    larger = Round.of(instance.altered(cluster=cluster), first.slowdowns)
    assert larger.slowdowns.joins(on("V100"), ()) is joins
    assert len(larger.machines) > len(first.machines)
    assert first.slowdowns.of(instance) is first.slowdowns


def test_a_book_does_not_serve_other_rules():
    instance = small(slowdowns=[{"pair": ["a", "b"], "slowdown": [1.1, 1.2]}])
    for change in ({"share_sum": 150}, {"max_jobs_per_gpu": 3}, {"shares": (30,)}):
        other = instance.altered(cluster=instance.cluster.replace(**change))
        assert InstanceSlowdowns(instance).of(other) is None
    nodes = [
        node.replace(gpu=node.gpu and node.gpu.replace(max_jobs=1))
        if node.gpu
        else node.replace(gpus=tuple(gpu.replace(max_jobs=1) for gpu in node.gpus))
        for node in instance.cluster.nodes
    ]
    other = instance.altered(cluster=instance.cluster.replace(nodes=tuple(nodes)))
    assert InstanceSlowdowns(instance).of(other) is None
