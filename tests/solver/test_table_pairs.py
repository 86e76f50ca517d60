"""Rounds matched on tables against the same rounds with all their groups listed."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from dovetail import solve
from dovetail.formulations.candidates.groups import score
from dovetail.formulations.candidates.listing import candidate_groups
from dovetail.formulations.completion import Completion
from dovetail.formulations.programs.pair_graph import PairGraph
from dovetail.formulations.values import JctValues
from dovetail.instances.checking.checker import check
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.generate import generate
from dovetail.instances.instance import Instance
from dovetail.solver.matching import table_pairs as module
from dovetail.solver.matching.exact_pairs import best_matching
from dovetail.solver.matching.table_pairs import best_on_tables, table_pairs
from dovetail.solver.pairing import splits
from dovetail.solver.pairing.compilation import compiled
from dovetail.solver.pairing.dense import FORBIDDEN
from dovetail.solver.types import Limits
from tests.data import small
from tests.forms import values_of
from tests.strategies import Shape, random_instance

PAIRS = Shape(jobs=9, gpus=7, models=False, sets=False, batches=False)
ANY = Shape(jobs=7, gpus=6)
ONE_GPU = Shape(jobs=9, gpus=7, models=False, sets=False, batches=False, gangs=False)


@pytest.fixture(autouse=True)
def tables_for_small_rounds(monkeypatch):
    monkeypatch.setattr(module, "_LISTED_JOBS", 0)
    monkeypatch.setattr(module, "MOST_GROUPS", -1)


def random_rounds(shape, seeds, objective="throughput"):
    for seed in seeds:
        yield values_of(alike(random_instance(Random(seed), shape)), objective)


def alike(instance):
    """The instance on GPUs of one size, its gangs sharing as wholes."""
    data = instance.to_data()
    data["cluster"]["gang_sharing"] = "whole"
    for node in data["cluster"]["nodes"]:
        for gpu in node["gpus"]:
            gpu["memory_mib"] = 12000
    return Instance.from_data(data)


def listed(values):
    return best_matching(candidate_groups(values).apart, Limits())


@pytest.mark.parametrize("objective", ["slowdown", "sensitivity", "energy", "fewest"])
def test_two_stages_agree_with_the_listed_groups(objective):
    tabled = 0
    for values in random_rounds(PAIRS, range(40), objective):
        large = table_pairs(values)
        if large is None:
            continue
        found = best_on_tables(large, Limits())
        best = listed(values)
        assert found.weight_bound == best.weight_bound
        assert found.value == pytest.approx(best.value, rel=1e-9)
        assert best.value <= found.bound
        assert found.bound <= best.bound + 1e-6 * abs(best.bound)
        tabled += 1
    assert tabled > 7


def test_the_optimum_of_the_listed_groups():
    tabled = joined = fixed = gangs = 0
    for values in random_rounds(PAIRS, range(100)):
        large = table_pairs(values)
        if large is None:
            continue
        found = best_on_tables(large, Limits())
        best = listed(values)
        assert found.value == pytest.approx(best.value, rel=1e-12)
        assert found.bound == pytest.approx(best.bound, rel=1e-7)
        sizes = found.groups.sizes[found.counts > 0]
        tabled += bool((sizes == 2).any())
        fixed += large.pairing().constant > 0
        gangs += bool((large.tables.size[found.groups.job] > 1).any())
        running = large.tables.running[found.groups.job]
        taken = np.repeat(found.counts > 0, found.groups.sizes)
        joined += bool(
            (running & taken & np.repeat(found.groups.sizes == 2, found.groups.sizes)).any()
        )
    assert tabled > 10
    assert min(joined, fixed, gangs) > 0


@pytest.mark.parametrize("shape", [PAIRS, ANY])
def test_tables_only_where_plans_are_matchings(shape):
    for seed in range(80):
        values = values_of(random_instance(Random(seed), shape))
        if table_pairs(values) is not None:
            assert PairGraph(candidate_groups(values)).jobs == len(values.round)


@pytest.mark.parametrize("objective", ["jct", "completion"])
def test_values_that_depend_on_ends_agree_with_the_listed_groups(objective):
    tabled = shared = joined = 0
    for values in random_rounds(ONE_GPU, range(60), objective):
        large = table_pairs(values)
        if large is None:
            continue
        found, best = best_on_tables(large, Limits()), listed(values)
        assert found.value == pytest.approx(best.value, rel=1e-9)
        assert found.bound == pytest.approx(best.bound, rel=1e-6)
        pairs = np.flatnonzero((found.groups.sizes == 2) & (found.counts > 0))
        running = values.round.jobs.running[found.groups.job]
        joined += bool(running[found.groups.start[pairs]].any())
        shared += bool(len(pairs))
        tabled += 1
    assert min(tabled, shared) > 10
    assert joined


def test_the_least_cost_of_each_job_in_pairs():
    instance = generate(150, seed=4, workloads=25, gangs=False, running=0.2)
    pairing = table_pairs(values_of(instance, "energy")).pairing(0.0, 1.0)
    cost = -np.asarray(pairing.pair)
    least = np.where(np.isnan(cost), np.inf, cost).min(axis=1)
    assert (least > 0).all()
    bound = -pairing.pairs.highest(pairing.pair)
    assert (bound <= least).all()
    assert bound == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("objective", ["jct", "completion"])
@pytest.mark.parametrize("options", [{}, {"running": 0.3, "margin": 0.1, "weighted": True}])
def test_kernels_round_the_values_of_pairs_that_depend_on_ends(objective, options, monkeypatch):
    instance = generate(150, seed=4, workloads=25, gangs=False, **options)
    values = table_pairs(values_of(instance, objective)).pairs
    jobs, scale = np.arange(1, 150, 2), 2.0**29 / values.largest
    fixed, joined = values.rounded(jobs, scale)
    matrix = np.asarray(values)[np.ix_(jobs, jobs)]
    units = np.where(np.isnan(matrix), FORBIDDEN, np.ceil(matrix * scale))
    assert np.abs(fixed - units).max() <= 1  # times of the price are looked up in another order
    assert np.array_equal(joined, (~np.isnan(matrix)).sum(axis=1))
    assert np.nanmax(np.abs(np.asarray(values))) <= values.largest

    monkeypatch.setattr(splits, "LEAST_JOBS", 0)
    monkeypatch.setattr(splits, "suits", lambda jobs, kinds, splits: True)
    by_kinds = values.by_kinds(jobs, scale)
    assert (by_kinds is not None) == (objective == "jct")
    if by_kinds is not None:
        first, second = np.divmod(np.arange(len(jobs) ** 2), len(jobs))
        assert np.array_equal(by_kinds.values(first, second, compiled), fixed.ravel())


@pytest.mark.parametrize(
    "objective", ["throughput", "slowdown", "sensitivity", "jct", "completion"]
)
def test_every_pair_is_worth_what_its_best_listed_group_is(objective):
    compared = 0
    shape = ONE_GPU if objective == "completion" else PAIRS
    for values in random_rounds(shape, range(80), objective):
        large = table_pairs(values)
        if large is None:
            continue
        graph = PairGraph(candidate_groups(values).apart)
        n = graph.jobs
        best = np.full((n, n), -np.inf)
        np.maximum.at(best, (graph.first, graph.second), graph.gain)
        best = np.maximum(best, best.T)
        pair = np.asarray(large.pairs)
        pair = np.where(np.isnan(pair), -np.inf, pair)
        free = large.tables.capacity - large.tables.size[large.tables.required].sum()
        apart = ~large.tables.running & (large.tables.size > free)
        pair[np.ix_(apart, apart)] = -np.inf
        np.fill_diagonal(pair, np.where(np.isnan(large.alone()), -np.inf, large.alone()))
        undecided = np.flatnonzero(large.tables.required & ~graph.required)
        pair[undecided, undecided] = -np.inf
        if values.relative:  # no plan needs a loss
            best[best < 0] = -np.inf
        assert np.allclose(best, pair, rtol=1e-12, atol=1e-12)
        compared += 1
    assert compared > 15


@pytest.mark.parametrize("preempt", [False, True])
def test_plans_pass_the_checker(preempt):
    for seed in range(25):
        instance = alike(random_instance(Random(seed), PAIRS))
        try:
            result = solve(instance, solver="matching", preempt=preempt)
        except UnsupportedError:
            continue
        assert result.status == "optimal"
        assert check(instance, result.plan).valid


@pytest.mark.parametrize("options", [{}, {"running": 0.2}, {"margin": 0.1, "weighted": True}])
def test_larger_rounds(options):
    for gangs in ({"gangs": False}, {"gang_sharing": "whole"}):
        instance = generate(130, seed=4, workloads=25, **gangs, **options)
        values = values_of(instance)
        large = table_pairs(values)
        assert large is not None
        found = best_on_tables(large, Limits())
        assert found.value == pytest.approx(listed(values).value, rel=1e-9)


class JctInTwoStages(JctValues):
    """The same gains and rule, after placing as much weight as possible."""

    two_stage = True


class JctByPower(JctInTwoStages):
    ratio = True


class CostOfSharing(JctValues):
    """A cost in place of a rate, with the same rule."""

    minimised = True

    def __init__(self, compiled):
        super().__init__(compiled)
        self.scale = -self.scale


class CompletionInTwoStages(Completion):
    two_stage = True


@pytest.mark.parametrize(
    "objective", [JctInTwoStages, JctByPower, CostOfSharing, CompletionInTwoStages]
)
def test_own_objectives_that_count_ends_otherwise_than_tables_do(objective):
    instance = generate(120, seed=0, workloads=12, gangs=False, weighted=True)
    found, best = solve(instance, objective, "matching"), listed(values_of(instance, objective))
    assert found.objective == pytest.approx(best.value, rel=1e-9)
    assert found.plan.objective.placed_weight in (None, score(best.groups, best.counts).weight)


def test_no_time_leaves_running_jobs_where_they_are():
    instance = generate(130, seed=4, workloads=25, gangs=False, running=0.3)
    result = solve(instance, solver="matching", time_limit=0.0)
    assert check(instance, result.plan).valid
    assert result.plan.waiting


def test_an_entry_of_the_model_wins_over_one_without():
    jobs = [{"id": "j"}, {"id": "k"}, {"id": "l", "workload": "b"}]
    other = {"pair": ["a", "b"], "slowdown": [1.5, 1.5]}
    general = {"pair": ["a", "a"], "slowdown": [1.2, 1.2]}
    own = {**general, "gpu_model": "V100"}
    for entry, mates in (({"slowdown": [1.1, 1.1]}, 1.1), ({"slowdown": None}, None)):
        instance = small(jobs, [general, {**own, **entry}, other])
        value = table_pairs(values_of(instance)).pairs.best(0, np.array([1]))[0]
        assert np.isnan(value) if mates is None else value == 2 / mates


def test_small_rounds_are_listed(monkeypatch):
    values = values_of(generate(20, seed=1, gangs=False))
    assert table_pairs(values) is not None
    monkeypatch.setattr(module, "MOST_GROUPS", 10**6)
    assert table_pairs(values) is None
