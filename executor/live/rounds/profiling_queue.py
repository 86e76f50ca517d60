"""Jobs that start before the policy's choice so that their workloads are profiled.

Until a workload has a profile, none of its jobs may share and their length is unknown. The first
job of a workload is therefore worth more than a policy that compares lengths can see.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import WorkloadKey
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.rounds.fair_share import turns
from dovetail.executor.live.rounds.guarded_policy import GuardedPolicy
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import Start
from dovetail.solver.policies.state import State

PART: Final = 4
"""At most one part in ``PART`` of the devices' time is used for such profiles."""


def first_starts(
    machine: StateMachine, state: State, looks: ProfilingQueue, policy: GuardedPolicy
) -> Generator[tuple[Sequence[Start], bool]]:
    """Yield the starts that come before the policy's choice; True marks starts for a profile.

    The caller enters the starts into the state before it asks for the next.
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
    """Finds the job to profile next, if any.

    It is the first submitted job among workloads without a started job, if there are idle devices
    that are not reserved for its whole gang, and more ranks wait than devices are idle. A profile
    closes its devices to other jobs for up to ``look_s``; the next profile waits until this is at
    most one part in ``PART`` of the time of all devices since then.

    Parameters
    ----------
    machine : StateMachine
        Jobs and devices; only read.
    look_s : float
        The longest duration of a profile, in seconds.
    """

    def __init__(self, machine: StateMachine, look_s: float) -> None:
        self._machine = machine
        self._look_s = look_s
        self._next_s = -math.inf
        self._begun = {job.spec.key for job in machine.jobs.values() if job.runs}

    def due(self, state: State) -> Iterator[Start]:
        """Yield at most one start, of the job to profile next."""
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
        """Note that jobs were started, for a profile or by the policy."""
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
