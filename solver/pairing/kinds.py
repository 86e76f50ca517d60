"""Passes over all pairs of thousands of jobs, without a matrix of their values.

The value of a pair at a split is a sum of what each job gains beside the *kind* of the other: all
jobs of a kind have one workload, need the same memory and may have the same splits. So a pass first
finds, for every two kinds and every split, the most that a job of the first has with one of the
second; only where the sum of both can matter it looks at jobs, and computes values as
``SplitValues`` does. Within a kind, jobs are ordered by falling gSLA: those that accept a bound
come first.

Bounds are floats in doubled whole units, with room for rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.pairing.compilation import KernelCompiler, kernel, over_rows
from dovetail.solver.pairing.dense import (
    FORBIDDEN,
    MatrixPairs,
    common_dual,
    dither,
    replace_least,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_LOWEST = -(2**62)

_ROOM, _EXACT = 2.5, -0.5
"""Doubled units by which a value may exceed the sum of its parts: it is rounded up, unless all are
whole."""

_ULPS = 16
"""Rounding errors of a sum of parts, in units of its last place."""

_LARGEST = 2.0**31
"""Doubled units that no value exceeds."""

_LANES = 64
"""Bounds that are compared together."""

_TRIED = 3
"""Jobs of a kind that are looked at as likely partners of a job."""

_NOISE = 2**25 - 1
"""Noise on the order of pairs that price in (see ``dense``)."""

_FEW_CELLS = 16
"""A matrix has at least so many times the cells of the tables of kinds."""

LEAST_JOBS = 2000
"""Number of jobs up to which a matrix is filled in negligible time."""


class Tables(NamedTuple):
    """The jobs of a size class in order of kinds, and what kinds gain beside each other.

    ``k`` kinds, ``s`` splits, ``m`` jobs in order of kinds; see ``SplitValues``.

    Attributes
    ----------
    start : (k + 1,) int
        The first job of each kind.
    row : (k,) int
        The workload of each kind.
    able : (k, k, s) int
        How many jobs of a kind may have a split beside another kind.
    rate : (k, k, s) float
        The gain of a job of weight 1 there, in doubled units.
    cost : (k, k, s) float
        Half the cost of a GPU there, in doubled units; empty if it does not count.
    slowdown, mirror, minimised, gpu_cost, per_cost
        See ``SplitValues``; the cost of one GPU counts ``per_cost`` times.
    weight, bonus, surplus, most : (m,) float
        See ``SplitValues``; the last three are empty without limits.
    left : (m,) float
        See ``ShorteningSplits``; empty without its rule.
    runs : (m,) bool
        Running jobs.
    below : float
        See ``ShorteningSplits``.
    scale : float
        Units of a value of 1.
    room : float
        Doubled units below which a value exceeds the sum of its parts: it is rounded up, unless
        all parts are whole.
    """

    start: Ints
    row: Ints
    able: NDArray[np.int32]
    rate: Floats
    cost: Floats
    slowdown: Floats
    mirror: Ints
    minimised: bool
    gpu_cost: Floats
    per_cost: float
    weight: Floats
    bonus: Floats
    surplus: Floats
    most: Floats
    left: Floats
    runs: Bools
    below: float
    scale: float
    room: float


def room_of(weight: Floats, bonus: Floats, per_cost: float, scale: float) -> float:
    """Return the room for rounding of values of these parts (see ``Tables``)."""
    whole = not (weight.any() or per_cost) and (bonus * scale % 1 == 0).all()
    return _EXACT if whole else _ROOM


def suits(jobs: int, kinds: int, splits: int) -> bool:
    """Return whether tables of kinds are much smaller than a matrix of so many jobs."""
    return jobs > LEAST_JOBS and kinds**2 * splits * _FEW_CELLS <= jobs**2


@dataclass(frozen=True)
class KindPairs:
    """The pairs of a size class by kinds; see ``dense.MatrixPairs``.

    Attributes
    ----------
    tables : Tables
        What is known of the jobs.
    order : (m,) int
        The position in the class of each job of the tables.
    place : (m,) int
        The reverse.
    kind : (m,) int
        The kind of each job of the tables.
    matrix : callable
        Returns the matrix of some jobs of the class.
    """

    tables: Tables
    order: Ints
    place: Ints
    kind: Ints
    matrix: Callable[[Ints], MatrixPairs]

    def __len__(self) -> int:
        return len(self.order)

    def sample(self, chosen: Ints) -> MatrixPairs:  # noqa: D102
        return self.matrix(chosen)

    def values(self, first: Ints, second: Ints, run: KernelCompiler) -> Ints:  # noqa: D102
        found = np.empty(len(first), dtype=np.int64)
        ends = self.place[first], self.place[second]
        run(fill_values)(self.tables, self.kind, *ends, found)
        return found

    def best_partners(  # noqa: D102
        self, rows: Ints, potential: Ints, mask: int, most: int, run: KernelCompiler
    ) -> Ints:
        amount = self._amount(potential)
        others = self._others(self._highest(amount, run))
        best = np.full((len(rows), most), -1, dtype=np.int64)
        over_rows(
            run, likely_of_kinds, len(rows), len(self), self.tables, self.order, self.kind,
            amount, others, mask, self.place[rows], best,
        )  # fmt: skip
        return best

    def raise_potentials(  # noqa: D102
        self,
        known: Ints,
        known_potential: Ints,
        rows: Ints,
        price: int,
        potential: Ints,
        run: KernelCompiler,
    ) -> None:
        of_known = np.full(len(self), np.inf)
        of_known[known] = known_potential
        raised = self._highest_beside(rows, self._amount(of_known), run) - 2 * price
        may = raised > potential[rows]
        potential[rows[may]] = np.ceil(raised[may] + self.tables.room).astype(np.int64)

    def shortfall(self, potential: Ints, price: int, run: KernelCompiler) -> Ints:
        """Return at least by how much potentials fall short of all pairs, half for each job."""
        every = np.arange(len(self))
        raised = potential.copy()
        self.raise_potentials(every, potential, every, price, raised, run)
        return (raised - potential + 1) // 2

    def highest(self, run: KernelCompiler) -> Floats:
        """Return at least the highest value of each job's pairs in units, -inf for none."""
        amount = self._amount(np.zeros(len(self)))
        rounding = max(self.tables.room, 0.0)
        return (self._highest_beside(np.arange(len(self)), amount, run) + rounding) / 2

    def short(  # noqa: D102
        self,
        potential: Ints,
        price: int,
        slack: int,
        nested: tuple[Ints, Ints],
        room: int,
        run: KernelCompiler,
    ) -> tuple[Ints, Ints]:
        m = len(self)
        found = np.zeros(m, dtype=np.int64)
        partner = np.full((m, room), -1, dtype=np.int64)
        amount = self._amount(potential)
        magnitude = np.abs(amount[amount > -np.inf]).max(initial=0.0) + _LARGEST
        over_rows(
            run, price_kinds, len(self.tables.row), m, self.tables, self.order, amount,
            self._highest(amount, run), potential, 2 * price + slack,
            _ULPS * float(np.spacing(magnitude)), *nested, found, partner,
        )  # fmt: skip
        return found, partner

    def _amount(self, potential: Ints | Floats) -> Floats:
        """Return what each job of the tables adds to its pairs' values whatever the other is."""
        tables = self.tables
        amount = -potential[self.order].astype(np.float64)
        if not len(tables.bonus):
            return amount
        amount += 2 * tables.scale * tables.bonus
        least = tables.surplus.min(initial=np.inf)
        return np.where(tables.surplus + least <= tables.most, amount, -np.inf)

    def _highest(self, amount: Floats, run: KernelCompiler) -> Floats:
        """Return the most that a job of each kind has beside one of each other, (k, k, s)."""
        found = np.empty(self.tables.able.shape)
        over_rows(run, highest_of_kinds, len(found), len(self), self.tables, amount, found)
        return found

    def _others(self, highest: Floats) -> Floats:
        """Return the same from the side of the other kind."""
        return np.ascontiguousarray(highest.transpose(1, 0, 2)[:, :, self.tables.mirror])

    def _highest_beside(self, rows: Ints, known: Floats, run: KernelCompiler) -> Floats:
        """Return the most that each of these jobs has with one of known amount."""
        found = np.empty(len(rows))
        own = self._amount(np.zeros(len(self)))
        over_rows(
            run, highest_of_jobs, len(rows), len(self), self.tables, self.kind, own,
            self._others(self._highest(known, run)), self.place[rows], found,
        )  # fmt: skip
        return found


