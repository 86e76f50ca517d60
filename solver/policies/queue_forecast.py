"""Expected ends of the jobs of a pool, and the expected order in which waiting jobs start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Floats
from dovetail.formulations.completion import Forecast, forecast_order
from dovetail.solver.pairing.compilation import ready
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.queue_columns import QueueColumns, remaining_work, workers_of
from dovetail.solver.policies.state import Job, State


class ForecastQueue(NamedTuple):
    """The waiting jobs in the order in which they are expected to start, and their forecast."""

    columns: QueueColumns
    forecast: Forecast

    @property
    def jobs(self) -> NDArray[Any]:
        """The jobs."""
        return self.columns.jobs

    @classmethod
    def of(cls, draft: Draft, ends: Mapping[int, float], gpu_price: float) -> ForecastQueue:
        """Return the queue of a draft.

        Parameters
        ----------
        draft : Draft
            The pool and the decision so far.
        ends : mapping
            When running jobs are expected to end, by number.
        gpu_price : float
            The least price of a GPU second.
        """
        state, queue = draft.state, draft.queue
        running = [job for job, _ in draft.staying()]
        held = np.column_stack([remaining_work(running, state.now), workers_of(running)])
        order = forecast_order(queue.work_s, queue.workers, queue.weight, held, len(state.machines))
        queue, run = queue.take(order), ready(len(order))
        busy_s = _busy_seconds(draft, ends)
        forecast = Forecast.of(queue.asks(), draft.idle_total, busy_s, gpu_price, run)
        return cls(queue, forecast)


def busy_until(draft: Draft, ends: Mapping[int, float]) -> Floats:
    """Return when each GPU is expected to be idle, -inf for idle GPUs."""
    placed = list(draft.placed())
    end = np.repeat([ends[job.number] for job, _ in placed], [len(gpus) for _, gpus in placed])
    until = np.full(len(draft.state.machines), -np.inf)
    np.maximum.at(until, [gpu for _, gpus in placed for gpu in gpus], end)
    return until


def _busy_seconds(draft: Draft, ends: Mapping[int, float]) -> Floats:
    """Return the seconds until each busy GPU is expected to be idle, in ascending order."""
    until = busy_until(draft, ends)
    return np.sort(until[until > -np.inf]) - draft.state.now


def believed_ends(state: State) -> dict[int, float]:
    """Return when each running job is expected to end if no other starts, by number.

    Once its last co-runner has ended, a job runs as fast as alone.
    """
    now, jobs = state.now, list(state.running.values())
    rate = np.array([job.rate for job in jobs])
    begun = np.maximum(now, [job.since_s for job in jobs])
    left = remaining_work(jobs, now)
    end = begun + left / rate
    last = np.maximum(begun, _last_beside(jobs, end))
    model = state.machines.model
    speed = np.array([state.speed[model[job.gpus[0]]][job.workload] for job in jobs])
    rest = np.maximum(0.0, left - rate * (last - begun))
    alone_after = last + rest / np.maximum(speed, rate)
    sooner = (begun < last) & (last < end)
    return dict(zip(state.running, np.where(sooner, alone_after, end).tolist(), strict=True))


def _last_beside(jobs: Sequence[Job], end: Floats) -> Floats:
    """Return the latest end of each job's co-runners on any of its GPUs; -inf if it has none."""
    job = np.repeat(np.arange(len(jobs)), [len(job.gpus) for job in jobs])
    gpu = np.array([gpu for job in jobs for gpu in job.gpus], dtype=np.int64)
    order = np.lexsort((end[job], gpu))
    job, gpu, ends = job[order], gpu[order], end[job[order]]
    first = np.searchsorted(gpu, gpu)
    top = np.searchsorted(gpu, gpu, side="right") - 1
    second = np.where(top > first, ends[np.maximum(top - 1, 0)], -np.inf)
    of_others = np.where(np.arange(len(gpu)) == top, second, ends[top])
    last = np.full(len(jobs), -np.inf)
    np.maximum.at(last, job, of_others)
    return last
