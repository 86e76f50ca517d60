"""The bodies of requests over HTTP, and how they are read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from pydantic import FailFast, Field, StrictBool, ValidationError, create_model

from dovetail.executor.jobs.specs import FIXED, Index, JobSpec, Owner
from dovetail.instances._record import Count, Name, Record, input_error
from dovetail.instances.errors import InputError
from dovetail.live.http.faults import TOKEN_VARIABLE

MOST_JOBS: Final = 10_000
"""Most jobs in one request."""

MOST_BODY_BYTES: Final = 8 * 2**20
"""Most bytes in the body of a request."""

MOST_NESTED: Final = 4 * MOST_JOBS
"""Most mappings and lists in a request: each takes far more memory and time than its text."""

_MOST_FAULTS: Final = 10_000

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)

_Asked = TypeVar("_Asked", bound=Record)

_SAID: Final[Mapping[str, Any]] = MappingProxyType(
    {
        name: (field.annotation, field)
        for name, field in JobSpec.model_fields.items()
        if name not in ("owner", "index", "place")
    }
)

Submission: TypeAlias = Record
"""A ``JobSpec`` without its owner, which is the user of the connection."""

SUBMISSION: Final[type[Record]] = create_model(
    "Submission",
    __base__=Record,
    __doc__="A job to be run as the requesting user; the fields are those of `JobSpec`. With "
    "`array`, it is one job per index, which its processes find in `DOVETAIL_ARRAY_INDEX`.",
    array=(Annotated[tuple[Index, ...], FailFast(), Field(max_length=MOST_JOBS)], ()),
    **_SAID,
)


_CHANGED: Final[Mapping[str, Any]] = MappingProxyType(
    {
        name: (annotation | None, None)
        for name, (annotation, _) in _SAID.items()
        if name not in ("env", *FIXED)
    }
)

CHANGES: Final[type[Record]] = create_model(
    "Changes",
    __base__=Record,
    __doc__="New values for fields of a waiting job; the fields are those of `JobSpec`. Or alone, "
    "for a service in any state, `replicas`: how many it has from now on.",
    replicas=(Annotated[Count, Field(le=MOST_JOBS)] | None, None),
    **_CHANGED,
)


class Submissions(Record):
    """Jobs that are accepted all or none."""

    jobs: Annotated[tuple[SUBMISSION, ...], FailFast(), Field(min_length=1, max_length=MOST_JOBS)]

    def specs(self, owner: Owner) -> list[JobSpec]:
        """Return the jobs with their owner.

        Raises
        ------
        InputError
            When one breaks a rule that concerns several fields.
        """
        found: list[JobSpec] = []
        for k, job in enumerate(self.jobs):
            spec = _spec(job, owner, f"jobs[{k}]")
            indices: tuple[int, ...] = getattr(job, "array")  # noqa: B009 (made by create_model)
            if spec.most_running is not None and not indices:
                raise InputError("needs array", f"jobs[{k}].most_running")
            found += [
                spec.model_copy(update={"index": index, "place": place})
                for place, index in enumerate(indices)
            ] or [spec]
        if len(found) > MOST_JOBS:
            rule = f"must be at most {MOST_JOBS} in one request, got {len(found)}"
            raise InputError(rule, "jobs")
        return found


def _spec(job: Record, owner: Owner, path: str) -> JobSpec:
    fields = {name: getattr(job, name) for name in _SAID}
    # The token that the submitter shows the service must not be kept in the journal.
    fields["env"] = {name: value for name, value in fields["env"].items() if name != TOKEN_VARIABLE}
    try:
        return JobSpec.from_data({**fields, "owner": owner})
    except InputError as error:
        raise InputError(error.rule, f"{path}.{error.path}") from None


def parsed(record: type[_Asked], body: bytes) -> _Asked:
    """Return the record in the body of a request.

    Time and memory are proportional to the length of any body.

    Raises
    ------
    InputError
        When it is not JSON, or breaks a rule.
    """
    outside = _STRING.sub(b"", body)
    nested = outside.count(b"{") + outside.count(b"[")
    if nested > MOST_NESTED:
        raise InputError(f"must have at most {MOST_NESTED} mappings and lists, got {nested}")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise InputError("must be JSON") from None
    if not isinstance(data, dict):
        raise InputError("must be a mapping of field names to values")
    try:
        return record.model_validate(data)
    except ValidationError as error:
        count = error.error_count()
        if count > _MOST_FAULTS:
            raise InputError(f"must be {record.__name__}, breaks its rules {count} times") from None
        raise input_error(record, error.errors(include_url=False)) from None


class Accepted(Record):
    """The ids of submitted jobs, in their order."""

    ids: tuple[Name, ...]


class DrainRequest(Record):
    """Devices (none: all) to drain, or with `on` false to let take jobs again."""

    gpus: Annotated[tuple[Name, ...], FailFast()] = ()
    on: StrictBool = True


class Explained(Record):
    """Why a job waits and what would let it start."""

    job: Name
    text: str
