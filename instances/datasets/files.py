"""Reading and writing data sets: a folder of two tables, or a repository.

The tables are ``profiles`` and ``pairs``, each as ``.csv``, ``.csv.gz`` or ``.parquet``; one of
the two may be absent. An empty cell means an unknown value.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.instances._record import listed
from dovetail.instances.datasets._rows import (
    PAIR_REQUIRED,
    PROFILE_COLUMNS,
    PROFILE_REQUIRED,
    measurement_cells,
    measurements_of,
    pair_columns,
    pairs_of,
    profile_cells,
    profiles_of,
)
from dovetail.instances.datasets.dataset import DataSet, doubts, slowdowns_of
from dovetail.instances.datasets.records import Measurement
from dovetail.instances.datasets.repository import Repository, is_repository
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.library import DATA_SETS
from dovetail.instances.reading.contents import LIBRARY, FilePath, write_bytes
from dovetail.instances.reading.parquet import parquet_bytes, parquet_table
from dovetail.instances.reading.tables import Cell, Column, Table, csv_bytes, read_table, used
from dovetail.instances.slowdowns.gathering import require_slowdowns

TABLES = ("profiles", "pairs")
FORMS = (".csv", ".csv.gz", ".parquet")

_Rows = Sequence[Mapping[str, Cell]]


class PairTable(NamedTuple):
    """A table of pairs.

    Attributes
    ----------
    measurements : tuple of Measurement
        One for each row.
    notes : tuple of str
        A line for each likely mistake, and one for the columns that are not read.
    """

    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...]


def read_dataset(path: FilePath) -> DataSet:
    """Read a data set from a folder, or from a repository.

    Parameters
    ----------
    path : str or path
        A folder with ``profiles`` or ``pairs`` or both (``.csv``, ``.csv.gz`` or ``.parquet``),
        or a repository (``.db``, ``.sqlite``), or ``library:NAME`` for a shipped data set.

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
    path = _place_of(path)
    if is_repository(path):
        return Repository(path).data_set()
    if not os.path.isdir(path):
        reason = "is a file" if os.path.exists(path) else "does not exist"
        rule = f"must be a folder with tables, or a repository (.db, .sqlite); {reason}"
        raise InputError(rule, "", source_name(path))
    folder = Path(path)
    profiles, pairs = _present(folder, "profiles"), _present(folder, "pairs")
    if profiles is None and pairs is None:
        raise InputError("must have a file profiles.csv or pairs.csv", "", source_name(path))
    return DataSet.from_data(
        {
            "name": Path(os.path.realpath(folder)).name or "data",
            "profiles": list(profiles_of(_table(profiles))) if profiles else (),
            "measurements": list(measurements_of(_table(pairs))) if pairs else (),
        },
        source_name(path),
    )


def _place_of(path: FilePath) -> FilePath:
    """Return the folder of a data set that is named as shipped; any other path as it is."""
    name = os.fspath(path)
    if not name.startswith(LIBRARY):
        return path
    shipped = name.removeprefix(LIBRARY)
    DATA_SETS.entry(shipped)
    return DATA_SETS.folder / shipped


def read_pairs(path: FilePath) -> PairTable:
    """Read a table of workloads measured together: the ``pairs`` of a data set, on its own.

    Parameters
    ----------
    path : str or path
        ``.csv``, ``.csv.gz`` or ``.parquet``. Blanks around cells are ignored, and unknown columns
        are not read.

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule; for slowdowns that are
        speeds or percentages.
    UnsupportedError
        For Parquet without the extra that reads it.
    """
    rows, unknown = pairs_of(_stripped(_table(Path(path))))
    measurements = tuple(rows)
    require_slowdowns([*slowdowns_of(measurements)], "slowdowns", source_name(path))
    unread = [f"columns that are not read: {listed(unknown)}"] if unknown else []
    return PairTable(measurements, (*unread, *doubts(measurements)))


def _stripped(table: Table) -> Table:
    rows = (
        dataclasses.replace(
            row, values={name.strip(): cell.strip() for name, cell in row.values.items()}
        )
        for row in table.rows
    )
    return table._replace(header=[name.strip() for name in table.header], rows=rows)


def dataset_files(path: FilePath) -> tuple[Path, ...]:
    """Return the files that a data set at this path may have.

    Parameters
    ----------
    path : str or path
        A folder, a repository, or ``library:NAME`` for a shipped data set.
    """
    path = _place_of(path)
    if is_repository(path):
        return (Path(path),)
    return tuple(Path(path, f"{table}{form}") for table in TABLES for form in FORMS)


def write_dataset(data: DataSet, path: FilePath, parquet: bool = False) -> None:
    """Write a data set to a folder; `read_dataset` reads back the same records.

    Only columns that are required or hold a value are written. Each table is written atomically.

    Parameters
    ----------
    data : DataSet
        The data set to write. Its name is not written: a data set is named after its folder.
    path : str or path
        The folder, created if it does not exist.
    parquet : bool
        Write ``.parquet`` instead of ``.csv``.

    Raises
    ------
    InputError
        When a file cannot be written, or the folder already has the table in another form.
    UnsupportedError
        For Parquet without the extra that writes it.
    """
    if is_repository(path):
        raise InputError("must be a folder; a repository is appended to", "", source_name(path))
    folder, form = Path(path), ".parquet" if parquet else ".csv"
    tables = {
        _place(folder, "profiles", form): _profile_table(data),
        _place(folder, "pairs", form): _pair_table(data),
    }
    packed = parquet_bytes if parquet else csv_bytes
    contents = {place: packed(columns, rows) for place, (columns, rows) in tables.items()}
    _make(folder)
    for place, content in contents.items():
        write_bytes(place, content)


def _profile_table(data: DataSet) -> tuple[Sequence[Column], _Rows]:
    rows = [profile_cells(profile) for profile in data.profiles]
    return used(PROFILE_COLUMNS, PROFILE_REQUIRED, rows), rows


def _pair_table(data: DataSet) -> tuple[Sequence[Column], _Rows]:
    rows = [measurement_cells(found) for found in data.measurements]
    most = max((len(found.workloads) for found in data.measurements), default=2)
    return used(pair_columns(most), PAIR_REQUIRED, rows), rows


def _place(folder: Path, table: str, form: str) -> Path:
    """Return the file of a table, which must not exist in another form."""
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


def _table(path: Path) -> Table:
    return parquet_table(path) if path.suffix == ".parquet" else read_table(path)
