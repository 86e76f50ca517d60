"""Rows of candidate groups of one size, and the array operations on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Bools, Floats, Ints

MEMBERS_AT_ONCE = 2_000_000
"""Members of the rows built at one time: arrays of about 16 MB each."""

ROWS_IN_TIME = 200_000
"""Rows between two checks of the clock, counting all ways to seat the same jobs: about 10 ms."""

MOST_RANK = 2.0**53
"""Multisets of larger families are not numbered: no machine could enumerate them."""

_LARGEST_KEY = 2**62


@dataclass(frozen=True)
class RowColumns:
    """Arrays with equal numbers of rows: the fields of a data class, in order."""

    def take(self, which: Ints | Bools | slice) -> Self:
        """Return the selected rows."""
        if isinstance(which, slice):
            return type(self)(*(column[which] for column in self._columns))
        rows = np.flatnonzero(which) if which.dtype == bool else which
        return type(self)(*(column.take(rows, axis=0) for column in self._columns))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts (at least one, all of one size), in order."""
        return cls(*map(np.concatenate, zip(*(part._columns for part in parts), strict=True)))

    @property
    def _columns(self) -> list[NDArray[Any]]:
        return [getattr(self, name) for name in self.__dataclass_fields__]


@dataclass(frozen=True)
class Rows(RowColumns):
    """Groups of one size: a column per member, arrays of (n, size); class and power (n,)."""

    gpu_class: Ints
    variant: Ints
    share: Ints
    slowdown: Floats
    power_w: Floats

    @classmethod
    def none(cls, size: int) -> Self:
        """Return an empty set of groups of ``size`` jobs."""
        whole, real = np.empty((0, size), dtype=np.int64), np.empty((0, size))
        return cls(whole[:, 0], whole, whole, real, real[:, 0])

    def __len__(self) -> int:
        return len(self.variant)


