"""Where a gang goes: few nodes, few racks, and no node broken up without need."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.state import Job


def idle_gpus(draft: Draft, job: Job) -> list[int] | None:
    """Return idle GPUs for a whole gang, None if there are too few of any one model.

    Of the models with enough idle GPUs the one on which the job runs fastest is taken. On it the
    gang goes to the node with the fewest idle GPUs that holds it; where none does, to the nodes
    with the most idle GPUs, which spans the fewest.
    """
    if draft.idle_total < job.workers:
        return None
    machines = draft.state.machines
    if len(machines.models) == 1:
        return _consolidated(draft, draft.idle_count, job.workers, None)
    speed = draft.state.speed
    for model in sorted(range(len(machines.models)), key=lambda m: -speed[m][job.workload]):
        counts = [
            sum(machines.model[gpu] == model for gpu in draft.idle_on(node)) if count else 0
            for node, count in enumerate(draft.idle_count)
        ]
        found = _consolidated(draft, counts, job.workers, model)
        if found is not None:
            return found
    return None


def _consolidated(
    draft: Draft, counts: Sequence[int], workers: int, model: int | None
) -> list[int] | None:
    """Return the GPUs of one model (None: of any) by the idle ones that each node has."""
    fullest = min([count for count in counts if count >= workers], default=None)
    if fullest is not None:
        return _idle(draft, counts.index(fullest), model)[:workers]
    if sum(counts) < workers:
        return None
    taken: list[int] = []
    for node in sorted(range(len(counts)), key=lambda n: -counts[n]):
        taken += _idle(draft, node, model)
        if len(taken) >= workers:
            break
    return taken[:workers]


def _idle(draft: Draft, node: int, model: int | None) -> list[int]:
    gpus = draft.idle_on(node)
    if model is None:
        return gpus
    return [gpu for gpu in gpus if draft.state.machines.model[gpu] == model]
