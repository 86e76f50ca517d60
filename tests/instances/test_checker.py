"""The checker on hand-made plans: each rule broken alone, each value computed by hand."""

from __future__ import annotations

import time
from math import sqrt
from random import Random
from typing import Any

import pytest

from dovetail.instances.checking.checker import CheckReport, check
from dovetail.instances.checking.rules import sensitivities
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import OBJECTIVES, ObjectiveName
from dovetail.instances.plan import Assignment, Plan
from dovetail.instances.requirements import require_fields
from tests.data import small
from tests.oracle import MINIMISED, TWO_STAGE, Optimum, optimum
from tests.strategies import Shape, random_instance

Data = dict[str, Any]

BATCH = {
    "size": 64,
    "min": 16,
    "fixed_mib": 1000,
    "mib_per_sample": 50,
    "step_s": {"fixed": 0.1, "per_sample": 0.01},
    "comm_s": 0.3,
}
"""At size 64: 0.1 + 0.64 + 0.3 = 1.04 s; at 32: 2 x (0.1 + 0.32) + 0.3 = 1.14 s."""


def gpu(name: str, model: str = "V100", memory_mib: float = 10000) -> Data:
    return {"id": name, "model": model, "memory_mib": memory_mib}


def base(**cluster: Any) -> Data:
    """Two V100 on n0, one V100 and one K80 on n1; workloads a (4000 MiB), b (5000 MiB), c."""
    nodes = [
        {"id": "n0", "rack": "r0", "gpus": [gpu("g0"), gpu("g1")]},
        {"id": "n1", "rack": "r1", "gpus": [gpu("g2"), gpu("k", "K80")]},
    ]
    return {
        "name": "hand-made",
        "cluster": {"shares": [40, 50, 60], "nodes": nodes, **cluster},
        "workloads": {
            "a": {
                "memory_mib": 4000,
                "throughput": {100: 100, 50: 80},
                "speed": {"K80": 0.25},
                "power_w": 200,
            },
            "b": {"memory_mib": 5000, "power_w": 150},
            "c": {"memory_mib": 8000, "batch": BATCH, "power_w": 100},
        },
        "jobs": [],
        "slowdowns": [
            {"pair": ["a", "b"], "slowdown": [1.25, 1.6], "power_w": 300},
            {"pair": ["b", "a"], "share": [60, 40], "slowdown": [1.5, 1.3], "power_w": 250},
            {"pair": ["a", "a"], "share": [40, 60], "slowdown": [2.0, 1.2], "power_w": 280},
        ],
    }


def job(name: str, workload: str = "a", **fields: Any) -> Data:
    return {"id": name, "workload": workload, "remaining_s": 1000, **fields}


def running(name: str, workload: str, gpus: list[str], **fields: Any) -> Data:
    return job(name, workload, state="running", gpus=gpus, workers=len(gpus), **fields)


def put(name: str, *gpus: str, **fields: Any) -> Data:
    return {"job": name, "gpus": list(gpus), **fields}


def checked(
    data: Data,
    jobs: list[Data],
    *assignments: Data,
    under: ObjectiveName | None = None,
    **plan: Any,
) -> CheckReport:
    """Check the assignments of a plan for the instance with these jobs."""
    instance = Instance.from_data({**data, "jobs": jobs})
    return check(instance, Plan.from_data({"assignments": assignments, **plan}), under)


def violations_of(report: CheckReport) -> list[str]:
    return [str(violation) for violation in report.violations]


# -- 1: gangs ---------------------------------------------------------------------------


def test_a_valid_plan_has_no_violation() -> None:
    jobs = [job("j1", workers=2), job("j2", "b", gsla=1.6), job("j3", "b")]
    report = checked(base(), jobs, put("j1", "g0", "g2"), put("j2", "g0"))
    assert report.valid
    assert report.violations == ()
    assert report.warnings == ()
    assert report.job_slowdown == {"j1": 1.25, "j2": 1.6}
    assert report.gpu_memory_mib == {"g0": 9000, "g2": 4000}
    assert (report.nodes_spanned, report.racks_spanned, report.gpus_used) == (3, 3, 2)


def test_gang_with_a_gpu_too_few() -> None:
    report = checked(base(), [job("j1", workers=2)], put("j1", "g0"))
    assert violations_of(report) == ["job j1: gang: needs 2 distinct GPUs, has 1"]


def test_gang_with_a_gpu_too_many() -> None:
    report = checked(base(), [job("j1")], put("j1", "g0", "g1"))
    assert violations_of(report) == ["job j1: gang: needs 1 distinct GPUs, has 2"]


def test_gang_twice_on_one_gpu() -> None:
    report = checked(base(), [job("j1", workers=2)], put("j1", "g0", "g0"))
    assert violations_of(report) == ["job j1: gang: needs 2 distinct GPUs, has 1"]


@pytest.mark.parametrize(
    ("rule", "gpus", "broken"),
    [
        ({"workers_per_node": 2}, ["g0", "g2"], "exactly 2 workers on each of its nodes, has 1 on"),
        ({"workers_per_node": 1}, ["g0", "g1"], "exactly 1 workers on each of its nodes, has 2 on"),
        (
            {"workers_together": 2},
            ["g1", "g2"],
            "a multiple of 2 workers on each of its nodes, has",
        ),
        ({"workers_per_node": 2}, ["g0", "g1"], ""),
        ({"workers_per_node": 1}, ["g0", "g2"], ""),
        ({"workers_together": 1}, ["g0", "g1"], ""),
        ({"workers_together": 2}, ["g0", "g1"], ""),
    ],
)
def test_workers_that_stay_together_on_nodes(rule: Data, gpus: list[str], broken: str) -> None:
    report = checked(base(), [job("j1", workers=2, **rule)], put("j1", *gpus))
    assert report.valid == (not broken)
    if broken:
        assert f"job j1: nodes: needs {broken}" in violations_of(report)[0]
    held = running("j1", "a", gpus, **rule)
    report = checked(base(), [held], put("j1", *gpus))
    assert report.valid
    assert [f"job j1: nodes: needs {broken}" in each for each in report.warnings] == [True] * bool(
        broken
    )


def test_several_groups_of_workers_on_a_node() -> None:
    data = base()
    data["cluster"]["nodes"][0]["gpus"] += [gpu("g3"), gpu("g4")]
    gpus = ["g0", "g1", "g3", "g4"]
    for rule, valid in (("workers_together", True), ("workers_per_node", False)):
        assert checked(data, [job("j1", workers=4, **{rule: 2})], put("j1", *gpus)).valid is valid


def test_gang_on_two_models() -> None:
    report = checked(base(), [job("j1", workers=2)], put("j1", "g0", "k"))
    assert violations_of(report) == ["job j1: gang: needs GPUs of one model, has K80, V100"]


def test_unknown_gpu_leaves_the_value_unknown() -> None:
    report = checked(base(), [job("j1")], put("j1", "g9"))
    assert violations_of(report) == ["job j1: gang: the cluster has no GPU g9"]
    assert report.value is None


WHOLE = "job j1: whole: shares g0 with j2 but not all GPUs of both"


def test_whole_gangs_of_unequal_size() -> None:
    jobs = [job("j1", workers=2), job("j2", "b")]
    plan = (put("j1", "g0", "g1"), put("j2", "g0"))
    assert violations_of(checked(base(gang_sharing="whole"), jobs, *plan)) == [WHOLE]
    assert checked(base(), jobs, *plan).valid


