"""Which changes of a job its page offers to a user: exactly those that the service then makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from dovetail.executor.jobs.specs import Owner
from dovetail.executor.jobs.states import HOLDING, OVER, QUEUED, UNDER_WAY, JobState
from dovetail.executor.live.requests.admission import is_administrator
from dovetail.executor.live.requests.service_api import ServiceApi
from dovetail.executor.live.views import JobView


class Action(NamedTuple):
    """A change of a job.

    Attributes
    ----------
    name : str
        Its name in the address, and on its button.
    effect : str
        What it does, said before a change that cannot be undone; empty for others.
    possible : callable
        Whether a job's state allows it.
    make : callable
        Makes it.
    """

    name: str
    effect: str
    possible: Callable[[JobView], bool]
    make: Callable[[ServiceApi, str, Owner], JobView]


def _may_requeue(job: JobView) -> bool:
    return job.requeue and job.state in HOLDING and job.state is not JobState.STOPPING


ACTIONS: Final[Mapping[str, Action]] = MappingProxyType(
    {
        action.name: action
        for action in (
            Action(
                "hold",
                "",
                lambda job: job.state in QUEUED and not job.held,
                lambda api, job, by: api.hold(job, True, by),
            ),
            Action(
                "release",
                "",
                lambda job: job.state in QUEUED and bool(job.held),
                lambda api, job, by: api.hold(job, False, by),
            ),
            Action(
                "pause",
                "",
                lambda job: job.state in UNDER_WAY and job.state is not JobState.PAUSED,
                lambda api, job, by: api.pause(job, True, by),
            ),
            Action(
                "resume",
                "",
                lambda job: job.state is JobState.PAUSED,
                lambda api, job, by: api.pause(job, False, by),
            ),
            Action(
                "requeue",
                "ends its run; it waits again and resumes from its own checkpoint",
                _may_requeue,
                lambda api, job, by: api.requeue(job, by),
            ),
            Action(
                "cancel",
                "ends it for good: SIGTERM, and SIGKILL after its grace",
                lambda job: job.state not in OVER,
                lambda api, job, by: api.cancel(job, by),
            ),
        )
    }
)
"""All of them, by name."""


def allowed(job: JobView, by: Owner) -> tuple[Action, ...]:
    """Return the changes that a user may make of a job in its present state."""
    if by.uid != job.uid and not is_administrator(by):
        return ()
    return tuple(action for action in ACTIONS.values() if action.possible(job))
