"""The Standard Workload Format of the Parallel Workloads Archive (Feitelson, version 2.2).

Lines that begin with ``;`` are comments. Every other line is a job: 18 numbers, -1 if unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dovetail.instances._record import shown
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.reading.tables import Row, as_number, lines_of
from dovetail.instances.traces._left_out import jobs_of
from dovetail.instances.traces.kinds import TraceKind
from dovetail.instances.traces.trace import Trace, TraceJob

FIELDS: Final = (
    *("job number", "submit time", "wait time", "run time", "allocated processors"),
    *("average CPU time", "used memory", "requested processors", "requested time"),
    *("requested memory", "status", "user", "group", "executable", "queue", "partition"),
    *("preceding job", "think time"),
)


def _read(path: Path, name: str, cores_per_gpu: int = 1) -> Trace:
    """Return the trace; processors are GPUs, or ``cores_per_gpu`` of them make one GPU."""
    if cores_per_gpu < 1:
        raise InputError(f"must be >= 1, got {cores_per_gpu}", "cores_per_gpu")
    return jobs_of(name, (_job(row, cores_per_gpu) for row in _rows(path)))


def _rows(path: Path) -> Iterator[Row]:
    source = source_name(path)
    for number, line in enumerate(lines_of(path), 1):
        fields = line.split()
        if not fields or fields[0].startswith(";"):
            continue
        if len(fields) != len(FIELDS):
            rule = f"must have {len(FIELDS)} fields, got {len(fields)}"
            raise InputError(rule, f"line {number}", source)
        yield Row(source, number, dict(zip(FIELDS, fields, strict=True)))


def _job(row: Row, cores_per_gpu: int) -> TraceJob | None:
    processors = _known(row, "allocated processors") or _known(row, "requested processors")
    duration_s, user = _known(row, "run time"), _known(row, "user")
    if not processors or not duration_s:
        return None
    return TraceJob(
        id=f"job-{row.count('job number', least=0)}",
        arrival_s=row.number("submit time"),
        workers=math.ceil(processors / cores_per_gpu),
        duration_s=duration_s,
        tenant=None if user is None else f"user-{user:g}",
    )


def _known(row: Row, field: str) -> float | None:
    """Return the value of a field, or None if it is -1."""
    text = row.values[field]
    number = as_number(text)
    if number == -1:
        return None
    if number is None or not 0 <= number < math.inf:
        raise row.broken(field, f"must be a number >= 0, or -1 for unknown, got {shown(text)}")
    return number


def _recognises(first: str) -> bool:
    fields = first.split()
    jobs = len(fields) == len(FIELDS) and as_number(fields[0]) is not None
    return jobs or first.startswith(";")


SWF: Final = TraceKind(_read, _recognises, endings=(".swf",), options=("cores_per_gpu",))
