"""The placed weight comes first, whatever the size and the digits of the weights."""

from __future__ import annotations

import math

import pytest

from dovetail.formulations.candidates.groups import ceiling, idle_counts
from dovetail.instances import library
from dovetail.instances.checking.checker import check
from dovetail.solver.matching.lexicographic import WeightPrice
from dovetail.solver.rounds import solve
from dovetail.solver.stages import StagedSearch, solve_in_stages, weight_units
from dovetail.solver.types import Limits, Maximum, Proven
from tests.data import small
from tests.forms import groups_of

SOLVERS = pytest.mark.parametrize("solver", ["cpsat", "highs", "matching"])


@SOLVERS
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_weights_far_from_1(solver, scale):
    # Once the tolerances were absolute: with weights of 1e-9 the second stage placed no job.
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


CHOICES = {"light": (10.0, 1.0), "heavy": (2.0, 2.0), "heavier": (3.0, 2.0)}
"""Gain and weight of three choices; those of weight 2 gain 3 at most."""


def at_a_price(asked, stopped="complete"):
    def at(price):
        asked.append(price)
        worth = {x: gain + price * (weight - 2) for x, (gain, weight) in CHOICES.items()}
        best = max(worth, key=worth.__getitem__)
        gain, weight = CHOICES[best]
        found = Maximum(counts=best, bound=worth[best], stopped=stopped)
        return found, gain if weight == 2 else -math.inf

    return at


HEAVY = Maximum(counts="heavy", bound=math.inf, stopped="complete")


def test_the_price_of_weight_grows_until_the_demand_is_met():
    # At a price of 4 the light choice is worth 10 - 4, more than 3; at 32 no more.
    asked = []
    price = WeightPrice()
    found = price.maximise(HEAVY, 2.0, at_a_price(asked), 1.0, lambda: True)
    assert asked == [4.0, 32.0]
    assert (found.counts, found.bound, found.stopped) == ("heavier", 3.0, "complete")
    price.maximise(HEAVY, 2.0, at_a_price(asked), 1.0, lambda: True)
    assert asked == [4.0, 32.0, 32.0]


def test_a_price_that_is_too_low_bounds_the_gain():
    found = WeightPrice().maximise(HEAVY, 2.0, at_a_price([], "time_limit"), 1.0, lambda: True)
    assert (found.counts, found.bound, found.stopped) == ("heavy", 6.0, "time_limit")


def test_without_time_for_a_search_there_is_no_bound():
    found = WeightPrice().maximise(HEAVY, 2.0, at_a_price([]), 1.0, lambda: False)
    assert (found.counts, found.bound, found.stopped) == ("heavy", math.inf, "time_limit")


class Idle(StagedSearch):
    """Starts nothing, bounds the gain loosely and the placed weight not at all."""

    solver = "idle"
    proof = None

    def heaviest(self):
        return self.maximise(), weight_units(self.groups)

    def maximise(self, per_gain=1.0, per_cost=0.0, start=None):
        counts = idle_counts(self.groups)
        return Maximum(counts=counts, bound=1e9, stopped="time_limit", proof=self.proof)


def test_a_poor_bound_is_replaced_unless_a_certificate_is_of_it():
    groups = groups_of(library.load("first-pairs"))
    idle = Idle(groups.values, Limits(), groups)
    assert solve_in_stages(idle).bound == ceiling(groups).gain
    idle.proof = lambda values: Proven(1e9, ())
    assert solve_in_stages(idle).bound == 1e9


def test_a_weight_that_is_not_proven_leaves_the_last_stage_without_a_bound():
    groups = groups_of(library.load("weights"), "slowdown")
    choice = solve_in_stages(Idle(groups.values, Limits(), groups))
    assert (choice.bound, choice.stopped) == (math.inf, "time_limit")
    assert choice.weight_bound == ceiling(groups).weight
