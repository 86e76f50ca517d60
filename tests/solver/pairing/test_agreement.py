"""The optimum against enumeration, CP-SAT and rustworkx; every proof is checked."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dovetail.solver.pairing import Matching, certificate_errors, match_pairs

from .instances import (
    KINDS,
    Case,
    cpsat_value,
    enumerated,
    pair_values,
    random_case,
    random_cases,
    rustworkx_value,
)


def proven(case: Case) -> Matching:
    """Solve the case; its proof must hold."""
    matching = match_pairs(**case.arguments())
    assert certificate_errors(matching, **case.arguments()) == []
    return matching


def assert_optimal(case: Case, optimum: float) -> None:
    """The engine must find the optimum, or that there is no solution, and prove it."""
    matching = proven(case)
    if optimum == -math.inf:
        assert matching.status == "infeasible"
        assert (matching.mate == -1).all()
        return
    assert matching.status == "optimal"
    assert matching.value == pytest.approx(optimum, rel=1e-8, abs=1e-8)


@pytest.mark.usefixtures("way")
def test_enumeration():
    for case in random_cases(seed=1, count=100, most=9):
        assert_optimal(case, enumerated(case))


@pytest.mark.long
@pytest.mark.usefixtures("way")
def test_enumeration_long():
    for case in random_cases(seed=2, count=20_000, most=11):
        assert_optimal(case, enumerated(case))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", ["small integers", "integers", "two values"])
def test_cpsat(kind):
    _agree_with_cpsat(kind, count=4, most=30)


@pytest.mark.long
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", ["small integers", "integers", "two values"])
def test_cpsat_long(kind):
    _agree_with_cpsat(kind, count=100, most=60)


def _agree_with_cpsat(kind: str, count: int, most: int) -> None:
    rng = np.random.default_rng(3)
    for _ in range(count):
        n = int(rng.integers(10, most))
        case = random_case(rng, n)
        values = pair_values(rng, n, kind, absent=0.3)
        single = rng.integers(-1, 3, n).astype(float)
        case = Case(values, single, case.gpus, case.size, case.required)
        assert_optimal(case, cpsat_value(case))


@pytest.mark.usefixtures("way")
def test_rustworkx():
    _agree_with_rustworkx(10, 20, 30)


def test_rustworkx_on_larger_rounds():
    _agree_with_rustworkx(110, 150, 150)


def _agree_with_rustworkx(*sizes: int) -> None:
    for kind in KINDS:
        for seed, n in enumerate(sizes):
            values = pair_values(np.random.default_rng(seed), n, kind, absent=0.2 * seed)
            optimum = rustworkx_value(values)
            assert_optimal(Case(values), optimum)
            assert_optimal(Case(values).sparse(), optimum)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_rustworkx_long(kind):
    for seed in range(40):
        rng = np.random.default_rng(seed)
        values = pair_values(
            rng, int(rng.integers(10, 500)), kind, float(rng.choice([0, 0.3, 0.9]))
        )
        assert_optimal(Case(values), rustworkx_value(values))


@pytest.mark.usefixtures("way")
def test_sparse_graphs_with_nested_blossoms_and_isolated_jobs():
    """Odd cycles that share nodes make blossoms within blossoms; degree 2-3 leaves jobs alone."""
    rng = np.random.default_rng(5)
    nested = 0
    for _ in range(60):
        n = int(rng.integers(7, 40))
        values = np.full((n, n), np.nan)
        for _ in range(int(1.3 * n)):
            i, j = rng.choice(n, 2, replace=False)
            values[i, j] = values[j, i] = rng.integers(8, 12)
        case = Case(values).sparse()
        assert_optimal(case, rustworkx_value(values))
        for dual in proven(case).certificate.main:
            sets = [set(members.tolist()) for members, _ in dual.blossoms]
            nested += any(a < b for a in sets for b in sets)
    assert nested > 0


@pytest.mark.parametrize("kind", KINDS)
def test_capacity_price_on_larger_rounds(kind):
    """No other solver is needed: the checked proof says that the value is the optimum."""
    rng = np.random.default_rng(7)
    n = 200
    values = pair_values(rng, n, kind, absent=0.1)
    size = rng.choice([1, 2, 4], n, p=[0.7, 0.2, 0.1])
    for gpus in (n // 10, n // 2, n):
        case = Case(values, np.full(n, 1.0), gpus, size, rng.random(n) < 0.02)
        assert proven(case).status in ("optimal", "infeasible")
