"""Policies without sharing: jobs in a given order, each alone on its GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.queues import Key, Queue, by_arrival
from dovetail.solver.policies.state import Job, State


@dataclass(frozen=True)
class Fifo:
    """Start jobs in the order of arrival; the first that does not fit blocks all behind it.

    Source: the first baseline of Castor (2025, section 9.1), and the queues of YARN and
    Kubernetes. TensorShare's dedicated use (FGCS 2026, section 4.1) is the same: jobs in the
    order of the queue, no job shares.
    """

    _queue: Queue = field(init=False, repr=False, default_factory=partial(Queue, by_arrival))

    def decide(self, state: State) -> Decision:
        """Start the jobs at the head of the queue that fit on idle GPUs."""
        return _start_alone(state, self._queue, backfill=False)


def _seconds(job: Job) -> Key:
    return job.work_s - job.done_s, job.number


@dataclass(frozen=True)
class Sjf:
    """Start the job with the shortest expected time; running jobs stay.

    Source: Castor (2025, section 9.1), baseline 2. The paper does not say whether a job that does
    not fit blocks the jobs behind it. Castor's own Algorithm 1 (section 5.2) visits the whole
    sorted list, and so does this policy by default.

    Parameters
    ----------
    backfill : bool
        Whether jobs behind one that does not fit may start; if false, jobs start strictly in order.
    """

    backfill: bool = True
    _queue: Queue = field(init=False, repr=False, default_factory=partial(Queue, _seconds))

    def decide(self, state: State) -> Decision:
        """Start jobs on idle GPUs in order."""
        return _start_alone(state, self._queue, self.backfill)


def _gpu_seconds(job: Job) -> Key:
    return (job.work_s - job.done_s) * job.workers, job.number


@dataclass(frozen=True)
class Ssf(Sjf):
    """Start the job with the fewest expected GPU seconds; no job is preempted.

    Source: Castor (2025, section 9.1), baseline 3: like shortest job first, by time times GPUs.

    Parameters
    ----------
    backfill : bool
        Whether jobs behind one that does not fit may start; if false, jobs start strictly in order.
    """

    _queue: Queue = field(init=False, repr=False, default_factory=partial(Queue, _gpu_seconds))


def _start_alone(state: State, queue: Queue, backfill: bool) -> Decision:
    """Start jobs on idle GPUs in the order of a queue.

    The first job that does not fit ends the round, unless ``backfill`` lets later jobs pass it.
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
