"""The jobs of a policy's queue as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Floats, Ints, RowColumns
from dovetail.formulations.prices import Asks
from dovetail.solver.policies.state import LEAST_REMAINING_S, Job, State

_LEAST_WEIGHT: Final = 1e-9


@dataclass(frozen=True)
class QueueColumns(RowColumns):
    """Jobs that wait, or that the decision would stop, (n,) each.

    Attributes
    ----------
    jobs : (n,) Job
        The jobs.
    number, workload, workers, weight, gsla
        As in ``Job``.
    left_s : (n,) float
        ``Job.remaining``.
    work_s : (n,) float
        ``waiting_work``.
    seconds : (n,) float
        How long each holds its GPUs alone, on the model that suits it best.
    gpu_time : (n,) float
        Its GPU time over its weight; jobs with less go first.
    """

    jobs: NDArray[Any]
    number: Ints
    workload: Ints
    workers: Ints
    weight: Floats
    gsla: Floats
    left_s: Floats
    work_s: Floats
    seconds: Floats
    gpu_time: Floats

    @classmethod
    def of(cls, state: State, jobs: Sequence[Job]) -> Self:
        """Return the columns of jobs of a state."""
        workload, workers = ints_of("workload", jobs), ints_of("workers", jobs)
        weight, gsla = floats_of("weight", jobs), floats_of("gsla", jobs)
        left_s = remaining_work(jobs, state.now)
        work_s = left_s + _again(jobs, state.now)
        seconds = work_s / state.best_speed[workload]
        gpu_time = seconds * workers / np.maximum(weight, _LEAST_WEIGHT)
        those = np.fromiter(jobs, dtype=object, count=len(jobs))
        number = ints_of("number", jobs)
        return cls(
            those, number, workload, workers, weight, gsla, left_s, work_s, seconds, gpu_time
        )

    def __len__(self) -> int:
        return len(self.number)

    def in_order(self) -> Self:
        """Return the jobs in the order of ``gpu_time``."""
        return self.take(np.lexsort((self.number, self.gpu_time)))

    def asks(self) -> Asks:
        """Return the jobs as requests for GPUs."""
        return Asks(self.workers, self.seconds, self.weight)


def remaining_work(jobs: Sequence[Job], now: float) -> Floats:
    """Return ``Job.remaining`` of each job, (n,)."""
    left = floats_of("work_s", jobs) - _done_work(jobs, now)
    return np.asarray(np.maximum(LEAST_REMAINING_S, left))


def waiting_work(jobs: Sequence[Job], now: float) -> Floats:
    """Return the seconds that waiting jobs will hold GPUs alone: a restart, and what is left, (n,).

    A job that runs still is one that the decision stops, which also costs work.
    """
    return remaining_work(jobs, now) + _again(jobs, now)


def ints_of(field: str, jobs: Sequence[Job]) -> Ints:
    """Return a field of each job, (n,)."""
    return np.fromiter(map(attrgetter(field), jobs), np.int64, len(jobs))


def floats_of(field: str, jobs: Sequence[Job]) -> Floats:
    """Return a field of each job, (n,)."""
    return np.fromiter(map(attrgetter(field), jobs), np.float64, len(jobs))


def _done_work(jobs: Sequence[Job], now: float) -> Floats:
    """Return ``Job.done`` of each job, (n,)."""
    done, rate = floats_of("done_s", jobs), floats_of("rate", jobs)
    if not rate.any():
        return done
    return done + rate * np.maximum(0.0, now - floats_of("since_s", jobs))


def _again(jobs: Sequence[Job], now: float) -> Floats:
    """Return the seconds for which jobs that ran before hold GPUs again: restart and lost work."""
    found, again = np.zeros(len(jobs)), np.flatnonzero(ints_of("starts", jobs))
    if len(again):
        those = [jobs[k] for k in again.tolist()]
        lost = _done_work(those, now) - floats_of("resumed_s", those)
        lost = np.minimum(floats_of("checkpoint_s", those), lost)
        lost[[not job.gpus for job in those]] = 0.0
        found[again] = floats_of("restart_s", those) + lost
    return found
