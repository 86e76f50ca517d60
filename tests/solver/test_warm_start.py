"""Warm starts of integer programs are valid and no worse than greedy's plan."""

from __future__ import annotations

import pytest

from dovetail.formulations.budget import Budget
from dovetail.formulations.programs.problems import Problem
from dovetail.formulations.programs.scores import score
from dovetail.instances.generate import generate
from dovetail.instances.objectives import OBJECTIVES
from dovetail.solver.backends.array_solver import start_counts
from dovetail.solver.greedy import greedy_counts
from dovetail.solver.types import Limits


def worth(problem, counts):
    reached = score(problem.groups, problem.values, counts)
    value = reached.value(problem.values)
    return (reached.weight, value) if problem.values.two_stage else (value,)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_start_is_feasible_and_mostly_better_than_greedy(objective):
    better = 0
    for seed in range(3):
        problem = Problem.of(generate(20, seed=seed, weighted=True), objective)
        start = start_counts(problem, Limits())
        program = problem.program.program
        x = problem.program.solution(start)
        assert (program.row_lower - 1e-9 <= program.rows @ x).all()
        assert (program.rows @ x <= program.row_upper + 1e-9).all()
        greedy = greedy_counts(problem, Limits())
        assert worth(problem, start) >= worth(problem, greedy)
        better += worth(problem, start) > worth(problem, greedy)
    assert better >= 2


def test_without_time_the_start_is_greedy():
    problem = Problem.of(generate(30), "slowdown")
    late = Limits(Budget.of(0))
    assert (start_counts(problem, late) == greedy_counts(problem, Limits())).all()


def test_without_time_the_start_reaches_the_first_hundred_jobs():
    # All may start, each alone: only those that were not reached wait.
    problem = Problem.of(generate(130, gpus=200, gangs=False, workloads=5), "throughput")
    counts = start_counts(problem, Limits(Budget.of(0)))
    assert score(problem.groups, problem.values, counts).weight == 100
    assert (greedy_counts(problem, Limits(Budget.of(0))) == 0).all()
