"""Slurm accounting as printed by ``sacct -P``: fields separated by ``|``, steps below their jobs.

Source: Slurm's manual of ``sacct``. ``AllocTRES`` lists the resources of a job, its GPUs with and
without their type (``gres/gpu:a100=2,gres/gpu=2``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.instances._record import shown
from dovetail.instances.errors import InputError
from dovetail.instances.importers._tres import UNKNOWN, gpus_by_type
from dovetail.instances.reading.tables import Row, read_piped
from dovetail.instances.traces._left_out import left_out
from dovetail.instances.traces.kinds import TraceKind
from dovetail.instances.traces.trace import JobColumns, Trace

COLUMNS: Final = ("JobID", "Submit", "Start", "End", "AllocTRES")
COMMAND: Final = "sacct -a -X -P --format=JobID,User,Submit,Start,End,ElapsedRaw,AllocTRES"
"""Prints all columns that are read, without job names, which may hold a ``|``."""


class _SacctRow(NamedTuple):
    """A row of a job; a requeued job has several."""

    user: str | None
    submitted: datetime
    gpus: int
    seconds: float
    ended: bool


def _recognises(first: str) -> bool:
    """Return whether a file is by ``sacct``, from its first line, in any form that it prints."""
    return re.split(r"[|\s]", first, maxsplit=1)[0] in ("JobID", "JobIDRaw")


def _read(path: Path, name: str) -> Trace:
    """Return the trace, which begins with the first submission of a job on GPUs.

    Tenants are users. A requeued job runs for the total time of its attempts, on the GPUs of its
    last one. Jobs that have not ended, ran on no GPU or for no time are left out.

    Raises
    ------
    InputError
        For other output forms of ``sacct``, with the command that prints this one.
    """
    try:
        rows = [row for row in read_piped(path, COLUMNS) if "." not in row.values["JobID"]]
    except InputError as error:
        raise InputError(f"{error.rule}; print it by {COMMAND}", error.path, error.source) from None
    jobs: dict[str, list[_SacctRow]] = defaultdict(list)
    for row in rows:
        jobs[row.text("JobID")].append(_attempt(row))
    ran = {job: [one for one in tries if one.gpus and one.seconds] for job, tries in jobs.items()}
    found = {job: tries for job, tries in ran.items() if tries}
    begun = [min(one.submitted for one in tries) for tries in found.values()]
    first = min(begun, default=datetime.min)
    columns = JobColumns.of(
        list(found),
        [(at - first).total_seconds() for at in begun],
        [tries[-1].gpus for tries in found.values()],
        [sum(one.seconds for one in tries) for tries in found.values()],
        tenant=[tries[-1].user for tries in found.values()],
    )
    unended = sum(not tries[-1].ended and tries[-1].gpus > 0 for tries in jobs.values())
    waits = (f"{unended} of them on GPUs had not ended",) if unended else ()
    return Trace.of_columns(name, columns, (*left_out(len(jobs) - len(found), len(jobs)), *waits))


def _attempt(row: Row) -> _SacctRow:
    submitted, start, end = (_moment(row, name) for name in ("Submit", "Start", "End"))
    if submitted is None:
        raise row.broken("Submit", "must be a time, got none")
    ended = start is not None and end is not None
    seconds = 0.0
    if start is not None and end is not None:
        counted = row.values.get("ElapsedRaw", "").strip()
        lasted = row.number("ElapsedRaw") if counted else (end - start).total_seconds()
        seconds = max(0.0, lasted)
    user = row.values.get("User", "").strip() or None
    return _SacctRow(
        user, submitted, sum(gpus_by_type(row.values["AllocTRES"]).values()), seconds, ended
    )


def _moment(row: Row, column: str) -> datetime | None:
    """Return a time: local, with an offset from UTC, or in seconds since 1970; None if unknown.

    Times with an offset are converted to UTC, so that all can be compared.
    """
    text = row.values[column].strip()
    if text in UNKNOWN:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 11:
        return datetime.fromtimestamp(int(text), UTC).replace(tzinfo=None)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        rule = f"must be a time like 2026-08-11T14:36:24, got {shown(text)}"
        raise row.broken(column, rule) from None
    return found.astimezone(UTC).replace(tzinfo=None) if found.tzinfo else found


SACCT: Final = TraceKind(_read, _recognises)