def test_whole_gangs_that_share_one_of_two_gpus() -> None:
    jobs = [job("j1", workers=2), job("j2", "b", workers=2)]
    crossed = (put("j1", "g0", "g1"), put("j2", "g0", "g2"))
    assert violations_of(checked(base(gang_sharing="whole"), jobs, *crossed)) == [WHOLE]
    equal = (put("j1", "g0", "g1"), put("j2", "g1", "g0"))
    assert checked(base(gang_sharing="whole"), jobs, *equal).valid


def test_whole_counts_the_running_gang_that_is_joined() -> None:
    jobs = [running("r1", "a", ["g0", "g1"]), job("j2", "b")]
    report = checked(base(gang_sharing="whole"), jobs, put("r1", "g0", "g1"), put("j2", "g0"))
    assert violations_of(report) == ["job r1: whole: shares g0 with j2 but not all GPUs of both"]


def test_racks_are_counted_apart_from_nodes() -> None:
    data = base()
    nodes = [{"id": f"m{k}", "gpus": [gpu(f"m{k}-0")]} for k in range(2)]
    data["cluster"]["nodes"] += [{**nodes[0], "rack": "r1"}, nodes[1]]
    jobs = [job("j1", workers=3), job("j2")]
    report = checked(data, jobs, put("j1", "g0", "g2", "m0-0"), put("j2", "m1-0"))
    # j1 is on n0, n1, m0 in r0 and r1, j2 on m1 in no rack.
    assert (report.nodes_spanned, report.racks_spanned) == (4, 3)


# -- 2: which jobs may share, and at which shares ----------------------------------------


def test_more_jobs_than_a_gpu_may_hold() -> None:
    data = base(max_jobs_per_gpu=1)
    report = checked(data, [job("j1"), job("j2", "b")], put("j1", "g0"), put("j2", "g0"))
    assert violations_of(report) == ["GPU g0: capacity: holds 2 jobs, at most 1 may"]


def test_share_that_the_cluster_does_not_give() -> None:
    data = base()
    data["slowdowns"].append({"pair": ["a", "b"], "share": [30, 60], "slowdown": [1.1, 1.1]})
    pair = (put("j1", "g0", share=[30]), put("j2", "g0", share=[60]))
    report = checked(data, [job("j1"), job("j2", "b")], *pair)
    rule = "job j1: share: share 30 on g0 is not one of the cluster's shares (40, 50, 60)"
    assert violations_of(report) == [rule]


def time_sliced() -> Data:
    data = base(shares=[], sharing="time_sliced")
    data["slowdowns"] = [{"pair": ["a", "b"], "slowdown": [1.9, 1.6], "mode": "time_sliced"}]
    return data


def test_jobs_that_take_turns_have_the_entry_of_their_mode() -> None:
    pair = put("j1", "g0"), put("j2", "g0")
    report = checked(time_sliced(), [job("j1"), job("j2", "b")], *pair)
    assert report.violations == ()
    assert report.job_slowdown == {"j1": 1.9, "j2": 1.6}


def test_an_entry_of_another_mode_lets_none_share() -> None:
    jobs = [job("j1"), job("j2", "b")]
    instance = Instance.from_data({**time_sliced(), "jobs": jobs})
    # What a record refuses, the checker finds in an instance that was put together unchecked.
    mixed = instance.model_copy(
        update={"cluster": instance.cluster.model_copy(update={"sharing": "mps"})}
    )
    plan = Plan.from_data({"assignments": [put("j1", "g0"), put("j2", "g0")]})
    rule = "GPU g0: entry: no entry lets j1 (a at no cap), j2 (b at no cap) on V100 share"
    assert violations_of(check(mixed, plan)) == [rule]


def test_a_cap_where_jobs_take_turns() -> None:
    instance = Instance.from_data({**base(start_capped=True), "jobs": [job("j1")]})
    sliced = instance.cluster.model_copy(update={"sharing": "time_sliced"})
    plan = Plan.from_data({"assignments": [put("j1", "g0", share=[50])]})
    rule = "job j1: share: share 50 on g0 is a cap, which time-sliced jobs cannot have"
    found = check(instance.model_copy(update={"cluster": sliced}), plan)
    assert violations_of(found) == [rule]


def test_pair_without_an_entry_at_these_shares() -> None:
    pair = (put("j1", "g0", share=[50]), put("j2", "g0", share=[50]))
    report = checked(base(), [job("j1"), job("j2", "b")], *pair)
    rule = "GPU g0: entry: no entry lets j1 (a at 50), j2 (b at 50) on V100 share"
    assert violations_of(report) == [rule]
    assert report.value is None
    assert report.job_slowdown == {}


def test_mirrored_entry_gives_each_job_its_own_number() -> None:
    pair = (put("j1", "g0", share=[40]), put("j2", "g0", share=[60]))
    report = checked(base(), [job("j1"), job("j2", "b")], *pair)
    assert report.job_slowdown == {"j1": 1.3, "j2": 1.5}


def test_one_workload_twice_at_different_shares() -> None:
    pair = (put("j1", "g0", share=[60]), put("j2", "g0", share=[40]))
    report = checked(base(), [job("j1"), job("j2")], *pair)
    assert report.job_slowdown == {"j1": 1.2, "j2": 2.0}


def test_entry_of_the_model_counts_before_the_one_for_all() -> None:
    data = base()
    data["slowdowns"].append({"pair": ["b", "a"], "slowdown": [3, 2], "gpu_model": "K80"})
    pair = [put("j1", "k"), put("j2", "k")]
    report = checked(data, [job("j1"), job("j2", "b")], *pair)
    assert report.job_slowdown == {"j1": 2, "j2": 3}


def test_null_of_the_model_forbids_what_the_entry_for_all_allows() -> None:
    data = base()
    data["slowdowns"].append({"pair": ["a", "b"], "slowdown": None, "gpu_model": "K80"})
    report = checked(data, [job("j1"), job("j2", "b")], put("j1", "k"), put("j2", "k"))
    rule = "GPU k: entry: no entry lets j1 (a at no cap), j2 (b at no cap) on K80 share"
    assert violations_of(report) == [rule]
    assert checked(data, [job("j1"), job("j2", "b")], put("j1", "g0"), put("j2", "g0")).valid


def test_three_jobs_need_an_entry_of_their_own() -> None:
    data = base(max_jobs_per_gpu=3)
    data["workloads"]["c"] = {"memory_mib": 10}
    jobs = [job("j1"), job("j2", "b"), job("j3", "c")]
    trio = [put("j1", "g0"), put("j2", "g0"), put("j3", "g0")]
    rule = "GPU g0: entry: no entry lets j1 (a at no cap), j2 (b at no cap), j3 (c at no cap)"
    assert violations_of(checked(data, jobs, *trio)) == [f"{rule} on V100 share"]
    data["slowdowns"].append({"set": ["c", "a", "b"], "slowdown": [1.7, 1.8, 1.9]})
    report = checked(data, jobs, *trio)
    assert report.valid
    assert report.job_slowdown == {"j1": 1.8, "j2": 1.9, "j3": 1.7}


def test_caps_above_their_sum() -> None:
    pair = (put("j1", "g0", share=[40]), put("j2", "g0", share=[60]))
    report = checked(base(share_sum=90), [job("j1"), job("j2", "b")], *pair)
    assert violations_of(report) == ["GPU g0: share: caps sum to 100 > 90"]


def test_uncapped_jobs_do_not_count_in_the_sum_of_caps() -> None:
    data = base(share_sum=60)
    data["slowdowns"].append({"pair": ["a", "b"], "share": [None, 60], "slowdown": [1.1, 1.2]})
    pair = (put("j1", "g0"), put("j2", "g0", share=[60]))
    assert checked(data, [job("j1"), job("j2", "b")], *pair).valid


