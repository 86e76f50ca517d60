"""First in, first out, each job alone on its GPUs: YARN's and Kubernetes' queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from dovetail.solver.policies.alone import start_alone
from dovetail.solver.policies.policy import Decision
from dovetail.solver.policies.queues import Queue, by_arrival
from dovetail.solver.policies.state import State


@dataclass(frozen=True)
class Fifo:
    """Start jobs in the order of arrival; the first that does not fit holds up all behind it.

    Source: the first baseline of Castor (2025, section 9.1). TensorShare's dedicated use (FGCS
    2026, section 4.1) is the same: jobs in the order of the queue, nobody shares.
    """

    _queue: Queue = field(init=False, repr=False, default_factory=partial(Queue, by_arrival))

    def decide(self, state: State) -> Decision:
        """Start as many from the head of the queue as fit on idle GPUs."""
        return start_alone(state, self._queue, backfill=False)
