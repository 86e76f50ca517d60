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
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dovetail.solver.pairing.matching import Matching

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_BLOCK_CELLS = 2_000_000
"""Matrix cells looked at together: what a pass needs in memory."""

_ROUNDING = 1e-12
"""Relative error allowed to sums of many floats; the inequalities themselves are exact."""


@dataclass(frozen=True)
class Dual:
    """A dual of one class.

    Attributes
    ----------
    jobs : (m,) int
        The jobs of the class.
    price : float
        Per group.
    potential : (m,) float
        p of each of the jobs.
    blossoms : tuple of ((k,) int, float)
        Odd sets of jobs and their duals.
    """

    jobs: Ints
    price: float
    potential: Floats
    blossoms: tuple[tuple[Ints, float], ...]

    @property
    def constant(self) -> float:
        """The bound on no groups."""
        inside = [z * ((len(members) - 1) // 2) for members, z in self.blossoms]
        return math.fsum([*self.potential.tolist(), *inside])


@dataclass(frozen=True)
class Certificate:
    """The duals that prove a bound.

    Attributes
    ----------
    main : tuple of Dual
        One per class, feasible for all pairs.
    refined : tuple of Dual
        Further ones, feasible for the pairs that could be in a better solution.
    """

    main: tuple[Dual, ...]
    refined: tuple[Dual, ...] = ()


def certificate_errors(
    matching: Matching,
    pair_value: Any,  # noqa: ANN401 - dense or any kind of sparse array
    single_value: Floats | None = None,
    gpus: int | None = None,
    size: Ints | None = None,
    required: Bools | None = None,
) -> list[str]:
    """Return what is wrong with a matching, its value or its proof; empty if nothing is.

    The arguments are those that ``match_pairs`` got. One pass over all pairs, with numpy only.
    """
    n = pair_value.shape[0]
    given = _Given(
        pair_value,
        np.full(n, np.nan) if single_value is None else np.asarray(single_value, dtype=float),
        np.ones(n, dtype=np.int64) if size is None else np.asarray(size),
        np.zeros(n, dtype=bool) if required is None else np.asarray(required),
        None if gpus is None else int(gpus),
    )
    if matching.status in ("infeasible", "unknown"):
        placed = "no job is placed without a solution" if (matching.mate >= 0).any() else ""
        return [placed] if placed else []
    return [*_matching_errors(matching, given), *_bound_errors(matching, given)]


@dataclass(frozen=True)
class _Given:
    pair_value: Any
    single_value: Floats
    size: Ints
    required: Bools
    gpus: int | None

    @property
    def limit(self) -> int:
        total = int(self.size.sum())
        return total if self.gpus is None else min(total, self.gpus)

    def pairs(self, first: Ints, second: Ints) -> Floats:
        """Return the values of some pairs, NaN where they may not share."""
        if isinstance(self.pair_value, np.ndarray):
            return np.asarray(self.pair_value[first, second], dtype=np.float64)
        rows = self.pair_value.tocsr()
        found = []
        for i, j in zip(first.tolist(), second.tolist(), strict=True):
            part = slice(rows.indptr[i], rows.indptr[i + 1])
            at = np.flatnonzero(rows.indices[part] == j)
            found.append(float(rows.data[part][at].sum()) if len(at) else math.nan)
        return np.array(found, dtype=np.float64)

    def blocks(self, jobs: Ints) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Yield all pairs among the jobs, block by block: positions among them, values."""
        if not isinstance(self.pair_value, np.ndarray):
            place = np.full(len(self.size), -1)
            place[jobs] = np.arange(len(jobs))
            entries = self.pair_value.tocoo()
            first, second = place[entries.row], place[entries.col]
            keep = (first >= 0) & (second >= 0) & (first != second)
            yield first[keep], second[keep], entries.data[keep].astype(np.float64)
            return
        step = max(1, _BLOCK_CELLS // max(1, len(jobs)))
        everything = len(jobs) == len(self.size)
        for k in range(0, len(jobs), step):
            rows = np.arange(k, min(k + step, len(jobs)))
            block = self.pair_value[jobs[rows]]
            block = block if everything else block[:, jobs]
            yield rows[:, None], np.arange(len(jobs))[None, :], block.astype(np.float64)


def _matching_errors(matching: Matching, given: _Given) -> list[str]:
    """Check the matching itself and its value."""
    mate = matching.mate
    n = len(given.size)
    if mate.shape != (n,) or (mate < -1).any() or (mate >= n).any():
        return [f"mate must hold n = {n} indices or -1"]
    own = np.arange(n)
    placed = mate >= 0
    errors = []
    if (mate[mate[placed]] != own[placed]).any():
        errors.append("mate is not symmetric")
    first = np.flatnonzero(mate > own)
    alone = np.flatnonzero(mate == own)
    values = [*given.pairs(first, mate[first]).tolist(), *given.single_value[alone].tolist()]
    if not np.isfinite(values).all():
        errors.append("a pair may not share, or a job may not run alone")
    if (given.size[first] != given.size[mate[first]]).any():
        errors.append("a pair has unequal sizes")
    if (given.required & ~placed).any():
        errors.append("a required job is not placed")
    used = int(given.size[first].sum() + given.size[alone].sum())
    if used > given.limit:
        errors.append(f"{used} GPUs are used of {given.limit}")
    if not errors and not _close(math.fsum(values), matching.value):
        errors.append(f"the value is {math.fsum(values)}, not {matching.value}")
    return errors


def _bound_errors(matching: Matching, given: _Given) -> list[str]:
    """Check the duals, the bound that they prove, and the gap."""
    main, refined = matching.certificate.main, matching.certificate.refined
    jobs = np.concatenate([np.zeros(0, np.int64), *(d.jobs for d in main)])
    if not np.array_equal(np.sort(jobs), np.arange(len(given.size))):
        return ["the classes do not cover every job once"]
    errors = []
    for dual in (*main, *refined):
        errors += _node_errors(dual, given)
    most = _bound(main, (), given)
    spare = math.inf if not refined else most - matching.bound
    for dual in main:
        own = [d for d in refined if np.array_equal(d.jobs, dual.jobs)]
        errors += _pair_errors(dual, own, spare, given)
    proven = most if not refined else _bound(main, refined, given)
    if proven > matching.bound and not _close(proven, matching.bound):
        errors.append(f"the duals prove a bound of {proven}, not {matching.bound}")
    scale = max(abs(matching.bound), abs(matching.value))
    gap = abs(matching.bound - matching.value) / scale if scale > 0 else 0.0
    if not math.isclose(gap, matching.gap, rel_tol=1e-9, abs_tol=_ROUNDING):
        errors.append(f"the gap is {gap}, not {matching.gap}")
    return errors


def _node_errors(dual: Dual, given: _Given) -> list[str]:
    """Check the inequalities of single jobs and the odd sets."""
    errors = []
    if len(set(given.size[dual.jobs].tolist())) > 1:
        errors.append("a class has jobs of several sizes")
    if (dual.potential < 0)[~given.required[dual.jobs]].any():
        errors.append("the potential of a job that may wait is negative")
    alone = given.single_value[dual.jobs]
    if (dual.potential + dual.price < alone)[np.isfinite(alone)].any():
        errors.append("the potential of a job is less than its value alone")
    if dual.price < 0:
        errors.append("a price is negative")
    for members, z in dual.blossoms:
        if len(members) % 2 == 0 or len(set(members.tolist())) < len(members) or z < 0:
            errors.append("a blossom is not an odd set with a dual >= 0")
    return errors


def _pair_errors(main: Dual, refined: Sequence[Dual], spare: float, given: _Given) -> list[str]:
    """Check the inequalities of all pairs of a class; of the refined duals where they bind."""
    first, second, value, reduced = _cheap_pairs(main, spare if refined else 0.0, given)
    errors = []
    if (reduced < 0).any():
        errors.append("a pair has negative reduced cost")
    survives = reduced < spare
    for dual in refined:
        slack = _reduced_costs(dual, first[survives], second[survives], value[survives], given)
        if (slack < 0).any():
            errors.append("a pair that could be in a better solution has negative reduced cost")
    return errors


def _cheap_pairs(dual: Dual, limit: float, given: _Given) -> tuple[Ints, Ints, Floats, Floats]:
    """Return the pairs of reduced cost below the limit: their positions, values, costs."""
    found: list[tuple[Ints, Ints, Floats]] = []
    for rows, columns, value in given.blocks(dual.jobs):
        slack = dual.potential[rows] + dual.potential[columns] + dual.price - value
        where = np.nonzero((slack < limit) & np.isfinite(value) & (rows < columns))
        i, j = (np.broadcast_to(x, value.shape)[where] for x in (rows, columns))
        found.append((i, j, value[where]))
    none = np.zeros(0, dtype=np.int64)
    first, second, value = (
        np.concatenate(parts) for parts in zip((none, none, np.zeros(0)), *found, strict=True)
    )
    return first, second, value, _reduced_costs(dual, first, second, value, given)


def _reduced_costs(dual: Dual, first: Ints, second: Ints, value: Floats, given: _Given) -> Floats:
    """Return the reduced costs of pairs (positions in the class), blossoms included."""
    total = dual.potential[first] + dual.potential[second] + dual.price
    for members, z in dual.blossoms:
        inside = np.zeros(len(given.size), dtype=bool)
        inside[members] = True
        total = total + z * (inside[dual.jobs[first]] & inside[dual.jobs[second]])
    return np.asarray(total - value)


def _bound(main: Sequence[Dual], refined: Sequence[Dual], given: _Given) -> float:
    """Return the largest sum of the classes' bounds over group numbers within the limit."""
    best = np.zeros(given.limit + 1)
    for dual in main:
        size = int(given.size[dual.jobs[0]])
        own = [dual, *(d for d in refined if np.array_equal(d.jobs, dual.jobs))]
        counts = np.arange(min(len(dual.jobs), given.limit // size) + 1)
        bounds = np.min([d.constant + d.price * counts for d in own], axis=0)
        reached = np.full(len(best), -np.inf)
        for k, bound in zip(counts.tolist(), bounds.tolist(), strict=True):
            np.maximum(reached[size * k :], best[: len(best) - size * k] + bound,
                       out=reached[size * k :])  # fmt: skip
        best = reached
    return float(best.max())


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
