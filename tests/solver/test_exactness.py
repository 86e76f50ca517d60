"""Every exact solver on the same rounds, in which every feature may occur, against enumeration.

Half of the rounds have weights over twelve orders of magnitude: the heaviest job may be one
that cannot be placed, and the lightest one still counts.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from dovetail.instances.errors import UnsupportedError
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import OBJECTIVES, ObjectiveName
from dovetail.solver.rounds import solve
from tests.oracle import optimum
from tests.solver.contract import FAR, GANGS, PLAIN, assert_proven
from tests.strategies import Shape, random_instance

SHAPES = (
    Shape(jobs=5),
    Shape(jobs=4, gpus=3),
    replace(GANGS, shares=True, running=True, batches=True),
    replace(GANGS, whole=True, running=True, latency=True),
    replace(PLAIN, shares=True, running=True, latency=True),
)
"""All features; and those that leave GPUs interchangeable, which other solvers take."""

SOLVERS = ("auto", "matching", "networkx", "cpsat", "highs")
ROUNDS_A_TEST = 20
MILP_EVERY = 20
"""Each call of it starts a process."""


def round_of(seed: int) -> tuple[Instance, ObjectiveName]:
    """Return a random round and the objective that it is solved under."""
    draw = Random(seed)
    shape = replace(draw.choice(SHAPES), wide=draw.random() < 0.5)
    return random_instance(draw, shape), draw.choice(OBJECTIVES)


def solvers_of(seed: int) -> tuple[str, ...]:
    return SOLVERS if seed % MILP_EVERY else (*SOLVERS, "milp")


def assert_exact(seed: int) -> int:
    """Compare every solver that takes a round with enumeration; return how many did."""
    instance, objective = round_of(seed)
    best = optimum(instance, objective)
    asked = 0
    for solver in solvers_of(seed):
        try:
            result = solve(instance, objective, solver, time_limit=FAR)
        except UnsupportedError:
            continue
        assert_proven(result, instance, objective, best.value, best.placed_weight)
        asked += 1
    return asked


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(seed, marks=[pytest.mark.long] * (seed >= ROUNDS_A_TEST))
        for seed in range(0, 5000, ROUNDS_A_TEST)
    ],
)
def test_every_optimum_is_one_and_every_bound_holds(first):
    for seed in range(first, first + ROUNDS_A_TEST):
        assert assert_exact(seed) >= 3, seed


def test_a_relaxation_on_which_the_simplex_method_cycles_is_given_up():
    instance, objective = round_of(2837)
    for solver in ("matching", "highs"):
        # Without a time limit, which alone would have ended it.
        result = solve(instance, objective, solver)
        assert (result.status, result.stopped) == ("optimal", "complete")


@pytest.mark.parametrize("seed", range(20))
def test_gangs_whose_workers_stay_together_are_planned_exactly(seed):
    draw = Random(f"nodes {seed}")
    shape = Shape(jobs=4, gpus=5, nodes=True, sets=False, models=seed % 2 == 0, hosts=seed % 3 == 0)
    instance, objective = random_instance(draw, shape), draw.choice(OBJECTIVES)
    best = optimum(instance, objective)
    for solver in ("auto", "cpsat", "highs", *["milp"] * (seed == 0)):
        result = solve(instance, objective, solver, time_limit=FAR)
        assert_proven(result, instance, objective, best.value, best.placed_weight)


@pytest.mark.parametrize("seed", [80, 112, 118, 227])
@pytest.mark.parametrize("solver", ["cpsat", "highs"])
def test_what_no_plan_needs_does_not_round_what_it_does(solver, seed):
    """Best plans are worth 0, or ten orders of magnitude less than the worst ones lose."""
    instance, _ = round_of(seed)
    best = optimum(instance, "completion")
    result = solve(instance, "completion", solver)
    assert_proven(result, instance, "completion", best.value, best.placed_weight)
