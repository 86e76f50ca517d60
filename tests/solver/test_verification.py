"""Findings of ``verify`` in results and in tampered results."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dovetail.formulations.pair_tables import pair_tables
from dovetail.formulations.programs.pair_graph import PairGraph
from dovetail.instances import library
from dovetail.instances.errors import VerificationError
from dovetail.instances.generate import generate
from dovetail.instances.plan import Verification
from dovetail.solver.matching import exact_pairs, price_certificate, table_pairs
from dovetail.solver.matching.pair_certificate import proven_by_pairs
from dovetail.solver.registry import MatchingSolver
from dovetail.solver.rounds import solve
from dovetail.solver.types import Limits
from dovetail.solver.verification import verify
from tests.forms import values_of
from tests.solver.test_own_best import gaining_gang

MATCHINGS = ("first-pairs", "weights", "gang-whole", "running", "shares", "memory", "jct")


@pytest.mark.parametrize("name", MATCHINGS)
def test_certificates_of_shipped_rounds_hold(name):
    instance = library.load(name)
    objective = "jct" if name == "jct" else "throughput"
    pairs = len(instance.jobs) * (len(instance.jobs) - 1) // 2
    found = verify(instance, solve(instance, objective, "matching"))
    assert found == Verification(certificate="checked", pairs=pairs)


@pytest.mark.parametrize("objective", ["throughput", "completion"])
@pytest.mark.parametrize("preempt", [False, True])
def test_running_jobs_are_part_of_the_bound(preempt, objective):
    instance = generate(15, seed=3, gangs=False, running=0.3)
    result = solve(instance, objective, preempt=preempt)
    assert verify(instance, result).certificate == "checked"


def test_a_result_travels_with_its_certificate():
    instance = library.load("first-pairs")
    result = pickle.loads(pickle.dumps(solve(instance)))
    assert verify(instance, result).certificate == "checked"


@pytest.mark.parametrize("solver", ["cpsat", "greedy", "networkx"])
def test_other_solvers_leave_no_certificate(solver):
    instance = library.load("first-pairs")
    found = verify(instance, solve(instance, solver=solver))
    assert found == Verification(certificate="none")


def test_a_wrong_plan_fails():
    instance = library.load("first-pairs")
    result = solve(instance)
    plan = result.plan.replace(assignments=result.plan.assignments[:-1])
    with pytest.raises(VerificationError, match="the plan is not valid: "):
        verify(instance, replace(result, plan=plan))


def test_duals_that_prove_nothing_fail():
    instance = library.load("first-pairs")
    result = solve(instance)
    found, decided = result.proof.args
    dual = found.certificate.main[0]
    low = replace(dual, potential=np.zeros_like(dual.potential), price=0.0)
    wrong = replace(found, certificate=replace(found.certificate, main=(low,)))
    with pytest.raises(VerificationError, match="the certificate of the bound is wrong: "):
        verify(instance, replace(result, proof=partial(proven_by_pairs, wrong, decided)))


@pytest.mark.parametrize("name", ["first-pairs", "jct"])
def test_a_bound_that_is_not_the_proven_one_fails(name):
    """Also where values are as small as those of ``jct``."""
    instance = library.load(name)
    result = solve(instance, "jct" if name == "jct" else "throughput")
    objective = result.plan.objective
    lower = objective.replace(bound=objective.bound * (1 + 1e-7))
    wrong = replace(result, plan=result.plan.replace(objective=lower))
    with pytest.raises(VerificationError, match="the certificate proves a bound of"):
        verify(instance, wrong)


def test_another_instance_fails():
    result = solve(library.load("first-pairs"))
    with pytest.raises(VerificationError):
        verify(library.load("weights"), result)


class WithoutAnEdge(PairGraph):
    """Forgets all pairs of one job."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        gone = np.flatnonzero(self.pairs_of_one())
        for name in ("group", "first", "second", "size", "gain", "cost"):
            setattr(self, name, np.delete(getattr(self, name), gone))

    def pairs_of_one(self):
        shared = self.first < self.second
        one = self.first[np.argmax(np.where(shared, self.gain, -np.inf))]
        return shared & ((self.first == one) | (self.second == one))


