"""The checker accepts no false claim, even of certificates built to deceive."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dovetail.solver.pairing import Certificate, Matching, certificate_errors, match_pairs
from dovetail.solver.pairing.result import Dual

from .instances import Case, enumerated, random_case

Trick = Callable[[np.random.Generator, Matching, Case], Matching]


def test_no_false_claim_is_accepted():
    _deceive(seed=31, cases=150)


@pytest.mark.long
def test_no_false_claim_is_accepted_long():
    _deceive(seed=32, cases=20_000)


def test_values_of_jobs_that_do_not_fit_hide_no_proof_that_there_is_no_solution():
    # The job that must be placed needs four GPUs of three; its own value used to count.
    never = -math.inf
    case = {
        "pair_value": np.full((4, 4), never),
        "single_value": np.array([never, 1.0, 2.0, 3.0]),
        "gpus": 3,
        "size": np.array([3, 2, 1, 4]),
        "required": np.array([False, False, False, True]),
    }
    claim = match_pairs(**case)
    assert claim.status == "infeasible"
    assert certificate_errors(claim, **case) == []


def _deceive(seed: int, cases: int) -> None:
    rng = np.random.default_rng(seed)
    refused = dict.fromkeys(TRICKS, 0)
    for _ in range(cases):
        case = _scaled(random_case(rng, int(rng.integers(1, 7))), rng)
        case = case.sparse() if rng.random() < 0.3 else case
        optimum, right = enumerated(case), match_pairs(**case.arguments())
        assert certificate_errors(right, **case.arguments()) == []
        for trick in TRICKS:
            lie = trick(rng, right, case)
            errors = certificate_errors(lie, **case.arguments())
            false = _is_false(lie, case, optimum)
            assert errors or not false, (trick.__name__, lie, case)
            refused[trick] += bool(errors) and false
    assert all(refused.values()), [t.__name__ for t, times in refused.items() if not times]


def _scaled(case: Case, rng: np.random.Generator) -> Case:
    scale = float(rng.choice([1.0, 1e-13, 1e12]))
    single = None if case.single_value is None else case.single_value * scale
    return replace(case, pair_value=case.pair_value * scale, single_value=single)


def _is_false(claim: Matching, case: Case, optimum: float) -> bool:
    """Tell whether a claim is false by more than rounding."""
    if claim.status == "infeasible":
        return optimum > -math.inf
    slack = 1e-11 * abs(claim.bound)
    if not claim.bound >= optimum - slack:
        return True
    if claim.status == "unknown":
        return False
    worth = _worth(claim.mate, case)
    if not math.isclose(worth, claim.value, rel_tol=1e-11) or worth > optimum + slack:
        return True
    most = max(abs(claim.value), abs(optimum))
    return claim.status == "optimal" and optimum - claim.value > 2e-6 * most


def _worth(mate: np.ndarray, case: Case) -> float:
    """Return the value of a matching; NaN where it is none."""
    pair, single = case.dense(), case.single_value
    total = 0.0
    for i, j in enumerate(mate.tolist()):
        if j >= 0 and mate[j] != i:
            return math.nan
        if j == i:
            total += math.nan if single is None else single[i]
        elif j > i:
            total += pair[i, j]
    return total


def _claim(right: Matching, mate: np.ndarray, case: Case, *main: Dual) -> Matching:
    """Claim that a matching is optimal, by these duals."""
    value = _worth(mate, case)
    return replace(
        right,
        mate=mate,
        value=value,
        bound=value,
        gap=0.0,
        status="optimal",
        certificate=Certificate(main or right.certificate.main),
    )


def _worse(rng: np.random.Generator, right: Matching, case: Case) -> np.ndarray:
    """Return a matching without some of the right one's groups."""
    mate = right.mate.copy()
    for i in np.flatnonzero(rng.random(len(mate)) < 0.5).tolist():
        if mate[i] >= 0 and (case.required is None or not case.required[[i, mate[i]]].any()):
            mate[[i, mate[i]]] = -1
    return mate


def _changed(right: Matching, change: Callable[[Dual], Dual]) -> tuple[Dual, ...]:
    return tuple(map(change, right.certificate.main))


def _unit(case: Case) -> float:
    """Return a power of two of the values' magnitude."""
    values = case.pair_value if isinstance(case.pair_value, np.ndarray) else case.pair_value.data
    largest = float(np.abs(values).max(where=np.isfinite(values), initial=0.0))
    return 2.0 ** math.floor(math.log2(largest or 1.0))


def split_classes(rng: np.random.Generator, right: Matching, case: Case) -> Matching:
    mate = _worse(rng, right, case)
    own = [] if case.single_value is None else np.nan_to_num(case.single_value, neginf=0.0)
    potential = np.maximum(own if len(own) else np.zeros(len(mate)), 0.0)
    jobs = range(len(mate))
    return _claim(
        right, mate, case, *(Dual(np.array([k]), 0.0, potential[k : k + 1], ()) for k in jobs)
    )


