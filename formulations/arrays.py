"""The types of the arrays in formulations and solvers, and operations on their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]


MOST_RANK = 2.0**53
"""Multisets of larger families are not numbered: no machine could enumerate them."""

_LARGEST_KEY = 2**62


@dataclass(frozen=True)
class RowColumns:
    """Arrays with equal numbers of rows: the fields of a data class, in order."""

    def take(self, which: Ints | Bools | slice) -> Self:
        """Return the selected rows."""
        if isinstance(which, slice):
            return type(self)(*(column[which] for column in self.columns))
        rows = np.flatnonzero(which) if which.dtype == bool else which
        return type(self)(*(column.take(rows, axis=0) for column in self.columns))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts (at least one, all of one size), in order."""
        return cls(*map(np.concatenate, zip(*(part.columns for part in parts), strict=True)))

    @property
    def columns(self) -> list[NDArray[Any]]:
        """The arrays, in the order of the fields."""
        return [getattr(self, name) for name in self.__dataclass_fields__]


def across(combine: np.ufunc, table: NDArray[Any]) -> NDArray[Any]:
    """Return ``combine.reduce(table, axis=1)`` of a table with few columns, column by column.

    NumPy reduces short rows one by one, which takes ten times as long.
    """
    return np.asarray(reduce(combine, table.T))


def ranges(first: Ints | int, count: Ints) -> Ints:
    """Return ``count`` numbers from each ``first`` on, one range after the other."""
    return np.asarray(np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count))


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
    row, rank = np.repeat(np.arange(len(number)), number), ranges(begin, number)
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
