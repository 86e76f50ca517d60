"""The certificate of a matching, and a checker that shares no code with the engine.

*Weak duality.* Let the jobs of one size form a class. A *dual* of a class is a price per group,
a potential p_i per job and duals z_B >= 0 of odd sets B of jobs, with

    p_i + p_j + sum_(B containing i, j) z_B + price >= value of the pair   (pairs that may share)
    p_i + price >= value alone                                         (jobs that may run alone)
    p_i >= 0                                                       (jobs that are not required).

An odd set B holds at most (|B| - 1) / 2 pairs, so k disjoint groups that cover the required
jobs are worth at most sum p + sum z_B (|B| - 1) / 2 + price k. The largest sum of such bounds
over numbers of groups k that respect the limit on GPUs bounds every matching (Edmonds 1965;
the prices are the Lagrangean multipliers of the limit).

*Refinement.* Let that bound with one dual per class be U. A solution that uses a pair of
reduced cost r (the slack above) is worth at most U - r. So to prove a smaller bound V, further
duals need to be feasible only for the pairs with U - r > V.

*Exactness.* Duals are refused unless they are multiples of one power of two, so coarse that every
sum in an inequality is exact as a float: then no rounding can hide a violation. Bounds are summed
as fractions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.pairing.arguments import (
    PairingArguments,
    PairValues,
    checked,
    require_in_range,
)
from dovetail.solver.pairing.result import Certificate, Dual, Matching

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_BLOCK_CELLS = 200_000
"""Matrix cells processed together: few enough for a core's cache."""

_TILE = 256
"""Rows and columns of a matrix that are compared with their mirror image together."""

_ROUNDING = 1e-12
"""Relative error allowed for a claimed value and bound."""

_OPTIMAL_GAP = 1e-6
"""The relative gap up to which a matching may be called optimal."""

_MANTISSA = 53
"""Bits of whole numbers that are exact as floats."""

_MOST_DUAL = 2.0**900
"""Sums of smaller duals, over all jobs and GPUs, are finite."""

_MOST_UNITS = 2**24
"""Maximum size of the table of sums over the limit on GPUs."""


def certificate_errors(
    matching: Matching,
    pair_value: Any,  # noqa: ANN401 - dense or any kind of sparse array
    single_value: Floats | None = None,
    gpus: int | None = None,
    size: Ints | None = None,
    required: Bools | None = None,
) -> list[str]:
    """Return the errors in a matching, its value and its proof; empty if there are none.

    The arguments are those of ``match_pairs``. There is one pass over all pairs, with numpy only.

    Raises
    ------
    ArgumentError
        If an argument other than the matching breaks its rule.
    """
    problem = _problem(pair_value, single_value, gpus, size, required)
    return [*_shape_errors(matching, problem)] or [
        *_pairing_errors(matching, problem),
        *_claim_errors(matching),
        *_proof_errors(matching, problem),
    ]


def bound_errors(
    matching: Matching,
    pair_value: Any,  # noqa: ANN401 - dense or any kind of sparse array
    single_value: Floats | None = None,
    gpus: int | None = None,
    size: Ints | None = None,
    required: Bools | None = None,
) -> list[str]:
    """Return why a matching's duals do not prove its bound for these values; empty if they do.

    The values may differ from those given to ``match_pairs``; the value of the matching itself is
    not checked. Arguments and errors are those of ``certificate_errors``.
    """
    problem = _problem(pair_value, single_value, gpus, size, required)
    return [*_shape_errors(matching, problem)] or [*_proof_errors(matching, problem)]


def _problem(
    pair_value: Any,  # noqa: ANN401 - dense or any kind of sparse array
    single_value: Floats | None,
    gpus: int | None,
    size: Ints | None,
    required: Bools | None,
) -> PairingArguments:
    if isinstance(pair_value, PairValues):
        pair_value = np.asarray(pair_value)
    problem = checked(pair_value, single_value, gpus, size, required)
    require_in_range(_largest(problem))
    return problem


def _proof_errors(matching: Matching, problem: PairingArguments) -> Sequence[str]:
    return [*_class_errors(matching.certificate, problem)] or [*_dual_errors(matching, problem)]


