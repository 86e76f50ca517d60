"""Which gangs need not be placed before others.

A gang *dominates* another with the same number of workers if it may take every seat of the other at
the same worths and costs. Some best plan places no gang without the gangs that dominate it: if a
plan does, the dominating gang may take the seats instead.

Two gangs are *equal* if exchanging them changes no seat of any gang; of equal gangs the first
dominates the others. An exchange maps one domination to another, so a domination between the first
gangs of two classes of equal gangs holds for all gangs of both, and only the first ones are
compared: a sweep of a thousand equal gangs is one class.

If some dominations are missing, a search takes longer but stays exact: those for which there is no
time are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dovetail.formulations.arrays import Bools, Ints, packed, ranges
from dovetail.formulations.budget import UNLIMITED, Budget

ALONE = -1
"""The partner of a gang that has a GPU for itself."""


@dataclass(frozen=True)
class SeatTable:
    """Where gangs may run, a row for each gang and way; equal numbers stand for equal values.

    Attributes
    ----------
    gang : (s,) int
        The job.
    partner : (s,) int
        The job that it shares the GPU with, of n jobs; a number >= n for anything else that it may
        share it with; ``ALONE`` for none.
    worth, of_partner, cost : (s,) int
        The worth of the gang and of its partner there, and the cost of the GPU.
    """

    gang: Ints
    partner: Ints
    worth: Ints
    of_partner: Ints
    cost: Ints


class Dominations:
    """The dominations among gangs.

    Parameters
    ----------
    alike : (n,) int
        Only gangs with the same number are compared; -1 for jobs that are not gangs.
    seats : SeatTable
        All seats of these gangs.
    budget : Budget
        When to stop.
    """

    def __init__(self, alike: Ints, seats: SeatTable, budget: Budget = UNLIMITED) -> None:
        self._budget = budget
        self._class = np.full(len(alike), -1)
        self._dominates = np.zeros((0, 0), dtype=bool)
        several = np.bincount(alike[alike >= 0]).max(initial=0) > 1
        if several and len(seats.gang) and not self._budget.passed:
            table = _SeatSets.of(alike, seats)
            self._dominates = self._compared(table, self._classified(table))

    def dominated(self, job: int) -> Ints:
        """Return the jobs that need not be placed if this one is not; itself first."""
        return self._related(job, self._dominates, equal=slice(job + 1, None))

    def dominating(self, job: int) -> Ints:
        """Return the jobs that may be placed wherever this one is; itself first."""
        return self._related(job, self._dominates.T, equal=slice(job))

    def _related(self, job: int, dominates: Bools, equal: slice) -> Ints:
        own = self._class[job]
        if own < 0:
            return np.array([job])
        related = (self._class >= 0) & dominates[own][self._class]
        related[equal] |= self._class[equal] == own
        return np.array([job, *np.flatnonzero(related)])

    def _classified(self, table: _SeatSets) -> Ints:
        """Number the classes of equal gangs and return the first gang of each."""
        firsts: list[int] = []
        for gangs in table.similar():
            while len(gangs) and not self._budget.passed:
                equal = table.equal_to(gangs[0], gangs)
                self._class[gangs[equal]] = len(firsts)
                firsts.append(int(gangs[0]))
                gangs = gangs[~equal]
        return np.array(firsts, dtype=np.int64)

    def _compared(self, table: _SeatSets, firsts: Ints) -> Bools:
        """Return which classes (rows) dominate which; of mutual ones, the first class does."""
        takes = np.zeros((len(firsts),) * 2, dtype=bool)
        alike = table.alike[firsts]
        for own, first in enumerate(firsts):
            if self._budget.passed:
                break
            others = np.flatnonzero((alike == alike[own]) & (firsts != first))
            takes[own, others] = table.lacking(first, firsts[others]) == 0
        return np.asarray(takes & ~(takes.T & (firsts[:, None] > firsts)))


@dataclass(frozen=True)
class _SeatSets:
    """The seats of each gang as a set of numbers.

    Attributes
    ----------
    alike : (n,) int
        See ``Dominations``.
    start : (n + 1,) int
        The seats of gang j are the rows ``start[j]:start[j + 1]``.
    partner, way, mirrored, seat : (s,) int
        The partner on the GPU; the worths and the cost as one number, the same from the partner's
        side; and all of this as one number from 0.
    """

    alike: Ints
    start: Ints
    partner: Ints
    way: Ints
    mirrored: Ints
    seat: Ints

    @classmethod
    def of(cls, alike: Ints, seats: SeatTable) -> _SeatSets:
        worths = [seats.worth, seats.of_partner], [seats.of_partner, seats.worth]
        columns = [np.stack([*pair, seats.cost], axis=1) for pair in worths]
        way, mirrored = np.split(packed(np.concatenate(columns)), 2)
        seat = np.unique(packed(np.stack([seats.partner + 1, way], 1)), return_inverse=True)[1]
        _, row = np.unique(packed(np.stack([seats.gang, seat], axis=1)), return_index=True)
        return cls(
            alike,
            np.searchsorted(seats.gang[row], np.arange(len(alike) + 1)),
            seats.partner[row],
            way[row],
            mirrored[row],
            seat[row],
        )

    def similar(self) -> Iterator[Ints]:
        """Yield sets of gangs that may be equal to each other, in ascending order.

        They have as many seats, and the same sum if each seat is replaced by a random number: one
        for all seats of the same worths and cost with gangs that are compared with each other.
        """
        size = np.diff(self.start)
        gangs = np.flatnonzero(size)
        blurred = self.partner.copy()
        job = (self.partner >= 0) & (self.partner < len(self.alike))
        of_job = self.alike[self.partner[job]]
        blurred[job] = np.where(of_job < 0, self.partner[job], self.partner.max() + 1 + of_job)
        kind = np.unique(packed(np.stack([blurred + 1, self.way], 1)), return_inverse=True)[1]
        weight = np.random.default_rng(0).integers(2**62, size=len(self.seat), dtype=np.int64)
        total = np.add.reduceat(weight[kind], self.start[gangs])
        order = np.lexsort((total, size[gangs], self.alike[gangs]))
        keys = np.stack([total, size[gangs], self.alike[gangs]])[:, order]
        ends = np.flatnonzero((np.diff(keys) != 0).any(axis=0)) + 1
        yield from np.split(gangs[order], ends)

    def equal_to(self, first: int, gangs: Ints) -> Bools:
        """Return which gangs are equal to one with the same number of seats."""
        row, nth = self._rows(gangs)
        with_first = self.partner[row] == first
        row, nth = row[with_first], nth[with_first]
        ways = packed(
            np.stack([np.tile(nth, 2), np.append(self.way[row], self.mirrored[row])], axis=1)
        )
        way, mirrored = np.split(ways, 2)
        uneven = np.bincount(nth[~np.isin(mirrored, way)], minlength=len(gangs))
        return np.asarray((self.lacking(first, gangs) == 0) & (uneven == 0))

    def lacking(self, gang: int, others: Ints) -> Ints:
        """Return how many seats, with a third or alone, others may take and this gang may not."""
        row, nth = self._rows(others)
        taken = np.zeros(int(self.seat.max()) + 1, dtype=bool)
        taken[self.seat[self.start[gang] : self.start[gang + 1]]] = True
        lacks = ~taken[self.seat[row]] & (self.partner[row] != gang)
        return np.bincount(nth[lacks], minlength=len(others))

    def _rows(self, gangs: Ints) -> tuple[Ints, Ints]:
        """Return the rows of gangs, and for each row the position of its gang among them."""
        number = self.start[gangs + 1] - self.start[gangs]
        return ranges(self.start[gangs], number), np.repeat(np.arange(len(gangs)), number)