@kernel
def count_able(
    first: int,
    last: int,
    start: Ints,
    row: Ints,
    gsla: Floats,
    slowdown: Floats,
    bound: Floats,
    mirror: Ints,
    allowed: Bools,
    runs: Bools,
    memory: Floats,
    memory_limit: float,
    able: NDArray[np.int32],
) -> None:
    """Count the jobs of each kind that accept each split beside each other kind."""
    for a in range(first, last):
        x = row[a]
        for b in range(row.size):
            y = row[b]
            meet = memory[a] + memory[b] <= memory_limit and not (runs[a] and runs[b])
            for p in range(mirror.size):
                q = mirror[p]
                may = meet and allowed[a, p] and allowed[b, q]
                may = may and slowdown[x, y, p] > 0 and slowdown[y, x, q] > 0  # False for NaN
                low, high = start[a], start[a + 1] if may else start[a]
                while low < high:
                    middle = (low + high) // 2
                    if bound[x, y, p] <= gsla[middle]:
                        low = middle + 1
                    else:
                        high = middle
                able[a, b, p] = low - start[a]


@kernel
def highest_of_kinds(first: int, last: int, tables: Tables, amount: Floats, found: Floats) -> None:
    """Find the most that a job of a kind has beside each other kind at each split."""
    for a in range(first, last):
        rate, able, best = tables.rate[a].ravel(), tables.able[a].ravel(), found[a].ravel()
        best[:] = -np.inf
        begin = tables.start[a]
        highest = -np.inf
        for i in range(begin, tables.start[a + 1]):
            # Of equal weights only a job with more than all before it matters.
            if i == begin or tables.weight[i] != tables.weight[i - 1]:
                highest = -np.inf
            if amount[i] <= highest:
                continue
            highest = amount[i]
            weight, own, at = tables.weight[i], amount[i], np.int32(i - begin)
            for c in range(best.size):
                worth = weight * rate[c] + own if able[c] > at else -np.inf
                best[c] = worth if worth > best[c] else best[c]
        if tables.cost.size > 0:
            cost = tables.cost[a].ravel()
            for c in range(best.size):
                best[c] -= cost[c]


