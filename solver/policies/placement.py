"""Where a gang goes: few nodes, few racks, and no node broken up without need."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.state import Job


def idle_gpus(draft: Draft, job: Job) -> list[int] | None:
    """Return idle GPUs for a whole gang, None if there are too few of any one model.

    Of the models with enough idle GPUs the one on which the job runs fastest is taken. On it the
    gang goes to the node with the fewest idle GPUs that holds it; where none does, to the nodes
    with the most idle GPUs, which spans the fewest. GPUs with too little memory for the job are
    passed over.
    """
    speed = draft.state.speed
    models = range(len(draft.state.machines.models))
    for model in sorted(models, key=lambda m: -speed[m][job.workload]):
        found = idle_gpus_of(draft, job, job.workers, model)
        if found is not None:
            return found
    return None


def idle_gpus_of(draft: Draft, job: Job, count: int, model: int, mode: int = 0) -> list[int] | None:
    """Return ``count`` idle GPUs of one model for workers of a job, None if there are too few."""
    if draft.idle_total < count:
        return None
    machines = draft.state.machines
    need = draft.state.modes[job.workload][mode].memory_mib
    if len(machines.models) == 1 and need <= machines.least_memory_mib:
        return _consolidated(draft.idle_count, count, draft.idle_on)

    def fitting(node: int) -> list[int]:
        return [
            gpu
            for gpu in draft.idle_on(node)
            if machines.model[gpu] == model and draft.has_room(gpu, job, mode)
        ]

    counts = [len(fitting(node)) if idle else 0 for node, idle in enumerate(draft.idle_count)]
    return _consolidated(counts, count, fitting)


def _consolidated(
    counts: list[int], workers: int, idle_on: Callable[[int], list[int]]
) -> list[int] | None:
    """Return GPUs by how many each node has and which these are."""
    fullest = min([count for count in counts if count >= workers], default=None)
    if fullest is not None:
        return idle_on(counts.index(fullest))[:workers]
    if sum(counts) < workers:
        return None
    taken: list[int] = []
    for node in sorted(range(len(counts)), key=lambda n: -counts[n]):
        taken += idle_on(node)
        if len(taken) >= workers:
            break
    return taken[:workers]
