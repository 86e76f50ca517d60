"""Reasons why jobs wait, each on an instance made for it; every remedy is applied and checked."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.formulations.budget import Budget, WallClock
from dovetail.formulations.instance_slowdowns import InstanceSlowdowns
from dovetail.formulations.objectives import job_values
from dovetail.formulations.rounds import Round
from dovetail.instances import library
from dovetail.instances.checking.checker import check
from dovetail.instances.errors import InputError
from dovetail.instances.generate import generate
from dovetail.instances.instance import Cluster, Instance
from dovetail.instances.objectives import OBJECTIVES, ObjectiveName
from dovetail.instances.plan import Assignment, Nearest, ObjectiveValue, Plan
from dovetail.solver.explaining.explanations import Explanation, Remedy, explain
from dovetail.solver.explaining.wording import NOT_EXAMINED, reasons
from dovetail.solver.rounds import solve
from tests.data import small
from tests.oracle import optimum
from tests.solver.contract import FAR
from tests.strategies import Shape, random_instance

Data = dict[str, Any]

BATCH = {
    "size": 64,
    "min": 32,
    "fixed_mib": 1000,
    "mib_per_sample": 100,
    "step_s": {"fixed": 0.0, "per_sample": 0.01},
}
"""32 needs 4200 MiB, 16 needs 2600; no sub-batch costs time."""


def pair(slow: float, other: float, names: str = "ab", **more: object) -> Data:
    return {"pair": list(names), "slowdown": [slow, other], **more}


def runs(name: str, *gpus: str, **more: object) -> Data:
    return {"id": name, "workers": len(gpus), "state": "running", "gpus": list(gpus), **more}


def row(job: str, *gpus: str, share: int | None = None) -> Assignment:
    return Assignment(job=job, gpus=gpus, share=(share,) * len(gpus), start=True)


def plan_of(instance: Instance, *starting: Assignment, objective: str = "throughput") -> Plan:
    """Return a plan in which the running jobs stay and these start."""
    kept = [
        Assignment(job=j.id, gpus=j.gpus, share=j.shares, sub_batch=j.sub_batch, start=False)
        for j in instance.jobs
        if j.gpus
    ]
    value = {"name": objective, "value": 0.0}
    return Plan(assignments=(*kept, *starting), objective=ObjectiveValue.from_data(value))


def explained(
    instance: Instance,
    *starting: Assignment,
    objective: str = "throughput",
    services: Collection[str] = (),
) -> Explanation:
    """Return the story of the job called ``new``, whose every remedy holds."""
    plan = plan_of(instance, *starting, objective=objective)
    story = explain(instance, plan, "new", trials_s=FAR, services=services)
    for remedy in story.remedies:
        assert_holds(instance, plan, "new", remedy)
    return story


def assert_holds(instance: Instance, plan: Plan, job: str, remedy: Remedy) -> None:
    """Apply the remedy to the instance and the plan, and run the checker."""
    changed = remedy.change.applied(instance, job)
    new = {row.job: row for row in remedy.assignments}
    assert job in new
    kept = [
        row.replace(slowdown=None, co_runners=None)
        for row in plan.assignments
        if row.job not in new and row.job not in remedy.change.without
    ]
    objective = plan.objective.name if plan.objective else "throughput"
    report = check(changed, Plan(assignments=(*kept, *new.values())), objective)
    assert report.violations == (), remedy.text


def remedies(story: Explanation) -> list[str]:
    return [remedy.text for remedy in story.remedies]


def waits(*jobs: Data, slowdowns: list[Data] | None = None, **cluster: Any) -> Instance:
    """Return an instance in which the job ``new``, of workload b, comes last; one GPU, g-0."""
    new = {"id": "new", "workload": "b"} | next((job for job in jobs if job["id"] == "new"), {})
    others = [job for job in jobs if job["id"] != "new"]
    return small([*others, new], slowdowns, **{"gpus": 1, **cluster})


def with_batch(instance: Instance, **batch: object) -> Instance:
    """Return the instance with gradient accumulation for workload b."""
    b = instance.workloads["b"].replace(batch={**BATCH, **batch})
    return instance.replace(workloads={**instance.workloads, "b": b})


MORE = "would start if there were 1 more V100"
ENDED = "would start once x has ended, for example alone on g-0"


def test_no_pair_is_asked_for_at_which_both_jobs_are_idle():
    # With a sum of 120 the number that stands for idle, 101, looks like a share that fits.
    isolated = {"memory_mib": 1000.0, "isolation": "blocks"}
    data = waits({"id": "x"}, slowdowns=[]).to_data()
    data["cluster"] |= {"shares": ["idle"], "share_sum": 120}
    data["workloads"] = dict.fromkeys("ab", isolated)
    data["jobs"][0] |= {"state": "running", "gpus": ["g-0"], "share": ["idle"]}
    story = explained(Instance.from_data(data))
    assert (
        "would start if b + a were measured and did not slow each other, for example with x on g-0"
        in remedies(story)
    )


# -- each reason ------------------------------------------------------------------------------


def test_size():
    story = explained(waits({"id": "new", "workers": 3}, gpus=2))
    assert story.category == "size"
    assert story.reason == "size: it needs 3 GPUs of one model, and the cluster has 2 (V100)"
    assert remedies(story) == [MORE]


def test_size_without_any_gpu():
    instance = small([{"id": "new"}])
    instance = instance.replace(cluster=instance.cluster.replace(nodes=()))
    story = explained(instance)
    assert story.reason == "size: it needs a GPU, and the cluster has 0"
    assert story.remedies == ()


def test_own_gsla():
    story = explained(
        waits(runs("x", "g-0"), {"id": "new", "gsla": 1.5}, slowdowns=[pair(1.1, 1.62)])
    )
    assert story.category == "gsla"
    assert story.reason == "gsla: with x on g-0 its slowdown would be 1.62, above its gSLA 1.50"
    assert story.nearest == Nearest(co_runner="x", slowdown=1.62, gpu="g-0")
    assert remedies(story) == [
        "would start with gSLA 1.62 (now 1.50), for example with x on g-0 (slowdown 1.62)",
        ENDED,
        MORE,
    ]


def test_gsla_of_the_co_runner_against_its_upper_bound_rounded_up():
    entry = pair(1.25, 1.4, upper=[1.301, 1.4])
    story = explained(waits(runs("x", "g-0", gsla=1.2), slowdowns=[entry]))
    assert story.reason == "gsla: with x on g-0 x's slowdown could reach 1.31, above its gSLA 1.20"
    condition = "with x's gSLA 1.31 (now 1.20)"
    assert (
        remedies(story)[0] == f"would start {condition}, for example with x on g-0 (slowdown 1.40)"
    )


def test_the_gsla_of_a_latency_job_is_one_of_its_p99():
    entry = pair(1.1, 1.4, p99=[1.6, 2.0])
    running = runs("x", "g-0", gsla=1.5, priority="latency")
    reason = "gsla: with x on g-0 x's p99 latency could grow 1.60 times, above its gSLA 1.50"
    assert explained(waits(running, slowdowns=[entry])).reason == reason


def test_the_share_that_comes_nearest_counts():
    entries = [pair(1.1, 1.9, share=[60, 40]), pair(1.3, 1.62, share=[40, 60])]
    jobs = [{"id": "x"}, {"id": "new", "gsla": 1.5}]
    instance = waits(*jobs, slowdowns=entries, shares=[40, 60])
    story = explained(instance, row("x", "g-0"))
    assert story.reason == (
        "gsla: with x on g-0 at share 60 its slowdown would be 1.62, above its gSLA 1.50"
    )
    assert story.nearest == Nearest(co_runner="x", share=60, slowdown=1.62, gpu="g-0")
    shares = {row.job: row.share for row in story.remedies[0].assignments}
    assert shares == {"new": (60,), "x": (40,)}


def test_a_running_co_runner_keeps_its_share():
    entries = [pair(1.1, 1.9, share=[60, 40]), pair(1.3, 1.62, share=[40, 60])]
    jobs = [runs("x", "g-0", share=[60]), {"id": "new", "gsla": 1.5}]
    story = explained(waits(*jobs, slowdowns=entries, shares=[40, 60]))
    assert story.reason == (
        "gsla: with x on g-0 at share 40 its slowdown would be 1.90, above its gSLA 1.50"
    )


def test_memory():
    instance = waits(runs("x", "g-0"), slowdowns=[pair(1.1, 1.1)], reserve_mib=8900)
    story = explained(instance)
    assert story.category == "memory"
    assert story.reason == "memory: with x on g-0 900 MiB of memory would be missing"
    lighter = "would start with 900 MiB less memory, for example with x on g-0 (slowdown 1.10)"
    assert remedies(story) == [lighter, ENDED, MORE]


def test_memory_at_a_sub_batch_below_the_minimum():
    # 3,100 MiB are left: the full size needs 4,000, 32 samples 4,200, 16 samples 2,600.
    instance = waits(runs("x", "g-0"), slowdowns=[pair(1.1, 1.1)], reserve_mib=8900)
    condition = "if batch.min (now 32) allowed sub-batch 16"
    texts = remedies(explained(with_batch(instance)))
    assert f"would start {condition}, for example with x on g-0 (slowdown 1.10)" in texts


def test_memory_of_no_gpu_is_enough():
    story = explained(waits({"id": "new"}, reserve_mib=12500))
    assert story.reason == "memory: it needs 4,000 MiB, and no GPU offers more than 3,500 MiB"
    assert remedies(story) == ["would start with 500 MiB less memory, for example alone on g-0"]


def test_gsla_and_memory_at_once_are_reported_together_the_larger_first():
    jobs = [runs("x", "g-0", gsla=1.2), {"id": "new", "gsla": 1.5}]
    entry = pair(1.21, 1.51)
    lighter = waits(*jobs, slowdowns=[entry], reserve_mib=8900)
    assert explained(lighter).reason == (
        "memory: with x on g-0 900 MiB of memory would be missing, and more limits would be broken"
    )
    heavier = waits(*jobs, slowdowns=[pair(1.1, 2.0)], reserve_mib=8100)
    reason = (
        "gsla: with x on g-0 its slowdown would be 2.00, above its gSLA 1.50, "
        "and 100 MiB of memory would be missing"
    )
    assert explained(heavier).reason == reason


def test_unknown_names_what_to_measure():
    jobs = [runs("x", "g-0"), runs("y", "g-1", workload="c")]
    story = explained(waits(*jobs, gpus=2))
    assert story.category == "unknown"
    assert story.reason == (
        "unknown: no known slowdown lets it share a GPU with a job that is placed; "
        "it could start with x on g-0 if b + a were measured"
    )
    assert remedies(story) == [
        "would start if b + a were measured and did not slow each other, for example with x on g-0",
        ENDED,
        MORE,
    ]


def test_measuring_uses_the_shares_that_are_allowed():
    instance = waits(runs("x", "g-0", share=[60]), shares=[30, 40, 50, 60])
    (entry,) = explained(instance).remedies[0].change.measured
    assert (entry.workloads, entry.share, entry.gpu_model) == (("b", "a"), (40, 60), "V100")


def test_a_pair_that_may_not_share_is_not_to_be_measured_again():
    entry = {"pair": ["a", "b"], "slowdown": None}
    story = explained(waits(runs("x", "g-0"), slowdowns=[entry]))
    reason = "unknown: no known slowdown lets it share a GPU with a job that is placed"
    assert story.reason == reason
    assert remedies(story) == [ENDED, MORE]


def test_a_pair_that_does_not_fit_lacks_memory_first():
    entry = {"pair": ["a", "b"], "slowdown": None}
    story = explained(waits(runs("x", "g-0"), slowdowns=[entry], reserve_mib=8900))
    assert story.reason == "memory: with x on g-0 900 MiB of memory would be missing"


def test_jct():
    # Shared, both end at 210 s; one after the other, at 100 s and 200 s.
    jobs = [runs("x", "g-0", remaining_s=100), {"id": "new", "remaining_s": 100}]
    story = explained(waits(*jobs, slowdowns=[pair(2.1, 2.1)]), objective="jct")
    assert story.category == "jct"
    assert story.reason == (
        "jct: with x on g-0 the two would end no earlier on average than one after the other"
    )
    assert remedies(story) == [ENDED, MORE]


def test_jct_never_lets_three_share():
    jobs = [runs(name, "g-0", remaining_s=100) for name in "xy"]
    entries = [pair(1.1, 1.1, "aa"), {"set": ["a", "a", "b"], "slowdown": [1.1, 1.1, 1.1]}]
    new = {"id": "new", "remaining_s": 100}
    story = explained(waits(*jobs, new, slowdowns=entries, max_jobs_per_gpu=3), objective="jct")
    reason = "jct: with x, y on g-0 it would be one too many: under jct only two may share"
    assert story.reason == reason


def test_closed():
    jobs = [runs("x", "g-0", gsla=1.2), runs("y", "g-0", workload="c")]
    story = explained(waits(*jobs, slowdowns=[pair(1.3, 1.3, "ac")], max_jobs_per_gpu=3))
    assert story.category == "closed"
    reason = "closed: nothing may join g-0, where running jobs (x, y) break a limit already"
    assert story.reason == reason
    assert remedies(story) == ["would start once x, y have ended, for example alone on g-0", MORE]


def test_a_service_which_has_no_end_would_have_to_be_cancelled():
    jobs = [runs("x", "g-0"), runs("y", "g-1")]
    apart = [{"pair": list(both), "slowdown": None} for both in ("aa", "ab", "bb")]
    full = waits(*jobs, slowdowns=apart, gpus=2)
    rest = "were cancelled or had fewer replicas, for example alone on g-"
    both = explained(full, services={"x", "y"})
    either = {f"would start if the service {name} {rest}{gpu}" for name, gpu in ("x0", "y1")}
    assert remedies(both)[0] in either
    # A job that ends comes first, whatever its weight.
    for service, other, gpu in (("x", "y", 1), ("y", "x", 0)):
        heavy = [each.replace(weight=9.0) if each.id == other else each for each in full.jobs]
        story = explained(full.replace(jobs=tuple(heavy)), services={service})
        wanted = f"would start once {other} has ended, for example alone on g-{gpu}"
        assert remedies(story)[0] == wanted
    wide = waits(*jobs, {"id": "new", "workers": 2}, slowdowns=apart, gpus=2)
    gang = remedies(explained(wide, services={"x"}))
    assert "once y has ended and if the service x were cancelled" in gang[0]


def test_capacity_in_somebodys_place():
    jobs = [runs("x", "g-0"), {"id": "y", "workload": "c"}]
    entries = [pair(1.2, 1.3), pair(1.1, 1.1, "ac")]
    story = explained(waits(*jobs, slowdowns=entries), row("y", "g-0"))
    assert story.category == "capacity"
    assert story.reason == "capacity: the GPUs that suit it are full, such as g-0 with x, y"
    assert remedies(story) == [
        "would start if y waited, for example with x on g-0 (slowdown 1.30)",
        MORE,
    ]


def test_capacity_shows_the_figures_of_a_gpu_with_room():
    jobs = [runs("x", "g-0"), {"id": "y", "workload": "c"}, runs("z", "g-1", gsla=1.1)]
    entries = [pair(1.2, 1.3), pair(1.1, 1.1, "ac")]
    story = explained(waits(*jobs, slowdowns=entries, gpus=2), row("y", "g-0"))
    reason = (
        "capacity: the GPUs that suit it are full; "
        "with z on g-1 z's slowdown would be 1.20, above its gSLA 1.10"
    )
    assert story.reason == reason
    assert story.nearest == Nearest(co_runner="z", slowdown=1.3, gpu="g-1")


def test_what_measuring_would_do_is_said_first_whatever_the_reason():
    """The new b would fit with x if a + b were measured, and with y if it accepted 1.6."""
    jobs = [runs("x", "g-0"), runs("y", "g-1", workload="c"), {"id": "new", "gsla": 1.5}]
    story = explained(waits(*jobs, slowdowns=[pair(1.6, 1.1, "bc")], gpus=2))
    assert story.reason == (
        "gsla: with y on g-1 its slowdown would be 1.60, above its gSLA 1.50; "
        "it could start with x on g-0 if b + a were measured"
    )
    assert remedies(story)[:2] == [
        "would start if b + a were measured and did not slow each other, for example with x on g-0",
        "would start with gSLA 1.60 (now 1.50), for example with y on g-1 (slowdown 1.60)",
    ]


def test_a_full_gpu_is_no_reason_to_measure():
    story = explained(waits(runs("x", "g-0"), max_jobs_per_gpu=1))
    assert "measured" not in story.reason
    assert not [text for text in remedies(story) if "measured" in text]


def test_capacity_where_no_jobs_share():
    story = explained(waits({"id": "y"}, max_jobs_per_gpu=1), row("y", "g-0"))
    assert story.reason == "capacity: the GPUs that suit it are full, such as g-0 with y"
    assert remedies(story) == ["would start if y waited, for example alone on g-0", MORE]


def test_the_remaining_job_gets_another_share_when_one_leaves():
    """y starts on both GPUs at a share, which x could not have alone once y is gone."""
    entries = [pair(1.1, 1.1, "ca", share=[60, 40])]
    jobs = [{"id": "y", "workload": "c", "workers": 2}, {"id": "x", "weight": 5}]
    instance = waits(*jobs, slowdowns=entries, shares=[40, 60], gpus=2)
    on_both = Assignment(job="y", gpus=("g-0", "g-1"), share=(60, None), start=True)
    story = explained(instance, on_both, row("x", "g-0", share=40))
    assert story.remedies[-2].text == "would start if y waited, for example alone on g-1"
    assert {row.job: row.share for row in story.remedies[-2].assignments}["x"] == (None,)


@pytest.mark.parametrize(
    ("objective", "slow", "weight", "worth"),
    [
        ("throughput", 3.0, 1.0, ", but throughput would fall by 0.17"),  # 1/2 + 1/3 - 1
        ("throughput", 1.0, 1.0, "; a plan with it would be better, though by less than the gap"),
        ("slowdown", 3.0, 1.0, "; a plan with it would be better, though by less than the gap"),
        ("slowdown", 3.0, 0.0, ", but its weight is 0"),
    ],
)
def test_capacity_by_choice(objective: str, slow: float, weight: float, worth: str):
    jobs = [runs("x", "g-0"), {"id": "new", "weight": weight}]
    story = explained(waits(*jobs, slowdowns=[pair(slow, 2.0)]), objective=objective)
    assert story.category == "capacity"
    assert story.reason == f"capacity: it could start with x on g-0 (slowdown 2.00){worth}"
    assert remedies(story) == [unchanged("with x on g-0 (slowdown 2.00)", worth)]


def unchanged(where: str, worth: str) -> str:
    """Return what is said of a job that has room: whether the best plan has it was solved."""
    if worth.startswith(","):
        return f"could start {where} with nothing changed{worth}"
    return f"would start with nothing changed, for example {where}"


@pytest.mark.parametrize(
    ("slowed", "slow", "worth"),
    [
        # Both end at 200 s, x 100 s later than alone, new no sooner than after x.
        (2.0, 2.0, ", but completion would fall by 100"),
        # x ends at 120 s, new, which has 20 s left then, at 140 s in place of 200 s.
        (1.2, 1.5, "; a plan with it would be better, though by less than the gap"),
    ],
)
def test_capacity_by_choice_under_completion(slowed: float, slow: float, worth: str):
    jobs = [runs("x", "g-0", remaining_s=100), {"id": "new", "remaining_s": 100}]
    instance = waits(*jobs, slowdowns=[pair(slowed, slow)])
    story = explained(instance, objective="completion")
    assert story.reason == f"capacity: it could start with x on g-0 (slowdown {slow:.2f}){worth}"
    assert remedies(story) == [unchanged(f"with x on g-0 (slowdown {slow:.2f})", worth)]


def test_completion():
    """With x, new would end at 225 s; one after the other, both end by 200 s."""
    jobs = [runs("x", "g-0", remaining_s=100), {"id": "new", "remaining_s": 100}]
    story = explained(waits(*jobs, slowdowns=[pair(2.0, 2.5)]), objective="completion")
    assert story.category == "completion"
    assert story.reason == (
        "completion: with x on g-0 they would end later than the forecast end of all jobs alone"
    )
    assert remedies(story) == [ENDED, MORE]


def test_what_a_start_would_cost_counts_the_slowest_gpu_of_a_gang():
    """x is slowed 2 on g-1 already, so that joining it on g-0 at 1.5 costs nothing."""
    jobs = [runs("x", "g-0", "g-1"), runs("y", "g-1", workload="c")]
    entries = [pair(1.5, 4.0), pair(2.0, 1.0, "ac")]
    story = explained(waits(*jobs, slowdowns=entries, gpus=2))
    assert story.reason == (
        "capacity: it could start with x on g-0 (slowdown 4.00); "
        "a plan with it would be better, though by less than the gap"
    )


@pytest.mark.parametrize("other", ["c", None])
def test_what_a_start_would_cost_where_the_co_runner_starts_too(other: str | None):
    """No job slows x on g-0; on g-1 y slows it twice, or none does."""
    jobs = [{"id": "x", "workers": 2}, {"id": "y", "workload": "c"}]
    instance = waits(*jobs, slowdowns=[pair(1.5, 4.0), pair(2.0, 1.0, "ac")], gpus=2)
    starting = [row("x", "g-0", "g-1"), *([row("y", "g-1")] if other else [])]
    # Without y, 1 / 1.5 + 1 / 4 = 0.917 takes the place of 1.
    worth = (
        "; a plan with it would be better, though by less than the gap"
        if other
        else ", but throughput would fall by 0.083"
    )
    reason = f"capacity: it could start with x on g-0 (slowdown 4.00){worth}"
    assert explain(instance, plan_of(instance, *starting), "new").reason == reason


def test_no_job_leaves_where_the_remaining_jobs_could_not_share():
    """Without y, x and z would have to share g-1 as a pair, which has no entry."""
    entries = [{"set": ["a", "a", "c"], "slowdown": [1.1, 1.1, 1.1]}]
    jobs = [{"id": "x"}, {"id": "z"}, {"id": "y", "workload": "c", "workers": 2}]
    instance = waits(*jobs, slowdowns=entries, gpus=2, max_jobs_per_gpu=3)
    story = explained(instance, row("x", "g-1"), row("z", "g-1"), row("y", "g-0", "g-1"))
    measured = "if b + c were measured and did not slow each other"
    assert remedies(story) == [f"would start {measured}, for example with y on g-0", MORE]


def test_a_smaller_sub_batch_that_costs_too_much_time():
    # 3,500 MiB are left: the full size needs 4,000, 32 samples 3,300 and 0.68 s for 0.66 s.
    jobs = [runs("x", "g-0"), {"id": "new", "gsla": 1.12}]
    instance = waits(*jobs, slowdowns=[pair(1.1, 1.1)], reserve_mib=8500)
    step = {"fixed": 0.02, "per_sample": 0.01}
    story = explained(with_batch(instance, fixed_mib=100, step_s=step))
    reason = "gsla: with x on g-0 at sub-batch 32 its slowdown would be 1.14, above its gSLA 1.12"
    assert story.reason == reason
    condition = "with gSLA 1.14 (now 1.12)"
    smaller = f"would start {condition}, for example with x on g-0 (sub-batch 32, slowdown 1.13)"
    assert remedies(story)[0] == smaller


# -- gangs ------------------------------------------------------------------------------------


def test_a_gang_says_how_many_gpus_it_gets():
    jobs = [runs("x", "g-0"), runs("y", "g-1", gsla=1.1), {"id": "new", "workers": 2}]
    story = explained(waits(*jobs, slowdowns=[pair(1.2, 1.3)], gpus=2))
    assert story.reason == (
        "gsla: only 1 of its 2 GPUs is available; "
        "with y on g-1 y's slowdown would be 1.20, above its gSLA 1.10"
    )
    assert remedies(story) == [
        "would start with y's gSLA 1.20 (now 1.10), "
        "for example with x, y on g-0, g-1 (slowdown 1.30)",
        "would start once y has ended, for example with x on g-1, g-0 (slowdown 1.30)",
        MORE,
    ]


def test_a_gang_shares_only_as_a_whole():
    jobs = [runs("x", "g-0"), {"id": "new", "workers": 2}]
    story = explained(waits(*jobs, slowdowns=[pair(1.2, 1.3)], gpus=2, gang_sharing="whole"))
    assert story.category == "capacity"
    assert story.reason == (
        "capacity: only 1 of its 2 GPUs is available; "
        "the other GPUs are held by gangs that share only as a whole"
    )
    assert remedies(story) == ["would start once x has ended, for example alone on g-0, g-1", MORE]


def test_a_gang_joins_a_whole_gang():
    jobs = [runs("x", "g-0", "g-1", gsla=1.1), {"id": "new", "workers": 2}]
    story = explained(waits(*jobs, slowdowns=[pair(1.2, 1.3)], gpus=2, gang_sharing="whole"))
    assert story.reason == (
        "gsla: none of its 2 GPUs is available; "
        "with x on g-0 x's slowdown would be 1.20, above its gSLA 1.10"
    )
    assert remedies(story) == [
        "would start with x's gSLA 1.20 (now 1.10), for example with x on g-0, g-1 (slowdown 1.30)",
        "would start once x has ended, for example alone on g-0, g-1",
        "would start if there were 2 more V100s",
    ]


# -- explain ----------------------------------------------------------------------------------


def test_a_placed_job_says_where_and_how_slow():
    entry = pair(1.2, 1.3, upper=[1.4, 1.35])
    instance = waits(runs("x", "g-0", gsla=1.5), slowdowns=[entry])
    plan = plan_of(instance, row("new", "g-0"))
    starts, keeps = (explain(instance, plan, name) for name in ("new", "x"))
    assert starts == Explanation(
        job="new",
        category=None,
        reason="starts with x on g-0: slowdown 1.30, at most 1.35; no gSLA",
    )
    assert keeps.reason == ("keeps running with new on g-0: slowdown 1.20, at most 1.40; gSLA 1.50")


def test_unknown_job():
    instance = waits(runs("x", "g-0"))
    with pytest.raises(InputError, match=r"^job: must be one of \(x, new\), got 'absent'$"):
        explain(instance, plan_of(instance), "absent")


def test_a_plan_that_is_not_valid_is_not_explained():
    instance = waits({"id": "x"})
    plan = plan_of(instance, row("x", "g-0"), row("new", "g-0"))
    with pytest.raises(InputError, match=r"^assignments: the plan is not valid: GPU g-0: entry"):
        explain(instance, plan, "x")


def test_jobs_that_may_be_preempted_are_pending():
    instance = waits(runs("x", "g-0"))
    plan = Plan(assignments=(row("new", "g-0"),), preempt=True)
    assert explain(instance, plan, "x").reason == (
        "stopped: it runs on g-0 now; no known slowdown lets it share a GPU with a job that is "
        "placed; it could start with new on g-0 if a + b were measured"
    )


def test_a_preempted_job_that_stays_keeps_running():
    instance = waits(runs("x", "g-0"))
    plan = Plan(assignments=(row("x", "g-0").replace(start=False),), preempt=True)
    assert explain(instance, plan, "x").reason.startswith("keeps running alone on g-0")


def test_an_explanation_is_plain_data():
    story = explained(
        waits(runs("x", "g-0"), {"id": "new", "gsla": 1.5}, slowdowns=[pair(1.1, 1.62)])
    )
    assert Explanation.from_data(story.to_data()) == story


# -- any instance -----------------------------------------------------------------------------


@given(st.randoms(use_true_random=False), st.sampled_from(OBJECTIVES), st.booleans())
def test_every_waiting_job_has_a_reason_and_every_remedy_holds(
    draw: Random, objective: ObjectiveName, best: bool
):
    instance = random_instance(draw, Shape(jobs=6, gpus=4, nodes=draw.random() < 0.5))
    plan = optimum(instance, objective).plan if best else Plan(assignments=())
    running = plan_of(instance, *(a for a in plan.assignments if a.start), objective=objective)
    found = reasons(job_values(Round.of(instance), objective), running.assignments)
    placed = {row.job for row in running.assignments}
    assert [waiting.job for waiting in found] == [
        job.id for job in instance.jobs if job.id not in placed
    ]
    for waiting in found:
        story = explain(instance, running, waiting.job)
        assert (story.reason, story.nearest) == (waiting.reason, waiting.nearest)
        assert story.reason.startswith(f"{story.category}: ")
        for remedy in story.remedies:
            assert_holds(instance, running, waiting.job, remedy)


@given(st.randoms(use_true_random=False), st.sampled_from(OBJECTIVES))
def test_a_job_of_the_best_plan_waits_only_where_it_must(draw: Random, objective: ObjectiveName):
    instance = random_instance(draw, Shape(jobs=6, gpus=4, nodes=draw.random() < 0.5))
    plan = optimum(instance, objective).plan
    found = reasons(job_values(Round.of(instance), objective), plan.assignments)
    assert not [waiting.reason for waiting in found if "better plan" in waiting.reason]


def test_only_what_a_solve_has_proven_is_said_to_happen():
    """Of two equal jobs a further GPU starts one: of neither is it certain."""
    instance = small([{"id": "x"}, {"id": "y"}, {"id": "z"}], gpus=1)
    plan = plan_of(instance, row("x", "g-0"))
    left = "could start alone on g-0 if x waited"
    more = "would start if there were 2 more V100s"
    first, second = (explain(instance, plan, job, trials_s=FAR) for job in "yz")
    assert remedies(first)[1:] == [f"{left}, but an equally good plan may leave it out", more]
    assert remedies(second)[1:] == [f"{left}, but a best plan starts y in its place", more]
    assert [remedy.sure for remedy in first.remedies] == [False, False, True]
    unsolved = remedies(explain(instance, plan, "y", trials_s=0.0))
    assert unsolved[1:] == [left, "could start if there were 1 more V100"]


def test_a_remedy_keeps_the_rule_of_hosts():
    """Where a host has too little left, neither an idle GPU nor less memory is of use."""
    data = small([{"id": "a", "weight": 2}, {"id": "b"}], gpus=3).to_data()
    data["cluster"]["nodes"][0]["host"] = {"cpu_cores": 10}
    data["workloads"]["a"]["host"] = {"cpu_cores": 8}
    data["workloads"]["b"] |= {"memory_mib": 16300, "host": {"cpu_cores": 8}}
    data["jobs"].append({"id": "c", "workload": "b"})
    instance = Instance.from_data(data)
    plan = solve(instance).plan
    assert [waiting.job for waiting in plan.waiting] == ["b", "c"]
    for job in ("b", "c"):
        story = explain(instance, plan, job)
        for remedy in story.remedies:
            assert_holds(instance, plan, job, remedy)
        assert all(remedy.change.more_gpus or remedy.change.without for remedy in story.remedies)


def test_a_host_bears_one_worker_of_a_gang_but_not_two():
    data = small([{"id": "x"}, {"id": "new", "workload": "b", "workers": 2}], gpus=3).to_data()
    data["cluster"]["nodes"][0]["host"] = {"cpu_cores": 10}
    data["workloads"]["a"]["host"] = data["workloads"]["b"]["host"] = {"cpu_cores": 4}
    instance = Instance.from_data(data)
    story = explain(instance, plan_of(instance, row("x", "g-0")), "new")
    assert story.category == "host"
    assert "g has 60 % of its cpu_cores left, and it needs 80 % there" in story.reason
    assert not [text for text in remedies(story) if "nothing changed" in text]


def test_of_two_nodes_that_with_a_host_to_spare_is_named():
    node = {"gpu_count": 2, "gpu": {"model": "V100", "memory_mib": 16000}}
    data = small(
        [{"id": "x", "workload": "a"}, {"id": "new", "workload": "b", "weight": 0}]
    ).to_data()
    data["cluster"]["nodes"] = [
        {"id": "short", "host": {"cpu_cores": 10}, **node},
        {"id": "roomy", **node},
    ]
    for name in "ab":
        data["workloads"][name]["host"] = {"cpu_cores": 8}
    instance = Instance.from_data(data)
    story = explain(instance, plan_of(instance, row("x", "short-0")), "new")
    assert story.reason.startswith("capacity: it could start alone on roomy-0")


# -- the lab ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab() -> tuple[Instance, Plan]:
    instance = library.load("lab")
    return instance, solve(instance).plan


def test_the_lab_waits_for_many_reasons(lab: tuple[Instance, Plan]):
    instance, plan = lab
    stories = [explain(instance, plan, waiting.job) for waiting in plan.waiting]
    by_job = {story.job: story for story in stories}
    assert by_job["mamba-1"].category == by_job["mamba-2"].category == "unknown"
    assert by_job["lstm-2"].category == by_job["resnet50-4"].category == "gsla"
    assert by_job["dlrm-2"].category == by_job["gpt2-medium-3"].category == "capacity"
    for story in stories:
        assert story.remedies
        for remedy in story.remedies:
            assert_holds(instance, plan, story.job, remedy)


def test_the_lines_of_the_lab_are_short(lab: tuple[Instance, Plan]):
    assert max(len(waiting.reason) for waiting in lab[1].waiting) <= 180


def test_a_thousand_waiting_jobs_are_reported_at_once():
    instance = generate(1500, gpus=400, workloads=26, gangs=False, running=0.27)
    running = plan_of(instance).assignments
    started = time.process_time()
    found = reasons(job_values(Round.of(instance), "throughput"), running)
    assert (len(running), len(found)) == (400, 1100)
    assert time.process_time() - started < 10


class Ticks(WallClock):
    """Goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self._readings = itertools.count()

    def now(self) -> float:
        return next(self._readings)