@kernel
def highest_of_jobs(
    first: int,
    last: int,
    tables: Tables,
    kind: Ints,
    amount: Floats,
    others: Floats,
    jobs: Ints,
    found: Floats,
) -> None:
    """Find the most that each job has beside any kind, given what that one has."""
    best = np.empty(_LANES)
    for r in range(first, last):
        i = jobs[r]
        a = kind[i]
        rate, able, other = tables.rate[a].ravel(), tables.able[a].ravel(), others[a].ravel()
        at = np.int32(i - tables.start[a])
        weight = tables.weight[i]
        best[:] = -np.inf
        costs = tables.cost.size > 0
        cost = tables.cost[a].ravel() if costs else other
        for left in range(0, rate.size, _LANES):
            width = min(_LANES, rate.size - left)
            for c in range(width):
                worth = weight * rate[left + c] + other[left + c]
                worth -= cost[left + c] if costs else 0.0
                worth = worth if able[left + c] > at else -np.inf
                best[c] = worth if worth > best[c] else best[c]
        found[r] = amount[i] + best.max()


@kernel
def value_of(tables: Tables, i: int, j: int, a: int, b: int) -> tuple[int, int]:
    """Return the rounded value of two jobs of two kinds, and the split of the first."""
    if i == j or not may_meet(tables, i, j):
        return FORBIDDEN, -1
    best = -np.inf
    at = -1
    own, other = i - tables.start[a], j - tables.start[b]
    for p in range(tables.mirror.size):
        if tables.able[a, b, p] <= own or tables.able[b, a, tables.mirror[p]] <= other:
            continue
        worth = worth_at(tables, i, j, a, b, p)
        if worth > best and shortens(tables, i, j, a, b, p):
            best = worth
            at = p
    if at < 0:
        return FORBIDDEN, -1
    return units(tables, i, j, best), at


