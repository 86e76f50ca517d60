"""Hosts in rounds: solvers find the best plan that the checker, with separate code, allows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from random import Random

import pytest

from dovetail.instances.checking.checker import check
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Assignment, Plan
from dovetail.solver.rounds import solve

SECONDS = {"remaining_s": 100.0}


def box(node: str, cores: float | None, gpus: int = 2) -> dict[str, object]:
    host = {} if cores is None else {"host": {"cpu_cores": cores}}
    return {"id": node, "gpu_count": gpus, "gpu": {"model": "A", "memory_mib": 1000}} | host


def instance(nodes, workloads, jobs, slowdowns=()) -> Instance:
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "hosts",
            "cluster": {"nodes": nodes},
            "workloads": {
                name: {"memory_mib": 1, "host": {"cpu_cores": cores}}
                for name, cores in workloads.items()
            },
            "jobs": jobs,
            "slowdowns": list(slowdowns),
        }
    )


def running(job: str, workload: str, *gpus: str, **fields: object) -> dict[str, object]:
    held = {"state": "running", "gpus": list(gpus), "workers": len(gpus)}
    return {"id": job, "workload": workload, **held, **SECONDS, **fields}


def waiting(job: str, workload: str, **fields: object) -> dict[str, object]:
    return {"id": job, "workload": workload, **SECONDS, **fields}


def plans(problem: Instance) -> Iterator[Plan]:
    """Yield every way to start any of the waiting jobs, valid or not."""
    held = [
        Assignment(job=job.id, gpus=job.gpus, share=job.share)
        for job in problem.jobs
        if job.running and job.gpus
    ]
    pending = [job for job in problem.jobs if not job.running]

    def extended(k: int, rows: list[Assignment]) -> Iterator[Plan]:
        if k == len(pending):
            yield Plan(assignments=tuple(rows))
            return
        yield from extended(k + 1, rows)
        for gpus in combinations(problem.places, pending[k].workers):
            share = (None,) * len(gpus)
            row = Assignment(job=pending[k].id, gpus=gpus, share=share, start=True)
            yield from extended(k + 1, [*rows, row])

    return extended(0, held)


def best(problem: Instance, objective: str) -> tuple[float, float]:
    """Return the largest placed weight (0 under one stage) and the best value with it."""
    sign = -1 if objective == "slowdown" else 1
    found = [check(problem, plan, objective) for plan in plans(problem)]
    worth = [
        (each.placed_weight if objective == "slowdown" else 0.0, sign * (each.value or 0.0))
        for each in found
        if each.valid
    ]
    return max(worth)


def drawn(seed: int) -> Instance:
    draw = Random(seed)
    nodes = [box(f"n{k}", draw.choice([None, 4, 8]), draw.choice([1, 2])) for k in range(2)]
    workloads = {"none": 0, "some": draw.choice([1, 3]), "much": draw.choice([3, 6])}
    names = list(workloads)
    free = [f"n{k}-{g}" for k, node in enumerate(nodes) for g in range(node["gpu_count"])]
    jobs = []
    for k in range(draw.randint(2, 4)):
        fields: dict[str, object] = {"weight": draw.choice([1.0, 2.0])}
        fields["remaining_s"] = draw.choice([50.0, 100.0, 300.0])
        if draw.random() < 0.4:
            fields["gsla"] = draw.choice([1.2, 1.6, 3.0])
        workload, workers = draw.choice(names), draw.choice([1, 1, 2])
        if k < 2 and len(free) > workers and draw.random() < 0.8:
            gpus = draw.sample(free, workers)
            free = [gpu for gpu in free if gpu not in gpus]
            jobs.append(running(f"r{k}", workload, *gpus, **fields))
        else:
            jobs.append(waiting(f"p{k}", workload, workers=workers, **fields))
    pairs = [
        {"pair": [a, b], "slowdown": [s, s] if a == b else [s, draw.choice([1.1, 1.7])]}
        for k, a in enumerate(names)
        for b in names[k:]
        if (s := draw.choice([None, 1.05, 1.3, 1.8])) is not None
    ]
    return instance(nodes, workloads, jobs, pairs)


@pytest.mark.parametrize("objective", ["throughput", "slowdown", "jct", "completion"])
@pytest.mark.parametrize("seed", range(12))
def test_no_valid_plan_is_better_than_the_one_found(seed, objective):
    problem = drawn(seed)
    result = solve(problem, objective)
    assert result.status == "optimal", result.plan.notes
    weight, value = best(problem, objective)
    assert result.objective == pytest.approx(abs(value) if objective == "slowdown" else value)
    if objective == "slowdown":
        assert result.plan.objective.placed_weight == pytest.approx(weight)


# Every call of milp starts a process.
@pytest.mark.parametrize(
    ("solver", "rounds"),
    [("cpsat", 5), ("milp", 1), ("greedy", 5), ("exclusive", 5), ("random", 5)],
)
def test_every_solver_keeps_to_the_rule(solver, rounds):
    for seed in range(100, 100 + rounds):
        assert_the_rule_is_kept(drawn(seed), solver)


def assert_the_rule_is_kept(problem, solver):
    result = solve(problem, solver=solver)
    assert result.status != "unknown", result.plan.notes
    if solver in ("cpsat", "milp"):
        assert result.objective == pytest.approx(best(problem, "throughput")[1])


def test_a_waiting_job_shows_what_the_host_lacks():
    jobs = [running("r", "much", "n0-0", gsla=1.0), waiting("p", "much")]
    result = solve(instance([box("n0", 8)], {"much": 6}, jobs))
    assert result.plan.waiting[0].reason.startswith(
        "host: n0 has 25 % of its cpu_cores left, and it needs 75 % there"
    )


def test_a_gang_that_runs_on_other_nodes_too_is_not_slowed():
    nodes = [box("n0", 8), box("n1", None, 1)]
    jobs = [running("r", "much", "n0-0", "n1-0"), waiting("p", "much")]
    result = solve(instance(nodes, {"much": 6}, jobs))
    assert [row.job for row in result.plan.assignments] == ["r"]


def test_what_no_job_can_exceed_changes_no_plan():
    jobs = [waiting("p", "much"), waiting("q", "much")]
    result = solve(instance([box("n0", 16)], {"much": 6}, jobs))
    assert "matching" in result.plan.solver
