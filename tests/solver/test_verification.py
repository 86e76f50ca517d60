"""Findings of ``verify`` in results and in tampered results."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dovetail.instances import library
from dovetail.instances.errors import VerificationError
from dovetail.instances.generate import generate
from dovetail.instances.plan import Verification
from dovetail.solver import price_certificate
from dovetail.solver.exact_pairs import proven
from dovetail.solver.rounds import solve
from dovetail.solver.verification import verify
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
    found = result.proof.args[0]
    dual = found.certificate.main[0]
    low = replace(dual, potential=np.zeros_like(dual.potential), price=0.0)
    wrong = replace(found, certificate=replace(found.certificate, main=(low,)))
    with pytest.raises(VerificationError, match="the certificate of the bound is wrong: "):
        verify(instance, replace(result, proof=partial(proven, wrong)))


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