@kernel
def is_best(tables: Tables, i: int, j: int, a: int, b: int, at: int, worth: float) -> bool:
    """Return whether two jobs may share at a split of this worth, and at no better one."""
    if not (may_meet(tables, i, j) and shortens(tables, i, j, a, b, at)):
        return False
    own, other = i - tables.start[a], j - tables.start[b]
    for p in range(tables.mirror.size):
        if tables.able[a, b, p] <= own or tables.able[b, a, tables.mirror[p]] <= other:
            continue
        found = worth_at(tables, i, j, a, b, p)
        better = found >= worth if p < at else found > worth
        if better and shortens(tables, i, j, a, b, p):
            return False
    return True


@kernel
def worth_at(tables: Tables, i: int, j: int, a: int, b: int, p: int) -> float:
    """Return the value of two jobs of two kinds at a split that they may have."""
    x, y = tables.row[a], tables.row[b]
    mine, its = tables.slowdown[x, y, p], tables.slowdown[y, x, tables.mirror[p]]
    if tables.minimised:
        worth = -tables.weight[j] * its - tables.weight[i] * mine
    else:
        worth = tables.weight[j] / its + tables.weight[i] / mine
    if tables.cost.size > 0:
        worth -= tables.per_cost * tables.gpu_cost[x, y, p]
    return float(worth)


@kernel
def units(tables: Tables, i: int, j: int, worth: float) -> int:
    """Return the value of two jobs with their bonus, rounded up to whole units."""
    if tables.bonus.size > 0:
        worth += tables.bonus[i] + tables.bonus[j]
    return int(np.ceil(worth * tables.scale))


@kernel
def shortens(tables: Tables, i: int, j: int, a: int, b: int, p: int) -> bool:
    """Return whether two jobs end earlier on average at a split (see ``ShorteningSplits``)."""
    if tables.left.size == 0:
        return True
    x, y = tables.row[a], tables.row[b]
    mine, its = tables.slowdown[x, y, p], tables.slowdown[y, x, tables.mirror[p]]
    left, other = tables.left[i], tables.left[j]
    end, its_end = mine * left, its * other
    after = other - end / its if end <= its_end else left - its_end / mine
    leads = tables.runs[i] or (not tables.runs[j] and left <= other)
    turn = left + other / 2 if leads else other + left / 2
    return bool(min(end, its_end) + after / 2 < turn * tables.below)


@kernel
def fill_values(tables: Tables, kind: Ints, first: Ints, second: Ints, found: Ints) -> None:
    """Write the values of pairs."""
    for e in range(first.size):
        i, j = first[e], second[e]
        found[e] = value_of(tables, i, j, kind[i], kind[j])[0]