def test_job_that_starts_alone_has_no_cap() -> None:
    report = checked(base(), [job("j1")], put("j1", "g0", share=[50]))
    assert violations_of(report) == ["job j1: share: starts alone on g0 at share 50, not null"]


def test_start_capped_slows_by_the_ratio_of_throughputs() -> None:
    report = checked(base(start_capped=True), [job("j1")], put("j1", "g0", share=[50]))
    assert report.valid
    assert report.job_slowdown == {"j1": 1.25}  # 100 / 80


def test_start_capped_needs_the_throughput_at_the_share() -> None:
    report = checked(base(start_capped=True), [job("j1")], put("j1", "g0", share=[40]))
    rule = "throughput at 100 and 40 must be known to start alone on g0 at share 40"
    assert violations_of(report) == [f"job j1: share: {rule}"]


def test_running_job_alone_at_a_share() -> None:
    jobs = [running("r1", "a", ["g0"], share=[50]), running("r2", "a", ["g1"], share=[40])]
    report = checked(base(), jobs, put("r1", "g0", share=[50]), put("r2", "g1", share=[40]))
    assert report.valid
    assert report.job_slowdown == {"r1": 1.25, "r2": 1.0}  # 100 / 80; none given for 40


# -- 3: memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reserve", "process", "needed"),
    [(1001, 0, 10001), (0, 501, 10002), (500, 251, 10002), (1000.1, 0, 10000.1)],
)
def test_memory(reserve: float, process: float, needed: float) -> None:
    data = base(reserve_mib=reserve, per_process_mib=process)
    report = checked(data, [job("j1"), job("j2", "b")], put("j1", "g0"), put("j2", "g0"))
    assert violations_of(report) == [f"GPU g0: memory: j1, j2 need {needed} MiB > 10000 MiB"]


def test_memory_exactly_full() -> None:
    data = base(reserve_mib=400, per_process_mib=300)  # 400 + 4300 + 5300
    assert checked(data, [job("j1"), job("j2", "b")], put("j1", "g0"), put("j2", "g0")).valid


def test_sub_batch_saves_memory_and_costs_time() -> None:
    data = base()
    data["slowdowns"].append({"pair": ["a", "c"], "slowdown": [1.5, 2.0]})
    jobs = [job("j1"), job("j2", "c")]
    full = checked(data, jobs, put("j1", "g0"), put("j2", "g0"))
    assert violations_of(full) == ["GPU g0: memory: j1, j2 need 12000 MiB > 10000 MiB"]
    half = checked(data, jobs, put("j1", "g0"), put("j2", "g0", sub_batch=32))
    assert half.valid
    assert half.gpu_memory_mib == {"g0": 6600}  # 4000 + 1000 + 50 x 32
    assert half.job_slowdown == {"j1": 1.5, "j2": pytest.approx(2.0 * 1.14 / 1.04)}


def test_overlap_of_compute_and_communication() -> None:
    data = base()
    data["workloads"]["c"]["batch"] = {**BATCH, "overlap": 2.0}
    report = checked(data, [job("j1", "c")], put("j1", "g0", sub_batch=16))
    # A quarter of the batch: 3 x 0.26 + sqrt(0.26^2 + 0.3^2); the whole: sqrt(0.74^2 + 0.3^2).
    expected = (0.78 + sqrt(0.1576)) / sqrt(0.6376)
    assert report.job_slowdown == {"j1": pytest.approx(expected)}


def test_strong_overlap_of_short_steps_does_not_vanish() -> None:
    data = base()
    step = {"fixed": 0.0, "per_sample": 1e-6}
    data["workloads"]["c"]["batch"] = {**BATCH, "step_s": step, "comm_s": 1e-5, "overlap": 100}
    report = checked(data, [job("j1", "c")], put("j1", "g0", sub_batch=32))
    assert report.job_slowdown == {"j1": pytest.approx(1.0)}  # 2 x 32e-6 / 64e-6


@pytest.mark.parametrize("size", [8, 24, 128])
def test_sub_batch_that_is_not_allowed(size: int) -> None:
    report = checked(base(), [job("j1", "c")], put("j1", "g0", sub_batch=size))
    rule = f"job j1: sub_batch: must be 64 / 2^k and >= 16, got {size}"
    assert rule in violations_of(report)


def test_sub_batch_of_a_workload_without_batch() -> None:
    report = checked(base(), [job("j1")], put("j1", "g0", sub_batch=32))
    assert violations_of(report) == ["job j1: sub_batch: workload a has no batch, got sub-batch 32"]


# -- 4: the gSLA ---------------------------------------------------------------------------


def test_gsla_of_a_starting_job() -> None:
    jobs = [job("j1", gsla=1.2), job("j2", "b")]
    report = checked(base(), jobs, put("j1", "g0"), put("j2", "g0"))
    assert violations_of(report) == ["job j1: gsla: slowdown 1.25 > 1.2"]


def test_gsla_exactly_met() -> None:
    jobs = [job("j1", gsla=1.25), job("j2", "b", gsla=1.6)]
    assert checked(base(), jobs, put("j1", "g0"), put("j2", "g0")).valid


def test_gsla_missed_by_a_hair() -> None:
    jobs = [job("j1", gsla=1.249999), job("j2", "b")]
    report = checked(base(), jobs, put("j1", "g0"), put("j2", "g0"))
    assert violations_of(report) == ["job j1: gsla: slowdown 1.25 > 1.249999"]


def with_bounds() -> Data:
    data = base()
    data["slowdowns"][0] |= {"upper": [1.4, 1.7], "p99": [1.8, 1.65]}
    return data


def test_gsla_is_held_against_the_upper_bound() -> None:
    jobs = [job("j1", gsla=1.3), job("j2", "b", gsla=1.65)]
    report = checked(with_bounds(), jobs, put("j1", "g0"), put("j2", "g0"))
    assert violations_of(report) == [
        "job j1: gsla: slowdown 1.4 > 1.3",
        "job j2: gsla: slowdown 1.7 > 1.65",
    ]
    assert report.job_slowdown == {"j1": 1.25, "j2": 1.6}
    assert report.job_bound == {"j1": 1.4, "j2": 1.7}


def test_gsla_of_a_latency_job_is_held_against_its_tail() -> None:
    jobs = [
        job("j1", gsla=1.5, priority="latency"),
        job("j2", "b", gsla=1.65, priority="latency"),
    ]
    report = checked(with_bounds(), jobs, put("j1", "g0"), put("j2", "g0"))
    assert violations_of(report) == ["job j1: gsla: slowdown 1.8 > 1.5"]


@pytest.mark.parametrize(("priority", "bound"), [("batch", 2.5), ("latency", 3.0)])
def test_sub_batch_multiplies_what_the_gsla_is_held_against(priority: str, bound: float) -> None:
    data = base()
    entry = {"pair": ["a", "c"], "slowdown": [1.5, 2.0], "upper": [1.6, 2.5], "p99": [1.7, 3.0]}
    data["slowdowns"].append(entry)
    jobs = [job("j1"), job("j2", "c", priority=priority)]
    report = checked(data, jobs, put("j1", "g0"), put("j2", "g0", sub_batch=32))
    assert report.job_bound == {"j1": 1.6, "j2": pytest.approx(bound * 1.14 / 1.04)}


