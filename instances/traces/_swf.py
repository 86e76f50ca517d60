"""The Standard Workload Format of the Parallel Workloads Archive (Feitelson, version 2.2).

Lines that begin with ``;`` are comments. Every other line is a job: 18 numbers, -1 if unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.instances._record import shown
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.reading.tables import Row, as_number, lines_of
from dovetail.instances.traces._left_out import left_out
from dovetail.instances.traces._sheet import Sheet, numbers_of
from dovetail.instances.traces.kinds import TraceKind
from dovetail.instances.traces.trace import JobColumns, Trace

FIELDS: Final = (
    *("job number", "submit time", "wait time", "run time", "allocated processors"),
    *("average CPU time", "used memory", "requested processors", "requested time"),
    *("requested memory", "status", "user", "group", "executable", "queue", "partition"),
    *("preceding job", "think time"),
)

UNKNOWN: Final = -1


def _read(path: Path, name: str, cores_per_gpu: int = 1) -> Trace:
    """Return the trace; processors are GPUs, or ``cores_per_gpu`` of them make one GPU."""
    if cores_per_gpu < 1:
        raise InputError(f"must be >= 1, got {cores_per_gpu}", "cores_per_gpu")
    sheet = Sheet(_rows(path))
    allocated = _known(sheet, "allocated processors")
    asked = allocated > 0
    processors = np.where(asked, allocated, _known(sheet, "requested processors", ~asked))
    duration_s, user = _known(sheet, "run time"), _known(sheet, "user")
    ran = (processors > 0) & (duration_s > 0)
    numbers = sheet.counts("job number", 0, ran)
    arrival_s = sheet.numbers("submit time", ran)
    sheet.require_sound()
    columns = JobColumns.of(
        [f"job-{int(number)}" for number in numbers.tolist()],
        arrival_s,
        np.ceil(processors / cores_per_gpu),
        duration_s,
        tenant=[None if each == UNKNOWN else f"user-{each:g}" for each in user.tolist()],
    )
    jobs = columns.take(ran)
    return Trace.of_columns(name, jobs, left_out(len(sheet) - len(jobs), len(sheet)))


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


def _known(sheet: Sheet, field: str, among: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
    """Return a field that must be known or -1 in some rows, all by default."""
    found = numbers_of(sheet.cells(field))
    broken = ~((found == UNKNOWN) | ((found >= 0) & (found < math.inf)))
    sheet.refuse(broken if among is None else broken & among, lambda row: _refuse(row, field))
    return np.where(broken, UNKNOWN, found)


def _refuse(row: Row, field: str) -> None:
    text = row.values[field]
    raise row.broken(field, f"must be a number >= 0, or -1 for unknown, got {shown(text)}")


def _recognises(first: str) -> bool:
    fields = first.split()
    jobs = len(fields) == len(FIELDS) and as_number(fields[0]) is not None
    return jobs or first.startswith(";")


SWF: Final = TraceKind(_read, _recognises, endings=(".swf",), options=("cores_per_gpu",))