def _shape_errors(matching: Matching, problem: PairingArguments) -> Iterator[str]:
    """Find arrays of the wrong type or shape, and numbers that are not finite."""
    n = len(problem)
    mate, certificate = np.asarray(matching.mate), matching.certificate
    if mate.shape != (n,) or not _are_indices(np.maximum(mate, 0), n) or (mate < -1).any():
        yield f"mate must hold n = {n} indices or -1"
    for dual in (*certificate.main, *certificate.refined):
        prices = [dual.price, *(z for _, z in dual.blossoms)]
        if not _are_indices(dual.jobs, n) or np.size(dual.jobs) == 0:
            yield f"the jobs of a dual must be different indices below {n}"
        elif np.shape(dual.potential) != np.shape(dual.jobs):
            yield "a dual must have one potential per job"
        elif not (np.isfinite(dual.potential).all() and np.isfinite(prices).all()):
            yield "a price, a potential or the dual of a blossom is not a finite number"
        elif not all(_are_indices(members, n) for members, _ in dual.blossoms):
            yield f"a blossom must hold indices of jobs below {n}"


def _are_indices(given: Ints, n: int) -> bool:
    """Return whether these are indices below n."""
    indices = np.asarray(given)
    whole = indices.ndim == 1 and indices.dtype.kind in "iu"
    return whole and bool(((indices >= 0) & (indices < n)).all())


def _class_errors(certificate: Certificate, problem: PairingArguments) -> Iterator[str]:
    """Find duals that are not of one class (all jobs of one size) or not exact as floats."""
    main, refined = certificate.main, certificate.refined
    jobs = np.concatenate([np.zeros(0, np.int64), *(dual.jobs for dual in main)])
    sizes = [np.unique(problem.size[dual.jobs]) for dual in main]
    if not np.array_equal(np.sort(jobs), np.arange(len(problem))):
        yield "the classes do not cover every job once"
    if any(len(of_class) > 1 for of_class in sizes):
        yield "a class has jobs of several sizes"
    elif len(main) > len(np.unique(problem.size)):
        yield "the jobs of one size are in several classes"
    if not all(any(np.array_equal(d.jobs, own.jobs) for own in main) for d in refined):
        yield "a refined dual is not of a class"
    if not all(map(_is_exact, (*main, *refined))):
        yield "a dual is not a multiple of a unit in which its sums are exact"


def _is_exact(dual: Dual) -> bool:
    """Return whether every sum of two potentials, the price and blossoms is exact as a float."""
    numbers = np.array([*dual.potential.tolist(), dual.price, *(z for _, z in dual.blossoms)])
    most = 2 * np.abs(dual.potential).max() + np.abs(numbers[len(dual.jobs) :]).sum()
    unit = math.ldexp(1.0, math.frexp(most)[1] - _MANTISSA)
    return bool(most < _MOST_DUAL and unit > 0 and (np.fmod(numbers, unit) == 0).all())


def _pairing_errors(matching: Matching, problem: PairingArguments) -> Iterator[str]:
    """Check the matching itself and its value."""
    mate, own = matching.mate, np.arange(len(problem))
    placed = mate >= 0
    if matching.status in ("infeasible", "unknown"):
        if placed.any():
            yield "no job is placed without a solution"
        elif matching.value != -math.inf:
            yield f"the value is -inf without a solution, not {matching.value}"
        return
    if (mate[mate[placed]] != own[placed]).any():
        yield "mate is not symmetric"
        return
    first, alone = np.flatnonzero(mate > own), np.flatnonzero(mate == own)
    values = [
        *problem.value_of(first, mate[first]).tolist(),
        *problem.single_value[alone].tolist(),
    ]
    used = sum(problem.size[first].tolist()) + sum(problem.size[alone].tolist())
    if (problem.size[first] != problem.size[mate[first]]).any():
        yield "a pair has unequal sizes"
    if (problem.required & ~placed).any():
        yield "a required job is not placed"
    if used > problem.gpus:
        yield f"{used} GPUs are used of {problem.gpus}"
    if not np.isfinite(values).all():
        yield "a pair may not share, or a job may not run alone"
    elif not _close(math.fsum(values), matching.value):
        yield f"the value is {math.fsum(values)}, not {matching.value}"


def _claim_errors(matching: Matching) -> Iterator[str]:
    """Check the gap and the status against value and bound."""
    value, bound, status = matching.value, matching.bound, matching.status
    if status == "infeasible":
        if bound != -math.inf or matching.gap != 0:
            yield "the bound is -inf and the gap 0 if there is no solution"
        return
    if not math.isfinite(bound):
        yield f"the bound is not a finite number, got {bound}"
        return
    scale = max(abs(bound), abs(value))
    gap = abs(bound - value) / scale if 0 < scale < math.inf else scale
    if gap != matching.gap and not math.isclose(gap, matching.gap, rel_tol=1e-9, abs_tol=_ROUNDING):
        yield f"the gap is {gap}, not {matching.gap}"
    proven = "unknown" if gap == math.inf else "optimal" if gap <= _OPTIMAL_GAP else "feasible"
    if status != proven:
        yield f"the status is {proven}, not {status}"


