"""Shortest job first, each job alone on its GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from dovetail.solver.policies.alone import start_alone
from dovetail.solver.policies.policy import Decision
from dovetail.solver.policies.queues import Key, Queue
from dovetail.solver.policies.state import Job, State


def _shortest(job: Job) -> Key:
    return job.work_s - job.done_s, job.number


@dataclass(frozen=True)
class Sjf:
    """Start the job that is believed to need the least time; running jobs are left alone.

    Source: Castor (2025, section 9.1), baseline 2. Its text does not say whether a job that does
    not fit blocks the shorter of those behind it. Castor's own Algorithm 1 (section 5.2) visits
    the whole sorted list, and so does this policy by default.

    Parameters
    ----------
    backfill : bool
        Whether jobs behind one that does not fit may start; False = strictly in order.
    """

    backfill: bool = True
    _queue: Queue = field(init=False, repr=False, default_factory=partial(Queue, _shortest))

    def decide(self, state: State) -> Decision:
        """Start jobs on idle GPUs, the shortest first."""
        return start_alone(state, self._queue, self.backfill)
