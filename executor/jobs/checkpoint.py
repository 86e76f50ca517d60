"""The state machine as JSON and back, so that a start need not read the whole journal.

Environments and long commands are left out: the journal stores them separately, and jobs that are
over do not need them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter
from pydantic_core import from_json

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import JobSpec, Words, brief
from dovetail.executor.jobs.state_machine import StateMachine

VERSION: Final = 1
"""Version of the texts below. Checkpoints of another version are ignored, and events read."""

_MADE_OF_JOBS: Final = {
    *(
        "jobs",
        "queued",
        "barred",
        "holding",
        "resting",
        "over",
        "requests",
        "waiting",
        "active",
        "ended",
    )
}

_BRAIN: Final = TypeAdapter(StateMachine)
_JOB: Final = TypeAdapter(LiveJob)


class StoredJob(NamedTuple):
    """The text of a job; if it is not over, also its submitted specification and long command."""

    text: str
    spec: JobSpec | None
    command: Words | None = None


def state_text(machine: StateMachine) -> str:
    """Return the text of a state machine without its jobs."""
    return _BRAIN.dump_json(machine, exclude=_MADE_OF_JOBS).decode()


def job_text(job: LiveJob) -> str:
    """Return the text of a job, without its environment and with a shortened command."""
    elsewhere: dict[str, Any] = {"run": {"spec"}, "spec": {"env"}}
    short = replace(job, spec=job.spec.with_words(command=brief(job.spec.command)))
    return _JOB.dump_json(short, exclude=elsewhere).decode()


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
        # A checkpoint from before jobs could be edited.
        assert submitted is not None
        data["spec"] = submitted
    spec = JobSpec.model_validate(data["spec"])
    spec = spec.without_words() if submitted is None else spec.with_words(env=submitted.env)
    if stored.command is not None:
        spec = spec.with_words(command=stored.command)
    data["spec"] = spec
    if data["run"] is not None:
        data["run"]["spec"] = spec
    return _JOB.validate_python(data)
