"""Tables of a data set as Parquet, through pyarrow (the extra ``parquet``)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.instances.errors import InputError, source_name
from dovetail.instances.plugins import require_package
from dovetail.instances.reading.contents import MOST_BYTES, read_bytes
from dovetail.instances.reading.tables import MOST_ROWS, Cell, Column, Row, Table

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

_BATCH_ROWS = 1024
_BYTES_AT_ONCE = 2**22


def parquet_table(path: Path) -> Table:
    """Return the table of a file.

    Raises
    ------
    InputError
        When it cannot be read, here or while rows are read.
    UnsupportedError
        Without pyarrow.
    """
    arrow, file, names = _opened(path)
    source = source_name(path)
    return Table(source, "columns", names, _rows(arrow, file, source))


def parquet_columns(path: Path) -> Iterator[dict[str, tuple[list[str], NDArray[np.int64]]]]:
    """Yield the columns of a file, some rows at a time, each as its different texts and their rows.

    The texts, in order of first appearance, are those of the cells of `parquet_table`.

    Raises
    ------
    InputError
        When it cannot be read, or has columns of lists or two of one name.
    UnsupportedError
        Without pyarrow.
    """
    arrow, file, names = _opened(path)
    source = source_name(path)
    with _faults(arrow, source):
        if len(set(names)) < len(names):
            raise InputError("must each have a name of their own", "columns", source)
        for batches in _together(_batches(file, source)):
            table = arrow.Table.from_batches(batches)
            yield {name: _distinct(table.column(k)) for k, name in enumerate(names)}


def _opened(path: Path) -> tuple[ModuleType, Any, list[str]]:
    """Return pyarrow, its file, and the names of the columns."""
    arrow = _pyarrow()
    content = arrow.BufferReader(read_bytes(path))
    with _faults(arrow, source_name(path)):
        file = arrow.parquet.ParquetFile(content)
        return arrow, file, file.schema_arrow.names


def _together(batches: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield some batches of rows at a time."""
    found: list[Any] = []
    for batch in batches:
        found.append(batch)
        if sum(each.nbytes for each in found) >= _BYTES_AT_ONCE:
            yield found
            found = []
    if found:
        yield found


def _distinct(column: Any) -> tuple[list[str], NDArray[np.int64]]:  # noqa: ANN401 (pyarrow's)
    values, rows = None, column.combine_chunks()
    if hasattr(rows, "dictionary"):
        # As of categories in pandas; there may be some that no row has.
        values, rows = rows.dictionary, rows.indices
    encoded = rows.dictionary_encode(null_encoding="encode")
    found = encoded.dictionary if values is None else values.take(encoded.dictionary)
    number: dict[str, int] = {}
    cells = map(_text, found.to_pylist())
    code = np.array([number.setdefault(cell, len(number)) for cell in cells], dtype=np.int64)
    return [*number], code[encoded.indices.to_numpy(zero_copy_only=False)]


def _text(cell: object) -> str:
    return "" if cell is None else str(cell)


def _rows(arrow: ModuleType, file: Any, source: str) -> Iterator[Row]:  # noqa: ANN401 (pyarrow's)
    number = 0
    with _faults(arrow, source):
        for batch in _batches(file, source):
            for row in batch.to_pylist():
                number += 1
                yield Row(source, number, {name: _text(cell) for name, cell in row.items()}, "row")


def _batches(file: Any, source: str) -> Iterator[Any]:  # noqa: ANN401 (pyarrow's)
    number = unpacked = 0
    # In small batches: a small file may hold any number of equal cells.
    for batch in file.iter_batches(_BATCH_ROWS):
        unpacked += batch.nbytes
        if unpacked > MOST_BYTES or number > MOST_ROWS:
            rule = f"must hold at most {MOST_BYTES // 2**20} MiB in {MOST_ROWS} rows"
            raise InputError(f"{rule}, got more", "", source)
        number += batch.num_rows
        yield batch


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
