"""Rounds in which every job can have what is best for it, against enumeration."""

import pytest

from dovetail.formulations.problems import Problem
from dovetail.solver.own_best import own_best
from dovetail.solver.types import OPTIMAL_GAP, Proven, relative_gap
from tests.formulations.test_worker_graph import partial_rounds
from tests.oracle import optimum


def test_equals_enumeration_where_nobody_is_in_anothers_way():
    proven = searched = 0
    for instance in partial_rounds(60):
        problem = Problem.of(instance, "completion")
        choice = own_best(problem)
        if choice is None:
            searched += 1
            continue
        best = optimum(instance, "completion").value
        assert choice.value == pytest.approx(best, rel=1e-6, abs=1e-6)
        assert relative_gap(choice.bound, choice.value) <= OPTIMAL_GAP
        assert choice.proof(problem) == Proven(pytest.approx(choice.bound), ())
        proven += 1
    assert proven > 20
    assert searched > 12


def test_prices_that_are_too_low_prove_nothing():
    tried = 0
    for instance in partial_rounds(30):
        problem = Problem.of(instance, "completion")
        choice = own_best(problem)
        if choice is not None and choice.value > 1e-3:
            worth = choice.proof.args[0]
            assert choice.proof.func(worth * 0.9, problem).errors
            tried += 1
    assert tried > 5