def test_gsla_counts_the_sub_batch_of_a_job_alone() -> None:
    jobs = [job("j1", "c", gsla=1.05)]
    assert checked(base(), jobs, put("j1", "g0")).valid
    report = checked(base(), jobs, put("j1", "g0", sub_batch=32))
    assert violations_of(report) == ["job j1: gsla: slowdown 1.096153846 > 1.05"]  # 1.14 / 1.04


def test_gsla_of_the_running_job_that_is_joined() -> None:
    jobs = [running("r1", "a", ["g0"], gsla=1.2), job("j2", "b")]
    report = checked(base(), jobs, put("r1", "g0"), put("j2", "g0"))
    assert violations_of(report) == ["job r1: gsla: slowdown 1.25 > 1.2"]


def test_gsla_of_a_gang_counts_its_slowest_worker() -> None:
    data = base()
    data["slowdowns"][0]["slowdown"] = [1.25, 1.6]
    jobs = [job("j1", workers=2, gsla=1.22), job("j2"), job("j3", "b")]
    plan = [put("j1", "g0", "g1", share=[60, None]), put("j2", "g0", share=[40]), put("j3", "g1")]
    report = checked(data, jobs, *plan)
    assert report.job_slowdown == {"j1": 1.25, "j2": 2.0, "j3": 1.6}
    assert violations_of(report) == ["job j1: gsla: slowdown 1.25 > 1.22"]


# -- 5: what running jobs already do to each other -------------------------------------------


def test_running_jobs_over_the_memory_are_warned_of() -> None:
    data = base(reserve_mib=2000)
    jobs = [running("r1", "a", ["g0"]), running("r2", "b", ["g0"])]
    report = checked(data, jobs, put("r1", "g0"), put("r2", "g0"))
    assert report.valid
    assert report.warnings == ("GPU g0: memory: r1, r2 need 11000 MiB > 10000 MiB",)
    alone = checked(base(reserve_mib=9000), jobs[:1], put("r1", "g0"))
    assert [warning.partition(" MiB")[0] for warning in alone.warnings] == [
        "GPU g0: memory: r1 needs 13000"
    ]


def test_nothing_joins_where_memory_is_broken() -> None:
    data = base(reserve_mib=7000)
    data["workloads"]["b"]["memory_mib"] = 0
    jobs = [running("r1", "a", ["g0"]), job("j2", "b")]
    report = checked(data, jobs, put("r1", "g0"), put("j2", "g0"))
    assert violations_of(report) == ["GPU g0: memory: r1, j2 need 11000 MiB > 10000 MiB"]


def test_nothing_joins_where_caps_are_broken() -> None:
    data = base(share_sum=70)
    data["slowdowns"].append({"pair": ["a", "b"], "share": [80, None], "slowdown": [1.1, 1.1]})
    jobs = [running("r1", "a", ["g0"], share=[80]), job("j2", "b")]
    report = checked(data, jobs, put("r1", "g0", share=[80]), put("j2", "g0"))
    assert violations_of(report) == ["GPU g0: share: caps sum to 80 > 70"]
    assert report.warnings == ("GPU g0: share: caps sum to 80 > 70",)


def test_running_jobs_without_an_entry_count_as_alone() -> None:
    jobs = [running("r1", "a", ["g0"], share=[50]), running("r2", "a", ["g0"])]
    report = checked(base(), jobs, put("r1", "g0", share=[50]), put("r2", "g0"))
    assert report.valid
    assert report.job_slowdown == {"r1": 1.25, "r2": 1.0}
    rule = "GPU g0: entry: no slowdown is known of r1, r2 together, each counted as alone"
    assert report.warnings == (rule,)


def test_nothing_joins_where_entries_are_broken_even_with_an_entry_for_all() -> None:
    data = base(max_jobs_per_gpu=3)
    data["workloads"]["b"]["memory_mib"] = 0
    data["slowdowns"].append({"set": ["a", "a", "b"], "slowdown": [1.1, 1.1, 1.1]})
    jobs = [running("r1", "a", ["g0"]), running("r2", "a", ["g0"]), job("j3", "b")]
    report = checked(data, jobs, put("r1", "g0"), put("r2", "g0"), put("j3", "g0"))
    assert violations_of(report) == [
        "GPU g0: entry: holds r1, r2 without an entry, nothing may join"
    ]


def test_running_job_over_its_gsla_is_warned_of() -> None:
    jobs = [running("r1", "a", ["g0"], gsla=1.1), running("r2", "b", ["g0"])]
    report = checked(base(), jobs, put("r1", "g0"), put("r2", "g0"))
    assert report.valid
    assert report.warnings == ("job r1: gsla: slowdown 1.25 > 1.1",)


def test_nothing_joins_any_gpu_of_a_job_over_its_gsla() -> None:
    """Job r1 is too slow alone at half the SMs; it would not be with j2, yet j2 may not join."""
    data = base()
    data["slowdowns"].append({"pair": ["a", "b"], "share": [50, 50], "slowdown": [1.1, 1.1]})
    jobs = [running("r1", "a", ["g0"], share=[50], gsla=1.2), job("j2", "b")]
    report = checked(data, jobs, put("r1", "g0", share=[50]), put("j2", "g0", share=[50]))
    assert violations_of(report) == [
        "job r1: gsla: slowdown 1.25 > 1.2 once co-runners have ended",
        "GPU g0: gsla: job r1 is over its gSLA already (1.25 > 1.2), nothing may join",
    ]


def halves(**fields: Any) -> Data:
    return {"pair": ["a", "b"], "share": [50, 50], "slowdown": [1.1, 1.1], **fields}


@pytest.mark.parametrize("priority", ["batch", "latency"])
def test_a_gsla_holds_after_the_co_runner_has_ended(priority: str) -> None:
    """With j2 job j1 is slowed 1.1 times; alone at half the SMs, which it keeps, 1.25 times."""
    data = base()
    data["slowdowns"].append(halves(p99=[1.05, 1.1]))
    rows = put("j1", "g0", share=[50]), put("j2", "g0", share=[50])
    for gsla, rules in (1.2, ["slowdown 1.25 > 1.2 once co-runners have ended"]), (1.25, []):
        jobs = [job("j1", gsla=gsla, priority=priority), job("j2", "b")]
        report = checked(data, jobs, *rows)
        assert violations_of(report) == [f"job j1: gsla: {rule}" for rule in rules]
        assert report.job_slowdown["j1"] == 1.1
        assert report.job_bound["j1"] == 1.25


def test_a_cap_of_unknown_cost_counts_as_none_once_the_co_runner_has_ended() -> None:
    data = base()
    del data["workloads"]["a"]["throughput"]
    data["slowdowns"].append(halves())
    jobs = [job("j1", gsla=1.1), job("j2", "b")]
    report = checked(data, jobs, put("j1", "g0", share=[50]), put("j2", "g0", share=[50]))
    assert report.valid


def test_a_sub_batch_counts_once_the_co_runner_has_ended() -> None:
    """The job runs faster with its co-runner than alone, where its sub-batch costs 1.14 / 1.04."""
    data = base()
    data["slowdowns"].append({"pair": ["b", "c"], "slowdown": [1.0, 0.9]})
    jobs = [job("j1", "c", gsla=1.05), job("j2", "b")]
    report = checked(data, jobs, put("j1", "g0", sub_batch=32), put("j2", "g0"))
    (violation,) = violations_of(report)
    assert violation == "job j1: gsla: slowdown 1.096153846 > 1.05 once co-runners have ended"


