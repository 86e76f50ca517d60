"""The objective ``fewest``: against enumeration, written-out rounds, and its claims."""

from __future__ import annotations

from random import Random

import pytest

from dovetail import JobValues
from dovetail.instances import library
from dovetail.instances.checking.checker import check
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.instance import Instance
from dovetail.solver.rounds import solve
from tests.oracle import optimum
from tests.solver.exact_campaign import SHAPES
from tests.strategies import random_instance

SOLVERS = ("auto", "matching", "cpsat", "highs", "milp", "networkx")
_EACH = 20


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(seed, marks=[pytest.mark.long] * (seed > 0))
        for seed in range(0, 100 * _EACH, _EACH)
    ],
)
def test_every_exact_solver_finds_and_proves_the_least_cost(first):
    solved = 0
    for seed in range(first, first + _EACH):
        draw = Random(f"fewest {seed}")
        instance = random_instance(draw, draw.choice(SHAPES))
        best = optimum(instance, "fewest")
        for solver in SOLVERS:
            try:
                result = solve(instance, "fewest", solver, explain=False)
            except UnsupportedError:
                continue
            claim = result.plan.objective
            assert (result.status, result.stopped) == ("optimal", "complete"), (seed, solver)
            assert claim.value == pytest.approx(best.value, rel=1e-9), (seed, solver)
            assert claim.bound == pytest.approx(best.value, rel=1e-9), (seed, solver)
            assert claim.placed_weight == pytest.approx(best.placed_weight), (seed, solver)
            solved += 1
    assert solved >= 4 * _EACH


def cluster(**costs: float | None) -> Instance:
    """Return a round with two GPUs of each model, and workloads a and b that share anywhere."""
    made = Instance.build("costs")
    for model, cost in costs.items():
        made.add_node(model, 2, model, 16000, cost_per_hour=cost)
    for name in "ab":
        made.add_workload(name, 6000)
        made.add_workload(f"{name}-large", 12000)
    made.add_slowdown(["a", "b"], [1.2, 1.4])
    made.add_slowdown(["a", "a"], [1.1, 1.1])
    return made


def plan_of(made, solver="auto"):
    instance = made.instance()
    result = solve(instance, "fewest", solver)
    assert check(instance, result.plan).valid
    assert result.status == "optimal"
    assert result.bound == result.objective
    return result


@pytest.mark.parametrize("solver", ["cpsat", "highs", "milp"])
def test_the_cheaper_of_one_dear_gpu_and_two_cheap_ones(solver):
    # Alone on cheap GPUs: 2 x 1.0; together on the dear one: 2.5; b-large fits beside none.
    made = cluster(cheap=1.0, dear=2.5)
    made.add_job("one", "b")
    made.add_job("other", "b-large")
    assert plan_of(made, solver).objective == 2.0
    made.add_job("third", "a")
    assert plan_of(made, solver).objective == 2.0  # a joins b
    made.add_job("fourth", "b-large")
    assert plan_of(made, solver).objective == 4.5


def test_without_costs_the_value_is_the_number_of_gpus_in_use():
    made = cluster(V100=None)
    made.add_job("one", "a")
    made.add_job("other", "b")
    result = plan_of(made)
    assert result.objective == 1
    assert len({gpu for row in result.plan.assignments for gpu in row.gpus}) == 1


def test_a_running_job_costs_its_gpu_and_to_join_it_costs_nothing():
    made = cluster(V100=None)
    made.add_job("here", "a", state="running", gpus=["V100-0"])
    made.add_job("new", "b")
    result = plan_of(made)
    assert result.objective == 1
    assert [row.gpus for row in result.plan.assignments] == [("V100-0",), ("V100-0",)]


@pytest.mark.parametrize("solver", ["auto", "matching", "cpsat", "highs", "milp", "networkx"])
def test_of_the_cheapest_plans_the_fastest_is_taken(solver):
    # Two GPUs either way: a with a (1.1, 1.1) and b alone, or a with b (1.2, 1.4) and a alone.
    made = cluster(V100=None)
    for k, workload in enumerate("aab"):
        made.add_job(f"j{k}", workload)
    result = plan_of(made, solver)
    assert result.objective == 2
    rates = [1 / row.slowdown for row in result.plan.assignments]
    assert sum(rates) == pytest.approx(2 / 1.1 + 1)


def test_a_gang_counts_each_of_its_gpus_once():
    made = cluster(V100=None)
    made.add_job("gang", "a", workers=2)
    made.add_job("other", "a", workers=2)
    assert plan_of(made).objective == 2


def test_greedy_joins_before_it_takes_an_idle_gpu():
    made = cluster(V100=None)
    made.add_job("one", "a")
    made.add_job("other", "b")
    result = solve(made, "fewest", "greedy")
    assert (result.objective, result.bound) == (1, 1)


class Slowdowns(JobValues):
    """``slowdown`` as a class of a user's own."""

    judged_by = "slowdown"
    two_stage = True
    minimised = True

    def gain(self, job, slowdown, model):
        return -self.weight[job] * slowdown


class Cheapest(JobValues):
    """The least cost, and of the cheapest plans the one with the least sum of slowdowns."""

    two_stage = True
    cheapest = True

    def gain(self, job, slowdown, model):
        return -slowdown


@pytest.mark.parametrize(("own", "built_in"), [(Slowdowns, "slowdown"), (Cheapest, "fewest")])
def test_a_cost_of_a_users_own_is_shown_as_that_of_the_built_in_objective(own, built_in):
    instance = library.load("lab")
    mine, known = solve(instance, own, explain=False), solve(instance, built_in, explain=False)
    assert mine.status == known.status == "optimal"
    assert mine.objective == pytest.approx(known.objective)
    assert mine.bound == pytest.approx(known.bound)