@kernel
def likely_of_kinds(
    first: int,
    last: int,
    tables: Tables,
    order: Ints,
    kind: Ints,
    amount: Floats,
    others: Floats,
    mask: int,
    jobs: Ints,
    best: Ints,
) -> None:
    """Keep for each job likely partners of all kinds (see ``dense.best_partners``).

    Some jobs of a kind are tried, others for each job.
    """
    most = best.shape[1]
    key = np.empty(most, np.int64)
    for r in range(first, last):
        i = jobs[r]
        a = kind[i]
        at = i - tables.start[a]
        key[:] = _LOWEST
        for b in range(tables.row.size):
            split = -1
            top = np.float64(key[0] - mask)
            for p in range(tables.mirror.size):
                if tables.able[a, b, p] > at:
                    worth = tables.weight[i] * tables.rate[a, b, p] + others[a, b, p]
                    if worth > top:
                        top = worth
                        split = p
            if split < 0:
                continue
            able = tables.able[b, a, tables.mirror[split]]
            rate = tables.rate[b, a, tables.mirror[split]]
            own = tables.weight[i] * tables.rate[a, b, split]
            place = dither(i, b, _NOISE) % able
            for _ in range(min(_TRIED, able)):
                j = tables.start[b] + place
                place = place + 1 if place + 1 < able else 0
                if j == i or amount[j] == -np.inf:
                    continue
                worth = own + tables.weight[j] * rate + amount[j]
                if tables.cost.size > 0:
                    worth -= 2 * tables.cost[a, b, split]
                x = np.int64(worth) + dither(order[i], order[j], mask)
                if x > key[0] and may_meet(tables, i, j):
                    replace_least(key, best[r], int(x), order[j])


@kernel
def may_meet(tables: Tables, i: int, j: int) -> bool:
    """Return whether the surplus of two jobs is not too much."""
    if tables.surplus.size == 0:
        return True
    return bool(tables.surplus[j] + tables.surplus[i] <= tables.most[i])


@kernel
def price_kinds(
    first: int,
    last: int,
    tables: Tables,
    order: Ints,
    amount: Floats,
    highest: Floats,
    potential: Ints,
    least: int,
    error: float,
    parent: Ints,
    total: Ints,
    found: Ints,
    partner: Ints,
) -> None:
    """List the pairs whose doubled value less both potentials is above ``least``.

    See ``dense.price_rows``; each pair is in the row of the job that is first in the tables.
    Doubled values are even: they exceed a bound if, before they are rounded up, they exceed the
    even number at or below it. So of the many pairs of value equal to their potentials few pass.
    ``error`` is the largest error of sums of floats.
    """
    room = partner.shape[1]
    m = order.size
    key = np.full((m, room), _LOWEST, np.int64)
    mark = np.full(parent.size, -1, np.int64)
    theirs = np.empty((2, m))
    above = least - tables.room
    for a in range(first, last):
        for b in range(a, tables.row.size):
            for p in range(tables.mirror.size):
                q = tables.mirror[p]
                most = highest[b, a, q]
                if not highest[a, b, p] + most > above:
                    continue
                cost = tables.cost[a, b, p] if tables.cost.size > 0 else 0.0
                begin, able = tables.start[b], tables.able[b, a, q]
                for j in range(able):
                    worth = tables.weight[begin + j] * tables.rate[b, a, q]
                    worth += amount[begin + j] - cost
                    odd = potential[order[begin + j]] & 1
                    theirs[0, j] = worth + odd
                    theirs[1, j] = worth + (1 - odd)
                for i in range(tables.start[a], tables.start[a] + tables.able[a, b, p]):
                    own = tables.weight[i] * tables.rate[a, b, p] + amount[i] - cost
                    if not own + most > above:
                        continue
                    x = order[i]
                    marked = False
                    other = theirs[(least + potential[x]) & 1]
                    for j in range(i + 1 - begin if a == b else 0, able):
                        if not own + other[j] > least - error:
                            continue
                        y = order[begin + j]
                        worth = worth_at(tables, i, begin + j, a, b, p)
                        value = units(tables, i, begin + j, worth)
                        short = 2 * value - least - potential[x] - potential[y]
                        # A pair is counted at its best split.
                        if short <= 0 or not is_best(tables, i, begin + j, a, b, p, worth):
                            continue
                        if parent[x] >= 0 and parent[y] >= 0:
                            if not marked:
                                marked = True
                                c = parent[x]
                                while c >= 0:
                                    mark[c] = x
                                    c = parent[c]
                            short -= common_dual(x, y, parent, total, mark)
                        if short > 0:
                            found[x] += 1
                            noisy = short + dither(x, y, _NOISE)
                            if noisy > key[x, 0]:
                                replace_least(key[x], partner[x], int(noisy), int(y))