@dataclass(frozen=True)
class CandidateRows(RowColumns):
    """Ways to seat jobs on a GPU, one per row: a known combination and its candidates.

    Attributes
    ----------
    index : (s,) int
        The position of each candidate among all.
    gpu_class : (s,) int
        The class of the GPU.
    first, count : (s, size) int
        For each place, the range of the pool whose variants may take it.
    twin : (s, size) bool
        Places that are interchangeable with the place before them.
    share : (s, size) int
        The cap of each place, 0 if there is none.
    slowdown, upper, tail : (s, size) float
        Slowdown of each place, and the bounds that the gSLA of a job of priority ``batch`` or
        ``latency`` is checked against.
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

    @cached_property
    def rows(self) -> Floats:
        """The number of ways to take the places of each, before any rule, (s,).

        Jobs that take twin places are a multiset.
        """
        return ways(self.count, self.twin)

    def families(self, promise: Floats | None = None) -> Ints:
        """Return an order in which candidates of the same jobs on the same GPUs are adjacent.

        Parameters
        ----------
        promise : (s,) float, optional
            Families with the most promising candidate come first.
        """
        names, family = np.unique(self.family, return_inverse=True)
        if promise is not None:
            best = np.full(len(names), -np.inf)
            np.maximum.at(best, family, promise)
            rank = np.empty(len(names), dtype=np.int64)
            rank[np.argsort(-best, kind="stable")] = np.arange(len(names))
            family = rank[family]
        return np.argsort(family, kind="stable")

    @property
    def family(self) -> Ints:
        """A number for each, equal exactly if the same jobs are seated on the same GPUs."""
        return packed(np.column_stack([self.gpu_class, self.first]))

    def alike(self) -> Ints:
        """Return the first, second, ... candidate of the same jobs on the same GPUs.

        There is a row for each rank and a column for each family, -1 if it has no more, (k, f).
        """
        _, family = np.unique(self.family, return_inverse=True)
        order = np.argsort(family, kind="stable")
        size = np.bincount(family)
        nth = np.full((int(size.max(initial=0)), len(size)), -1, dtype=np.int64)
        rank = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
        nth[rank, family[order]] = order
        return nth

    def numbered(self) -> CandidateRows:
        """Return the candidates with their index numbered from 0 again."""
        return replace(self, index=np.arange(len(self.gpu_class)))

    def together(self, nth: Ints) -> Self:
        """Return one candidate per family, with twins only where all its candidates have them.

        Parameters
        ----------
        nth : (k, f) int
            The candidates of each family, see ``alike``.
        """
        twin = np.ones((nth.shape[1], self.twin.shape[1]), dtype=bool)
        for each in nth:
            twin &= self.twin[each] | (each < 0)[:, None]
        return replace(self.take(nth[0]), twin=twin)

    def product(self, begin: int = 0, end: float = np.inf) -> tuple[Ints, Ints]:
        """Return the ways to take the places: the candidate of each row, and its pool places.

        Parameters
        ----------
        begin, end : int
            The range of the ways of each candidate; all by default.
        """
        candidate, places = products(self.count, self.twin, begin, end)
        places += self.first[candidate]
        return candidate, places


class Piece(NamedTuple):
    """Whole families of ``candidates``, and the range of the ways of each."""

    candidates: CandidateRows
    begin: int
    end: float

    @property
    def rows(self) -> float:
        """The number of rows, before any rule."""
        return float((np.minimum(self.candidates.rows, self.end) - self.begin).sum())


def in_chunks(candidates: CandidateRows, rows_at_once: int | None = None) -> Iterator[Piece]:
    """Yield candidates in pieces of whole families, so that arrays of their rows stay small.

    A family with more ways than that comes in several pieces. Families with more than ``MOST_RANK``
    are skipped.
    """
    if not len(candidates.gpu_class):
        return
    most = rows_at_once or max(1, MEMBERS_AT_ONCE // candidates.count.shape[1])
    key = candidates.family
    first = np.flatnonzero(np.diff(key, prepend=-1))
    size = np.diff(first, append=len(key))
    number = np.maximum.reduceat(candidates.rows, first)
    total, begin = 0.0, 0
    for k, work in enumerate((number * size).tolist()):
        if begin < k and total + work > most:
            yield Piece(candidates.take(slice(first[begin], first[k])), 0, np.inf)
            total, begin = 0.0, k
        total += work
        if total > most:
            begin, total = k + 1, 0.0
            one = candidates.take(slice(first[k], first[k] + size[k]))
            step = max(1, most // int(size[k]))
            if number[k] <= MOST_RANK:
                yield from (Piece(one, low, low + step) for low in range(0, int(number[k]), step))
    if begin < len(first):
        yield Piece(candidates.take(slice(first[begin], len(key))), 0, np.inf)


def products(count: Ints, twin: Bools, begin: int = 0, end: float = np.inf) -> tuple[Ints, Ints]:
    """Return the ways to take the places of some rows: the row of each, and the candidates.

    Parameters
    ----------
    count : (s, size) int
        The number of candidates for each place.
    twin : (s, size) bool
        Places that are interchangeable with the place before them: their candidates ascend.
    begin, end : int
        The range of the ways of each row; all by default.
    """
    number = (np.minimum(ways(count, twin), end) - begin).astype(np.int64)
    row = np.repeat(np.arange(len(number)), number)
    rank = np.arange(len(row)) - np.repeat(np.cumsum(number) - number, number) + begin
    places = np.empty((len(row), count.shape[1]), dtype=np.int64)
    of = twin @ (1 << np.arange(twin.shape[1]))
    for pattern in np.unique(of).tolist():
        among = np.flatnonzero(of == pattern)
        which = slice(None) if len(among) == len(of) else np.flatnonzero((of == pattern)[row])
        places[which] = _taken(count[row[which]], twin[among[0]], rank[which])
    return row, places


def multisets(rank: Ints, elements: Ints, size: int) -> Ints:
    """Return the multisets of these ranks, in lexicographic order; each row of (n, size) ascends.

    Parameters
    ----------
    rank : (n,) int
        The number of each among all multisets of ``size`` out of its ``elements``.
    elements : (n,) int
        The number of elements to choose from: 0, 1, ...
    size : int
        The number of elements chosen.
    """
    if size == 1:
        return rank[:, None]
    # Reversed and counted from the end, they are ordered as in the combinatorial number system.
    table = _binomials(int(elements.max(initial=0)) + size, size)
    rest = table[size].take(elements + size - 1) - 1 - rank
    found = np.empty((len(rank), size), dtype=np.int64)
    for k in range(size, 0, -1):
        chosen = np.searchsorted(table[k], rest, side="right") - 1
        rest = rest - table[k].take(chosen)
        found[:, size - k] = elements - 1 - (chosen - (k - 1))
    return found


def _binomials(most: int, size: int) -> Ints:
    """Return the binomial coefficients "n choose k", (size + 1, most); large ones are cut off."""
    table = np.ones((size + 1, most), dtype=np.float64)
    for k in range(1, size + 1):
        table[k] = np.minimum(np.cumsum(np.append(0.0, table[k - 1, :-1])), 2.0 * MOST_RANK)
    return table.astype(np.int64)


def _runs(twin: Bools) -> list[range]:
    """Return the runs of interchangeable places."""
    begins = [*np.flatnonzero(~twin).tolist(), len(twin)]
    return [range(a, b) for a, b in pairwise(begins)]


def ways(count: Ints, twin: Bools) -> Floats:
    """Return the number of ways to take the places, (s,); twin places take a multiset."""
    found, place = np.ones(len(count)), np.zeros(len(count))
    for k in range(count.shape[1]):
        place = np.where(twin[:, k], place + 1, 0.0)
        found = found * (count[:, k] + place) / (1 + place)
    return found


def _taken(count: Ints, twin: Bools, rank: Ints) -> Ints:
    """Return the candidate in each place, counted from the first, in the ways of these ranks."""
    places = np.empty(count.shape, dtype=np.int64)
    for run in reversed(_runs(twin)):
        alike = slice(run.start, run.stop)
        each = np.broadcast_to(np.arange(len(run)) > 0, (len(count), len(run)))
        rank, digit = np.divmod(rank, ways(count[:, alike], each).astype(np.int64))
        places[:, alike] = multisets(digit, count[:, run.start], len(run))
    return places


def enough(job: Ints, copies: Ints) -> Bools:
    """Return which rows name no job more often than there are jobs of its kind."""
    keep = np.ones(len(job), dtype=bool)
    for k in range(1, job.shape[1]):
        before = np.zeros(len(job), dtype=np.int64)
        for column in job.T[:k]:
            before += column == job[:, k]
        keep &= before < copies[job[:, k]]
    return keep


def in_order(variant: Ints, twin: Bools) -> Bools:
    """Return in which rows the variants in twin places are in the order of their index."""
    keep = np.ones(len(variant), dtype=bool)
    for k in range(1, variant.shape[1]):
        keep &= ~twin[:, k] | (variant[:, k - 1] <= variant[:, k])
    return keep


def packed(columns: Ints) -> Ints:
    """Return one number a row of whole numbers >= 0, equal exactly if the rows are equal."""
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

    Of rows that are equal in all criteria, the first is kept. Smaller is better; keys are >= 0.
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
    """Return the arrays one after the other; an empty array if there are none."""
    return np.concatenate([np.empty(0, dtype=np.int64), *arrays])


def joined_floats(arrays: Sequence[Floats]) -> Floats:
    """Return the arrays one after the other; an empty array if there are none."""
    return np.concatenate([np.empty(0, dtype=np.float64), *arrays])