def test_a_gsla_holds_in_every_set_that_may_be_left() -> None:
    """With b and c job j1 is slowed 1.1 times, with b alone 1.25 times."""
    data = base(max_jobs_per_gpu=3)
    data["workloads"]["c"]["memory_mib"] = 500
    data["slowdowns"].append({"set": ["a", "b", "c"], "slowdown": [1.1, 1.1, 1.1]})
    jobs = [job("j1", gsla=1.2), job("j2", "b"), job("j3", "c")]
    report = checked(data, jobs, put("j1", "g0"), put("j2", "g0"), put("j3", "g0"))
    rule = "job j1: gsla: slowdown 1.25 > 1.2 once co-runners have ended"
    assert violations_of(report) == [rule]
    data["slowdowns"][0] |= {"slowdown": None}
    del data["slowdowns"][0]["power_w"]
    assert checked(data, jobs, put("j1", "g0"), put("j2", "g0"), put("j3", "g0")).valid


def test_running_gangs_that_break_whole_are_warned_of() -> None:
    jobs = [running("r1", "a", ["g0", "g1"]), running("r2", "b", ["g0"])]
    report = checked(base(gang_sharing="whole"), jobs, put("r1", "g0", "g1"), put("r2", "g0"))
    assert report.valid
    assert report.warnings == ("job r1: whole: shares g0 with r2 but not all GPUs of both",)


def test_running_job_left_out() -> None:
    report = checked(base(), [running("r1", "a", ["g0"])])
    assert violations_of(report) == ["job r1: running: runs on g0 but has no assignment"]
    assert report.job_slowdown == {"r1": 1.0}


@pytest.mark.parametrize(
    "moved", [put("r1", "g1"), put("r1", "g0", share=[50]), put("r1", "g0", "g0")]
)
def test_running_job_moved(moved: Data) -> None:
    (violation,) = checked(base(), [running("r1", "a", ["g0"])], moved).violations
    assert violation.rule == "running"
    assert violation.message.startswith("runs on g0 at no cap, planned on g")


def test_running_job_with_another_sub_batch() -> None:
    jobs = [running("r1", "c", ["g0"], sub_batch=32)]
    assert checked(base(), jobs, put("r1", "g0", sub_batch=32)).valid
    report = checked(base(), jobs, put("r1", "g0"))
    assert violations_of(report) == ["job r1: running: runs at sub-batch 32, planned at 64"]


def test_order_of_a_running_gangs_gpus_is_free() -> None:
    jobs = [running("r1", "a", ["g0", "g1"], share=[50, None])]
    assert checked(base(), jobs, put("r1", "g1", "g0", share=[None, 50])).valid


def test_preempted_jobs_may_move_and_may_wait() -> None:
    jobs = [running("r1", "a", ["g0"], share=[50]), running("r2", "a", ["g1"])]
    report = checked(base(), jobs, put("r1", "g2", start=True), preempt=True)
    assert report.valid
    assert report.placed_weight == 1.0


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        (put("r1", "g0", "g1", share=[50, None]), ""),
        (put("r1", "g1", "g0", share=[None, 50]), ""),
        (put("r1", "g0", "g2", share=[50, None]), "of a job that moves"),
        (put("r1", "g0", "g1"), "of a job that moves"),
        (put("j1", "g2"), "of a pending job"),
    ],
)
def test_preempted_jobs_that_claim_to_stay(moves: Data, message: str) -> None:
    jobs = [running("r1", "a", ["g0", "g1"], share=[50, None]), job("j1")]
    report = checked(base(), jobs, {**moves, "start": False}, preempt=True)
    claims = [violation for violation in report.violations if violation.rule == "claim"]
    expected = [f"job {moves['job']}: claim: start: false {message}"] if message else []
    assert list(map(str, claims)) == expected


# -- the jct rule --------------------------------------------------------------------------


def jct_pair(slow: list[float], left: tuple[float, float], **first: Any) -> CheckReport:
    """Return the report on jobs of a and b that share g0 at these slowdowns."""
    data = base()
    data["slowdowns"] = [{"pair": ["a", "b"], "slowdown": slow}]
    jobs = [{**job("j1"), "remaining_s": left[0], **first}, job("j2", "b")]
    jobs[1]["remaining_s"] = left[1]
    return checked(data, jobs, put("j1", "g0"), put("j2", "g0"), under="jct")


def test_jct_rule_lets_pairs_share_that_end_earlier_so() -> None:
    # b ends at 1.6 x 500 = 800, a at 800 + (1000 - 800 / 1.2) = 1133.3: mean 966.7.
    # One after the other: 500 and 1500, mean 1000.
    assert jct_pair([1.2, 1.6], (1000, 500)).valid


def test_jct_rule_forbids_pairs_that_end_later() -> None:
    # b ends at 1.8 x 500 = 900, a at 900 + (1000 - 900 / 1.2) = 1150: mean 1025 > 1000.
    report = jct_pair([1.2, 1.8], (1000, 500))
    rule = "j1 and j2 complete in 1025 s on average when they share, not earlier than 1000 s"
    assert violations_of(report) == [f"GPU g0: jct: {rule}"]


def test_jct_rule_forbids_a_tie() -> None:
    # Both end at 1.5 x 1000; one after the other at 1000 and 2000.
    assert [v.rule for v in jct_pair([1.5, 1.5], (1000, 1000)).violations] == ["jct"]


def test_jct_rule_lets_the_running_job_go_first() -> None:
    # Together as above, mean 1025; the longer one runs already: 1000 and 1500, mean 1250.
    assert jct_pair([1.2, 1.8], (1000, 500), state="running", gpus=["g0"]).valid


def test_jct_rule_is_asked_only_under_jct() -> None:
    data = base()
    data["slowdowns"] = [{"pair": ["a", "b"], "slowdown": [2.0, 2.0]}]
    pair = [put("j1", "g0"), put("j2", "g0")]
    assert checked(data, [job("j1"), job("j2", "b")], *pair).valid
    assert not checked(data, [job("j1"), job("j2", "b")], *pair, under="jct").valid


def test_jct_rule_does_not_ask_pairs_that_run_already() -> None:
    data = base()
    data["slowdowns"] = [{"pair": ["a", "b"], "slowdown": [2.0, 2.0]}]
    jobs = [running("r1", "a", ["g0"]), running("r2", "b", ["g0"])]
    assert checked(data, jobs, put("r1", "g0"), put("r2", "g0"), under="jct").valid


def test_jct_rule_counts_the_sub_batch() -> None:
    data = base()
    data["slowdowns"] = [{"pair": ["a", "c"], "slowdown": [1.4, 1.4]}]
    jobs = [job("j1"), job("j2", "c")]
    data["workloads"]["c"]["memory_mib"] = 5000
    # Full size: both end at 1400, mean 1400 < 1500.
    assert checked(data, jobs, put("j1", "g0"), put("j2", "g0"), under="jct").valid
    # At 16: 4 x 0.26 + 0.3 = 1.34 s, so 1.4 x 1.34 / 1.04 = 1.8038; a ends at 1400, c at
    # 1400 + (1000 - 1400 / 1.8038) x 1.34 / 1.04 = 1688.5: mean 1544.2 > 1500.
    report = checked(data, jobs, put("j1", "g0"), put("j2", "g0", sub_batch=16), under="jct")
    rule = "j1 and j2 complete in 1544.230769 s on average when they share, not earlier than 1500 s"
    assert violations_of(report) == [f"GPU g0: jct: {rule}"]


