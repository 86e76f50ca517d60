"""How the pool looks to a policy that thinks ahead: who waits, what is idle and what will be."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.completion import forecast_order
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.state import LEAST_REMAINING_S, Job, State

Floats = NDArray[np.float64]


class Kind(NamedTuple):
    """What makes idle GPUs interchangeable.

    Attributes
    ----------
    model : int
        GPU model.
    memory_mib : float
        Memory.
    until_s : float
        When whoever is on it must have ended, as believed; infinite unless it is reserved.
    """

    model: int
    memory_mib: float
    until_s: float = math.inf


def queue_of(draft: Draft) -> tuple[list[Job], Floats]:
    """Return the waiting jobs in the order in which they are believed to start, and their work.

    That is ``completion.forecast_order``.

    Returns
    -------
    list of Job, (n,) float
        The jobs, and the seconds of work that each needs still.
    """
    now = draft.state.now
    waiting = sorted(draft.pending(), key=lambda job: job.number)
    work = remaining_work(waiting)
    held = [(job.remaining(now), job.workers) for job in draft.state.running.values()]
    order = forecast_order(
        work,
        np.array([job.workers for job in waiting], dtype=np.int64),
        np.array([job.weight for job in waiting], dtype=np.float64),
        np.array(held, dtype=np.float64).reshape(-1, 2),
        len(draft.state.machines),
    )
    return [waiting[k] for k in order.tolist()], work[order]


def remaining_work(waiting: Sequence[Job]) -> Floats:
    """Return the (n,) seconds of work that waiting jobs need, as ``Job.remaining`` has them."""
    believed = np.array([job.work_s for job in waiting], dtype=np.float64)
    done = np.array([job.done_s for job in waiting], dtype=np.float64)
    return np.maximum(LEAST_REMAINING_S, believed - done)


def solo_seconds(state: State, jobs: Sequence[Job], work: Floats) -> Floats:
    """Return the (n,) seconds that jobs need alone on the GPU model that suits each best."""
    best = np.array(state.speed).max(axis=0)
    return np.asarray(work / best[[job.workload for job in jobs]]) if jobs else work


def idle_by_kind(draft: Draft, reserved: Mapping[int, float]) -> dict[Kind, list[int]]:
    """Return the idle GPUs of each kind; ``reserved`` are those kept for others until when."""
    machines = draft.state.machines
    idle: dict[Kind, list[int]] = defaultdict(list)
    for node, count in enumerate(draft.idle_count):
        for gpu in draft.idle_on(node) if count else ():
            until = reserved.get(gpu, math.inf)
            idle[Kind(machines.model[gpu], machines.memory_mib[gpu], until)].append(gpu)
    return dict(idle)


def busy_seconds(draft: Draft, ends: Mapping[int, float]) -> list[float]:
    """Return the seconds until each busy GPU is believed to be idle, in ascending order."""
    now = draft.state.now
    held = [draft.residents(gpu) for gpu in range(len(draft.state.machines))]
    return sorted([max([ends[job.number] for job in jobs]) - now for jobs in held if jobs])


def believed_ends(state: State) -> dict[int, float]:
    """Return when each running job is believed to end if nobody comes, by number.

    Once its last co-runner has ended, a job runs as fast as alone.
    """
    now = state.now
    at_pace = {
        job.number: max(now, job.since_s) + job.remaining(now) / job.rate
        for job in state.running.values()
    }
    return {job.number: _end(state, job, at_pace) for job in state.running.values()}


def _end(state: State, job: Job, at_pace: Mapping[int, float]) -> float:
    end = at_pace[job.number]
    others = [at_pace[o.number] for gpu in job.gpus for o in state.residents[gpu] if o is not job]
    if not others:
        return end
    begun, last = max(state.now, job.since_s), max(others)
    if not begun < last < end:
        return end
    speed = state.speed[state.machines.model[job.gpus[0]]][job.workload]
    left = job.remaining(state.now) - job.rate * (last - begun)
    return last + max(0.0, left) / max(speed, job.rate)
