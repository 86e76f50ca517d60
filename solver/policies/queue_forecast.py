"""Expected ends of the jobs of a pool, and the expected order in which waiting jobs start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Floats
from dovetail.formulations.completion import Forecast, forecast_order
from dovetail.solver.pairing.compilation import ready
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.queue_columns import QueueColumns, floats_of, remaining_work
from dovetail.solver.policies.state import NEVER_S, Job, State


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
        running = draft.staying_columns
        held = np.column_stack([running.left_s, running.workers])
        order = forecast_order(queue.work_s, queue.workers, queue.weight, held, len(state.machines))
        queue, run = queue.take(order), ready(len(order))
        until_s = draft.busy_until(ends)
        busy_s = np.sort(until_s[until_s > -np.inf]) - state.now
        forecast = Forecast.of(queue.asks(), draft.idle_total, busy_s, gpu_price, run)
        return cls(queue, forecast)


def believed_ends(state: State) -> dict[int, float]:
    """Return when each running job is expected to end if no other starts, by number.

    Once its last co-runner has ended, a job runs as fast as alone. A replica of a service never
    ends: it is expected to take `NEVER_S`.
    """
    now, jobs = state.now, list(state.running.values())
    rate, left = floats_of("rate", jobs), remaining_work(jobs, now)
    left[[bool(job.replica_of) for job in jobs]] = NEVER_S
    begun = np.maximum(now, floats_of("since_s", jobs))
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
    gpu = np.array([*chain.from_iterable([job.gpus for job in jobs])], dtype=np.int64)
    order = np.lexsort((end[job], gpu))
    job, gpu, ends = job[order], gpu[order], end[job[order]]
    first = np.searchsorted(gpu, gpu)
    top = np.searchsorted(gpu, gpu, side="right") - 1
    second = np.where(top > first, ends[np.maximum(top - 1, 0)], -np.inf)
    of_others = np.where(np.arange(len(gpu)) == top, second, ends[top])
    last = np.full(len(jobs), -np.inf)
    np.maximum.at(last, job, of_others)
    return last