class WithALowWeight(WithoutAnEdge):
    """Takes the pairs of one job for worth less."""

    def __init__(self, *arguments):
        PairGraph.__init__(self, *arguments)
        self.gain[self.pairs_of_one()] -= 0.5 * np.abs(self.gain).max()


class WithOneGpuLess(PairGraph):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.capacity -= 1


def refused(instance, objective="throughput"):
    """Tell whether the certificate of a matching is; also while it is verified the graph is wrong.

    In plans the check of ties among all groups finds such errors as well, in small rounds.
    """
    values = values_of(instance, objective)
    choice = MatchingSolver().solve(values, Limits())
    found = choice.proof(values)
    return bool(found.errors) or found.bound > choice.bound * (1 + 1e-9)


@pytest.mark.parametrize("objective", ["throughput", "jct", "completion"])
@pytest.mark.parametrize("broken", [WithoutAnEdge, WithALowWeight, WithOneGpuLess])
def test_a_graph_that_is_wrong_proves_nothing(monkeypatch, broken, objective):
    instances = [generate(16, seed=seed, gangs=False, running=0.2) for seed in range(6)]
    assert not any(refused(instance, objective) for instance in instances)
    monkeypatch.setattr(exact_pairs, "PairGraph", broken)
    assert sum(refused(instance, objective) for instance in instances) >= 4


def test_running_jobs_that_the_search_takes_for_fixed_prove_nothing(monkeypatch):
    instance = generate(16, seed=1, gangs=False, running=0.4)
    joined = "dovetail.formulations.programs.pair_graph._joinable"
    monkeypatch.setattr(joined, lambda groups, joins: np.zeros(len(groups.round.classes), bool))
    assert refused(instance)


def test_tables_of_large_rounds_that_are_wrong_prove_nothing(monkeypatch):
    instance = generate(120, seed=2, gangs=False, running=0.2)
    assert verify(instance, solve(instance)).certificate == "checked"

    def halved(compiled, values):
        tables = pair_tables(compiled, values)
        return replace(tables, slowdown=tables.slowdown * 2, bound=tables.bound * 2)

    monkeypatch.setattr(table_pairs, "pair_tables", halved)
    monkeypatch.setattr(table_pairs, "MOST_GROUPS", 0)
    with pytest.raises(VerificationError, match="a pair has negative reduced cost"):
        verify(instance, solve(instance))


@pytest.mark.parametrize("objective", ["throughput", "jct", "completion"])
@pytest.mark.parametrize("gangs", [False, True])
def test_certificates_of_larger_rounds_hold(objective, gangs):
    instance = generate(150, seed=4, gangs=gangs, running=0.3, weighted=True)
    if gangs:
        instance = instance.replace(cluster=instance.cluster.replace(gang_sharing="whole"))
    result = solve(instance, objective, "matching", explain=False)
    assert verify(instance, result).certificate == "checked"


def test_gangs_that_may_share_in_part_are_no_matching():
    instance = library.load("gang-whole")
    result = solve(instance)
    part = instance.replace(cluster=instance.cluster.replace(gang_sharing="partial"))
    with pytest.raises(VerificationError, match="could share some of their GPUs"):
        verify(part, result)


def test_a_bound_by_prices_is_proven_without_the_code_that_found_it():
    assert "own_best" not in inspect.getsource(price_certificate)
    instance = gaining_gang()
    result = solve(instance, "completion")
    (dual,) = result.proof.args
    assert result.proof.func is price_certificate.proven_by_prices
    assert verify(instance, result).certificate == "checked"
    low = partial(result.proof.func, dual._replace(worth=dual.worth / 2))
    with pytest.raises(VerificationError, match="its GPU and workers cost"):
        verify(instance, replace(result, proof=low))
