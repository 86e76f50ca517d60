"""Jobs in some order, each alone on its GPUs: what the exclusive policies share."""

from __future__ import annotations

from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.queues import Queue
from dovetail.solver.policies.state import State


def start_alone(state: State, queue: Queue, backfill: bool) -> Decision:
    """Start jobs on idle GPUs in the order of a queue.

    The first that does not fit ends the round, unless ``backfill`` lets those behind it pass.
    """
    if not state.pending or not any(state.idle_count):
        return NOTHING
    draft = Draft(state)
    for job in queue.jobs(state):
        gpus = idle_gpus(draft, job) if job.workers <= draft.idle_total else None
        if gpus is not None:
            draft.start(job, gpus)
        elif not backfill:
            break
        if not draft.idle_total:
            break
    return draft.decision()
