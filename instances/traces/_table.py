"""Traces as a table of our own: a column for each field of ``TraceJob``; CSV or Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dovetail.instances.datasets._parquet import parquet_bytes, parquet_table
from dovetail.instances.datasets._rows import (
    Cell,
    Column,
    Table,
    cell_value,
    known_columns,
    used,
)
from dovetail.instances.datasets.files import csv_bytes
from dovetail.instances.files import source_name
from dovetail.instances.importers._tables import Row, read_table
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
_Packed = Callable[[Sequence[Column], Sequence[Mapping[str, Cell]]], bytes]
_DEFAULTS: Final = {"weight": 1.0, "priority": "batch"}


def read_csv_trace(path: Path, name: str) -> Trace:
    """Return the trace of a CSV file."""
    header, rows = read_table(path)
    return _trace(Table(source_name(path), "line 1", header, rows), name)


def read_parquet_trace(path: Path, name: str) -> Trace:
    """Return the trace of a Parquet file."""
    return _trace(parquet_table(path), name)


def csv_of(trace: Trace) -> bytes:
    """Return the content of a CSV file of the trace."""
    return _content(trace, csv_bytes)


def parquet_of(trace: Trace) -> bytes:
    """Return the content of a Parquet file of the trace."""
    return _content(trace, parquet_bytes)


def _trace(table: Table, name: str) -> Trace:
    columns = known_columns(table, COLUMNS, REQUIRED)
    lines: dict[str, int] = {}
    jobs = []
    for row in table.rows:
        job = _job(row, columns)
        if job.id in lines:
            rule = f"ids must differ, got {job.id!r} in {row.counted_as} {lines[job.id]} too"
            raise row.broken("id", rule)
        lines[job.id] = row.line
        jobs.append(job)
    return Trace.of(name, jobs)


def _job(row: Row, columns: Iterable[Column]) -> TraceJob:
    cells: dict[str, Any] = {column.name: cell_value(row, column) for column in columns}
    for column in REQUIRED:
        if cells[column] is None:
            raise row.broken(column, "must not be empty")
    job = TraceJob(**{name: cell for name, cell in cells.items() if cell is not None})
    broken = job.broken_rule()
    if broken:
        raise row.broken(*broken)
    return job


def _content(trace: Trace, packed: _Packed) -> bytes:
    rows = [_cells(job) for job in trace.jobs]
    return packed(used(COLUMNS, REQUIRED, rows), rows)


def _cells(job: TraceJob) -> dict[str, Cell]:
    """Return the row of a job; what is at its default is empty, so that no column is needed."""
    cells: dict[str, Cell] = {column.name: getattr(job, column.name) for column in COLUMNS}
    at_default = [name for name, default in _DEFAULTS.items() if cells[name] == default]
    return cells | dict.fromkeys(at_default)
