"""The GPUs that are reserved for a waiting job, and for how long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from dovetail.solver.policies.state import Job, Reservation, State


def intact(state: State) -> dict[int, Reservation]:
    """Return the reservations without a failed node, by the number of the job."""
    node, down = state.machines.node, state.down
    return {
        number: kept
        for number, kept in state.reserved.items()
        if not any(node[gpu] in down for gpu in kept.gpus)
    }


def earliest(
    state: State, job: Job, ends: Mapping[int, float], taken: Collection[int]
) -> Reservation | None:
    """Return the GPUs of one model that are expected to be idle first; None if too few.

    Parameters
    ----------
    state : State
        The pool.
    job : Job
        A waiting job; GPUs with too little memory for it are skipped.
    ends : mapping of int to float
        When running jobs are expected to end, by number; GPUs of jobs that never do are skipped.
    taken : collection of int
        GPUs that are not available.
    """
    best: Reservation | None = None
    for model in range(len(state.machines.models)):
        free = sorted(
            (_idle_at(state, gpu, ends), gpu)
            for gpu in _usable(state, job, model)
            if gpu not in taken and not any(other.replica_of for other in state.residents[gpu])
        )
        if job.by_node:
            free = _first_groups(state, job, free)
        free = free[: job.workers]
        if len(free) == job.workers and (best is None or free[-1][0] < best.until_s):
            best = Reservation(tuple(gpu for _, gpu in free), free[-1][0])
    return best


def _first_groups(
    state: State, job: Job, free: Sequence[tuple[float, int]]
) -> list[tuple[float, int]]:
    """Return the GPUs on which whole groups of workers can start first, by when they are idle."""
    on: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for idle_s, gpu in free:
        on[state.machines.node[gpu]].append((idle_s, gpu))
    size = job.together
    groups = [
        gpus[k * size : (k + 1) * size]
        for gpus in on.values()
        for k in range(job.groups_on(len(gpus)))
    ]
    groups.sort(key=lambda group: group[-1])
    return sorted(each for group in groups[: job.workers // size] for each in group)


def _idle_at(state: State, gpu: int, ends: Mapping[int, float]) -> float:
    return max([ends[job.number] for job in state.residents[gpu]], default=state.now)


def _usable(state: State, job: Job, model: int) -> Sequence[int]:
    machines = state.machines
    return [
        gpu
        for gpu in range(len(machines))
        if machines.model[gpu] == model
        and machines.memory_mib[gpu] >= state.need_mib(gpu, job.workload, 0)
        and machines.node[gpu] not in state.down
    ]
