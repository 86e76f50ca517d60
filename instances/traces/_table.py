"""Dovetail's own table of traces: a column for each field of ``TraceJob``; CSV or Parquet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from dovetail.instances._record import listed, shown
from dovetail.instances.errors import InputError
from dovetail.instances.reading.parquet import parquet_bytes, parquet_table
from dovetail.instances.reading.tables import (
    Cell,
    Column,
    Row,
    Table,
    as_number,
    cell_value,
    column_of,
    csv_bytes,
    known_columns,
    read_table,
    used,
)
from dovetail.instances.traces._left_out import jobs_of
from dovetail.instances.traces.kinds import TraceKind
from dovetail.instances.traces.trace import Trace, TraceJob

_KINDS: Final[Mapping[str, type[str] | type[int] | type[float]]] = {
    "id": str,
    "arrival_s": float,
    "workers": int,
    "duration_s": float,
    "workload": str,
    "gsla": float,
    "weight": float,
    "priority": str,
    "tenant": str,
}
COLUMNS: Final = tuple(Column(name, name, kind) for name, kind in _KINDS.items())
"""The columns, in the order in which they are written."""

REQUIRED: Final = ("id", "arrival_s", "workers", "duration_s")
_LATEST_S: Final = 1e11
"""Seconds since 1970 reach it in the year 5138; milliseconds did in 1973."""

_Packed = Callable[[Sequence[Column], Sequence[Mapping[str, Cell]]], bytes]
_DEFAULTS: Final = {"weight": 1.0, "priority": "batch"}


Named = Mapping[str, str]
"""The file's column for each field, by the name of the field."""


def read_csv_trace(path: Path, name: str, columns: Named = MappingProxyType({})) -> Trace:
    """Return the trace of a CSV file."""
    return _trace(read_table(path), name, columns)


def _read_parquet(path: Path, name: str, columns: Named = MappingProxyType({})) -> Trace:
    return _trace(parquet_table(path), name, columns)


def csv_of(trace: Trace) -> bytes:
    """Return the content of a CSV file of the trace."""
    return _content(trace, csv_bytes)


def parquet_of(trace: Trace) -> bytes:
    """Return the content of a Parquet file of the trace."""
    return _content(trace, parquet_bytes)


def _trace(table: Table, name: str, named: Named) -> Trace:
    columns = _columns_read(table, named)
    read = {column.name for column in columns}
    unread = [column for column in table.header if column not in read]
    notes = [f"columns that are not read: {listed(unread)}"] if unread else []
    return jobs_of(name, _jobs(table, columns, named), notes)


def _jobs(table: Table, columns: Sequence[Column], named: Named) -> Iterator[TraceJob | None]:
    lines: dict[str, int] = {}
    for row in _in_seconds(table.rows, column_of("arrival_s", columns)):
        job = _job(row, columns, named)
        if job is not None and job.id in lines:
            rule = f"ids must differ, got {shown(job.id)} in {row.counted_as} {lines[job.id]} too"
            raise row.broken(column_of("id", columns), rule)
        if job is not None:
            lines[job.id] = row.line
        yield job


def _columns_read(table: Table, named: Named) -> tuple[Column, ...]:
    """Return the columns of the header to read: if some are named, these and the required ones.

    Job ids may then be missing.
    """
    if not named:
        return _own_columns(table)
    unknown = next((field for field in named if field not in _KINDS), None)
    if unknown is not None:
        rule = f"must name one of {listed(_KINDS, len(_KINDS))}, got {shown(unknown)}"
        raise InputError(rule, "columns")
    if len(set(named.values())) < len(named):
        raise InputError("must name each column of the file once", "columns")
    wanted = [column for column in COLUMNS if column.path in (*REQUIRED, *named)]
    renamed = [column._replace(name=named.get(column.path, column.name)) for column in wanted]
    required = [column.name for column in renamed if column.path != "id" or "id" in named]
    return known_columns(table, renamed, required, others=True)


def _own_columns(table: Table) -> tuple[Column, ...]:
    try:
        return known_columns(table, COLUMNS, REQUIRED)
    except InputError as error:
        if set(REQUIRED) <= set(table.header):
            raise
        remedy = "columns of other names: --columns arrival_s=COLUMN,..."
        raise InputError(f"{error.rule}; {remedy}", error.path, error.source) from None


def _in_seconds(rows: Iterator[Row], column: str) -> Iterable[Row]:
    """Return rows with a column of times converted to seconds since the first."""
    beginning = list(islice(rows, 1))
    first = beginning[0].values[column] if beginning else ""
    rows = chain(beginning, rows)
    if not first or as_number(first) is not None:
        return rows
    known = list(rows)
    moments = _moments(known, column)
    start = min(moments)
    return [
        dataclasses.replace(row, values={**row.values, column: str((at - start).total_seconds())})
        for row, at in zip(known, moments, strict=True)
    ]


def _moments(rows: Sequence[Row], column: str) -> list[datetime]:
    """Return the times, which all have an offset from UTC or all have none."""
    moments: list[datetime] = []
    for row in rows:
        text = row.values[column]
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            seconds = "" if moments else "a number of seconds or "
            rule = f"must be {seconds}a time as 2026-11-01T09:00:00, got {shown(text)}"
            raise row.broken(column, rule) from None
        if moments and (at.tzinfo is None) != (moments[0].tzinfo is None):
            offset = "without an" if at.tzinfo else "with an"
            rule = f"must be {offset} offset from UTC, as in the rows before, got {shown(text)}"
            raise row.broken(column, rule)
        moments.append(at)
    return moments


def _job(row: Row, columns: Iterable[Column], named: Named) -> TraceJob | None:
    """Return the job of a row, or None if it has no GPU or no run time, as in other formats."""
    cells: dict[str, Any] = {column.path: cell_value(row, column) for column in columns}
    if named and 0 in (cells["workers"], cells["duration_s"]):
        return None
    cells.setdefault("id", f"job-{row.line}")
    for field in REQUIRED:
        if cells[field] is None:
            raise row.broken(column_of(field, columns), "must not be empty")
    if named and cells["arrival_s"] > _LATEST_S:
        rule = f"must be in seconds, got {cells['arrival_s']:.15g}: milliseconds?"
        raise row.broken(column_of("arrival_s", columns), rule)
    job = TraceJob(**{name: cell for name, cell in cells.items() if cell is not None})
    broken = job.broken_rule()
    if broken:
        raise row.broken(column_of(broken[0], columns), broken[1])
    return job


def _content(trace: Trace, packed: _Packed) -> bytes:
    rows = [_cells(job) for job in trace.jobs]
    return packed(used(COLUMNS, REQUIRED, rows), rows)


def _cells(job: TraceJob) -> dict[str, Cell]:
    """Return the row of a job; default values are empty, so that their columns can be left out."""
    cells: dict[str, Cell] = {column.name: getattr(job, column.name) for column in COLUMNS}
    at_default = [name for name, default in _DEFAULTS.items() if cells[name] == default]
    return cells | dict.fromkeys(at_default)


CSV: Final = TraceKind(read_csv_trace, options=("columns",))
PARQUET: Final = TraceKind(_read_parquet, endings=(".parquet",), options=("columns",))