def test_jct_rule_reckons_a_running_job_at_its_sub_batch_in_both_cases() -> None:
    data = base()
    data["workloads"]["c"]["memory_mib"] = 5000
    data["slowdowns"] = [{"pair": ["a", "c"], "slowdown": [1.6, 1.6]}]
    jobs = [running("j1", "c", ["g0"], sub_batch=16), job("j2")]
    # Shared, j1 slows to 1.6 x 1.34 / 1.04 = 2.0615; j2 ends at 1600, j1 at
    # 1600 + (1000 - 1600 / 2.0615) x 1.34 / 1.04 = 1888.5: mean 1744.2. One after the other,
    # j1 ends at 1288.5 and j2 at 2288.5: mean 1788.5.
    pair = [put("j1", "g0", sub_batch=16), put("j2", "g0")]
    assert checked(data, jobs, *pair, under="jct").valid


def test_jct_lets_no_three_jobs_share() -> None:
    data = base(max_jobs_per_gpu=3)
    data["workloads"]["c"] = {"memory_mib": 10}
    data["slowdowns"].append({"set": ["a", "b", "c"], "slowdown": [1.0, 1.0, 1.0]})
    jobs = [job("j1"), job("j2", "b"), job("j3", "c")]
    trio = [put(each["id"], "g0") for each in jobs]
    report = checked(data, jobs, *trio, under="jct")
    assert violations_of(report) == ["GPU g0: jct: 3 jobs share, at most 2 may under jct"]


def test_completion_lets_no_job_share_beyond_the_end_of_the_forecast() -> None:
    jobs = [job("j1", workers=2), running("r2", "b", ["g0"])]
    report = checked(base(), jobs, put("j1", "g0", "g1"), put("r2", "g0"), under="completion")
    # j1 ends at 1250 s; r2 has done 781.25 s of its 1000 s then.
    rule = "r2, j1 end 1468.75 s from now when they share, later than the 1000 s in which all jobs"
    assert violations_of(report) == [f"GPU g0: completion: {rule} are forecast to end"]
    # Alone a job may end later: at a speed of 0.25, after 4000 s.
    alone = checked(base(), [job("j1")], put("j1", "k"), under="completion")
    assert alone.valid


# -- objectives ------------------------------------------------------------------------------


def valued(objective: ObjectiveName) -> CheckReport:
    """Return the report on a gang with a running job, a job on the slower model, one waiting."""
    jobs = [
        job("j1", workers=2, weight=2.0, remaining_s=1000),
        running("r2", "b", ["g0"], weight=3.0, remaining_s=400),
        job("j3", weight=4.0, remaining_s=500),
        job("j4", "b", weight=8.0),
    ]
    plan = [put("j1", "g0", "g1"), put("r2", "g0"), put("j3", "k")]
    report = checked(base(), jobs, *plan, under=objective)
    assert report.valid
    assert report.placed_weight == 9.0
    return report


def test_throughput_by_hand() -> None:
    # j1 at 1 / 1.25, r2 at 1 / 1.6, j3 at 0.25: 2 x 0.8 + 3 x 0.625 + 4 x 0.25
    assert valued("throughput").value == pytest.approx(4.475)


def test_slowdown_by_hand() -> None:
    # 2 x 1.25 + 3 x 1.6 + 4 x 1
    assert valued("slowdown").value == pytest.approx(11.3)


def test_jct_by_hand() -> None:
    # 2 x 0.8 / 1000 + 3 x 0.625 / 400 + 4 x 0.25 / 500
    assert valued("jct").value == pytest.approx(0.0082875)


def test_completion_by_hand() -> None:
    # GPU time 1400 + 400 + 500 + 1000 s on 4 GPUs: 825 s, less than j4's 1000 s; 2/3 of that make
    # j4 and j1 critical. The forecast starts j4 (1000 / 8) and j1 (1400 / 2) now, and j3 on r2's
    # GPU at 400 s. A second of a GPU costs 4 until then, afterwards nothing; an idle GPU nothing.
    jobs = [
        job("j1", workers=2, weight=2.0, remaining_s=700),
        running("r2", "b", ["g0"], weight=3.0, remaining_s=400),
        job("j3", weight=4.0, remaining_s=500),
        job("j4", "b", weight=8.0),
    ]
    plan = [put("j1", "g0", "g1"), put("r2", "g0"), put("j3", "k")]
    report = checked(base(), jobs, *plan, under="completion")
    assert report.valid
    # No running job holds two of the GPUs, so that j1 would come 3600 + 700 s from now and
    # end at 5000 s. With r2 on one of its GPUs only, it is slowed to the end: 875 s. r2 ends at
    # 640 s. j3 would end at 900 s, on the K80 it takes 2000 s.
    value = 2 * (5000 - 875) + 3 * (400 - 640) + 4 * (900 - 2000)
    assert report.value == pytest.approx(value)
    # j4 with r2: at 1 s at the earliest, r2's end; the pair b, b is not known. On g1 it ends
    # 400 s earlier, at no price until j3 would start, and none after that.
    report = checked(base(), jobs, put("j4", "g1"), put("r2", "g0"), under="completion")
    assert report.value == pytest.approx(8 * 400)


def test_completion_of_two_that_share_has_two_phases() -> None:
    # j1 at share 40 ends at 1300 s; j2 has done 1300 / 1.5 s of 1200 then, and goes on alone.
    data = base()
    data["workloads"]["b"]["throughput"] = {100: 100, 60: 80}
    jobs = [job("j1"), job("j2", "b", remaining_s=1200)]
    pair = [put("j1", "g0", share=[40]), put("j2", "g0", share=[60])]
    end = 1300 + (1200 - 1300 / 1.5) * 1.25
    jobs.append(running("r3", "a", ["g2"], remaining_s=9000))
    report = checked(data, jobs, *pair, put("r3", "g2"), under="completion")
    assert report.valid
    # Idle GPUs suffice for both; else they wait for r3's, until 9000 s.
    assert report.value == pytest.approx(9000 + 1000 - 1300 + 9000 + 1200 - end)


def test_running_jobs_that_stay_are_worth_nothing_under_completion() -> None:
    for seed in range(60):
        instance = random_instance(Random(seed))
        kept = [
            Assignment(job=j.id, gpus=j.gpus, share=j.shares, sub_batch=j.sub_batch)
            for j in instance.jobs
            if j.gpus
        ]
        assert check(instance, Plan(assignments=tuple(kept)), "completion").value == 0, seed


def test_energy_by_hand() -> None:
    # Work: 2 x 2 x 0.8 + 3 x 0.625 + 4 x 0.25 = 6.075. Power: the pair on g0 300, a alone on g1
    # and on k 200 each.
    assert valued("energy").value == pytest.approx(6.075 / 700)


def test_sensitivity_by_hand() -> None:
    # a with a: 1.2 at least, with b: 1.25. For a job of a the others are a, b, b: the
    # deviation of 1.2, 1.25, 1.25 is 0.05 x sqrt(2) / 3. For a job of b the others are a, a, b;
    # b with a is 1.5 at least, b with b unknown: the deviation of 1.5, 1.5 is 0, so 0.01.
    of_a = 0.05 * sqrt(2) / 3
    value = (2 * 1.25 + 4 * 1.0) / of_a + 3 * 1.6 / 0.01
    assert valued("sensitivity").value == pytest.approx(value)