def test_reasons_that_the_time_does_not_suffice_for():
    instance = generate(40, seed=1)
    plan = solve(instance).plan
    values = job_values(Round.of(instance), "throughput")
    found = reasons(values, plan.assignments, Budget(2, Ticks()))
    assert [each.job for each in found] == [each.job for each in plan.waiting]
    examined = [each for each in found if each.reason != NOT_EXAMINED]
    assert 0 < len(examined) < len(found)
    assert set(examined) <= set(plan.waiting)
    late = reasons(values, plan.assignments, Budget(-1))
    assert {(each.reason, each.nearest) for each in late} == {(NOT_EXAMINED, None)}


@pytest.mark.parametrize("objective", ["throughput", "completion"])
def test_jobs_wait_for_a_cluster_without_gpus(objective):
    instance = small([{"id": "j", "remaining_s": 10.0}]).replace(cluster=Cluster(nodes=()))
    (waits,) = solve(instance, objective).plan.waiting
    assert waits.reason == "size: it needs a GPU, and the cluster has 0"


def capped(jobs: list[Data], **cluster: object) -> Instance:
    """At half the SMs workload b is slowed 1.1 times with a, and alone 1.25 times."""
    slowdowns = [{"pair": ["a", "b"], "share": [50, 50], "slowdown": [1.1, 1.1]}]
    instance = small(jobs=jobs, slowdowns=slowdowns, gpus=1, shares=[50], **cluster)
    b = instance.workloads["b"].replace(throughput={100: 100.0, 50: 80.0})
    return instance.replace(workloads={**instance.workloads, "b": b})


