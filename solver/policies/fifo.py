"""First in, first out, each job alone on its GPUs: YARN's and Kubernetes' queues."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.state import State


@dataclass(frozen=True)
class Fifo:
    """Start jobs in the order of arrival; the first that does not fit holds up all behind it.

    Source: the first baseline of Castor (2025, section 9.1).
    """

    def decide(self, state: State) -> Decision:
        """Start as many from the head of the queue as fit on idle GPUs."""
        if not state.pending or not any(state.idle_count):
            return NOTHING
        draft = Draft(state)
        for job in sorted(state.pending.values(), key=lambda job: job.number):
            gpus = idle_gpus(draft, job)
            if gpus is None:
                break
            draft.start(job, gpus)
        return draft.decision()
