"""Warm starts of integer programs are valid and no worse than greedy's plan."""

from __future__ import annotations

import pytest

from dovetail.formulations.budget import Budget
from dovetail.formulations.candidates.groups import score
from dovetail.formulations.programs.integer_program import build
from dovetail.instances.generate import generate
from dovetail.instances.objectives import OBJECTIVES
from dovetail.solver.backends.array_solver import start_counts
from dovetail.solver.greedy import greedy_counts
from dovetail.solver.types import Limits
from tests.forms import groups_of


def worth(groups, counts):
    reached = score(groups, counts)
    value = reached.value(groups.values)
    return (reached.weight, value) if groups.values.two_stage else (value,)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_start_is_feasible_and_mostly_better_than_greedy(objective):
    better = 0
    for seed in range(3):
        groups = groups_of(generate(20, seed=seed, weighted=True), objective)
        start = start_counts(groups, Limits())
        formulation = build(groups)
        program, x = formulation.program, formulation.solution(start)
        assert (program.row_lower - 1e-9 <= program.rows @ x).all()
        assert (program.rows @ x <= program.row_upper + 1e-9).all()
        greedy = greedy_counts(groups, Limits())
        assert worth(groups, start) >= worth(groups, greedy)
        better += worth(groups, start) > worth(groups, greedy)
    assert better >= 2


def test_without_time_the_start_is_greedy():
    groups = groups_of(generate(30), "slowdown")
    late = Limits(Budget.of(0))
    assert (start_counts(groups, late) == greedy_counts(groups, Limits())).all()


def test_without_time_the_start_reaches_the_first_hundred_jobs():
    # All may start, each alone: only those that were not reached wait.
    groups = groups_of(generate(130, gpus=200, gangs=False, workloads=5))
    counts = start_counts(groups, Limits(Budget.of(0)))
    assert score(groups, counts).weight == 100
    assert (greedy_counts(groups, Limits(Budget.of(0))) == 0).all()