def test_a_gsla_that_would_be_broken_once_the_co_runner_has_ended() -> None:
    instance = capped(
        [runs("r1", "g-0", share=[50]), {"id": "j2", "workload": "b", "gsla": 1.2}],
    )
    (waiting,) = solve(instance).plan.waiting
    assert waiting.reason.startswith(
        "gsla: with r1 on g-0 at share 50 its slowdown could reach 1.25 once co-runners have "
        "ended, above its gSLA 1.20"
    )
    story = explain(instance, solve(instance).plan, "j2")
    assert remedies(story)[0] == (
        "would start with gSLA 1.25 (now 1.20), for example with r1 on g-0 "
        "(share 50, slowdown 1.10)"
    )


def test_a_gsla_of_a_job_that_would_be_joined_broken_once_the_newcomer_has_ended() -> None:
    """Job r1 shares with r2 within its gSLA, but will not keep it: j3 would break it further."""
    instance = capped(
        [
            runs("r1", "g-0", workload="b", share=[50], gsla=1.2),
            runs("r2", "g-0", share=[50]),
            {"id": "j3"},
        ],
        max_jobs_per_gpu=3,
        share_sum=150,
    )
    instance = instance.replace(
        slowdowns=(
            *instance.slowdowns,
            instance.slowdowns[0].replace(
                pair=None, set=("a", "a", "b"), share=(50, 50, 50), slowdown=(1.1, 1.1, 1.1)
            ),
        )
    )
    result = solve(instance)
    assert [row.job for row in result.plan.assignments] == ["r1", "r2"]
    assert result.plan.waiting[0].reason.startswith("closed: ")
    warnings = check(instance, result.plan).warnings
    assert warnings == ("job r1: gsla: slowdown 1.25 > 1.2 once co-runners have ended",)


def test_changed_rounds_are_solved_without_reading_the_slowdowns_again(monkeypatch):
    """An explanation of a round with 60 jobs took 1.9 s of CPU, three quarters of it for that."""
    instance = generate(30, seed=1, running=0.3)
    plan = solve(instance).plan
    made = []
    init = InstanceSlowdowns.__init__

    def counted(self, *arguments):
        made.append(self)
        init(self, *arguments)

    monkeypatch.setattr(InstanceSlowdowns, "__init__", counted)
    for waiting in plan.waiting[:3]:
        made.clear()
        story = explain(instance, plan, waiting.job)
        assert any(each.change.more_gpus for each in story.remedies)
        assert len(made) == 1
    assert plan.waiting
