from __future__ import annotations

import pytest

from dovetail.instances.objectives import OBJECTIVES
from dovetail.instances.plan import Plan
from dovetail.planning.comparison import RANDOM_RUNS, THIS_PLAN, compare
from dovetail.solver.rounds import solve
from tests.api import samples
from tests.data import small

PAIR = [{"pair": ["a", "a"], "slowdown": [1.25, 1.25]}]


def test_rows_solved_by_hand():
    # Four equal jobs on two GPUs. Alone on a GPU: two run, 2 x 1. In pairs: four, 4 / 1.25;
    # a third job adds 2 / 1.25 - 1 > 0, so greedy pairs, and random pairing has no other way.
    instance = small([{"id": name} for name in "wxyz"], PAIR)
    rows = compare(instance, solve(instance).plan).rows
    assert [row.name for row in rows] == [
        THIS_PLAN,
        "exclusive use",
        "queue-order greedy",
        f"random pairing (mean of {RANDOM_RUNS})",
    ]
    assert [row.placed for row in rows] == [4, 2, 4, 4]
    assert [row.started for row in rows] == [4, 2, 4, 4]
    assert [row.value for row in rows] == pytest.approx([3.2, 2, 3.2, 3.2])
    assert [row.throughput for row in rows] == pytest.approx([3.2, 2, 3.2, 3.2])
    assert [row.worst_slowdown for row in rows] == pytest.approx([1.25, 1, 1.25, 1.25])
    assert [row.mean_slowdown for row in rows] == pytest.approx([1.25, 1, 1.25, 1.25])
    assert [row.gpus_used for row in rows] == [2, 2, 2, 2]
    assert [row.gsla_violations for row in rows] == [0, 0, 0, 0]


def test_running_jobs_are_placed_but_not_started():
    instance = small([{"id": "x", "state": "running", "gpus": ["g-0"]}, {"id": "y"}], PAIR)
    for row in compare(instance, solve(instance).plan).rows:
        assert (row.placed, row.started) == (2, 1)


def test_a_plan_that_preempts_is_compared_with_rules_that_do():
    # Where it runs already the heavy job cannot leave room for the gang of two.
    jobs = [
        {"id": "x", "state": "running", "gpus": ["g-0"], "arrival_s": 5},
        {"id": "gang", "workers": 2, "weight": 3},
    ]
    instance = small(jobs)
    stays, moves = (solve(instance, preempt=preempt).plan for preempt in (False, True))
    assert [row.value for row in compare(instance, stays).rows][:2] == [1, 1]
    assert [row.value for row in compare(instance, moves).rows][:3] == [3, 3, 3]
    again = small([{**jobs[0], "weight": 5}, jobs[1]])
    rows = compare(again, solve(again, preempt=True).plan).rows
    assert [(row.placed, row.started) for row in rows[:2]] == [(1, 0), (1, 1)]


def test_nothing_to_place():
    for row in compare(small(), Plan(assignments=())).rows:
        assert row.worst_slowdown is None
        assert row.mean_slowdown is None
        assert (row.placed, row.value, row.gpus_used) == (0, 0, 0)


def test_same_seed_same_rows():
    instance, plan, rows = samples.lab()
    assert compare(instance, plan) == rows
    assert compare(instance, plan, seed=1) != rows


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_of_the_lab(objective):
    instance = samples.lab()[0]
    found = compare(instance, solve(instance, objective, "greedy").plan)
    assert found.objective == objective
    this, _, greedy, _ = found.rows
    assert (this.value, this.placed_weight) == pytest.approx((greedy.value, greedy.placed_weight))
    assert all(row.gsla_violations == 0 for row in found.rows)


def test_the_best_plan_is_never_behind():
    instance = samples.lab()[0]
    this, *others = compare(instance, solve(instance).plan).rows
    assert this.value == pytest.approx(27.7492362334)
    assert all(row.value < this.value for row in others)


@pytest.mark.parametrize("solver", ["exclusive", "random"])
def test_simple_rules_are_solvers_too(solver):
    instance = small([{"id": name} for name in "wxyz"], PAIR)
    assert solve(instance, solver=solver).plan.solver == solver
