"""Rounds whose best plan is proven by prices alone, against enumeration."""

from random import Random

import numpy as np
import pytest

from dovetail.instances.instance import Instance
from dovetail.solver.matching.own_best import own_best
from dovetail.solver.matching.price_certificate import PriceDual, proven_by_prices
from dovetail.solver.rounds import solve
from dovetail.solver.types import OPTIMAL_GAP, Proven, relative_gap
from tests.forms import groups_of
from tests.formulations.test_worker_graph import partial_rounds
from tests.oracle import optimum
from tests.strategies import Shape, random_instance

FASTER = Shape(models=False, memory=False, sets=False, wide=False, gains=True)
"""Running gangs among jobs that may speed each other up."""


def rounds(number):
    """Return rounds of both kinds, some with running gangs that gain from a co-runner."""
    draw = Random(7)
    faster = [random_instance(draw, FASTER) for _ in range(2 * number)]
    return [*partial_rounds(number), *faster]


def test_equals_enumeration_where_prices_prove_it():
    proven = searched = contended = 0
    for instance in rounds(60):
        groups = groups_of(instance, "completion")
        choice = own_best(groups)
        if choice is None:
            searched += 1
            continue
        best = optimum(instance, "completion").value
        assert choice.value == pytest.approx(best, rel=1e-6, abs=1e-6)
        assert relative_gap(choice.bound, choice.value) <= OPTIMAL_GAP
        assert choice.proof(groups.values) == Proven(pytest.approx(choice.bound), ())
        proven += 1
        contended += choice.proof.args[0].price.any()
    assert proven > 60
    assert searched > 8
    assert contended > 3


def gaining_gang():
    """Return a gang on two GPUs that runs faster with a co-runner on both, and two such jobs."""
    gpus = [{"id": name, "model": "B", "memory_mib": 16000} for name in "ab"]
    single = {"workload": "w0", "remaining_s": 3600}
    gang = {"workload": "w1", "workers": 2, "remaining_s": 100}
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "a gang that gains",
            "cluster": {"nodes": [{"id": "n0", "gpus": gpus}]},
            "workloads": {"w0": {"memory_mib": 1}, "w1": {"memory_mib": 1000}},
            "jobs": [
                {"id": "heavy", "weight": 5.0, **single},
                {"id": "light", "weight": 0.5, **single},
                {"id": "gang", "state": "running", "gpus": ["a", "b"], **gang},
            ],
            "slowdowns": [{"pair": ["w0", "w1"], "slowdown": [1.2, 0.9]}],
        }
    )


def test_what_a_running_gang_gains_from_co_runners_is_part_of_the_bound():
    result = solve(gaining_gang(), "completion")
    assert result.objective == pytest.approx(477.5)
    assert result.bound >= 477.5 - 1e-6


def test_the_certificate_refuses_prices_that_leave_a_gang_s_gain_out():
    """What only the heavy job is worth: 375, where 477.5 are possible."""
    groups = groups_of(gaining_gang(), "completion")
    none, ones = np.zeros(0, dtype=np.int64), np.zeros(0)
    dual = PriceDual(np.array([375.0, 0.0, 0.0]), np.zeros(1), none, none, ones)
    assert "the parts of gang sum to 0, not to 1" in proven_by_prices(dual, groups.values).errors
    halves = dual._replace(job=np.array([2]), gpu_class=np.array([0]), part=np.array([0.5]))
    (error,) = proven_by_prices(halves, groups.values).errors
    assert error.startswith("the group gang + heavy counts for ")


def test_prices_that_are_too_low_prove_nothing():
    tried = 0
    for instance in rounds(30):
        groups = groups_of(instance, "completion")
        choice = own_best(groups)
        if choice is not None and choice.value > 1e-3:
            (dual,) = choice.proof.args
            low = dual._replace(worth=dual.worth * 0.9, price=dual.price * 0.9)
            assert proven_by_prices(low, groups.values).errors
            assert proven_by_prices(dual._replace(worth=-dual.worth), groups.values).errors
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
    choice = own_best(groups_of(instance, "completion"))
    assert choice.value == pytest.approx(optimum(instance, "completion").value)
    assert choice.bound == pytest.approx(choice.value)
