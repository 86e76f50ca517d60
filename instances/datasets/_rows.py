"""The columns of the tables of a data set; rows to records and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from dovetail.instances._record import IDLE, Record, shown
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.metrics import METRICS
from dovetail.instances.reading.tables import (
    Cell,
    Column,
    Row,
    Table,
    cell_value,
    column_of,
    known_columns,
)

_R = TypeVar("_R", bound=Record)


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
    *_columns(float, "latency_p99_s"),
    *_columns(str, "driver", "library", "source", "date"),
)
"""The columns of the profiles, in the order in which they are written."""


def pair_columns(most: int) -> tuple[Column, ...]:
    """Return the columns of measurements of up to ``most`` workloads, in the order of writing."""
    members = (
        (
            Column(f"workload_{k + 1}", f"workloads[{k}]", str),
            Column(f"share_{k + 1}", f"share[{k}]", int, str(IDLE)),
            Column(f"slowdown_{k + 1}", f"slowdown[{k}]", float),
            Column(f"p99_{k + 1}", f"p99[{k}]", float),
            Column(f"at_least_{k + 1}", f"at_least[{k}]", float),
        )
        for k in range(most)
    )
    return (
        *(column for member in members for column in member),
        *_columns(str, "gpu_model", "mode", "status"),
        *_columns(float, "power_w"),
        *_columns(str, "driver", "library", "source", "date"),
    )


PROFILE_REQUIRED = ("workload", "gpu_model")
PAIR_REQUIRED = ("workload_1", "slowdown_1", "workload_2", "slowdown_2", "gpu_model")

_SECOND_NAMES = (
    Column("job_a", "workloads[0]", str),
    Column("job_b", "workloads[1]", str),
    Column("share_a", "share[0]", int, str(IDLE)),
    Column("share_b", "share[1]", int, str(IDLE)),
    Column("slowdown_a", "slowdown[0]", float),
    Column("slowdown_b", "slowdown[1]", float),
    Column("p99_a", "p99[0]", float),
    Column("p99_b", "p99[1]", float),
    Column("device", "gpu_model", str),
)
"""Alternative names of columns of pairs, which are read but never written."""

_SECOND_REQUIRED = ("job_a", "slowdown_a", "job_b", "slowdown_b", "device")

_GPUS = Column("gpus", "gpus", int)
"""A column of pairs with one legal value, 1, which is also the meaning of an empty cell."""

_SHARED = "shared"
"""Another word for the mode ``mps``, which is read but never written."""


def profiles_of(table: Table) -> Iterator[SoloProfile]:
    """Yield the profile of each row."""
    columns = known_columns(table, PROFILE_COLUMNS, PROFILE_REQUIRED)
    for row in table.rows:
        yield _record(SoloProfile, row, _profile_data(row, columns), columns)


def _profile_data(row: Row, columns: Iterable[Column]) -> dict[str, object]:
    data: dict[str, object] = {}
    nested: dict[str, dict[str, object]] = {}
    for column in columns:
        value = cell_value(row, column)
        if value is None:
            continue
        field, _, name = column.path.partition(".")
        if name:
            nested.setdefault(field, {})[name] = value
        else:
            data[field] = value
    return data | nested


def measurements_of(table: Table) -> Iterator[Measurement]:
    """Yield the measurement of each row; an unknown column is refused."""
    return _measurements(table, _known_pair_columns(table, _pair_columns_read(table)))


def pairs_of(table: Table) -> tuple[Iterator[Measurement], list[str]]:
    """Return the measurements of the rows, and the names of unknown columns."""
    columns = _known_pair_columns(table, _pair_columns_read(table), others=True)
    known = {column.name for column in columns}
    return _measurements(table, columns), [name for name in table.header if name not in known]


def _known_pair_columns(
    table: Table, known: Iterable[Column], others: bool = False
) -> tuple[Column, ...]:
    names = {name.casefold() for name in table.header}
    second = len(names.intersection(_SECOND_REQUIRED)) > len(names.intersection(PAIR_REQUIRED))
    required = _SECOND_REQUIRED if second else PAIR_REQUIRED
    return known_columns(table, known, required, others)


def _pair_columns_read(table: Table) -> tuple[Column, ...]:
    most = 0
    while f"workload_{most + 1}" in table.header:
        most += 1
    return (*pair_columns(max(2, most)), *_SECOND_NAMES, _GPUS)


def _measurements(table: Table, columns: Sequence[Column]) -> Iterator[Measurement]:
    for row in table.rows:
        yield _record(Measurement, row, _measurement_data(row, columns), columns)


def _measurement_data(row: Row, columns: Sequence[Column]) -> dict[str, object]:
    ran = row.values.get("status", "").lower() in ("", "ok")
    cells = {
        column.path: cell_value(row, column)
        for column in columns
        if ran or not column.path.startswith(("slowdown", "p99"))
    }
    if cells.get("gpus") not in (None, 1):
        raise row.broken("gpus", f"must be 1 or empty, got {shown(cells['gpus'])}")
    if cells.get("mode") == _SHARED:
        cells["mode"] = None
    width = _width(row, cells, columns)
    slowdowns = [cells.get(f"slowdown[{k}]") for k in range(width)]
    if ran and None in slowdowns:
        column = column_of(f"slowdown[{slowdowns.index(None)}]", columns)
        raise row.broken(column, "must not be empty if status is ok or empty")
    plain = ("gpu_model", "mode", "power_w", "driver", "library", "source", "date")
    given = {name: cells.get(name) for name in plain}
    return {
        **{name: value for name, value in given.items() if value is not None},
        "workloads": [cells[f"workloads[{k}]"] for k in range(width)],
        "share": [cells.get(f"share[{k}]") for k in range(width)],
        "slowdown": slowdowns if ran else None,
        "at_least": [cells.get(f"at_least[{k}]") for k in range(width)],
        "p99": [cells.get(f"p99[{k}]") for k in range(width)],
    }


def _width(row: Row, cells: Mapping[str, object], columns: Iterable[Column]) -> int:
    """Return the number of workloads in the row, at least two; the cells of others are empty."""
    width = 2
    while cells.get(f"workloads[{width}]") is not None:
        width += 1
    for k in range(2):
        if cells[f"workloads[{k}]"] is None:
            rule = "must not be empty, as each row is a pair (a row of totals is not)"
            raise row.broken(column_of(f"workloads[{k}]", columns), rule)
    for path, value in cells.items():
        if (
            value is not None
            and path.endswith("]")
            and int(path[path.index("[") + 1 : -1]) >= width
        ):
            missing = f"workload_{width + 1}"
            rule = f"must be empty if {missing} is, got {shown(value)}"
            raise row.broken(column_of(path, columns), rule)
    return width


def _record(kind: type[_R], row: Row, data: Mapping[str, object], columns: Iterable[Column]) -> _R:
    """Build the record of a row; a broken rule names the column."""
    try:
        return kind.from_data(data)
    except InputError as error:
        raise row.broken(column_of(error.path, columns), error.rule) from None


def profile_cells(profile: SoloProfile) -> dict[str, Cell]:
    """Return the row of a profile."""
    plain: dict[str, Cell] = {
        column.name: getattr(profile, column.path)
        for column in PROFILE_COLUMNS
        if "." not in column.path
    }
    means = profile.metrics.to_data() if profile.metrics else {}
    variances = {f"{name}_variance": value for name, value in profile.metrics_variance.items()}
    return {**plain, **means, **variances, "workers": _unless_one(profile.workers)}


def _unless_one(workers: int) -> int | None:
    """Return the number of workers, or None if it is the default and needs no column."""
    return workers if workers != 1 else None


def measurement_cells(found: Measurement) -> dict[str, Cell]:
    """Return the row of a measurement."""
    cells: dict[str, Cell] = {
        "gpu_model": found.gpu_model,
        "mode": found.mode if found.mode != "mps" else None,
        "status": "failed" if found.failed else "ok",
        "power_w": found.power_w,
        "driver": found.driver,
        "library": found.library,
        "source": found.source,
        "date": found.date,
    }
    for k, name in enumerate(found.workloads):
        cells[f"workload_{k + 1}"] = name
        share = found.shares[k]
        cells[f"share_{k + 1}"] = str(IDLE) if share == IDLE else share
        cells[f"slowdown_{k + 1}"] = found.slowdown[k] if found.slowdown else None
        cells[f"p99_{k + 1}"] = found.p99[k] if found.p99 else None
        cells[f"at_least_{k + 1}"] = found.at_least[k] if found.at_least else None
    return cells
