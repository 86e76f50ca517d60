"""A table of jobs read as columns, with the faults that reading it row by row would find."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.errors import InputError
from dovetail.instances.reading.tables import Column, Row, as_number
from dovetail.instances.traces.trace import Texts

_Numbers = NDArray[np.float64]
_Mask = NDArray[np.bool_]
_T = TypeVar("_T")


class Sheet:
    """The rows of a table, asked column by column.

    Values are asked for in the order in which one row would be read. `require_sound` then raises
    the error of the first row that breaks a rule, and of the first rule that it breaks.

    Parameters
    ----------
    rows : iterable of Row
        Rows as they are read; those before a row that cannot be read are kept.

    Attributes
    ----------
    lines : list of int
        The line of each row.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.lines: list[int] = []
        self._fault: tuple[int, InputError] | None = None
        found: list[tuple[str, ...]] = []
        row = None
        try:
            for row in rows:
                self.lines.append(row.line)
                found.append(tuple(row.values.values()))
        except InputError as error:
            self._fault = len(self.lines), error
        self._last = row
        names = row.values if row is not None else ()
        self._columns: dict[str, Sequence[str]] = dict(
            zip(names, zip(*found, strict=True), strict=True)
        )

    def __len__(self) -> int:
        return len(self.lines)

    def row(self, k: int) -> Row:
        """Return a row."""
        assert self._last is not None
        values = {name: column[k] for name, column in self._columns.items()}
        return Row(self._last.source, self.lines[k], values, self._last.counted_as)

    def require_sound(self) -> None:
        """Raise the first fault, if any."""
        if self._fault is not None:
            raise self._fault[1]

    def refuse(self, doubtful: _Mask, read: Callable[[Row], object]) -> None:
        """Note the error of the first doubtful row that ``read`` refuses."""
        for k in np.flatnonzero(doubtful).tolist():
            if self._fault is not None and self._fault[0] <= k:
                return
            try:
                read(self.row(k))
            except InputError as error:
                self.note(k, error)

    def note(self, row: int, error: InputError) -> None:
        """Note the error of a row, unless one that would be found before it is known."""
        if self._fault is None or row < self._fault[0]:
            self._fault = row, error

    def cells(self, column: str) -> Sequence[str]:
        """Return the cells of a column as they are."""
        return self._columns[column] if self.lines else ()

    def put(self, column: str, cells: Sequence[str]) -> None:
        """Replace the cells of a column."""
        self._columns[column] = cells

    def given(self, column: str) -> _Mask:
        """Return the rows whose cell is not blank."""
        return np.array([bool(cell.strip()) for cell in self.cells(column)], dtype=np.bool_)

    def values(self, column: Column) -> NDArray[Any]:
        """Return a column: None or NaN for empty cells, and -infinity for those without a number.

        No rule of a trace allows a number below 0, so those rows are refused later.
        """
        cells = self.cells(column.name)
        if column.kind is str:
            return np.array([cell or None for cell in cells], dtype=object)
        found = numbers_of([cell or "-inf" for cell in cells])
        found[np.isnan(found)] = -math.inf
        found[[not cell for cell in cells]] = math.nan
        return found

    def texts(self, column: str, among: _Mask) -> Texts:
        """Return a column that must not be empty in some rows, as ``Row.text``."""
        found = [cell.strip() for cell in self.cells(column)]
        empty = np.array([not cell for cell in found], dtype=np.bool_)
        self.refuse(among & empty, lambda row: row.text(column))
        return np.array(found, dtype=object)

    def numbers(self, column: str, among: _Mask | None = None) -> _Numbers:
        """Return a column that must hold numbers in some rows (all by default), as ``Row.number``.

        Values of other rows are arbitrary.
        """
        found = numbers_of(self.cells(column))
        broken = ~((found >= 0) & (found < math.inf))
        self.refuse(broken if among is None else broken & among, lambda row: row.number(column))
        return np.where(broken, 0.0, found)

    def counts(self, column: str, least: int = 1, among: _Mask | None = None) -> _Numbers:
        """Return a column that must hold whole numbers in some rows, as ``Row.count``."""
        found = numbers_of(self.cells(column))
        broken = ~((found >= least) & (found < math.inf) & (found == np.floor(found)))
        self.refuse(
            broken if among is None else broken & among, lambda row: row.count(column, least)
        )
        return np.where(broken, least, found)

    def map(self, column: str, read: Callable[[str], _T]) -> list[_T]:
        """Return what ``read`` makes of each cell of a column, up to the first that it refuses.

        The path of its error is left to the row.
        """
        found: list[_T] = []
        try:
            found.extend(map(read, self.cells(column)))
        except InputError as error:
            k = len(found)
            self.note(k, self.row(k).broken(column, error.rule))
        return found


def numbers_of(cells: Sequence[str]) -> _Numbers:
    """Return the numbers in cells, as ``as_number``; NaN where there is none."""
    try:
        if "_" not in (whole := "".join(cells)) and whole.isascii():
            return np.array(list(map(float, cells)), dtype=np.float64)
    except ValueError:
        pass
    found: Iterator[float | None] = map(as_number, cells)
    return np.array([math.nan if number is None else number for number in found], dtype=np.float64)


def numbered(sheet: Sheet) -> Texts:
    """Return names for jobs that have none, by their lines."""
    return np.array([f"job-{line}" for line in sheet.lines], dtype=object)
