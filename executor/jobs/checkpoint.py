"""The state machine as JSON and back, so that a start need not read the whole journal.

Environments of jobs are left out: the journal has them, and a job that is over needs none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter
from pydantic_core import from_json

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.jobs.state_machine import StateMachine

VERSION: Final = 1
"""Version of the texts below. Checkpoints of another version are ignored; events are read then."""

_MADE_OF_JOBS: Final = {
    *("jobs", "queued", "barred", "holding", "over", "requests", "waiting", "active", "ended")
}

_BRAIN: Final = TypeAdapter(StateMachine)
_JOB: Final = TypeAdapter(LiveJob)


class StoredJob(NamedTuple):
    """The text of a job and its submitted specification; None for a job that is over."""

    text: str
    spec: JobSpec | None


def state_text(machine: StateMachine) -> str:
    """Return a state machine without its jobs."""
    return _BRAIN.dump_json(machine, exclude=_MADE_OF_JOBS).decode()


def job_text(job: LiveJob) -> str:
    """Return a job without its environment."""
    elsewhere: dict[str, Any] = {"run": {"spec"}, "spec": {"env"}}
    return _JOB.dump_json(job, exclude=elsewhere).decode()


def restored(text: str, jobs: Iterable[StoredJob]) -> StateMachine:
    """Return the state machine of a checkpoint; its jobs are in the order of submission.

    Raises
    ------
    ValueError
        If a text was not written by the functions above.
    """
    machine = _BRAIN.validate_json(text)
    for stored in jobs:
        machine.add(_job(stored))
    return machine


def _job(stored: StoredJob) -> LiveJob:
    data: dict[str, Any] = from_json(stored.text)
    submitted = stored.spec
    if "spec" not in data:
        # A checkpoint of before jobs could be edited.
        assert submitted is not None
        data["spec"] = submitted
    spec = JobSpec.model_validate(data["spec"])
    if submitted is not None:
        spec = spec.model_copy(update={"env": submitted.env})
    data["spec"] = spec
    if data["run"] is not None:
        data["run"]["spec"] = spec
    return _JOB.validate_python(data)
