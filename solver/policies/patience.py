"""The bound on waits: GPUs are reserved for a job that has waited too long.

EASY backfilling (Lifka, *The ANL/IBM SP scheduling system*, 1995) is applied to every overdue job
instead of only the first in the queue, the longest waiting first.

*The bound.* Let P be the patience of a job, D the longest time that any job holds its GPUs, and n
the number of overdue jobs that have waited longer, and of services (latency-critical jobs) that get
reservations in the meantime. If durations are as expected and no GPU fails, the job waits at most P
+ (n + 1) D, and P + D while ``_MOST_RESERVED`` is not exhausted.

*Proof.* Jobs that held the GPUs at the reservation leave within D, so its ``until_s`` is at most D
away. Jobs that started there since then end by that time, because they were expected to and no job
joins and slows them. So the job starts within D of its reservation. If it gets no reservation when
it becomes overdue, the tenth is taken by jobs that have waited longer or are latency-critical. Each
of these starts within D of its reservation, so the job's own turn comes after at most n D.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter

import numpy as np

from dovetail.formulations.arrays import Floats
from dovetail.solver.policies.reservations import earliest, intact
from dovetail.solver.policies.state import Job, Reservation, State

_MOST_RESERVED = 0.1
"""Fraction of the GPUs that may be reserved at a time, unless the first job alone needs more.

Otherwise a cluster with a long overload would end up serving jobs first come, first served."""

_SINCE, _WORK = attrgetter("waiting_since_s"), attrgetter("work_s")


@dataclass(frozen=True)
class Patience:
    """Reserves GPUs for jobs that have waited too long.

    The limit is ``patience_s`` plus ``stretch`` times the expected total time of a job: a job with
    much work can wait longer. Latency-critical jobs get reservations immediately (``services``);
    these count towards the tenth.

    A reservation stays until its job starts, or one of its nodes fails. Other jobs start on its
    GPUs only if these are idle and the jobs are expected to end by ``until_s``; from then on the
    GPUs drain, whether or not the expectations were right.
    """

    patience_s: float
    stretch: float

    def reserved(self, state: State, ends: Mapping[int, float]) -> dict[int, Reservation]:
        """Return the present reservations by the number of the job.

        ``ends`` are the times at which running jobs are expected to end, by number.
        """
        found = intact(state)
        for job in self._overdue(state):
            if job.number not in found:
                taken = {gpu for kept in found.values() for gpu in kept.gpus}
                if taken and len(taken) + job.workers > _MOST_RESERVED * len(state.machines):
                    break
                reservation = earliest(state, job, ends, taken)
                if reservation is None:
                    break
                found[job.number] = reservation
        return found

    def next_s(self, state: State) -> float | None:
        """Return when the next waiting job becomes overdue."""
        due = self._due(state)
        ahead = float(due[due > state.now].min(initial=math.inf))
        return None if math.isinf(ahead) else ahead

    def of(self, job: Job) -> float:
        """Return the patience of a job, in seconds."""
        return self.patience_s + self.stretch * job.work_s

    def _due(self, state: State) -> Floats:
        """Return when each waiting job becomes overdue."""
        jobs, count = state.pending.values(), len(state.pending)
        work_s = np.fromiter(map(_WORK, jobs), np.float64, count)
        return np.fromiter(map(_SINCE, jobs), np.float64, count) + (
            self.patience_s + self.stretch * work_s
        )

    def _overdue(self, state: State) -> list[Job]:
        late = self._due(state) <= state.now
        overdue = [*compress(state.pending.values(), late)] if late.any() else []
        return sorted(overdue, key=lambda job: (job.waiting_since_s, job.number))
