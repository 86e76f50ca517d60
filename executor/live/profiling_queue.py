"""Which jobs start first so that their workloads are measured, whatever the policy decides.

Until a workload has a profile none of its jobs may share, and their length is unknown. So the first
job of a workload is worth more than it is to a policy that compares lengths.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import WorkloadKey
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.fair_share import turns
from dovetail.executor.live.guarded_policy import GuardedPolicy
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import Start
from dovetail.solver.policies.state import State

PART: Final = 4
"""At most one part in so many of the devices' time is given to first looks out of turn."""


def first_starts(
    machine: StateMachine, state: State, looks: ProfilingQueue, policy: GuardedPolicy
) -> Generator[tuple[Sequence[Start], bool]]:
    """Yield the starts before the policy decides, with whether they are made to measure the job.

    The caller enters all starts into the state before it asks for the next.
    """
    due: list[Start] = []

    def chosen(state: State) -> Sequence[Start]:
        due[:] = looks.due(state)
        return due or policy.starts(state)

    competed = False
    for starts in turns(machine, state, chosen):
        competed = True
        yield starts, bool(due)
    if not competed:
        yield list(looks.due(state)), True


class ProfilingQueue:
    """Finds the job that is profiled next, if any.

    That is the one submitted first among jobs of workloads of which no job has been started, if its
    whole gang has idle devices that are not reserved, and more ranks wait than devices are idle. A
    profile closes its devices for up to ``look_s``; the next one waits until this is at most one
    ``PART`` of the time of all devices since then.

    Parameters
    ----------
    machine : StateMachine
        Is read only.
    look_s : float
        The longest that a profile takes, in seconds.
    """

    def __init__(self, machine: StateMachine, look_s: float) -> None:
        self._machine = machine
        self._look_s = look_s
        self._next_s = -math.inf
        self._begun = {job.spec.key for job in machine.jobs.values() if job.runs}

    def due(self, state: State) -> Iterator[Start]:
        """Yield the start of the job to be profiled next, at most one."""
        self.begin(self._machine.holding.values())  # an earlier service may have started them
        idle = sum(state.idle_count)
        if not idle or state.now < self._next_s or not _more_wait(state, idle):
            return
        draft = Draft(state)
        for live in self._first_jobs():
            job = state.pending.get(live.sequence)
            gpus = idle_gpus(draft, job) if job is not None else None
            if job is not None and gpus is not None and state.reserved_gpus.isdisjoint(gpus):
                yield Start(job, tuple(gpus))
                return

    def begin(self, jobs: Iterable[LiveJob]) -> None:
        """Note that jobs were started, to be profiled or by the policy."""
        self._begun.update(job.spec.key for job in jobs)

    def note(self, start: Start, state: State) -> None:
        """Note that a profile has begun."""
        closed_s = start.job.workers * self._look_s
        self._next_s = state.now + PART * closed_s / len(state.machines)

    def _first_jobs(self) -> list[LiveJob]:
        first: dict[WorkloadKey, LiveJob] = {}
        for live in self._machine.queued.values():
            key = live.spec.key
            if live.state is JobState.SUBMITTED and key not in self._begun and not live.runs:
                earlier = first.setdefault(key, live)
                first[key] = min(live, earlier, key=_sequence)
        return sorted(first.values(), key=_sequence)


def _more_wait(state: State, idle: int) -> bool:
    """Return whether more ranks wait than devices are idle."""
    wanted = 0
    for job in state.pending.values():
        wanted += job.workers
        if wanted > idle:
            return True
    return False


def _sequence(live: LiveJob) -> int:
    return live.sequence
