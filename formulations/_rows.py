"""Rows of candidate groups of one size, and the array operations on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints

ROWS_AT_ONCE = 2_000_000

ROWS_IN_TIME = 200_000
"""Rows between two looks at the clock, all ways to seat the same jobs counted: some 10 ms."""

_LARGEST_KEY = 2**62


class _Columns:
    """Arrays of as many rows each, the fields of a data class in their order."""

    def take(self, which: Ints | Bools | slice) -> Self:
        """Return the named rows."""
        return type(self)(*(column[which] for column in vars(self).values()))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts (at least one, all of one size), in their order."""
        return cls(*map(np.concatenate, zip(*(vars(part).values() for part in parts), strict=True)))


@dataclass(frozen=True)
class Rows(_Columns):
    """Groups of one size: members as columns, arrays of (n, size); class and power (n,)."""

    gpu_class: Ints
    variant: Ints
    share: Ints
    slowdown: Floats
    power_w: Floats

    def __len__(self) -> int:
        return len(self.variant)


@dataclass(frozen=True)
class Seatings(_Columns):
    """Ways to seat jobs on a GPU, a row each: a known combination and its candidates.

    Attributes
    ----------
    index : (s,) int
        The position of each among all.
    gpu_class : (s,) int
        The class of the GPU.
    first, count : (s, size) int
        For each place the range of the pool whose variants may take it.
    twin : (s, size) bool
        Places that nothing tells apart from the place before them.
    share : (s, size) int
        The cap of each place, 0 where there is none.
    slowdown, upper, tail : (s, size) float
        Slowdown of each place, and what the gSLA of a job there is checked against, of priority
        ``batch`` and ``latency``.
    power_w : (s,) float
        Power of the GPU, NaN where unknown.
    """

    index: Ints
    gpu_class: Ints
    first: Ints
    count: Ints
    twin: Bools
    share: Ints
    slowdown: Floats
    upper: Floats
    tail: Floats
    power_w: Floats

    @property
    def rows(self) -> Ints:
        """In how many ways the places of each can be taken, before any rule, (s,)."""
        return np.asarray(self.count.prod(axis=1))

    def families(self, promise: Floats | None = None) -> Ints:
        """Return an order in which seatings of the same jobs on the same GPUs stand together.

        Parameters
        ----------
        promise : (s,) float, optional
            Families with the most promising seating come first.
        """
        names, family = np.unique(self._family, return_inverse=True)
        if promise is not None:
            best = np.full(len(names), -np.inf)
            np.maximum.at(best, family, promise)
            rank = np.empty(len(names), dtype=np.int64)
            rank[np.argsort(-best, kind="stable")] = np.arange(len(names))
            family = rank[family]
        return np.argsort(family, kind="stable")

    @property
    def _family(self) -> Ints:
        return packed(np.column_stack([self.gpu_class, self.first]))

    def alike(self) -> tuple[Ints, Ints]:
        """Return the first of all that seat the same jobs on the same GPUs, and all of them.

        Returns
        -------
        first : (f,) int
            The first seating of each family.
        nth : (k, f) int
            The first, second, ... seating of each family, -1 where it has no more.
        """
        _, first, family = np.unique(self._family, return_index=True, return_inverse=True)
        order = np.argsort(family, kind="stable")
        size = np.bincount(family)
        nth = np.full((int(size.max(initial=0)), len(size)), -1, dtype=np.int64)
        rank = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
        nth[rank, family[order]] = order
        return first, nth

    def numbered(self) -> Seatings:
        """Return the seatings, their index counted anew."""
        return replace(self, index=np.arange(len(self.gpu_class)))

    def product(self) -> tuple[Ints, Ints]:
        """Return every way to take the places: the seating of each row, and its pool places."""
        rows = self.rows
        seating = np.repeat(np.arange(len(rows)), rows)
        rest = np.arange(len(seating)) - np.repeat(np.cumsum(rows) - rows, rows)
        places = np.empty((len(seating), self.count.shape[1]), dtype=np.int64)
        for k in reversed(range(places.shape[1])):
            rest, digit = np.divmod(rest, self.count[seating, k])
            places[:, k] = self.first[seating, k] + digit
        return seating, places


def in_chunks(seatings: Seatings, rows_at_once: int = ROWS_AT_ONCE) -> Iterator[Seatings]:
    """Yield the seatings in pieces that keep the arrays of their rows small."""
    total = np.cumsum(seatings.rows)
    first = 0
    while first < len(total):
        before = total[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(total, before + rows_at_once, side="right")))
        piece = seatings.take(slice(first, last))
        yield from [piece] if last > first + 1 else _parts(piece, rows_at_once)
        first = last


def _parts(seating: Seatings, rows_at_once: int) -> Iterator[Seatings]:
    """Yield one seating in parts of fewer candidates for its first places."""
    rows = int(seating.rows[0])
    if rows <= rows_at_once:
        yield seating
        return
    place = int(np.argmax(seating.count[0] > 1))
    number = int(seating.count[0, place])
    step = max(1, rows_at_once * number // rows)
    for begin in range(0, number, step):
        first, count = seating.first.copy(), seating.count.copy()
        first[0, place] += begin
        count[0, place] = min(step, number - begin)
        yield from _parts(replace(seating, first=first, count=count), rows_at_once)


def distinct(job: Ints) -> Bools:
    """Tell which rows hold distinct jobs."""
    keep = np.ones(len(job), dtype=bool)
    for k in range(job.shape[1]):
        for before in range(k):
            keep &= job[:, before] != job[:, k]
    return keep


def in_order(job: Ints, twin: Bools) -> Bools:
    """Tell in which rows jobs in twin places come in the order of their index."""
    keep = np.ones(len(job), dtype=bool)
    for k in range(1, job.shape[1]):
        keep &= ~twin[:, k] | (job[:, k - 1] < job[:, k])
    return keep


def packed(columns: Ints) -> Ints:
    """Return one number a row of whole numbers >= 0, equal exactly where the rows are equal."""
    key = columns[:, 0]
    values = int(key.max(initial=0)) + 1
    for column in columns.T[1:]:
        span = int(column.max(initial=0)) + 1
        if values * span >= _LARGEST_KEY:
            _, key = np.unique(key, return_inverse=True)
            values = len(key)
        key = key * span + column
        values *= span
    return key


def pareto(key: Ints, criteria: Sequence[Floats]) -> Ints:
    """Return the rows that no other row of the same key equals or beats in all criteria.

    Of rows that equal each other in all, the first stays. Smaller is better; keys are >= 0.
    """
    order = np.lexsort((*reversed(criteria), key))
    key = key[order]
    sorted_criteria = [c[order] for c in criteria]
    if len(criteria) == 1:
        return np.sort(order[np.diff(key, prepend=-1) != 0])
    # Sorted by the criteria in turn, a row can only be beaten by one before it.
    beaten = np.zeros(len(key), dtype=bool)
    shift = 1
    while len(alike := np.flatnonzero(key[shift:] == key[:-shift])):
        worse = np.ones(len(alike), dtype=bool)
        for c in sorted_criteria:
            worse &= c[alike] <= c[alike + shift]
        beaten[alike[worse] + shift] = True
        shift += 1
    return np.sort(order[~beaten])


def joined_ints(arrays: Sequence[Ints]) -> Ints:
    """Return the arrays one after the other; none give an empty one."""
    return np.concatenate([np.empty(0, dtype=np.int64), *arrays])


def joined_floats(arrays: Sequence[Floats]) -> Floats:
    """Return the arrays one after the other; none give an empty one."""
    return np.concatenate([np.empty(0, dtype=np.float64), *arrays])