def test_sensitivity_of_a_job_with_fewer_than_two_known_is_one() -> None:
    data = base()
    instance = Instance.from_data({**data, "jobs": [job("j1"), job("j2", "b"), job("j3", "c")]})
    assert sensitivities(instance) == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_sensitivity_knows_only_entries_of_models_that_are_there() -> None:
    data = base()
    one = {"pair": ["a", "c"], "slowdown": [3.0, 3.0]}
    jobs = [job("j1"), job("j2", "b"), job("j3", "c")]
    for model, known in [("A100", False), ("K80", True)]:
        data["slowdowns"] = [*base()["slowdowns"], {**one, "gpu_model": model}]
        found = sensitivities(Instance.from_data({**data, "jobs": jobs}))
        # The deviation of 1.25 (with b) and 3 (with c).
        assert found["a"] == pytest.approx(0.875 if known else 1.0)


def test_entry_for_all_does_not_count_where_every_model_has_its_own() -> None:
    data = base()
    pair = {"pair": ["a", "c"]}
    data["slowdowns"] += [
        {**pair, "slowdown": [3.0, 3.0]},
        {**pair, "slowdown": [2.0, 2.0], "gpu_model": "V100"},
        {**pair, "slowdown": None, "gpu_model": "K80"},
    ]
    jobs = [job("j1"), job("j2", "b"), job("j3", "c")]
    found = sensitivities(Instance.from_data({**data, "jobs": jobs}))
    assert found["a"] == pytest.approx(0.375)  # of 1.25 and 2


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_nothing_placed_is_worth_nothing(objective: ObjectiveName) -> None:
    data = base()
    data["slowdowns"] = []
    report = checked(data, [job("j1")], under=objective)
    assert report.valid
    assert (report.value, report.placed_weight, report.gpus_used) == (0.0, 0.0, 0)


# -- fields that an objective needs ------------------------------------------------------------


def refused(data: Data, objective: ObjectiveName) -> str:
    with pytest.raises(InputError) as caught:
        require_fields(Instance.from_data(data), objective)
    return str(caught.value)


@pytest.mark.parametrize("name", ["jct", "completion"])
def test_remaining_s_is_needed(name: ObjectiveName) -> None:
    data = {**base(), "jobs": [job("j1"), {"id": "j2", "workload": "a"}]}
    assert refused(data, name) == f"jobs[1].remaining_s: objective {name} needs this field"


def test_energy_needs_the_power_of_workloads_that_jobs_run() -> None:
    data = {**base(), "jobs": [job("j1", "b")]}
    del data["workloads"]["a"]["power_w"]
    require_fields(Instance.from_data(data), "energy")
    data["jobs"].append(job("j2"))
    assert refused(data, "energy") == "workloads.a.power_w: objective energy needs this field"


def test_energy_needs_the_power_of_entries_that_may_be_used() -> None:
    data = {**base(), "jobs": [job("j1"), job("j2", "b")]}
    data["slowdowns"] += [
        {"pair": ["a", "c"], "slowdown": [1.1, 1.1]},
        {"pair": ["a", "b"], "slowdown": [1.1, 1.1], "gpu_model": "A100"},
        {"pair": ["b", "b"], "slowdown": None},
    ]
    require_fields(Instance.from_data(data), "energy")
    data["slowdowns"].append({"pair": ["a", "a"], "slowdown": [1.1, 1.1]})
    assert refused(data, "energy") == "slowdowns[6].power_w: objective energy needs this field"


def test_energy_needs_an_entry_for_jobs_that_run_together() -> None:
    data = {**base(), "jobs": [running("r1", "a", ["g0"]), running("r2", "a", ["g0"])]}
    rule = "objective energy needs an entry with power_w for r1, r2, which run on g0"
    assert refused(data, "energy") == f"slowdowns: {rule}"


def test_energy_takes_the_entry_for_all_models_for_jobs_that_run_together() -> None:
    data = {**base(), "jobs": [running("r1", "b", ["g0"]), running("r2", "a", ["g0"])]}
    require_fields(Instance.from_data(data), "energy")
    data["slowdowns"].append({"pair": ["a", "b"], "slowdown": None, "gpu_model": "V100"})
    rule = "objective energy needs an entry with power_w for r1, r2, which run on g0"
    assert refused(data, "energy") == f"slowdowns: {rule}"


def test_check_refuses_an_instance_without_the_fields() -> None:
    with pytest.raises(InputError, match="remaining_s: objective jct needs this field"):
        checked(base(), [{"id": "j1", "workload": "a"}], under="jct")


# -- claims --------------------------------------------------------------------------------------


def claimed(**plan: Any) -> list[str]:
    """Return the violations of a plan that runs j1 (weight 2) alone, lets j2 wait, and claims."""
    return violations_of(
        checked(base(), [job("j1", weight=2.0), job("j2", "b")], put("j1", "g0"), **plan)
    )


def objective(name: ObjectiveName = "throughput", value: float = 2.0, **claims: Any) -> Data:
    return {"name": name, "value": value, **claims}


def test_true_claims() -> None:
    plan = {
        "instance": "hand-made",
        "status": "optimal",
        "objective": objective(bound=2.0, gap=0.0, placed_weight=2.0),
        "nodes_spanned": 1,
        "waiting": [{"job": "j2"}],
    }
    assert claimed(**plan) == []


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"instance": "other"}, "made for instance other, not hand-made"),
        ({"nodes_spanned": 2}, "claims nodes_spanned 2, recomputed 1"),
        ({"objective": objective(value=2.1)}, "claims throughput 2.1, recomputed 2"),
        (
            {"objective": objective("slowdown", placed_weight=3.0)},
            "claims placed_weight 3, recomputed 2",
        ),
        (
            {"objective": objective("slowdown", placed_weight_bound=1.5)},
            "placed_weight 2 is beyond its bound 1.5",
        ),
        (
            {"objective": objective(bound=2.5, gap=0.1)},
            "claims gap 0.1, value and bound give 0.2",
        ),
        ({"objective": objective(gap=0.0)}, "claims gap 0 without a bound"),
        ({"objective": objective(bound=1.0)}, "value 2 is beyond its bound 1"),
        ({"objective": objective("slowdown", bound=4.0)}, "value 2 is beyond its bound 4"),
        ({"status": "optimal"}, "status optimal without a bound that proves it"),
        (
            {"status": "optimal", "objective": objective(bound=2.5)},
            "status optimal with gap 0.2 > 1e-06",
        ),
        (
            {
                "status": "optimal",
                "objective": objective(
                    "slowdown", bound=2.0, placed_weight=2.0, placed_weight_bound=3.0
                ),
            },
            "status optimal with placed_weight below placed_weight_bound",
        ),
    ],
)
def test_false_claims_of_the_plan(plan: Data, message: str) -> None:
    assert claimed(**plan) == [f"plan: claim: {message}"]


def test_a_slowdown_below_a_larger_plans_bound_is_no_false_claim() -> None:
    """The bound is of plans that place the largest weight; this one places less."""
    claim = objective("slowdown", bound=4.0, placed_weight=2.0, placed_weight_bound=3.0)
    assert claimed(status="feasible", objective=claim) == []


def test_rounded_claims_are_true() -> None:
    assert claimed(objective=objective(value=2.000001, bound=2.0000001, gap=1e-6)) == []


