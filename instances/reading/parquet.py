"""Tables of a data set as Parquet, through pyarrow (the extra ``parquet``)."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.instances.errors import InputError, source_name
from dovetail.instances.plugins import require_package
from dovetail.instances.reading.raw_files import MOST_BYTES, read_bytes
from dovetail.instances.reading.tables import MOST_ROWS, Cell, Column, Row, Table

if TYPE_CHECKING:
    from types import ModuleType

_BATCH_ROWS = 1024


def parquet_table(path: Path) -> Table:
    """Return the table of a file.

    Raises
    ------
    InputError
        When it cannot be read, here or while rows are read.
    UnsupportedError
        Without pyarrow.
    """
    arrow = _pyarrow()
    source = source_name(path)
    content = arrow.BufferReader(read_bytes(path))
    with _faults(arrow, source):
        file = arrow.parquet.ParquetFile(content)
        names = file.schema_arrow.names
    return Table(source, "columns", names, _rows(arrow, file, source))


def _rows(arrow: ModuleType, file: Any, source: str) -> Iterator[Row]:  # noqa: ANN401 (pyarrow's)
    number = unpacked = 0
    with _faults(arrow, source):
        # In small batches: a small file may hold any number of equal cells.
        for batch in file.iter_batches(_BATCH_ROWS):
            unpacked += batch.nbytes
            if unpacked > MOST_BYTES or number > MOST_ROWS:
                rule = f"must hold at most {MOST_BYTES // 2**20} MiB in {MOST_ROWS} rows"
                raise InputError(f"{rule}, got more", "", source)
            for row in batch.to_pylist():
                number += 1
                cells = {name: "" if cell is None else str(cell) for name, cell in row.items()}
                yield Row(source, number, cells, "row")


@contextmanager
def _faults(arrow: ModuleType, source: str) -> Iterator[None]:
    """Turn pyarrow's errors for a damaged file into one line."""
    try:
        yield
    except (OSError, ValueError, OverflowError, arrow.lib.ArrowException) as error:
        raise InputError(f"must be a Parquet file: {error}", "", source) from None


def parquet_bytes(columns: Sequence[Column], rows: Sequence[Mapping[str, Cell]]) -> bytes:
    """Return the content of a file with these rows.

    Raises
    ------
    UnsupportedError
        Without pyarrow.
    """
    arrow = _pyarrow()
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}

    def array(column: Column) -> Any:  # noqa: ANN401 (pyarrow's)
        values = [row.get(column.name) for row in rows]
        if column.word is not None and column.word in values:
            return arrow.array([None if one is None else str(one) for one in values])
        return arrow.array(values, types[column.kind])

    cells = {column.name: array(column) for column in columns}
    buffer = io.BytesIO()
    arrow.parquet.write_table(arrow.table(cells), buffer)
    return buffer.getvalue()


def _pyarrow() -> ModuleType:
    """Return the package with its sub-package ``parquet``, imported only when it is needed."""
    require_package("pyarrow", "parquet", "Parquet")
    import pyarrow
    import pyarrow.parquet

    return pyarrow  # type: ignore[no-any-return]
