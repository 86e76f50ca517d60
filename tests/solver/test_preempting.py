"""Plans that may move running jobs do so where that gains, and list the moves."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from dovetail.instances.checking.checker import check
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import OBJECTIVES
from dovetail.instances.plan import Plan
from dovetail.solver.explaining.explanations import explain, explain_waiting
from dovetail.solver.rounds import solve
from tests.data import small
from tests.solver.contract import FAMILIES

TWO = [{"pair": ["a", "b"], "slowdown": [1.2, 1.2]}]


def running(name, *gpus, **fields):
    fields = {"state": "running", "gpus": list(gpus), "workers": len(gpus), **fields}
    return {"id": name, **fields}


def under_way(instance: Instance, plan: Plan) -> Instance:
    """Return the instance with the jobs running that a plan places, in another order."""
    at = {row.job: row for row in plan.assignments}
    fields = ("gpus", "share", "sub_batch")
    return instance.with_jobs(
        job.replace(state="running", **{name: getattr(at[job.id], name) for name in fields})
        if job.id in at
        else job
        for job in reversed(instance.preempted().jobs)
    )


def starting(plan: Plan) -> set[str]:
    return {row.job for row in plan.assignments if row.start}


@given(st.one_of(*FAMILIES.values()), st.sampled_from(OBJECTIVES))
def test_what_is_best_already_stays(instance, objective):
    # No power is declared with slowdowns.
    assume(instance.cluster.assumed is None or objective != "energy")
    before = solve(instance.preempted(), objective)
    now = under_way(instance, before.plan)
    kept = now.preempted()
    stays = {job.id for job in kept.jobs if job.running}
    # The power of running services that share must be known.
    assume(not stays or objective != "energy")
    best = solve(kept, objective)
    rows = tuple(row.replace(start=row.job not in stays) for row in before.plan.assignments)
    value = check(kept, Plan(assignments=rows), objective).value
    if value != pytest.approx(best.objective, rel=1e-6):
        # What is gained by completion depends on the order of jobs and on those that stay, and the
        # rule of jct about pairs is for jobs that start: something else may be best now.
        assert objective in ("completion", "jct")
        reject()
    again = solve(now, objective, preempt=True)
    assert check(now, again.plan).violations == ()
    assert again.objective == pytest.approx(best.objective, rel=1e-6)
    stay = {row.job for row in again.plan.assignments if not row.start}
    assert stay == {job.id for job in now.jobs if job.running}


@pytest.mark.parametrize("others", ["yzw", "zyw", "wyz"])
def test_of_plans_of_one_value_the_one_that_runs_stays(others):
    # Any two of the four may share, all at the same slowdowns; x and w are not alike.
    jobs = {
        "x": running("x", "g-0"),
        others[0]: running(others[0], "g-0"),
        others[1]: running(others[1], "g-1"),
        others[2]: running(others[2], "g-1"),
    }
    for name, workload in zip("xyzw", "abca", strict=True):
        jobs[name]["workload"] = workload
    jobs["w"]["gsla"] = 2
    pairs = [{"pair": list(p), "slowdown": [1.2, 1.2]} for p in ("ab", "ac", "bc", "aa")]
    assert (
        starting(solve(small([jobs[name] for name in "xyzw"], pairs), preempt=True).plan) == set()
    )


def test_a_new_job_joins_where_nothing_moves():
    jobs = [running("x", "g-0", workload="c"), running("y", "g-1"), {"id": "z", "workload": "b"}]
    plan = solve(small(jobs, TWO), preempt=True).plan
    assert starting(plan) == {"z"}
    assert plan.preempt


def test_a_job_that_moves_starts_and_the_others_say_that_they_stay():
    # Only if x and y share is there a GPU for z.
    jobs = [
        running("x", "g-1", workload="b"),
        running("y", "g-0"),
        {"id": "z", "workload": "c"},
    ]
    plan = solve(small(jobs, TWO), preempt=True).plan
    rows = {row.job: row for row in plan.assignments}
    assert rows["x"].gpus == rows["y"].gpus
    assert starting(plan) in ({"x", "z"}, {"y", "z"})


@given(st.one_of(*FAMILIES.values()), st.sampled_from(OBJECTIVES))
def test_every_running_job_that_does_not_stay_is_named(instance, objective):
    assume(instance.cluster.assumed is None or objective != "energy")
    plan = solve(instance, objective, preempt=True).plan
    stay = {row.job for row in plan.assignments if not row.start}
    running = {job.id: job.gpus for job in instance.jobs if job.running}
    expected = {name: gpus for name, gpus in running.items() if name not in stay}
    assert {stop.job: stop.gpus for stop in plan.stops} == expected
    for waiting in plan.waiting:
        assert waiting.reason.startswith("stopped: it runs on ") == (waiting.job in running)


def test_the_story_of_a_job_that_is_stopped_begins_with_that():
    jobs = [running("x", "g-0", weight=1), {"id": "y", "weight": 5, "workload": "b"}]
    instance = small(jobs, gpus=1)
    plan = solve(instance, preempt=True).plan
    story = explain(instance, plan, "x")
    assert story.category == "stopped"
    assert story.reason == plan.waiting[0].reason
    assert story.reason.startswith("stopped: it runs on g-0 now; ")
    assert explain_waiting(instance, plan) == plan.waiting


@pytest.mark.parametrize("light", [1e-4, 5e-10])
def test_a_job_that_weighs_next_to_nothing_is_worth_a_move(light):
    """Only where the running job gets a share does the light one start, and both draw more."""
    heavy = running("heavy", "g-0", weight=473600.0)
    data = small([heavy, {"id": "light", "weight": light}], gpus=1, shares=[30]).to_data()
    data["workloads"]["a"]["power_w"] = 128
    both = {"pair": ["a", "a"], "share": [30, 30], "slowdown": [1.2, 1.2], "power_w": 181}
    instance = Instance.from_data(data | {"slowdowns": [both]})
    plan = solve(instance, "energy", preempt=True).plan
    assert (plan.status, plan.stopped) == ("optimal", "complete")
    assert starting(plan) == {"heavy", "light"}


def test_of_a_gang_and_a_job_that_part_the_gang_stays():
    # With x the gang is too slow for its gSLA. Whichever job leaves g-0, one process moves.
    jobs = [
        running("gang", "g-2", "g-0", gsla=1.1),
        running("x", "g-0", workload="b"),
        {"id": "y", "workload": "c"},
    ]
    instance = small(jobs, TWO, gpus=4)
    gang, x, y = solve(instance, preempt=True).plan.assignments
    assert (gang.gpus, gang.start) == (("g-2", "g-0"), False)
    assert x.start
    assert y.start


def test_processes_of_a_gang_that_stay_keep_their_ranks():
    # The two gangs may not share g-1: one process leaves it for g-0.
    jobs = [running("i", "g-2", "g-1", workload="b"), running("j", "g-3", "g-1", workload="c")]
    plan = solve(small(jobs, gpus=4), preempt=True).plan
    (moves,) = [row for row in plan.assignments if row.start]
    assert moves.gpus == ({"i": "g-2", "j": "g-3"}[moves.job], "g-0")


def test_a_solver_that_cannot_keep_what_runs_plans_it_anew():
    # The gang runs at two shares: a matching cannot tell what x, which joins it, is worth.
    jobs = [
        running("gang", "g-0", "g-1", share=[50, None]),
        {"id": "x", "workload": "b", "workers": 2},
    ]
    pairs = [
        {"pair": ["a", "b"], "share": [50, 50], "slowdown": [1.2, 1.2]},
        {"pair": ["a", "b"], "share": [None, 50], "slowdown": [1.2, 1.4]},
    ]
    instance = small(jobs, pairs, gang_sharing="whole", shares=[50])
    with pytest.raises(UnsupportedError):
        solve(instance, solver="matching")
    plan = solve(instance, solver="matching", preempt=True).plan
    assert starting(plan) == {"gang", "x"}


def test_what_runs_without_the_fields_of_an_objective_is_planned_anew():
    # Nothing is known of the power of a GPU that x and y share.
    data = small([running("x", "g-0"), running("y", "g-0", workload="b")]).to_data()
    for workload in data["workloads"].values():
        workload["power_w"] = 100
    instance = Instance.from_data(data)
    with pytest.raises(InputError):
        solve(instance, "energy")
    plan = solve(instance, "energy", preempt=True).plan
    assert len(starting(plan)) == 1
    assert len(plan.assignments) == 2


def test_a_running_service_is_neither_moved_nor_stopped() -> None:
    """Job x is worth more on the only GPU; a best-effort job would be stopped for it."""
    jobs = [running("r", "g-0"), {"id": "x", "weight": 5}]
    instance = small(jobs=jobs, gpus=1)
    stopping = solve(instance, preempt=True).plan
    assert [stop.job for stop in stopping.stops] == ["r"]
    service = instance.with_jobs(
        job.replace(priority="latency") if job.id == "r" else job for job in instance.jobs
    )
    plan = solve(service, preempt=True).plan
    assert [(row.job, row.start) for row in plan.assignments] == [("r", False)]
    assert (plan.status, plan.stops) == ("optimal", ())
    assert check(service, plan).valid
    report = check(service, stopping)
    assert str(report.violations[0]) == "job r: running: runs on g-0 but has no assignment"


def test_the_co_runner_of_a_running_service_may_move() -> None:
    """Alone on the other GPU r2 is faster, and so is the service."""
    jobs = [running("r1", "g-0", priority="latency"), running("r2", "g-0", workload="b")]
    instance = small(jobs=jobs, slowdowns=TWO)
    plan = solve(instance, preempt=True).plan
    assert [(row.job, row.gpus, row.start) for row in plan.assignments] == [
        ("r1", ("g-0",), False),
        ("r2", ("g-1",), True),
    ]
    assert check(instance, plan).valid
