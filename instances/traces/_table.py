"""Dovetail's own table of traces: a column for each field of ``TraceJob``; CSV or Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
from dovetail.instances.traces._left_out import left_out
from dovetail.instances.traces._sheet import Sheet, numbered
from dovetail.instances.traces.kinds import TraceKind
from dovetail.instances.traces.trace import NODE_RULES, JobColumns, Texts, Trace, TraceJob, missing

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
    **dict.fromkeys(NODE_RULES, int),
}
COLUMNS: Final = tuple(Column(name, name, kind) for name, kind in _KINDS.items())
"""The columns, in the order in which they are written."""

REQUIRED: Final = ("id", "arrival_s", "workers", "duration_s")
_LATEST_S: Final = 1e11
"""Seconds since 1970 reach it in the year 5138; milliseconds did in 1973."""

_Packed = Callable[[Sequence[Column], Sequence[Mapping[str, Cell]]], bytes]
_DEFAULTS: Final[Mapping[str, Any]] = {"weight": 1.0, "priority": "batch"}


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
    sheet = Sheet(table.rows)
    _to_seconds(sheet, column_of("arrival_s", columns))
    found = {column.path: sheet.values(column) for column in columns}
    found.setdefault("id", numbered(sheet))
    jobs = JobColumns.of(**_with_defaults(found))
    doubtful = jobs.may_break_a_rule() | missing(jobs.id)
    doubtful |= jobs.workers != np.floor(jobs.workers)
    sheet.refuse(doubtful, lambda row: _job(row, columns, named))
    ran = np.ones(len(sheet), dtype=np.bool_)
    if named:
        ran = (jobs.workers != 0) & (jobs.duration_s != 0)
    _refuse_repeated(sheet, jobs.id, ran, column_of("id", columns))
    sheet.require_sound()
    jobs = jobs.take(ran)
    return Trace.of_columns(name, jobs, (*left_out(len(sheet) - len(jobs), len(sheet)), *notes))


def _with_defaults(found: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return columns with the default values in empty cells."""
    columns = dict(found)
    if "weight" in found:
        weight = found["weight"]
        columns["weight"] = np.where(np.isnan(weight), _DEFAULTS["weight"], weight)
    if "priority" in found:
        priority = found["priority"]
        columns["priority"] = np.where(missing(priority), _DEFAULTS["priority"], priority)
    return columns


def _refuse_repeated(sheet: Sheet, ids: Texts, among: NDArray[np.bool_], column: str) -> None:
    """Note the error of the first row whose id an earlier one of these rows has, too."""
    if len({*ids[among].tolist()}) == among.sum():
        return
    lines: dict[str, int] = {}
    for k in np.flatnonzero(among).tolist():
        name = ids[k]
        if name in lines:
            row = sheet.row(k)
            rule = f"ids must differ, got {shown(name)} in {row.counted_as} {lines[name]} too"
            sheet.note(k, row.broken(column, rule))
            return
        lines[name] = sheet.lines[k]


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


def _to_seconds(sheet: Sheet, column: str) -> None:
    """Convert a column of times to seconds since the first of them."""
    first = next(iter(sheet.cells(column)), "")
    if not first or as_number(first) is not None:
        return
    sheet.require_sound()
    moments = _moments(sheet, column)
    start = min(moments)
    sheet.put(column, [str((at - start).total_seconds()) for at in moments])


def _moments(sheet: Sheet, column: str) -> list[datetime]:
    """Return the times, which all have an offset from UTC or all have none."""
    moments: list[datetime] = []
    for k, text in enumerate(sheet.cells(column)):
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            seconds = "" if moments else "a number of seconds or "
            rule = f"must be {seconds}a time as 2026-11-01T09:00:00, got {shown(text)}"
            raise sheet.row(k).broken(column, rule) from None
        if moments and (at.tzinfo is None) != (moments[0].tzinfo is None):
            offset = "without an" if at.tzinfo else "with an"
            rule = f"must be {offset} offset from UTC, as in the rows before, got {shown(text)}"
            raise sheet.row(k).broken(column, rule)
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
