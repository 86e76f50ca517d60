"""A brain as plain texts and back, so that a start need not read a journal from its beginning.

What a job's owner submitted stands in the journal already, and is not written out again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter
from pydantic_core import from_json

from dovetail.executor.live.brain import Brain, LiveJob
from dovetail.executor.live.jobs import JobSpec

VERSION: Final = 1
"""Of the texts below. Checkpoints of another version are passed over: the events tell it all."""

_BRAIN: Final = TypeAdapter(Brain)
_JOB: Final = TypeAdapter(LiveJob)


class StoredJob(NamedTuple):
    """A job's text and the specification that belongs to it."""

    text: str
    spec: JobSpec


def brain_text(brain: Brain) -> str:
    """Return all that a brain knows but its jobs."""
    return _BRAIN.dump_json(brain, exclude={"jobs", "queued", "holding"}).decode()


def job_text(job: LiveJob) -> str:
    """Return all that is known of a job but its specification."""
    return _JOB.dump_json(job, exclude={"spec": True, "run": {"spec"}}).decode()


def restored(text: str, jobs: Iterable[StoredJob]) -> Brain:
    """Return the brain that was written out, its jobs in the order of submission.

    Raises
    ------
    ValueError
        When a text is not what the functions above write.
    """
    brain = _BRAIN.validate_json(text)
    for stored in jobs:
        brain.add(_job(stored))
    return brain


def _job(stored: StoredJob) -> LiveJob:
    data: dict[str, Any] = from_json(stored.text)
    data["spec"] = stored.spec
    if data["run"] is not None:
        data["run"]["spec"] = stored.spec
    return _JOB.validate_python(data)
