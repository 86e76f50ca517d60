"""Rows of candidate groups of one size, and the array operations on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.entries import Combination

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ROWS_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class Rows:
    """Groups of one size on one class: members as columns, arrays of (n, size); power (n,)."""

    gpu_class: int
    variant: Ints
    share: Ints
    slowdown: Floats
    power_w: Floats

    def __len__(self) -> int:
        return len(self.variant)

    def take(self, which: Ints | Bools) -> Rows:
        """Return the named rows."""
        return Rows(
            self.gpu_class,
            self.variant[which],
            self.share[which],
            self.slowdown[which],
            self.power_w[which],
        )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Rows:
        """Return the rows of all parts (at least one), in their order."""
        return Rows(
            parts[0].gpu_class,
            np.concatenate([part.variant for part in parts]),
            np.concatenate([part.share for part in parts]),
            np.concatenate([part.slowdown for part in parts]),
            np.concatenate([part.power_w for part in parts]),
        )


@dataclass(frozen=True)
class Seating:
    """A known combination, for each place the range of the pool whose variants may take it.

    ``twin`` marks the places that nothing tells apart from the place before them.
    """

    known: Combination
    ranges: tuple[range, ...]
    twin: tuple[bool, ...]

    @property
    def rows(self) -> int:
        """How many ways there are to take the places, before any rule."""
        product = 1
        for places in self.ranges:
            product *= len(places)
        return product


class Seatings:
    """Seatings of one size as arrays of (number of seatings, size), a row each."""

    def __init__(self, seatings: Sequence[Seating]) -> None:
        known = [s.known for s in seatings]
        self.first = np.array([[r.start for r in s.ranges] for s in seatings], dtype=np.int64)
        self.count = np.array([[len(r) for r in s.ranges] for s in seatings], dtype=np.int64)
        self.twin = np.array([s.twin for s in seatings], dtype=bool)
        self.share = np.array([[p or 0 for _, p in k.members] for k in known], dtype=np.int64)
        self.slowdown = np.array([k.slowdown for k in known])
        self.upper = np.array([k.bounds([False] * len(k.members)) for k in known])
        self.tail = np.array([k.bounds([True] * len(k.members)) for k in known])
        power = [np.nan if k.power_w is None else k.power_w for k in known]
        self.power_w = np.array(power, dtype=np.float64)

    def product(self) -> tuple[Ints, Ints]:
        """Return every way to take the places: the seating of each row, and its pool places."""
        rows = self.count.prod(axis=1)
        seating = np.repeat(np.arange(len(rows)), rows)
        rest = np.arange(len(seating)) - np.repeat(np.cumsum(rows) - rows, rows)
        places = np.empty((len(seating), self.count.shape[1]), dtype=np.int64)
        for k in reversed(range(places.shape[1])):
            rest, digit = np.divmod(rest, self.count[seating, k])
            places[:, k] = self.first[seating, k] + digit
        return seating, places


def in_chunks(seatings: Sequence[Seating]) -> Iterator[Seatings]:
    """Yield the seatings in pieces that keep the arrays of their rows small."""
    piece: list[Seating] = []
    rows = 0
    for seating in seatings:
        if piece and rows + seating.rows > ROWS_AT_ONCE:
            yield Seatings(piece)
            piece, rows = [], 0
        piece.append(seating)
        rows += seating.rows
    if piece:
        yield Seatings(piece)


def distinct_in_order(job: Ints, twin: Bools) -> Bools:
    """Tell which rows hold distinct jobs, those in twin places in the order of their index."""
    keep = np.ones(len(job), dtype=bool)
    for k in range(job.shape[1]):
        for before in range(k):
            keep &= job[:, before] != job[:, k]
        if k:
            keep &= ~twin[:, k] | (job[:, k - 1] < job[:, k])
    return keep


def packed(columns: Ints) -> Ints:
    """Return one number a row, equal exactly where the rows are equal."""
    key = columns[:, 0]
    for column in columns.T[1:]:
        _, key = np.unique(key, return_inverse=True)
        key = key * (int(column.max()) + 1) + column
    return key


def pareto(key: Ints, criteria: Sequence[Floats]) -> Ints:
    """Return the rows that no other row of the same key equals or beats in all criteria.

    Of rows that equal each other in all, the first stays. Smaller is better.
    """
    order = np.lexsort((*reversed(criteria), key))
    key = key[order]
    sorted_criteria = [c[order] for c in criteria]
    if len(criteria) == 1:
        return np.sort(order[np.r_[True, key[1:] != key[:-1]]])
    # Sorted by the criteria in turn, a row can only be beaten by one that stands before it.
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