def not_a_number(rng: np.random.Generator, right: Matching, case: Case) -> Matching:
    wrong = float(rng.choice([math.nan, math.inf, -math.inf]))
    everything = np.arange(len(right.mate) | 1) % len(right.mate)
    changes: list[Callable[[Dual], Dual]] = [
        lambda d: replace(d, price=wrong),
        lambda d: replace(d, potential=np.full(len(d.jobs), wrong)),
        lambda d: replace(d, blossoms=((everything, wrong),)),
    ]
    change = changes[int(rng.integers(len(changes)))]
    return _claim(right, _worse(rng, right, case), case, *_changed(right, change))


def refined_not_a_number(rng: np.random.Generator, right: Matching, case: Case) -> Matching:
    claim = _claim(right, _worse(rng, right, case), case)
    wrong = _changed(right, lambda d: replace(d, potential=d.potential * np.nan))
    return replace(claim, certificate=Certificate(right.certificate.main, wrong))


def lower_duals(rng: np.random.Generator, right: Matching, case: Case) -> Matching:
    by = 2.0 ** -int(rng.integers(0, 50)) * _unit(case)
    changes: list[Callable[[Dual], Dual]] = [
        lambda d: replace(d, potential=d.potential - by),
        lambda d: replace(d, price=d.price - by),
        lambda d: replace(d, potential=d.potential - by, price=d.price + 2 * by),
        lambda d: replace(d, potential=d.potential + by, price=d.price - 2 * by),
        lambda d: replace(d, potential=d.potential * 0.5, price=d.price * 0.5),
    ]
    change = changes[int(rng.integers(len(changes)))]
    return _claim(right, _worse(rng, right, case), case, *_changed(right, change))


def blossoms(rng: np.random.Generator, right: Matching, case: Case) -> Matching:
    """Sets of even size, of too few, equal or overlapping jobs, of a dual below zero."""
    z = float(rng.choice([-1.0, 1.0, 4.0])) * _unit(case)

    def change(dual: Dual) -> Dual:
        sets = [rng.choice(dual.jobs, int(rng.integers(0, 5))) for _ in range(3)]
        lower = np.maximum(dual.potential - abs(z), 0.0)
        return replace(dual, potential=lower, blossoms=tuple((s, z) for s in sets))

    return _claim(right, _worse(rng, right, case), case, *_changed(right, change))


def drowned_in_rounding(rng: np.random.Generator, right: Matching, case: Case) -> Matching:
    """Potentials and prices so large that rounding in their sum loses the value of a pair."""
    far = 2.0 ** int(rng.integers(52, 60)) * _unit(case)

    def change(dual: Dual) -> Dual:
        sign = np.where(np.arange(len(dual.jobs)) % 2, 1.0, -1.0)
        by = 0.3 * far * 2.0**-52 * _unit(case)
        return replace(dual, potential=sign * far - by, price=far if rng.random() < 0.5 else 0.0)

    return _claim(right, _worse(rng, right, case), case, *_changed(right, change))


def low_refined_duals(rng: np.random.Generator, right: Matching, case: Case) -> Matching:
    claim = _claim(right, _worse(rng, right, case), case)
    lower = _changed(right, lambda d: replace(d, potential=d.potential * 0.25, price=0.0))
    if rng.random() < 0.5:
        lower = tuple(
            Dual(d.jobs[:1], d.price, d.potential[:1], ()) for d in lower for _ in range(2)
        )
    return replace(claim, certificate=Certificate(right.certificate.main, lower))


def wrong_status(rng: np.random.Generator, right: Matching, case: Case) -> Matching:
    none = np.full(len(right.mate), -1)
    nothing = replace(right, mate=none, value=-math.inf, bound=-math.inf, gap=0.0)
    worse = _worse(rng, right, case)
    value = _worth(worse, case)
    scale = max(abs(value), abs(right.bound))
    gap = abs(right.bound - value) / scale if 0 < scale < math.inf else 0.0
    return [
        replace(nothing, status="infeasible"),
        replace(nothing, status="infeasible", certificate=Certificate(())),
        replace(nothing, status="unknown"),
        replace(right, mate=worse, value=value, gap=gap, status="optimal"),
    ][int(rng.integers(4))]


def wrong_bound(rng: np.random.Generator, right: Matching, case: Case) -> Matching:
    wrong = rng.choice([math.nan, -math.inf, math.inf, right.value * 0.5, right.bound - 1e-12])
    return replace(right, bound=float(wrong), gap=0.0, status="optimal")


def wrong_mate(rng: np.random.Generator, right: Matching, case: Case) -> Matching:
    mate = rng.integers(-1, len(right.mate), len(right.mate))
    return replace(right, mate=mate, value=right.bound, gap=0.0, status="optimal")


TRICKS: tuple[Trick, ...] = (
    split_classes,
    not_a_number,
    refined_not_a_number,
    lower_duals,
    blossoms,
    drowned_in_rounding,
    low_refined_duals,
    wrong_status,
    wrong_bound,
    wrong_mate,
)