def _dual_errors(matching: Matching, problem: PairingArguments) -> Iterator[str]:
    """Check the duals and the bound that they prove."""
    main, refined = matching.certificate.main, matching.certificate.refined
    for dual in (*main, *refined):
        yield from _node_errors(dual, problem)
    most = _lagrangean_bound(main, problem)
    finite = math.isfinite(matching.bound)
    spare = most - Fraction(matching.bound) if finite and refined else Fraction(0)
    for dual in main:
        own = [d for d in refined if np.array_equal(d.jobs, dual.jobs)]
        yield from _pair_errors(dual, own, spare, problem)
    if not _is_symmetric(problem):
        yield "pair_value is not symmetric"
    if matching.status == "infeasible":
        if most >= len(problem) * Fraction(_least(problem)):
            yield "the duals do not prove that there is no solution"
    elif finite:
        proven = min(most, _refined_bound(main, refined, problem)) if refined else most
        if proven > Fraction(matching.bound) and not _close(float(proven), matching.bound):
            yield f"the duals prove a bound of {float(proven)}, not {matching.bound}"


def _node_errors(dual: Dual, problem: PairingArguments) -> Iterator[str]:
    """Check the inequalities of single jobs, and the odd sets."""
    if (dual.potential < 0)[~problem.required[dual.jobs]].any():
        yield "the potential of a job that may wait is negative"
    if (dual.potential + dual.price < problem.single_value[dual.jobs]).any():
        yield "the potential of a job is less than its value alone"
    if dual.price < 0:
        yield "a price is negative"
    for members, z in dual.blossoms:
        if len(members) % 2 == 0 or len(np.unique(members)) < len(members) or z < 0:
            yield "a blossom is not an odd set with a dual >= 0"


def _pair_errors(
    main: Dual, refined: Sequence[Dual], spare: Fraction, problem: PairingArguments
) -> Iterator[str]:
    """Check the inequalities of all pairs of a class; refined duals only where needed."""
    limit = max(0.0, float(spare))
    first, second, value = _cheap_pairs(main, limit, problem)
    total = _totals(main, first, second, problem)
    if (total < value).any():
        yield "a pair has negative reduced cost"
    if not refined:
        return
    # The exact reduced cost is the difference and its rounding error (Knuth's two-sum).
    reduced = total - value
    back = reduced - total
    error = (total - (reduced - back)) - (value + back)
    survives = (reduced < limit) | ((reduced == limit) & (error < float(spare - Fraction(limit))))
    for dual in refined:
        some = first[survives], second[survives]
        if (_totals(dual, *some, problem) < value[survives]).any():
            yield "a pair that could be in a better solution has negative reduced cost"


def _cheap_pairs(dual: Dual, limit: float, problem: PairingArguments) -> tuple[Ints, Ints, Floats]:
    """Return the pairs of reduced cost up to the limit, without blossoms: jobs and values."""
    found: list[tuple[Ints, Ints, Floats]] = []
    for rows, columns, value in _blocks(problem, dual.jobs):
        slack = dual.potential[rows] + dual.potential[columns] + dual.price - value
        where = np.nonzero((slack <= limit) & (value > -np.inf) & (rows < columns))
        i, j = (dual.jobs[np.broadcast_to(x, value.shape)[where]] for x in (rows, columns))
        found.append((i, j, value[where]))
    none = np.zeros(0, dtype=np.int64)
    first, second, value = (
        np.concatenate(parts) for parts in zip((none, none, np.zeros(0)), *found, strict=True)
    )
    return first, second, value


