import json
from collections import Counter

import pytest

from dovetail.instances.errors import InputError
from dovetail.measuring.campaign import WorkerSeat, experiments, read_campaign, workers_needed
from tests.measuring.made import campaign


def settings(of):
    """Return the seats of the experiments as texts like ``conv@10+lstm@90!``, sorted."""
    return sorted(one.key.split(":")[2].split("#")[0] for one in experiments(of))


def test_solos_are_each_workload_once_a_repeat():
    of = campaign({"measure": "solos", "repeats": 2})
    assert settings(of) == ["conv", "conv", "lstm", "lstm", "tiny", "tiny"]


def test_pairs_of_three_workloads_are_six_with_the_self_pairs():
    assert settings(campaign({"measure": "pairs"})) == [
        "conv+conv", "conv+lstm", "conv+tiny", "lstm+lstm", "lstm+tiny", "tiny+tiny",
    ]  # fmt: skip


def test_equal_caps_have_one_order_and_unequal_caps_both_but_for_self_pairs():
    equal = campaign({"measure": "pairs", "shares": [50, 50]}, workloads=["a", "b"])
    assert settings(equal) == ["a@50+a@50", "a@50+b@50", "b@50+b@50"]
    unequal = campaign({"measure": "pairs", "shares": [10, 90]}, workloads=["a", "b"])
    assert settings(unequal) == ["a@10+a@90", "a@10+b@90", "b@10+a@90", "b@10+b@90"]


def test_triples_of_two_workloads_are_four_and_unequal_caps_are_held_by_each_in_turn():
    equal = campaign({"measure": "triples", "shares": [33, 33, 33]}, workloads=["a", "b"])
    assert settings(equal) == [
        "a@33+a@33+a@33", "a@33+a@33+b@33", "a@33+b@33+b@33", "b@33+b@33+b@33",
    ]  # fmt: skip
    unequal = campaign({"measure": "triples", "shares": [50, 25, 25]}, workloads=["a", "b"])
    assert len(settings(unequal)) == 2 * 3


def test_of_a_stage_with_most_each_round_has_the_same_few():
    names = [f"w{k}" for k in range(8)]
    order = experiments(campaign({"measure": "pairs", "most": 5, "repeats": 2}, workloads=names))
    assert len(order) == 10
    assert {one.seats for one in order[:5]} == {one.seats for one in order[5:]}


def test_a_preference_holds_in_either_place_and_counts_once_where_caps_are_equal():
    plain = campaign({"measure": "pairs", "workloads": ["a"], "first": ["a"]}, workloads=["a", "b"])
    assert settings(plain) == ["a!+a!", "a!+b"]
    capped = {"measure": "pairs", "workloads": ["a"], "first": ["a"], "shares": [10, 90]}
    assert settings(campaign(capped, workloads=["a", "b"])) == [
        "a@10!+a@90!",
        "a@10!+b@90",
        "b@10+a@90!",
    ]


def test_a_stage_of_some_workloads_has_their_pairs_with_all():
    assert settings(campaign({"measure": "pairs", "workloads": ["tiny"]})) == [
        "conv+tiny", "lstm+tiny", "tiny+tiny",
    ]  # fmt: skip
    assert settings(campaign({"measure": "solos", "workloads": ["tiny", "conv"]})) == [
        "conv",
        "tiny",
    ]


def test_stages_keep_their_order_and_each_repeat_is_a_whole_round():
    of = campaign({"measure": "pairs", "repeats": 3}, {"measure": "solos"})
    order = experiments(of)
    assert [one.stage for one in order] == [0] * 18 + [1] * 3
    assert [one.repeat for one in order[:18]] == [0] * 6 + [1] * 6 + [2] * 6
    assert len({one.key for one in order}) == 21


def test_the_order_is_the_seeds_and_is_not_sorted():
    names = [f"w{k}" for k in range(8)]
    stage = {"measure": "pairs", "repeats": 2}
    of = campaign(stage, workloads=names)
    again, other = campaign(stage, workloads=names), campaign(stage, workloads=names, seed=2)
    assert experiments(of) == experiments(again)
    assert experiments(of) != experiments(other)
    first, second = experiments(of)[:36], experiments(of)[36:]
    assert [one.seats for one in first] != [one.seats for one in second]
    # Of 36 pairs, 8 of which have w0: sorted, they would be the first 8. In a random order the
    # sum of their places has mean 8 * 17.5 = 140 and standard deviation about 26.
    places = [at for at, one in enumerate(first) if "w0" in {s.workload for s in one.seats}]
    assert len(places) == 8
    assert 140 - 4 * 26 < sum(places) < 140 + 4 * 26
    assert places != list(range(8))


