"""Rounds too large to enumerate: solvers of different kinds must agree."""

from __future__ import annotations

import pytest

from dovetail.instances.checking.checker import check
from dovetail.instances.generate import generate
from dovetail.instances.instance import Instance
from dovetail.solver.result import Result
from dovetail.solver.rounds import solve

LONG = pytest.mark.long


def proven(instance: Instance, objective: str, solver: str) -> Result:
    result = solve(instance, objective, solver)
    assert check(instance, result.plan, objective).violations == ()
    assert result.status == "optimal"
    return result


def assert_agree(instance: Instance, objective: str, *solvers: str) -> None:
    first, *others = (proven(instance, objective, solver) for solver in solvers)
    assert first.objective > 0
    for other in others:
        assert other.objective == pytest.approx(first.objective, rel=2e-6)
        assert other.plan.objective.placed_weight == first.plan.objective.placed_weight


@pytest.mark.parametrize(
    ("jobs", "objective", "options"),
    [
        (20, "throughput", {"gangs": False}),
        (20, "energy", {"gangs": False, "workloads": 12}),
        (30, "slowdown", {"gang_sharing": "whole", "seed": 3}),
        (30, "throughput", {"gang_sharing": "whole", "weighted": True, "shares": ()}),
        (20, "jct", {"gangs": False, "running": 0.3, "margin": 0.1}),
        (20, "sensitivity", {"gangs": False, "running": 0.3}),
        pytest.param(100, "throughput", {"gangs": False}, marks=LONG),
        pytest.param(100, "slowdown", {"gang_sharing": "whole", "weighted": True}, marks=LONG),
        pytest.param(100, "energy", {"gang_sharing": "whole"}, marks=LONG),
    ],
)
def test_where_plans_are_matchings(jobs, objective, options):
    assert_agree(generate(jobs, **options), objective, "matching", "highs")


@pytest.mark.parametrize(
    ("jobs", "objective", "options"),
    [
        (20, "throughput", {"seed": 5, "shares": (30, 50, 70)}),
        (20, "slowdown", {"seed": 5, "shares": (), "running": 0.3}),
        (20, "throughput", {"seed": 2, "shares": (50,), "gpu_models": ("V100", "A100")}),
        pytest.param(60, "energy", {"seed": 1}, marks=LONG),
        pytest.param(100, "throughput", {"seed": 4}, marks=LONG),
        pytest.param(100, "jct", {"seed": 4, "running": 0.2}, marks=LONG),
    ],
)
def test_where_gangs_share_some_of_their_gpus(jobs, objective, options):
    instance = generate(jobs, **options)
    assert any(job.workers > 1 for job in instance.jobs)
    assert_agree(instance, objective, "auto", "cpsat")