def _blocks(problem: PairingArguments, jobs: Ints) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Yield all pairs among the jobs, block by block: their positions and values."""
    if problem.is_sparse:
        place = np.full(len(problem), -1)
        place[jobs] = np.arange(len(jobs))
        rows, columns, value = problem.entries()
        keep = (place[rows] >= 0) & (place[columns] >= 0)
        yield place[rows[keep]], place[columns[keep]], value[keep]
        return
    everything = len(jobs) == len(problem)
    for rows in _row_blocks(len(jobs)):
        block = problem.pair_value[jobs[rows]]
        block = block if everything else block[:, jobs]
        yield rows[:, None], np.arange(len(jobs))[None, :], block.astype(np.float64)


def _row_blocks(n: int) -> Iterator[Ints]:
    """Yield the rows of an (n, n) matrix in blocks that fit the memory of a pass."""
    step = max(1, _BLOCK_CELLS // max(1, n))
    for k in range(0, n, step):
        yield np.arange(k, min(k + step, n))


def _totals(dual: Dual, first: Ints, second: Ints, problem: PairingArguments) -> Floats:
    """Return the left sides of the inequalities of pairs of jobs, including blossoms."""
    potential = np.zeros(len(problem))
    potential[dual.jobs] = dual.potential
    total = potential[first] + potential[second] + dual.price
    for members, z in dual.blossoms:
        inside = np.zeros(len(problem), dtype=bool)
        inside[members] = True
        total = total + z * (inside[first] & inside[second])
    return np.asarray(total)


def _constant(dual: Dual) -> Fraction:
    inside = (Fraction(z) * ((len(members) - 1) // 2) for members, z in dual.blossoms)
    return sum(map(Fraction, dual.potential.tolist()), Fraction(0)) + sum(inside)


def _lagrangean_bound(main: Sequence[Dual], problem: PairingArguments) -> Fraction:
    """Return the bound that one dual per class proves, at the largest of their prices per GPU."""
    unit = problem.gpus_per_unit
    per_unit = [Fraction(d.price) * unit / int(problem.size[d.jobs[0]]) for d in main]
    constant = sum(map(_constant, main), Fraction(0))
    return constant + max(per_unit, default=Fraction(0)) * (problem.gpus // unit)


def _refined_bound(
    main: Sequence[Dual], refined: Sequence[Dual], problem: PairingArguments
) -> Fraction | float:
    """Return the largest sum of the classes' bounds over group numbers within the limit.

    It is inf if the table of sums, or the numbers in it, would be too large.
    """
    duals = (*main, *refined)
    limit = problem.gpus // problem.gpus_per_unit
    parts = [(_constant(d), Fraction(d.price)) for d in duals]
    # Constants and prices are multiples of powers of two, and so of 1 / the largest denominator.
    scale = max(number.denominator for part in parts for number in part)
    lines = [(int(constant * scale), int(price * scale)) for constant, price in parts]
    largest = sum(abs(constant) + price * (limit + 1) for constant, price in lines)
    if limit >= _MOST_UNITS or largest >= 2**62:
        return math.inf
    best = np.zeros(limit + 1, dtype=np.int64)
    for dual in main:
        size = int(problem.size[dual.jobs[0]]) // problem.gpus_per_unit
        own = [k for k, d in enumerate(duals) if np.array_equal(d.jobs, dual.jobs)]
        counts = np.arange(min(len(dual.jobs), limit // size) + 1)
        bounds = np.min([lines[k][0] + lines[k][1] * counts for k in own], axis=0)
        reached = best + bounds[0]
        for k, bound in enumerate(bounds[1:].tolist(), 1):
            np.maximum(reached[size * k :], best[: len(best) - size * k] + bound,
                       out=reached[size * k :])  # fmt: skip
        best = reached
    return Fraction(int(best.max()), scale)


def _is_symmetric(problem: PairingArguments) -> bool:
    """Return whether all pairs that may share have the same value from both sides."""
    if problem.is_sparse:
        rows, columns, value = problem.entries()
        allowed = value > -np.inf
        mirrored = problem.value_of(columns[allowed], rows[allowed])
        return np.array_equal(value[allowed], mirrored)
    pairs = problem.pair_value
    starts = range(0, len(problem), _TILE)
    for i in starts:
        for j in starts[i // _TILE :]:
            value = pairs[i : i + _TILE, j : j + _TILE]
            mirrored = pairs[j : j + _TILE, i : i + _TILE].T
            if ((value != mirrored) & ((value > -np.inf) | (mirrored > -np.inf))).any():
                return False
    return True


def _largest(problem: PairingArguments) -> float:
    """Return the largest magnitude of a value that a group may have."""
    largest = np.abs(problem.single_value).max(where=problem.single_value > -np.inf, initial=0.0)
    for rows, columns, value in _blocks(problem, np.arange(len(problem))):
        allowed = (rows != columns) & (value > -np.inf)
        largest = max(largest, np.abs(value).max(where=allowed, initial=0.0))
    return float(largest)


def _least(problem: PairingArguments) -> float:
    """Return the least value of a group that fits on the GPUs; 0 if none is negative."""
    fits = problem.size <= problem.gpus
    single = problem.single_value
    least = single.min(where=fits & (single > -np.inf), initial=0.0)
    size = problem.size[fits]
    for rows, columns, value in _blocks(problem, np.flatnonzero(fits)):
        allowed = (rows != columns) & (size[rows] == size[columns]) & (value > -np.inf)
        least = min(least, value.min(where=allowed, initial=0.0))
    return float(least)


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_ROUNDING)
