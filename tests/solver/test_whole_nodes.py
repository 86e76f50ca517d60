"""Large rounds in which workers stay together on nodes, solved as if they need not at first."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from dovetail.instances.checking.checker import check
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import OBJECTIVES
from dovetail.solver import registry
from dovetail.solver.rounds import solve
from tests.oracle import TWO_STAGE, optimum
from tests.solver.contract import assert_proven
from tests.strategies import Shape, random_instance


def rounds(number, **features):
    for seed in range(number):
        draw = Random(f"whole nodes {seed}")
        shape = Shape(jobs=4, gpus=5, nodes=True, sets=False, **features)
        yield random_instance(draw, shape), draw.choice(OBJECTIVES)


def test_small_rounds_solved_this_way_are_exact(monkeypatch):
    monkeypatch.setattr(registry, "FEW_COPIES", 0)
    asked = Counter()
    for instance, objective in rounds(20):
        result = solve(instance, objective)
        best = optimum(instance, objective)
        assert_proven(result, instance, objective, best.value, best.placed_weight)
        asked[any("planned first" in note for note in result.plan.notes)] += 1
    assert asked[True] > 5


def test_plans_of_rounds_too_large_for_a_program_are_valid_and_within_their_bounds(monkeypatch):
    few = registry.few_copies
    monkeypatch.setattr(registry, "FEW_COPIES", 0)
    monkeypatch.setattr(registry, "few_copies", lambda groups, most=0: few(groups, most))
    for instance, objective in rounds(20):
        result = solve(instance, objective)
        best = optimum(instance, objective)
        assert not check(instance, result.plan, objective).violations
        claim = result.plan.objective
        if objective in TWO_STAGE:
            assert claim.placed_weight_bound >= best.placed_weight * (1 - 1e-9)
        elif claim.bound is not None:
            assert claim.bound >= best.value - 1e-6 * abs(best.value)


@pytest.mark.parametrize("rule", ["workers_per_node", "workers_together"])
def test_many_gangs_on_many_nodes_are_proven(rule):
    """60 gangs of 8 and 16 on 40 nodes of 8: by weight for a node, the best 40 nodes' worth."""
    lab = Instance.build("many")
    for k in range(40):
        lab.add_node(f"n{k}", gpus=8, model="A100", memory_mib=81920)
    lab.add_workload("w", memory_mib=60000)
    weights = [round(Random(k).uniform(0.5, 2), 2) for k in range(60)]
    for k, weight in enumerate(weights):
        lab.add_job(f"j{k}", "w", workers=8 * (1 + k % 2), weight=weight, **{rule: 8})
    result = solve(lab, explain=False)
    assert result.status == "optimal"
    best = {0: 0.0}  # the largest weight on each number of nodes
    for k, weight in enumerate(weights):
        nodes = 1 + k % 2
        more = {n + nodes: value + weight for n, value in best.items() if n + nodes <= 40}
        best = {n: max(best.get(n, 0.0), more.get(n, 0.0)) for n in {*best, *more}}
    assert result.objective == pytest.approx(max(best.values()))
