"""Which gangs need not be placed before others.

A gang *dominates* another of as many workers if it may take every seat of the other at the same
worths and costs. Some best plan places no gang without those that dominate it: where it does,
the dominating gang may have the seats instead.

Two gangs are *equal* if exchanging them changes no seat of any gang; of equal ones the first
dominates the others. An exchange takes one domination to another, so what holds for the first
gangs of two classes of equal ones holds for all of both, and only these are compared: a sweep of
a thousand equal gangs is one class.

Without some dominations a search takes longer, and is no less exact: those that the time does not
suffice for are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dovetail.formulations._rows import packed
from dovetail.formulations.arrays import Bools, Ints
from dovetail.formulations.budget import UNLIMITED, Budget

ALONE = -1
"""In place of the partner of a gang that has a GPU for itself."""


@dataclass(frozen=True)
class SeatTable:
    """Where gangs may run, a row for each gang and way; numbers stand for equal values.

    Attributes
    ----------
    gang : (s,) int
        The job.
    partner : (s,) int
        The job that it shares the GPU with, or a number >= n of what else it may share it with,
        of n jobs; ``ALONE`` for none.
    worth, of_partner, cost : (s,) int
        What the gang and its partner are worth there, and what the GPU costs.
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
        Gangs are compared where they have the same number; jobs that are no gangs have -1.
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
        """Return the jobs that need not be placed where this one is not; itself first."""
        return self._related(job, self._dominates, equal=slice(job + 1, None))

    def dominating(self, job: int) -> Ints:
        """Return the jobs that may well be placed where this one is; itself first."""
        return self._related(job, self._dominates.T, equal=slice(job))

    def _related(self, job: int, dominates: Bools, equal: slice) -> Ints:
        own = self._class[job]
        if own < 0:
            return np.array([job])
        related = (self._class >= 0) & dominates[own][self._class]
        related[equal] |= self._class[equal] == own
        return np.array([job, *np.flatnonzero(related)])

    def _classified(self, table: _SeatSets) -> Ints:
        """Number the classes of equal gangs, and return the first gang of each."""
        firsts: list[int] = []
        for gangs in table.similar():
            while len(gangs) and not self._budget.passed:
                equal = table.equal_to(gangs[0], gangs)
                self._class[gangs[equal]] = len(firsts)
                firsts.append(int(gangs[0]))
                gangs = gangs[~equal]
        return np.array(firsts, dtype=np.int64)

    def _compared(self, table: _SeatSets, firsts: Ints) -> Bools:
        """Tell which classes (rows) dominate which, the first of those that do so mutually."""
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
        As of ``Dominations``.
    start : (n + 1,) int
        The seats of gang j are the rows ``start[j]:start[j + 1]``.
    partner, way, mirrored, seat : (s,) int
        Whom it shares the GPU with; the worths and the cost, and the same as the partner sees
        them; and all of this, as a number from 0.
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
        """Yield gangs that may be equal, in rising order, together with all that may equal them.

        They have as many seats, and their sum is the same where a number at random stands for a
        seat: for all seats of the same worths and cost with gangs that are compared among each
        other.
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
        """Tell which gangs are equal to one of as many seats."""
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
        """Return how many seats others may take with a third, or alone, and this gang may not."""
        row, nth = self._rows(others)
        taken = np.zeros(int(self.seat.max()) + 1, dtype=bool)
        taken[self.seat[self.start[gang] : self.start[gang + 1]]] = True
        lacks = ~taken[self.seat[row]] & (self.partner[row] != gang)
        return np.bincount(nth[lacks], minlength=len(others))

    def _rows(self, gangs: Ints) -> tuple[Ints, Ints]:
        """Return the rows of gangs, and the position among these of the gang of each."""
        number = self.start[gangs + 1] - self.start[gangs]
        nth = np.repeat(np.arange(len(gangs)), number)
        before = np.cumsum(number) - number
        return np.arange(len(nth)) + (self.start[gangs] - before)[nth], nth
