"""Reading and writing data sets: a folder of two tables, or a repository.

The tables are ``profiles`` and ``pairs``, each as ``.csv``, ``.csv.gz`` or ``.parquet``; one of
the two may be absent. An empty cell says that a value is not known.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from dovetail.instances._record import Record, listed, shown
from dovetail.instances.datasets.records import DataSet, Measurement, SoloProfile
from dovetail.instances.datasets.repository import Repository, is_repository
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.files import FilePath, source_name, write_bytes
from dovetail.instances.importers._tables import Row, as_number, read_table
from dovetail.instances.instance import METRICS

if TYPE_CHECKING:
    from types import ModuleType

PROFILES = "profiles"
PAIRS = "pairs"
FORMS = (".csv", ".csv.gz", ".parquet")

_R = TypeVar("_R", bound=Record)
_Cell = str | int | float | None
_Table = tuple[Sequence[str], Iterator[Row]]


class Column(NamedTuple):
    """A column of a table: where its value stands in the record, and what it is."""

    name: str
    path: str
    kind: type[str] | type[int] | type[float]


def _columns(kind: type[str] | type[int] | type[float], *names: str) -> tuple[Column, ...]:
    return tuple(Column(name, name, kind) for name in names)


PROFILE_COLUMNS = (
    *_columns(str, "workload", "gpu_model"),
    *_columns(int, "share"),
    *_columns(str, "family"),
    *_columns(int, "workers", "batch_size"),
    *(Column(name, f"metrics.{name}", float) for name in METRICS),
    *(Column(f"{name}_variance", f"metrics_variance.{name}", float) for name in METRICS),
    *_columns(float, "throughput", "power_w", "memory_mib", "memory_mean_mib", "duration_s"),
    *_columns(str, "source", "date"),
)
"""The columns of the profiles, in the order in which they are written."""


def pair_columns(most: int) -> tuple[Column, ...]:
    """Return the columns of measurements of up to ``most`` workloads, in the order of writing."""
    members = (
        (
            Column(f"workload_{k + 1}", f"workloads[{k}]", str),
            Column(f"share_{k + 1}", f"share[{k}]", int),
            Column(f"slowdown_{k + 1}", f"slowdown[{k}]", float),
        )
        for k in range(most)
    )
    return (
        *(column for member in members for column in member),
        *_columns(str, "gpu_model", "status"),
        *_columns(float, "power_w"),
        *_columns(str, "source", "date"),
    )


_REQUIRED = {
    PROFILES: ("workload", "gpu_model"),
    PAIRS: ("workload_1", "slowdown_1", "workload_2", "slowdown_2", "gpu_model"),
}


def read_dataset(path: FilePath) -> DataSet:
    """Read a data set from a folder, or from a repository.

    Parameters
    ----------
    path : str or path
        A folder with ``profiles`` or ``pairs`` or both (``.csv``, ``.csv.gz`` or ``.parquet``),
        or a repository (``.db``, ``.sqlite``).

    Returns
    -------
    DataSet
        Named after the folder or file, with the records in the order of the rows.

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule.
    UnsupportedError
        For Parquet without the extra that reads it.
    """
    if is_repository(path):
        return Repository(path).data_set()
    folder = Path(path)
    if not folder.is_dir():
        reason = "is a file" if folder.exists() else "does not exist"
        rule = f"must be a folder with tables, or a repository (.db, .sqlite); {reason}"
        raise InputError(rule, "", source_name(path))
    tables = {table: _present(folder, table) for table in (PROFILES, PAIRS)}
    if not any(tables.values()):
        raise InputError("must have a file profiles.csv or pairs.csv", "", source_name(path))
    return DataSet.from_data(
        {
            "name": folder.resolve().name or "data",
            "profiles": list(_profiles(tables[PROFILES])),
            "measurements": list(_measurements(tables[PAIRS])),
        },
        source_name(path),
    )


def write_dataset(data: DataSet, path: FilePath, parquet: bool = False) -> None:
    """Write a data set to a folder from which `read_dataset` reads the same records.

    Only columns that hold a value are written. Each table appears whole or not at all; one
    without records is written only over one that is there.

    Parameters
    ----------
    data : DataSet
        What to write. Its name is not written: a data set is called after its folder.
    path : str or path
        The folder, made where there is none.
    parquet : bool
        Write ``.parquet`` instead of ``.csv``.

    Raises
    ------
    InputError
        When a file cannot be written, or the folder has the table in another form already.
    UnsupportedError
        For Parquet without the extra that writes it.
    """
    if is_repository(path):
        raise InputError("must be a folder; a repository is appended to", "", source_name(path))
    folder, form = Path(path), ".parquet" if parquet else ".csv"
    packed = _parquet_bytes if parquet else _csv_bytes
    most = max((len(found.workloads) for found in data.measurements), default=2)
    rows: dict[str, list[Mapping[str, _Cell]]] = {
        PROFILES: [_profile_cells(profile) for profile in data.profiles],
        PAIRS: [_measurement_cells(found) for found in data.measurements],
    }
    columns = {PROFILES: PROFILE_COLUMNS, PAIRS: pair_columns(most)}
    tables = {
        _place(folder, table, form): packed(_used(columns[table], table, rows[table]), rows[table])
        for table in (PROFILES, PAIRS)
        if rows[table] or _place(folder, table, form).exists()
    }
    _make(folder)
    for place, content in tables.items():
        write_bytes(place, content)


def _place(folder: Path, table: str, form: str) -> Path:
    """Return the file of a table, which must not be there in another form."""
    other = next((f for f in FORMS if f != form and (folder / f"{table}{f}").exists()), None)
    if other:
        rule = f"has a file {table}{other}: a data set holds each table once"
        raise InputError(rule, "", source_name(folder))
    return folder / f"{table}{form}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = str(error.strerror).lower()
        raise InputError(f"cannot be written: {reason}", "", source_name(folder)) from None


def _present(folder: Path, table: str) -> Path | None:
    found = [folder / f"{table}{form}" for form in FORMS if (folder / f"{table}{form}").exists()]
    if len(found) > 1:
        names = " and ".join(place.name for place in found)
        raise InputError(f"must hold each table once, has {names}", "", source_name(folder))
    return found[0] if found else None


# --- rows to records


def _profiles(path: Path | None) -> Iterator[SoloProfile]:
    if path is None:
        return
    header, rows = _table(path)
    columns = _known(path, header, PROFILES, PROFILE_COLUMNS)
    for row in rows:
        yield _record(SoloProfile, row, _profile_data(row, columns), columns)


def _profile_data(row: Row, columns: Iterable[Column]) -> dict[str, object]:
    data: dict[str, object] = {}
    nested: dict[str, dict[str, object]] = {}
    for column in columns:
        value = _value(row, column)
        if value is None:
            continue
        field, _, name = column.path.partition(".")
        if name:
            nested.setdefault(field, {})[name] = value
        else:
            data[field] = value
    return data | nested


def _measurements(path: Path | None) -> Iterator[Measurement]:
    if path is None:
        return
    header, rows = _table(path)
    columns = _known(path, header, PAIRS, pair_columns(max(2, _most(header))))
    for row in rows:
        yield _record(Measurement, row, _measurement_data(row, columns), columns)


def _most(header: Sequence[str]) -> int:
    """Return the k of the last of the columns ``workload_1``, ``workload_2``, ... in a row."""
    most = 0
    while f"workload_{most + 1}" in header:
        most += 1
    return most


def _measurement_data(row: Row, columns: Iterable[Column]) -> dict[str, object]:
    cells = {column.path: _value(row, column) for column in columns}
    width = _width(row, cells)
    failed = _failed(row)
    for k in range(width):
        if failed == (cells.get(f"slowdown[{k}]") is not None):
            rule = "must be empty where status is failed" if failed else "must not be empty"
            raise row.broken(f"slowdown_{k + 1}", rule)
    told = {name: cells.get(name) for name in ("gpu_model", "power_w", "source", "date")}
    return {
        **{name: value for name, value in told.items() if value is not None},
        "workloads": [cells[f"workloads[{k}]"] for k in range(width)],
        "share": [cells.get(f"share[{k}]") for k in range(width)],
        "slowdown": None if failed else [cells[f"slowdown[{k}]"] for k in range(width)],
    }


def _width(row: Row, cells: Mapping[str, object]) -> int:
    """Return how many workloads the row has: two or more, the cells of others empty."""
    width = 2
    while cells.get(f"workloads[{width}]") is not None:
        width += 1
    for k in range(2):
        if cells[f"workloads[{k}]"] is None:
            raise row.broken(f"workload_{k + 1}", "must not be empty")
    for path, value in cells.items():
        name, _, rest = path.partition("[")
        if value is not None and rest and int(rest[:-1]) >= width:
            missing = f"workload_{width + 1}"
            column = f"{name.removesuffix('s')}_{int(rest[:-1]) + 1}"
            raise row.broken(column, f"must be empty where {missing} is, got {shown(value)}")
    return width


def _failed(row: Row) -> bool:
    status = row.values.get("status", "") or "ok"
    if status not in ("ok", "failed"):
        raise row.broken("status", f"must be ok or failed, got {shown(status)}")
    return status == "failed"


def _value(row: Row, column: Column) -> _Cell:
    """Return the value of a cell, None where it is empty."""
    text = row.values[column.name]
    if not text or column.kind is str:
        return text or None
    number = as_number(text)
    if number is None:
        raise row.broken(column.name, f"must be a number, got {shown(text)}")
    if column.kind is float:
        return number
    if not number.is_integer():
        raise row.broken(column.name, f"must be a whole number, got {shown(text)}")
    return int(number)


def _record(kind: type[_R], row: Row, data: Mapping[str, object], columns: Iterable[Column]) -> _R:
    """Build the record of a row; a rule that it breaks is told of the column."""
    try:
        return kind.from_data(data)
    except InputError as error:
        names = {column.path: column.name for column in columns}
        raise row.broken(names.get(error.path, error.path), error.rule) from None


def _known(
    path: Path, header: Sequence[str], table: str, columns: Sequence[Column]
) -> tuple[Column, ...]:
    """Return the columns of the header; an unknown, repeated or missing one is refused."""
    by_name = {column.name: column for column in columns}
    where = "columns" if path.suffix == ".parquet" else "line 1"
    for k, name in enumerate(header):
        if name not in by_name:
            close = get_close_matches(name, by_name, n=1, cutoff=0.6)
            hint = f", did you mean {close[0]}?" if close else ""
            raise InputError(f"unknown column {shown(name)}{hint}", where, source_name(path))
        if name in header[:k]:
            raise InputError(f"column {shown(name)} is there twice", where, source_name(path))
    missing = [name for name in _REQUIRED[table] if name not in header]
    if missing:
        rule = f"must have the columns {', '.join(_REQUIRED[table])}; missing: {missing[0]}"
        raise InputError(f"{rule}, got {listed(header)}", where, source_name(path))
    return tuple(by_name[name] for name in header)


def _table(path: Path) -> _Table:
    return _parquet_table(path) if path.suffix == ".parquet" else read_table(path)


# --- records to rows


def _profile_cells(profile: SoloProfile) -> dict[str, _Cell]:
    plain: dict[str, _Cell] = {
        column.name: getattr(profile, column.path)
        for column in PROFILE_COLUMNS
        if "." not in column.path
    }
    means = profile.metrics.to_data() if profile.metrics else {}
    variances = {f"{name}_variance": value for name, value in profile.metrics_variance.items()}
    return {**plain, **means, **variances, "workers": _unless_one(profile.workers)}


def _unless_one(workers: int) -> int | None:
    """Return the number of workers where it is not the default, so that no column is needed."""
    return workers if workers != 1 else None


def _measurement_cells(found: Measurement) -> dict[str, _Cell]:
    cells: dict[str, _Cell] = {
        "gpu_model": found.gpu_model,
        "status": "failed" if found.failed else "ok",
        "power_w": found.power_w,
        "source": found.source,
        "date": found.date,
    }
    for k, name in enumerate(found.workloads):
        cells[f"workload_{k + 1}"] = name
        cells[f"share_{k + 1}"] = found.shares[k]
        cells[f"slowdown_{k + 1}"] = found.slowdown[k] if found.slowdown else None
    return cells


def _used(
    columns: Iterable[Column], table: str, rows: Sequence[Mapping[str, _Cell]]
) -> list[Column]:
    used = {name for row in rows for name, cell in row.items() if cell is not None}
    return [column for column in columns if column.name in used.union(_REQUIRED[table])]


def _csv_bytes(columns: Sequence[Column], rows: Iterable[Mapping[str, _Cell]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.name for column in columns)
    writer.writerows([row.get(column.name) for column in columns] for row in rows)
    return text.getvalue().encode()


# --- Parquet


def _parquet_table(path: Path) -> _Table:
    arrow = _pyarrow()
    try:
        table = arrow.parquet.ParquetFile(path).read()
    except (OSError, arrow.lib.ArrowException) as error:
        raise InputError(f"must be a Parquet file: {error}", "", source_name(path)) from None
    header: list[str] = table.column_names
    return header, _parquet_rows(path, table.to_pylist())


def _parquet_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Iterator[Row]:
    for k, row in enumerate(rows, 1):
        cells = {name: "" if cell is None else str(cell) for name, cell in row.items()}
        yield Row(source_name(path), k, cells, "row")


def _parquet_bytes(columns: Sequence[Column], rows: Sequence[Mapping[str, _Cell]]) -> bytes:
    arrow = _pyarrow()
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
    cells = {
        column.name: arrow.array([row.get(column.name) for row in rows], types[column.kind])
        for column in columns
    }
    buffer = io.BytesIO()
    arrow.parquet.write_table(arrow.table(cells), buffer)
    return buffer.getvalue()


def _pyarrow() -> ModuleType:
    """Return the package with its sub-package ``parquet``, imported only where it is needed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        hint = "needs pyarrow: pip install 'dovetail[parquet]'"
        raise UnsupportedError(f"Parquet {hint}") from None
    else:
        return pyarrow  # type: ignore[no-any-return]
