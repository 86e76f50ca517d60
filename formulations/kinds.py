"""Jobs that may take each other's place: candidate groups count them, and do not name them.

Pending jobs of one GPU are of one *kind* if nothing that a round reads tells them apart: they
have the same workload, gSLA, weight and priority, and the same remaining time where the objective
reads it. Of n kinds, C(n + k - 1, k) sets of k jobs differ, however many jobs there are. Gangs and
running jobs are kinds of their own: who shares with a gang binds its other GPUs too, and a running
job has its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dovetail.formulations._rows import packed
from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.rounds import Round
from dovetail.formulations.values import JobValues


@dataclass(frozen=True, eq=False)
class Kinds:
    """The kinds of the n jobs of a round.

    Attributes
    ----------
    first : (n,) int
        The job that stands for each in candidate groups: of its kind the one that gains most.
    rank : (n,) int
        How many jobs of its kind are placed before each.
    less : (n,) float
        By how much less each gains, wherever it is, than the job that stands for it; it rises
        with the rank. 0 except under ``completion``, where a job that would start later loses
        less by waiting.
    """

    first: Ints
    rank: Ints
    less: Floats

    @classmethod
    def apart(cls, jobs: int) -> Kinds:
        """Return as many kinds of one job each."""
        return cls(np.arange(jobs), np.zeros(jobs, dtype=np.int64), np.zeros(jobs))

    @classmethod
    def of(cls, compiled: Round, values: JobValues) -> Kinds:
        """Return the kinds of a round's jobs under an objective.

        Under an objective of the user's every job is a kind of its own: what it reads is unknown.
        """
        jobs, number = compiled.jobs, np.arange(len(compiled))
        if values.name != values.objective:
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
        """Return the same kinds, but that a job is a kind of its own."""
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
        """How many jobs each stands for, itself among them; 0 where another stands for it, (n,)."""
        return np.bincount(self.first, minlength=len(self.first)).astype(np.int64)

    @cached_property
    def alone(self) -> bool:
        """Whether every job is a kind of its own."""
        return len(self.first) == 0 or int(self.copies.max()) == 1

    @cached_property
    def in_order(self) -> Ints:
        """All jobs, kind by kind, those that are placed first before others; see ``start``."""
        return np.lexsort((self.rank, self.first))

    @cached_property
    def start(self) -> Ints:
        """Where in ``in_order`` each kind begins, by the job that stands for it, (n,)."""
        return np.asarray(np.cumsum(self.copies) - self.copies)

    def placed(self, number: Ints) -> Bools:
        """Tell which jobs are placed where so many of each kind are, by the job for it, (n,)."""
        return np.asarray(self.rank < number[self.first])


def _codes(values: Floats) -> Ints:
    """Return a whole number for each value, equal exactly where the values are."""
    _, code = np.unique(values, return_inverse=True, equal_nan=True)
    return code.astype(np.int64)
