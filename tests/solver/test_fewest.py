"""The objective ``fewest``: against enumeration, written-out rounds, and its claims."""

from __future__ import annotations

import math
from random import Random

import pytest

from dovetail import JobValues
from dovetail.formulations.candidates.groups import ceiling
from dovetail.formulations.candidates.listing import candidate_groups
from dovetail.formulations.objectives import job_values
from dovetail.formulations.rounds import Round
from dovetail.instances import library
from dovetail.instances.checking.checker import check
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.instance import Instance
from dovetail.planning.views import gpus_needed, view
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


@pytest.mark.parametrize("solver", ["greedy", "cpsat"])
@pytest.mark.parametrize(
    ("memory", "most", "bound"),
    [
        (6000, 3, 2),  # 4 jobs, 3 on a GPU
        (7000, 3, 2),  # 4 x 7000 of 16000: two on a GPU
        (1000, 2, 2),
        (9000, 3, 4),
    ],
)
def test_the_bound_before_any_search_is_of_numbers_and_memory(solver, memory, most, bound):
    made = Instance.build("bounds", max_jobs_per_gpu=most)
    made.add_node("n", 5, "V100", 16000)
    made.add_workload("a", memory)
    made.add_slowdown(["a", "a"], [1.1, 1.1])
    if most > 2:
        made.add_slowdown(["a", "a", "a"], [1.2, 1.2, 1.2])
    for k in range(4):
        made.add_job(f"j{k}", "a")
    groups = candidate_groups(job_values(Round.of(made.instance()), "fewest"))
    assert math.ceil(ceiling(groups).cost - 1e-9) == bound
    assert solve(made, "fewest", solver).bound == bound


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ({"V100": None}, "2 of 2 are enough for all jobs, proven: fewer are not"),
        (
            {"L4": 0.8, "V100": 2.5},
            "2 of 4 are enough for all jobs, at 1.6 an hour, proven: no others are cheaper",
        ),
    ],
)
def test_the_plan_says_how_many_gpus_are_enough(costs, said):
    made = cluster(**costs)
    made.add_job("one", "a-large")
    made.add_job("other", "a-large")
    instance = made.instance()
    plan = solve(instance, "fewest").plan
    assert gpus_needed(view(instance, plan)) == ("GPUs needed", said)
    assert gpus_needed(view(instance, solve(instance).plan)) == ("GPUs needed", "")
    unproven = plan.replace(
        status="feasible", objective=plan.objective.replace(bound=1.2, gap=0.25)
    )
    _, text = gpus_needed(view(instance, unproven))
    assert text == said.partition(", proven")[0] + "; at least 1.2" + (
        " an hour are needed" if len(costs) > 1 else " are needed"
    )


@pytest.mark.parametrize(
    ("weight", "placed", "reason"),
    [
        (1, 2, "memory: with large0 on V100-0 8,000 MiB of memory would be missing"),
        (0, 0, "capacity: it could start alone on V100-0, but its weight is 0"),
    ],
)
def test_jobs_do_not_wait_because_a_value_would_not_rise(weight, placed, reason):
    made = cluster(V100=None)
    for k in range(3):
        made.add_job(f"large{k}", "a-large", weight=weight)
    plan = plan_of(made).plan
    assert len(plan.assignments) == placed
    assert plan.waiting[-1].reason == reason
