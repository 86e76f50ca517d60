"""Tables of a data set as Parquet, through pyarrow (the extra ``parquet``)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.instances.datasets._rows import Cell, Column, Table
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.files import source_name
from dovetail.instances.importers._tables import Row

if TYPE_CHECKING:
    from types import ModuleType


def parquet_table(path: Path) -> Table:
    """Return the table of a file.

    Raises
    ------
    InputError
        When it cannot be read.
    UnsupportedError
        Without pyarrow.
    """
    arrow = _pyarrow()
    try:
        table = arrow.parquet.ParquetFile(path).read()
    except (OSError, arrow.lib.ArrowException) as error:
        raise InputError(f"must be a Parquet file: {error}", "", source_name(path)) from None
    source = source_name(path)
    return Table(source, "columns", table.column_names, _rows(source, table.to_pylist()))


def _rows(source: str, rows: Iterable[Mapping[str, object]]) -> Iterator[Row]:
    for k, row in enumerate(rows, 1):
        cells = {name: "" if cell is None else str(cell) for name, cell in row.items()}
        yield Row(source, k, cells, "row")


def parquet_bytes(columns: Sequence[Column], rows: Sequence[Mapping[str, Cell]]) -> bytes:
    """Return the content of a file with these rows.

    Raises
    ------
    UnsupportedError
        Without pyarrow.
    """
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
        hint = "needs pyarrow: pip install './dovetail[parquet]'"
        raise UnsupportedError(f"Parquet {hint}") from None
    else:
        return pyarrow  # type: ignore[no-any-return]