def test_what_a_campaign_gains_leaves_the_order_before_as_it_was():
    old = campaign({"measure": "pairs"})
    grown = campaign({"measure": "pairs", "repeats": 2}, {"measure": "solos"})
    assert experiments(grown)[:6] == experiments(old)


def test_a_self_pair_needs_two_equal_workers_unless_their_caps_differ():
    same = workers_needed(experiments(campaign({"measure": "pairs"}, workloads=["a", "b"])))
    assert same == Counter({WorkerSeat("a", "mps"): 2, WorkerSeat("b", "mps"): 2})
    split = campaign({"measure": "pairs", "shares": [10, 90]}, workloads=["a"])
    assert workers_needed(experiments(split)) == Counter(
        {WorkerSeat("a", "mps", 10): 1, WorkerSeat("a", "mps", 90): 1}
    )


def test_with_requests_pairs_have_one_latency_critical_workload_each():
    stage = {"measure": "pairs", "latency": ["a"], "load": 0.5}
    names = ["a", "b", "c"]
    assert settings(campaign(stage, workloads=names)) == ["a~0.5+b", "a~0.5+c"]
    halves = {**stage, "shares": [30, 70], "arrivals": "fixed"}
    assert settings(campaign(halves, workloads=["a", "b"])) == [
        "a~0.5-fixed@30+b@70", "b@30+a~0.5-fixed@70",
    ]  # fmt: skip
    isolated = {**stage, "mode": "isolated", "load": 1.0}
    assert settings(campaign(isolated, workloads=names)) == ["a~1+b@idle", "a~1+c@idle"]
    solos = {**isolated, "measure": "solos"}
    assert settings(campaign(solos, workloads=names)) == ["a~1", "b@idle", "c@idle"]


def test_one_process_serves_all_loads():
    loads = [{"measure": "solos", "latency": ["a"], "load": load} for load in (0.2, 0.8)]
    of = campaign({"measure": "solos"}, *loads, workloads=["a", "b"])
    needed = Counter({WorkerSeat("a", "mps"): 1, WorkerSeat("b", "mps"): 1})
    assert workers_needed(experiments(of)) == needed


@pytest.mark.parametrize(
    ("stage", "rule"),
    [
        ({"mode": "isolated"}, "latency: must name who has the GPU first with isolation"),
        ({"latency": ["a"]}, "load: must be given with latency"),
        ({"load": 0.5}, "load: must be absent without latency, got 0.5"),
        ({"arrivals": "fixed"}, "arrivals: must be absent without latency, got 'fixed'"),
        ({"latency": ["a"], "load": 0.0}, "load: must be > 0, got 0.0"),
        ({"latency": ["a"], "load": 1.5}, "load: must be <= 1, got 1.5"),
        (
            {"latency": ["a"], "load": 0.5, "arrivals": "often"},
            "arrivals: must be 'poisson' or 'fixed', got 'often'",
        ),
        ({"latency": ["x"], "load": 0.5}, "latency: must be one of the workloads, got 'x'"),
        (
            {"latency": ["a", "b"], "load": 0.5},
            "latency: must leave pairs or triples with exactly one of them, got a, b",
        ),
        (
            {"mode": "isolated", "latency": ["a"], "load": 0.5, "shares": [50, 50]},
            "shares: must be absent with isolation, got 50, 50",
        ),
        (
            {"mode": "isolated", "latency": ["a"], "load": 0.5, "first": ["a"]},
            "first: must be absent with isolation, got a",
        ),
    ],
)
def test_what_breaks_a_rule_is_named_in_one_line(stage, rule, tmp_path):
    stages = [{"measure": "solos"}, {"measure": "pairs", **stage}]
    data = {"format": "dovetail-campaign/1", "name": "bad", "workloads": ["a", "b"]}
    path = tmp_path / "bad.yaml"
    path.write_text(json.dumps({**data, "stages": stages}))
    with pytest.raises(InputError) as caught:
        read_campaign(path)
    assert str(caught.value) == f"{path}: stages[1].{rule}"
