"""The groups of tiny rounds, listed by hand."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from dovetail.formulations.budget import Budget
from dovetail.formulations.candidates import listing
from dovetail.instances.instance import Instance
from tests.data import small
from tests.forms import groups_of
from tests.strategies import Shape, random_instance

AB = {"pair": ["a", "b"], "slowdown": [1.25, 1.6]}
J = {"id": "j", "workload": "a"}
K = {"id": "k", "workload": "b"}


def groups(instance: Instance, objective="throughput") -> Counter[str]:
    """Return every group, its members as ``job@share:slowdown``, and how often it is listed."""
    found = groups_of(instance, objective).apart
    jobs = [job.id for job in instance.jobs]
    return Counter(
        " ".join(
            f"{jobs[found.job[m]]}@{found.share[m] or '-'}:{found.slowdown[m]:g}"
            for m in found.members(g)
        )
        for g in range(len(found))
    )


def listed(*expected: str) -> Counter[str]:
    return Counter(expected)


def test_alone_and_together():
    assert groups(small([J, K], [AB])) == listed("j@-:1", "k@-:1", "j@-:1.25 k@-:1.6")


def test_no_entry_no_group():
    assert groups(small([J, K], [])) == listed("j@-:1", "k@-:1")
    assert groups(small([J, K], [{**AB, "slowdown": None}])) == listed("j@-:1", "k@-:1")


def test_two_jobs_of_a_workload_are_listed_once():
    jobs = [{"id": "j"}, {"id": "k"}, {"id": "l"}]
    entry = {"pair": ["a", "a"], "slowdown": [1.5, 1.5]}
    assert groups(small(jobs, [entry])) == listed(
        "j@-:1", "k@-:1", "l@-:1", "j@-:1.5 k@-:1.5", "j@-:1.5 l@-:1.5", "k@-:1.5 l@-:1.5"
    )


def test_two_jobs_of_a_workload_at_two_shares_cover_both_orders():
    # j and k at 30 and 70 are worth the same both ways; only one is kept, by the first job.
    entry = {"pair": ["a", "a"], "share": [30, 70], "slowdown": [2.0, 1.25]}
    found = groups(small([{"id": "j"}, {"id": "k"}], [entry], shares=[30, 70]))
    pairs = [group for group in found if "k" in group and "j" in group]
    assert len(pairs) == 1
    assert pairs[0] in ("j@30:2 k@70:1.25", "j@70:1.25 k@30:2")
    # Of unequal weight they are not: the heavier is better at 1.25.
    found = groups(small([{"id": "j", "weight": 5}, {"id": "k"}], [entry], shares=[30, 70]))
    assert "j@70:1.25 k@30:2" in found
    assert "j@30:2 k@70:1.25" not in found


def test_only_shares_of_the_cluster_within_the_sum():
    entries = [
        {"pair": ["a", "b"], "share": [30, 50], "slowdown": [1.5, 1.5]},
        {"pair": ["a", "b"], "share": [70, 50], "slowdown": [1.2, 1.5]},
        {"pair": ["a", "b"], "share": [40, 50], "slowdown": [1.1, 1.1]},
    ]
    found = groups(small([J, K], entries, shares=[30, 50, 70]))
    assert found == listed("j@-:1", "k@-:1", "j@30:1.5 k@50:1.5")


def test_memory():
    # 4000 + 4000 + twice 4000 for the processes fill 16000; one MiB in reserve is too much.
    assert len(groups(small([J, K], [AB], per_process_mib=4000))) == 3
    assert len(groups(small([J, K], [AB], per_process_mib=4000, reserve_mib=1))) == 2
    assert groups(small([J, K], [AB], reserve_mib=12001)) == listed()


def test_gsla_of_both():
    assert len(groups(small([{**J, "gsla": 1.25}, {**K, "gsla": 1.6}], [AB]))) == 3
    assert len(groups(small([{**J, "gsla": 1.24}, K], [AB]))) == 2
    assert len(groups(small([J, {**K, "gsla": 1.59}], [AB]))) == 2
    upper = {**AB, "upper": [1.3, 1.6]}
    assert len(groups(small([{**J, "gsla": 1.25}, K], [upper]))) == 2


def test_capped_starts_are_kept_only_where_they_are_good_for_something():
    instance = small([J], shares=[50], start_capped=True)
    faster = instance.workloads["a"].replace(throughput={100: 100.0, 50: 125.0})
    # At 50 % it runs faster than uncapped (1 / 1.25), so the uncapped start is beaten.
    assert groups(instance.replace(workloads={"a": faster})) == listed("j@50:0.8")
    slower = faster.replace(throughput={100: 100.0, 50: 80.0})
    assert groups(instance.replace(workloads={"a": slower})) == listed("j@-:1")


RUNNING = {"id": "r", "workload": "a", "state": "running", "gpus": ["g-0"]}


def test_joins():
    # r stays on g-0, alone or with k; k may also start alone on g-1.
    assert groups(small([RUNNING, K], [AB])) == listed("r@-:1", "r@-:1.25 k@-:1.6", "k@-:1")


def test_joins_respect_the_share_of_the_running_job():
    capped = {**AB, "share": [60, 40]}
    jobs = [{**RUNNING, "share": [60]}, K]
    cluster = {"shares": [40]}  # 60 may no longer be given, but r has it
    assert groups(small(jobs, [AB, capped], **cluster)) == listed(
        "r@60:1", "r@60:1.25 k@40:1.6", "k@-:1"
    )


def test_no_job_joins_one_whose_gsla_would_break():
    assert groups(small([{**RUNNING, "gsla": 1.2}, K], [AB])) == listed("r@-:1", "k@-:1")


def test_sets_of_three():
    jobs = [{"id": name, "workload": name} for name in "abc"]
    entry = {"set": ["c", "a", "b"], "slowdown": [1.7, 1.5, 1.6]}
    assert groups(small(jobs, [entry], max_jobs_per_gpu=3)) == listed(
        "a@-:1", "b@-:1", "c@-:1", "a@-:1.5 b@-:1.6 c@-:1.7"
    )
    assert len(groups(small(jobs, [entry]))) == 3  # two jobs a GPU


def test_three_jobs_of_a_workload_in_every_set_once():
    jobs = [{"id": name} for name in "jklm"]
    entry = {"set": ["a", "a", "a"], "slowdown": [1.5, 1.5, 1.5]}
    found = groups(small(jobs, [entry], max_jobs_per_gpu=3))
    assert len(found) == found.total() == 4 + 4  # four alone, four choices of three


def test_a_running_pair_and_the_job_that_joins_it():
    jobs = [RUNNING, {**RUNNING, "id": "s"}, K]
    entries = [
        {"pair": ["a", "a"], "slowdown": [1.5, 1.5]},
        {"set": ["a", "a", "b"], "slowdown": [1.75, 1.75, 2.0]},
    ]
    assert groups(small(jobs, entries, max_jobs_per_gpu=3)) == listed(
        "r@-:1.5 s@-:1.5", "r@-:1.75 s@-:1.75 k@-:2", "k@-:1"
    )


TWO_SPLITS = [
    {"pair": ["a", "b"], "share": [30, 70], "slowdown": [2.0, 1.25]},
    {"pair": ["a", "b"], "share": [70, 30], "slowdown": [1.25, 4.0]},
]


def test_of_two_splits_of_single_jobs_the_better_is_kept():
    # 1/2 + 1/1.25 = 1.3 against 1/1.25 + 1/4 = 1.05.
    found = groups(small([J, K], TWO_SPLITS, shares=[30, 70]))
    assert found == listed("j@-:1", "k@-:1", "j@30:2 k@70:1.25")


def test_both_splits_of_a_gang_are_kept_as_its_pace_may_need_either():
    found = groups(small([{**J, "workers": 2}, K], TWO_SPLITS, shares=[30, 70]))
    assert found == listed("j@-:1", "k@-:1", "j@30:2 k@70:1.25", "j@70:1.25 k@30:4")


def test_a_split_worse_for_a_gang_and_for_its_partner_is_dropped():
    worse = {"pair": ["a", "b"], "share": [30, 30], "slowdown": [2.0, 1.3]}
    entries = [TWO_SPLITS[0], worse]
    found = groups(small([{**J, "workers": 2}, K], entries, shares=[30, 70]))
    assert found == listed("j@-:1", "k@-:1", "j@30:2 k@70:1.25")


def test_under_energy_a_slower_split_of_less_power_stays():
    cheap = {**TWO_SPLITS[1], "power_w": 150.0}
    instance = small([J, K], [{**TWO_SPLITS[0], "power_w": 200.0}, cheap], shares=[30, 70])
    powered = {n: w.replace(power_w=100.0) for n, w in instance.workloads.items()}
    found = groups(instance.replace(workloads=powered), "energy")
    assert set(found) == {"j@-:1", "k@-:1", "j@30:2 k@70:1.25", "j@70:1.25 k@30:4"}


def test_whole_gangs_share_only_with_their_like():
    jobs = [{**J, "workers": 2}, K, {**K, "id": "l", "workers": 2}]
    found = groups(small(jobs, [AB], gang_sharing="whole"))
    assert found == listed("j@-:1", "k@-:1", "l@-:1", "j@-:1.25 l@-:1.6")


def test_jct_lists_only_pairs_that_both_gain_from():
    # Twice 1.5 on equal jobs ends as early as one after the other: not listed. 1.25 is earlier.
    jobs = [{**J, "remaining_s": 10.0}, {**K, "remaining_s": 10.0}]
    even = {"pair": ["a", "b"], "slowdown": [1.5, 1.5]}
    assert len(groups(small(jobs, [even]), "jct")) == 2
    assert len(groups(small(jobs, [{**even, "slowdown": [1.25, 1.25]}]), "jct")) == 3
    assert len(groups(small(jobs, [even]), "throughput")) == 3


@pytest.mark.parametrize("objective", ["throughput", "slowdown"])
def test_sub_batches_make_room(objective):
    # Together 4000 + 4000 MiB do not fit in 7500; j at half its batch needs 2000 + 1000.
    # t(1)/t(0) with 0.1 s a sample and nothing else: 1, so the half batch costs nothing.
    batch = {"size": 20, "min": 10, "fixed_mib": 2000, "mib_per_sample": 100}
    batch["step_s"] = {"fixed": 0.0, "per_sample": 0.1}
    instance = small([J, K], [AB], reserve_mib=8500)
    data = instance.to_data()
    data["workloads"]["a"]["batch"] = batch
    found = groups(Instance.from_data(data), objective)
    assert found == listed("j@-:1", "k@-:1", "j@-:1.25 k@-:1.6")


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_the_groups_are_the_same_in_pieces_of_any_size(rows, monkeypatch):
    # Also where the ways to seat jobs of one pair of workloads are more than that.
    for seed in range(30):
        instance = random_instance(Random(seed), Shape(jobs=8, gpus=5))
        whole = groups(instance)
        with monkeypatch.context() as patch:
            patch.setattr(listing, "ROWS_IN_TIME", rows)
            pieces = groups_of(instance, budget=Budget.of(3600.0))
        assert len(pieces) == whole.total()
        assert (pieces.complete, pieces.job.tolist()) == (
            True,
            groups_of(instance).job.tolist(),
        )
