"""Jobs that may take each other's place: candidate groups count them instead of naming them.

Pending jobs of one GPU are of one *kind* if they are equal in all that a round reads: they have the
same workload, gSLA, weight and priority, and the same remaining time if the objective reads it.
With n kinds, there are C(n + k - 1, k) different sets of k jobs, however many jobs there are. Gangs
and running jobs are kinds of their own: the co-runner of a gang also binds its other GPUs, and a
running job stays where it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.candidates.rows import packed
from dovetail.formulations.rounds import Round
from dovetail.formulations.values import JobValues


@dataclass(frozen=True, eq=False)
class Kinds:
    """The kinds of the n jobs of a round.

    Attributes
    ----------
    first : (n,) int
        The representative of each job in candidate groups: the job of its kind that gains most.
    rank : (n,) int
        The number of jobs of its kind that are placed before each.
    less : (n,) float
        How much less each gains than its representative, in any group; it increases with the rank.
        0 except under ``completion``, where a job that would start later loses less by waiting.
    """

    first: Ints
    rank: Ints
    less: Floats

    @classmethod
    def apart(cls, jobs: int) -> Kinds:
        """Return kinds of one job each, for this number of jobs."""
        return cls(np.arange(jobs), np.zeros(jobs, dtype=np.int64), np.zeros(jobs))

    @classmethod
    def of(cls, compiled: Round, values: JobValues) -> Kinds:
        """Return the kinds of a round's jobs under an objective.

        Under an objective that may read any other field every job is a kind of its own.
        """
        jobs, number = compiled.jobs, np.arange(len(compiled))
        if not values.by_kind:
            return cls.apart(len(number))
        own = (jobs.workers > 1) | jobs.running
        columns = [
            np.where(own, number + 1, 0),
            jobs.workload,
            jobs.latency.astype(np.int64),
            _codes(jobs.gsla),
            _codes(jobs.weight),
        ]
        if values.reads_remaining:
            columns.append(_codes(jobs.remaining_s))
        _, kind = np.unique(packed(np.column_stack(columns)), return_inverse=True)
        by_itself = values.by_itself
        order = np.lexsort((number, jobs.arrival_s, -by_itself, kind))
        begins = np.flatnonzero(np.diff(kind[order], prepend=-1))
        of = np.cumsum(np.diff(kind[order], prepend=-1) != 0) - 1
        first, rank = np.empty((2, len(number)), dtype=np.int64)
        first[order] = order[begins[of]] if len(order) else order
        rank[order] = np.arange(len(order)) - begins[of] if len(order) else order
        return cls(first, rank, by_itself[first] - by_itself)

    def without(self, job: int) -> Kinds:
        """Return the same kinds, except that this job is a kind of its own."""
        first, rank, less = self.first.copy(), self.rank.copy(), self.less.copy()
        others = np.flatnonzero((self.first == self.first[job]) & (np.arange(len(first)) != job))
        rank[others] -= self.rank[others] > self.rank[job]
        if len(others):
            first[others] = others[np.argmin(rank[others])]
            less[others] -= less[others].min()
        first[job], rank[job], less[job] = job, 0, 0.0
        return Kinds(first, rank, less)

    @cached_property
    def copies(self) -> Ints:
        """How many jobs each represents, including itself; 0 if another job represents it, (n,)."""
        return np.bincount(self.first, minlength=len(self.first)).astype(np.int64)

    @cached_property
    def alone(self) -> bool:
        """Whether every job is a kind of its own."""
        return len(self.first) == 0 or int(self.copies.max()) == 1

    @cached_property
    def in_order(self) -> Ints:
        """All jobs, kind by kind in the order in which they are placed; see ``start``."""
        return np.lexsort((self.rank, self.first))

    @cached_property
    def start(self) -> Ints:
        """The index in ``in_order`` at which each kind begins, by its representative, (n,)."""
        return np.asarray(np.cumsum(self.copies) - self.copies)

    def placed(self, number: Ints) -> Bools:
        """Return which jobs are placed, given the number of each kind by representative, (n,)."""
        return np.asarray(self.rank < number[self.first])


def _codes(values: Floats) -> Ints:
    """Return a whole number for each value, equal exactly if the values are."""
    _, code = np.unique(values, return_inverse=True, equal_nan=True)
    return code.astype(np.int64)
