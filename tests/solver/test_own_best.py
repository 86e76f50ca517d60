"""Rounds whose best plan is proven by prices alone, against enumeration."""

import pytest

from dovetail.formulations.problems import Problem
from dovetail.instances.instance import Instance
from dovetail.solver.own_best import own_best
from dovetail.solver.types import OPTIMAL_GAP, Proven, relative_gap
from tests.formulations.test_worker_graph import partial_rounds
from tests.oracle import optimum


def test_equals_enumeration_where_prices_prove_it():
    proven = searched = contended = 0
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
        contended += choice.proof.args[1].any()
    assert proven > 20
    assert searched > 8
    assert contended > 3


def test_prices_that_are_too_low_prove_nothing():
    tried = 0
    for instance in partial_rounds(30):
        problem = Problem.of(instance, "completion")
        choice = own_best(problem)
        if choice is not None and choice.value > 1e-3:
            worth, price = choice.proof.args
            assert choice.proof.func(worth * 0.9, price * 0.9, problem).errors
            tried += 1
    assert tried > 5


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_jobs_that_may_not_share_are_served_without_a_search(gpus):
    jobs = [
        {"id": f"j{k}", "workload": "w", "arrival_s": 0.0, "remaining_s": 100.0 + 10 * k}
        for k in range(7)
    ]
    instance = Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "alone",
            "cluster": {
                "nodes": [
                    {"id": "n0", "gpu_count": gpus, "gpu": {"model": "m", "memory_mib": 16000}}
                ]
            },
            "workloads": {"w": {"memory_mib": 1000}},
            "jobs": jobs,
            "slowdowns": [{"pair": ["w", "w"], "slowdown": None}],
        }
    )
    choice = own_best(Problem.of(instance, "completion"))
    assert choice.value == pytest.approx(optimum(instance, "completion").value)
    assert choice.bound == pytest.approx(choice.value)
