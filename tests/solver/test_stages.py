"""The placed weight comes first, whatever the size and the digits of the weights."""

from __future__ import annotations

import pytest

from dovetail.instances.checker import check
from dovetail.solver.rounds import solve
from tests.data import small

SOLVERS = pytest.mark.parametrize("solver", ["cpsat", "highs", "matching", "networkx", "milp"])


@SOLVERS
@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1.0, 1e6])
def test_weights_far_from_1(solver, scale):
    # Once the tolerances were absolute: with weights of 1e-9 the second stage placed nobody.
    # One GPU: j with k at 1.5 places 3, j with l at 1.1 only 2.5; 2 x 1.5 + 1 x 1.5 = 4.5.
    jobs = [
        {"id": "j", "workload": "a", "weight": 2.0 * scale},
        {"id": "k", "workload": "b", "weight": 1.0 * scale},
        {"id": "l", "workload": "c", "weight": 0.5 * scale},
    ]
    ab = {"pair": ["a", "b"], "slowdown": [1.5, 1.5]}
    ac = {"pair": ["a", "c"], "slowdown": [1.1, 1.1]}
    instance = small(jobs, [ab, ac], gpus=1)
    result = solve(instance, "slowdown", solver)
    assert check(instance, result.plan).violations == ()
    assert result.status == "optimal"
    assert result.plan.objective.placed_weight == pytest.approx(3 * scale)
    assert result.objective == pytest.approx(4.5 * scale)


@SOLVERS
@pytest.mark.parametrize("light", [1e-3, 1e-6])
def test_no_job_is_too_light_to_be_placed(solver, light):
    # Once a tolerance of the heavy weight let the light job go, as it doubles both slowdowns.
    jobs = [{"id": "j", "weight": 1e6}, {"id": "k", "weight": light}]
    entry = {"pair": ["a", "a"], "slowdown": [2.0, 2.0]}
    result = solve(small(jobs, [entry], gpus=1), "slowdown", solver)
    assert result.status == "optimal"
    assert result.plan.objective.placed_weight == 1e6 + light
    assert result.objective == pytest.approx(2 * (1e6 + light), rel=1e-14)


@SOLVERS
@pytest.mark.parametrize("weights", [(0.1, 0.2, 0.3), (1.0000001, 1.23456789, 2.23456799)])
def test_equal_sums_of_unlike_weights_stay_equal(solver, weights):
    # Once the weights of pairs were rounded, and rounding chose between plans of one weight.
    # One GPU: j with k (0.1 + 0.2) weighs what l alone does, but l has a slowdown of 1:
    # 0.3 x 1 against 0.3 x 1.5.
    jobs = [
        {"id": name, "workload": name, "weight": weight}
        for name, weight in zip("abc", weights, strict=True)
    ]
    instance = small(jobs, [{"pair": ["a", "b"], "slowdown": [1.5, 1.5]}], gpus=1)
    result = solve(instance, "slowdown", solver)
    assert [a.job for a in result.plan.assignments] == ["c"]
    assert result.objective == pytest.approx(weights[2])


@SOLVERS
def test_the_same_jobs_paired_otherwise_weigh_the_same(solver):
    # All four start in every way of pairing; a with c and b with d are better (4 x 1.1 each).
    weights = (1.1234567891, 2.3456789123, 3.4567891234, 4.5678912345)
    jobs = [
        {"id": f"j{k}", "workload": "ab"[k // 2], "weight": weight}
        for k, weight in enumerate(weights)
    ]
    same = [{"pair": [w, w], "slowdown": [1.5, 1.5]} for w in "ab"]
    cross = {"pair": ["a", "b"], "slowdown": [1.1, 1.1]}
    result = solve(small(jobs, [*same, cross], gpus=2), "slowdown", solver)
    assert result.objective == pytest.approx(1.1 * sum(weights))
