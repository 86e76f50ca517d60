"""The jobs of a policy's queue as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.candidates.rows import RowColumns
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
    work_s: Floats
    seconds: Floats
    gpu_time: Floats

    @classmethod
    def of(cls, state: State, jobs: Sequence[Job]) -> Self:
        """Return the columns of jobs of a state."""
        workload, workers = _ints(_WORKLOAD, jobs), workers_of(jobs)
        weight, gsla = _floats(_WEIGHT, jobs), _floats(_GSLA, jobs)
        work_s = waiting_work(jobs, state.now)
        seconds = work_s / state.best_speed[workload]
        gpu_time = seconds * workers / np.maximum(weight, _LEAST_WEIGHT)
        those = np.fromiter(jobs, dtype=object, count=len(jobs))
        number = _ints(_NUMBER, jobs)
        return cls(those, number, workload, workers, weight, gsla, work_s, seconds, gpu_time)

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
    return np.asarray(np.maximum(LEAST_REMAINING_S, _floats(_WORK, jobs) - done_work(jobs, now)))


def done_work(jobs: Sequence[Job], now: float) -> Floats:
    """Return ``Job.done`` of each job, (n,)."""
    done, rate, since = (_floats(of, jobs) for of in (_DONE, _RATE, _SINCE))
    return done + rate * np.maximum(0.0, now - since)


def waiting_work(jobs: Sequence[Job], now: float) -> Floats:
    """Return the seconds that waiting jobs will hold GPUs alone: a restart, and what is left, (n,).

    A job that runs still is one that the decision stops, which also costs work.
    """
    found = remaining_work(jobs, now)
    again = np.flatnonzero(_ints(_STARTS, jobs))
    if len(again):
        those = [jobs[k] for k in again.tolist()]
        checkpoint, resumed = _floats(_CHECKPOINT, those), _floats(_RESUMED, those)
        lost = np.minimum(checkpoint, done_work(those, now) - resumed)
        lost[[not job.gpus for job in those]] = 0.0
        found[again] = found[again] + _floats(_RESTART, those) + lost
    return found


def workers_of(jobs: Sequence[Job]) -> Ints:
    """Return the workers of each job, (n,)."""
    return _ints(_WORKERS, jobs)


_NUMBER, _WORKLOAD, _WORKERS, _STARTS = map(attrgetter, ("number", "workload", "workers", "starts"))
_WEIGHT, _GSLA, _WORK, _DONE, _RATE, _SINCE = map(
    attrgetter, ("weight", "gsla", "work_s", "done_s", "rate", "since_s")
)
_RESTART, _CHECKPOINT, _RESUMED = map(attrgetter, ("restart_s", "checkpoint_s", "resumed_s"))


def _ints(of: attrgetter[Any], jobs: Sequence[Job]) -> Ints:
    return np.fromiter(map(of, jobs), np.int64, len(jobs))


def _floats(of: attrgetter[Any], jobs: Sequence[Job]) -> Floats:
    return np.fromiter(map(of, jobs), np.float64, len(jobs))
