"""The states of a job and the changes between them (diagram: ``docs/internals/live-states.md``).

It is separate from the state machine so that a client of the service need not load that.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Self


class MeaningEnum(StrEnum):
    """Members that say what they mean.

    Attributes
    ----------
    meaning : str
        The meaning of the member, in words.
    """

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        """Create a member from its name and its meaning."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


class JobState(MeaningEnum):
    """State of a job; ``docs/internals/live-states.md`` has the diagram."""

    SUBMITTED = "submitted", "Its workload has no profile: it may start alone only."
    WAITING = "waiting", "Its workload has a profile: it may start, alone or with co-runners."
    STARTING = "starting", "Its ranks are being started, all or none."
    PROFILING = "profiling", "It runs alone and is being measured; no job may join."
    RUNNING = "running", "Every rank is proven to run with its share, or has ended well."
    PAUSED = "paused", "Its processes are stopped, and keep their devices and their memory."
    STOPPING = "stopping", "It is being ended, until every rank is proven gone."
    LOST = "lost", "It is unknown whether a rank still runs."
    FINISHED = "finished", "Every rank ended with status 0, and none was asked to stop."
    FAILED = "failed", "It failed more often than it may, or broke a limit."
    CANCELLED = "cancelled", "Its owner or an administrator cancelled it."


OVER: Final = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})
"""States that a job never leaves."""

HOLDING: Final = frozenset(
    {
        JobState.STARTING,
        JobState.PROFILING,
        JobState.RUNNING,
        JobState.PAUSED,
        JobState.STOPPING,
        JobState.LOST,
    }
)
"""States in which a job's devices are busy."""

WATCHED: Final = frozenset({JobState.PROFILING, JobState.RUNNING})
"""States in which a run's progress is meaningful."""

UNDER_WAY: Final = WATCHED | {JobState.PAUSED}
"""States in which every rank runs or has ended well."""

QUEUED: Final = frozenset({JobState.SUBMITTED, JobState.WAITING})
"""States in which a job waits for devices."""

MANY_QUICK_ENDS: Final = 5
"""Ends of a service in a row, each soon after its start, from which on it is called failing."""

_S = JobState
TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = MappingProxyType(
    {
        _S.SUBMITTED: frozenset({_S.WAITING, _S.STARTING, _S.CANCELLED}),
        _S.WAITING: frozenset({_S.SUBMITTED, _S.STARTING, _S.CANCELLED}),
        _S.STARTING: frozenset(
            {_S.PROFILING, _S.RUNNING, _S.STOPPING, _S.LOST}
            | {_S.FINISHED, _S.FAILED, _S.WAITING, _S.SUBMITTED}
        ),
        _S.PROFILING: frozenset(
            {_S.RUNNING, _S.PAUSED, _S.STOPPING, _S.LOST} | {_S.FINISHED, _S.FAILED, _S.SUBMITTED}
        ),
        _S.RUNNING: frozenset(
            {_S.PAUSED, _S.STOPPING, _S.LOST} | {_S.FINISHED, _S.FAILED, _S.WAITING, _S.SUBMITTED}
        ),
        _S.PAUSED: frozenset(
            {_S.PROFILING, _S.RUNNING, _S.STOPPING, _S.LOST}
            | {_S.FINISHED, _S.FAILED, _S.WAITING, _S.SUBMITTED}
        ),
        _S.STOPPING: frozenset({_S.WAITING, _S.SUBMITTED, _S.FAILED, _S.CANCELLED}),
        _S.LOST: frozenset(
            {_S.STARTING, _S.PROFILING, _S.RUNNING, _S.PAUSED, _S.STOPPING}
            | {_S.FINISHED, _S.FAILED, _S.WAITING, _S.SUBMITTED}
        ),
        _S.FINISHED: frozenset(),
        _S.FAILED: frozenset(),
        _S.CANCELLED: frozenset(),
    }
)
"""Every allowed change of a job's state."""