@pytest.mark.parametrize(
    ("waiting", "message"),
    [
        (["j1", "j2"], "job j1: claim: listed as waiting, but it is no pending job left over"),
        (["j2", "j2"], "job j2: claim: listed as waiting more than once"),
        (["j2", "j9"], "job j9: claim: listed as waiting, but it is no pending job left over"),
    ],
)
def test_false_waiting(waiting: list[str], message: str) -> None:
    assert claimed(waiting=[{"job": name} for name in waiting]) == [message]


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        ([], None),
        ([("x", ["g-0"])], None),
        ([("x", ["g-1"])], "job x: claim: stops on g-1, but it runs elsewhere"),
        (
            [("x", ["g-0"]), ("x", ["g-0"])],
            "job x: claim: listed in stops, but it stays, waits or is listed before",
        ),
        (
            [("x", ["g-0"]), ("y", ["g-1"])],
            "job y: claim: listed in stops, but it stays, waits or is listed before",
        ),
        (
            [("y", ["g-1"])],
            "job y: claim: listed in stops, but it stays, waits or is listed before",
        ),
    ],
)
def test_stops_are_the_running_jobs_that_do_not_stay(stops, message) -> None:
    jobs = [
        {"id": "x", "state": "running", "gpus": ["g-0"]},
        {"id": "y", "state": "running", "gpus": ["g-1"]},
    ]
    plan = Plan.from_data(
        {
            "preempt": True,
            "assignments": [{"job": "y", "gpus": ["g-1"], "start": False}],
            "stops": [{"job": job, "gpus": gpus} for job, gpus in stops],
        }
    )
    found = [str(each) for each in check(small(jobs), plan).violations]
    assert found[:1] == ([message] if message else [])


def test_waiting_that_leaves_a_job_out() -> None:
    jobs = [job("j1"), job("j2"), job("j3")]
    report = checked(base(), jobs, put("j1", "g0"), waiting=[{"job": "j3"}])
    assert violations_of(report) == ["job j2: claim: neither assigned nor listed as waiting"]


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"slowdown": 1.3}, "claims slowdown 1.3, recomputed 1.25"),
        ({"start": False}, "start: false of a pending job"),
        ({"co_runners": [[]]}, "claims co-runners on g0: none; recomputed: r2"),
        ({"co_runners": [["r2", "j9"]]}, "claims co-runners on g0: r2, j9; recomputed: r2"),
    ],
)
def test_false_claims_of_an_assignment(claim: Data, message: str) -> None:
    jobs = [job("j1"), running("r2", "b", ["g0"])]
    report = checked(base(), jobs, put("j1", "g0", **claim), put("r2", "g0", start=False))
    assert violations_of(report) == [f"job j1: claim: {message}"]


def test_running_job_that_claims_to_start() -> None:
    report = checked(base(), [running("r1", "b", ["g0"])], put("r1", "g0", start=True))
    assert violations_of(report) == ["job r1: claim: start: true of a running job"]


def test_job_assigned_twice() -> None:
    report = checked(base(), [job("j1")], put("j1", "g0"), put("j1", "g1"))
    assert violations_of(report) == ["job j1: claim: assigned more than once"]


def test_unknown_job() -> None:
    report = checked(base(), [job("j1")], put("j9", "g0"))
    assert violations_of(report) == ["job j9: claim: the instance has no such job"]


def test_claims_of_another_objective_are_left_unchecked_and_said_so() -> None:
    data = base()
    plan = {"objective": objective("throughput", value=99.0)}
    report = checked(data, [job("j1")], put("j1", "g0"), under="slowdown", **plan)
    assert report.valid
    assert report.warnings == ("the plan's throughput was not checked, only slowdown was",)


def test_the_plans_own_objective_is_the_default() -> None:
    report = checked(base(), [job("j1")], put("j1", "g0"))
    assert report.objective == "throughput"
    claim = objective("jct", value=0.001)
    instance = Instance.from_data({**base(), "jobs": [job("j1")]})
    plan = Plan.from_data({"assignments": [put("j1", "g0")], "objective": claim})
    assert check(instance, plan).objective == "jct"


# -- plans broken at random -----------------------------------------------------------------------


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_change_to_an_optimal_plan_is_found_out(name: ObjectiveName) -> None:
    """A changed plan is refused, or worth the same; without its claims it is never better."""
    asked = 0
    for seed in range(40):
        draw = Random(seed)
        instance = random_instance(draw, Shape(jobs=4, gpus=3))
        best = optimum(instance, name)
        plan = claiming(instance, best.plan, name)
        assert check(instance, plan).valid
        changed = broken(draw, instance, plan)
        if changed is not None:
            asked += 1
            report, silent = check(instance, changed), check(instance, silenced(changed), name)
            assert not report.valid or rank(report, name) == pytest.approx(rank(best, name)), seed
            assert not silent.valid or rank(silent, name) <= rank(best, name, 1e-9), seed
    assert asked > 15


def rank(found: CheckReport | Optimum, name: ObjectiveName, slack: float = 0.0) -> list[float]:
    """Return the key by which plans are compared; more is better."""
    assert found.value is not None
    sign = -1 if name in MINIMISED else 1
    first = [round(found.placed_weight, 9)] if name in TWO_STAGE else []
    return [*first, sign * found.value + slack]


def claiming(instance: Instance, plan: Plan, name: ObjectiveName) -> Plan:
    """Return the plan with its value and slowdowns written in."""
    report = check(instance, plan, name)
    claims = {"name": name, "value": report.value, "placed_weight": report.placed_weight}
    assignments = tuple(
        each.replace(slowdown=report.job_slowdown[each.job]) for each in plan.assignments
    )
    return plan.replace(objective=claims, assignments=assignments)


def silenced(plan: Plan) -> Plan:
    """Return the plan without its claims."""
    assignments = tuple(each.replace(slowdown=None, start=None) for each in plan.assignments)
    return Plan(assignments=assignments)


def broken(draw: Random, instance: Instance, plan: Plan) -> Plan | None:
    """Return the plan with one assignment dropped, moved, capped otherwise or squeezed."""
    if not plan.assignments:
        return None
    k = draw.randrange(len(plan.assignments))
    change = draw.choice([dropped, moved, capped, squeezed])
    new = change(draw, instance, plan.assignments[k])
    if new == plan.assignments[k]:
        return None
    kept = plan.assignments[:k] + plan.assignments[k + 1 :]
    return plan.replace(assignments=kept if new is None else (*kept, new))


def dropped(draw: Random, instance: Instance, mine: Assignment) -> Assignment | None:
    return None


def moved(draw: Random, instance: Instance, mine: Assignment) -> Assignment | None:
    gpus = draw.sample(list(instance.places), len(mine.gpus))
    return mine.replace(gpus=tuple(gpus))


def capped(draw: Random, instance: Instance, mine: Assignment) -> Assignment | None:
    shares = (None, 20, *instance.cluster.shares)
    return mine.replace(share=tuple(draw.choice(shares) for _ in mine.gpus))


def squeezed(draw: Random, instance: Instance, mine: Assignment) -> Assignment | None:
    return mine.replace(sub_batch=draw.choice([8, 16, 32, 48, 64]))


# -- speed ----------------------------------------------------------------------------------------


def test_ten_thousand_jobs_are_checked_in_seconds() -> None:
    """This takes about 0.3 s of CPU time."""
    count = 10_000
    data = base()
    node = {"gpu_count": 8, "gpu": {"model": "V100", "memory_mib": 16000}}
    data["cluster"]["nodes"] = [{"id": f"n{k}", **node} for k in range(count // 16)]
    jobs = [job(f"j{k}", "ab"[k % 2]) for k in range(count)]
    instance = Instance.from_data({**data, "jobs": jobs})
    assignments = [put(f"j{k}", f"n{k // 16}-{k // 2 % 8}") for k in range(count)]
    plan = Plan.from_data({"assignments": assignments})
    begin = time.process_time()
    report = check(instance, plan)
    assert time.process_time() - begin < 5
    assert report.valid
    assert report.value == pytest.approx(count / 2 * (1 / 1.25 + 1 / 1.6))
