"""Shortest service first, each job alone on its GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from dovetail.solver.policies.alone import start_alone
from dovetail.solver.policies.policy import Decision
from dovetail.solver.policies.queues import Key, Queue
from dovetail.solver.policies.state import Job, State


def _least_service(job: Job) -> Key:
    return (job.work_s - job.done_s) * job.workers, job.number


@dataclass(frozen=True)
class Ssf:
    """Start the job that is believed to need the fewest GPU seconds; nobody is preempted.

    Source: Castor (2025, section 9.1), baseline 3: as shortest job first, by time times GPUs.

    Parameters
    ----------
    backfill : bool
        As of shortest job first: whether jobs behind one that does not fit may start.
    """

    backfill: bool = True
    _queue: Queue = field(init=False, repr=False, default_factory=partial(Queue, _least_service))

    def decide(self, state: State) -> Decision:
        """Start jobs on idle GPUs, those of the least service first."""
        return start_alone(state, self._queue, self.backfill)
