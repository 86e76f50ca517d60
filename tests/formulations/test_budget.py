"""Budgets of time and of work."""

import math
import pickle

import pytest

from dovetail.formulations.budget import STEPS_PER_S, UNLIMITED, Budget, OutOfTimeError, WorkClock
from dovetail.instances.errors import ArgumentError
from dovetail.instances.generate import generate
from dovetail.solver.registry import Auto
from dovetail.solver.types import Limits
from tests.forms import values_of


def test_work_is_spent_and_time_is_not():
    clock = WorkClock()
    budget = Budget.of(2.0, clock)
    assert (budget.counts_work, budget.left_s, budget.passed) == (True, 2.0, False)
    half = budget.part(0.5)
    budget.spend(1.5 * STEPS_PER_S)
    assert (half.passed, budget.passed, budget.left_s) == (True, False, 0.5)
    assert budget.earlier(1.0).passed
    with pytest.raises(OutOfTimeError):
        half.check()
    timed = Budget.of(3600)
    timed.spend(1e6 * STEPS_PER_S)
    assert not timed.passed
    assert not timed.counts_work
    assert not pickle.loads(pickle.dumps(timed)).passed


def test_no_end():
    UNLIMITED.check()
    assert (UNLIMITED.left_s, UNLIMITED.is_limited) == (math.inf, False)
    assert Budget.of(None).part(0.3).end == math.inf


def test_a_limit_is_no_negative_number():
    with pytest.raises(ArgumentError, match=r"time_limit must be >= 0 or None, got -1\.0"):
        Budget.of(-1)


@pytest.mark.parametrize("models", [("V100",), ("V100", "T4")])
def test_every_search_hears_a_budget_of_work(models):
    instance = generate(60, seed=2, gpu_models=models)

    def searched(seconds):
        clock = WorkClock()
        budget = Budget.of(seconds, clock)
        return Auto().solve(values_of(instance), Limits(budget)), clock.now()

    for seconds in (0.0, 0.04):
        choice, spent = searched(seconds)
        again, spent_again = searched(seconds)
        assert (choice.value, choice.bound, spent) == (again.value, again.bound, spent_again)
        assert spent < seconds + 0.2  # no step takes much more than is left
    whole, cut = searched(math.inf)[0], searched(0.0)[0]
    assert whole.bound - whole.value < 1e-5 < cut.bound - cut.value
