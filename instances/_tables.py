"""Reading other people's files: every fault becomes one line with file, line and value."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, TypeVar

from dovetail.instances._record import Record, listed, shown
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import read_bytes

MOST_ROWS = 2_000_000
"""A small packed file may hold any number of short rows, each of which becomes a record."""

_R = TypeVar("_R", bound=Record)


@dataclass(frozen=True)
class Row:
    """One row of a table, and its line."""

    source: str
    line: int
    values: dict[str, str]
    counted_as: str = "line"

    def text(self, column: str) -> str:
        """Return the value of a column that must not be empty."""
        value = self.values[column].strip()
        if not value:
            raise self.broken(column, "must not be empty")
        return value

    def number(self, column: str) -> float:
        """Return the value of a column that must hold a finite number >= 0."""
        value = self.values[column]
        number = as_number(value)
        if number is None:
            raise self.broken(column, f"must be a number, got {shown(value)}")
        if not (math.isfinite(number) and number >= 0):
            raise self.broken(column, f"must be a finite number >= 0, got {shown(value)}")
        return number

    def positive(self, column: str) -> float:
        """Return the value of a column that must hold a finite number > 0."""
        number = self.number(column)
        if number == 0:
            raise self.broken(column, f"must be > 0, got {shown(self.values[column])}")
        return number

    def count(self, column: str, least: int = 1) -> int:
        """Return the value of a column that must hold a whole number >= ``least``."""
        number = self.number(column)
        if number < least or number != int(number):
            raise self.broken(column, f"must be a whole number >= {least}, got {number:.15g}")
        return int(number)

    def fraction(self, column: str) -> float:
        """Return the value of a column that must hold a percentage, as a fraction."""
        percent = self.number(column)
        if percent > 100:
            raise self.broken(column, f"must be a percentage <= 100, got {percent:.15g}")
        return percent / 100

    def broken(self, column: str, rule: str) -> InputError:
        """Return the error that says where in the file the rule is broken."""
        return InputError(rule, f"{self.counted_as} {self.line}: {column}", self.source)

    def record(self, kind: type[_R], **data: object) -> _R:
        """Build the record of the row; a broken rule names the line."""
        try:
            return kind.from_data(data)
        except InputError as error:
            raise self.broken(error.path, error.rule) from None


def as_number(text: str) -> float | None:
    """Return the number that a cell holds, None where it is none.

    What only Python takes for a number, such as ``1_0``, is none.
    """
    if "_" in text or not text.isascii():
        return None
    try:
        return float(text)
    except ValueError:
        return None


def table_of(directory: str, name: str) -> str:
    """Return the path of a table in a folder, plain or packed.

    Raises
    ------
    InputError
        When the folder has neither.
    """
    for path in (Path(directory, name), Path(directory, f"{name}.gz")):
        if path.is_file():
            return str(path)
    raise InputError(f"must have a file {name} (or {name}.gz)", "", directory)


def read_csv(path: str | Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a comma-separated file whose header has (at least) ``columns``.

    Raises
    ------
    InputError
        For a column that is missing, or a row of another length than the header.
    """
    header, rows = read_table(path)
    missing = [name for name in columns if name not in header]
    if missing:
        rule = f"must have the columns {', '.join(columns)}; missing: {', '.join(missing)}"
        raise InputError(f"{rule}, got {listed(header)}", "line 1", str(path))
    yield from rows


def read_table(path: str | Path) -> tuple[Sequence[str], Iterator[Row]]:
    """Return the header of a comma-separated file, and its rows.

    Raises
    ------
    InputError
        When it cannot be read; while rows are taken, for one of another length than the header.
    """
    lines = _lines(path)
    _, header = next(lines, (1, []))
    return header, _rows(str(path), lines, header)


def read_tsv(path: str | Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a tab-separated file without a header that has exactly ``columns``.

    Raises
    ------
    InputError
        For a row with another number of fields.
    """
    lines = _lines(path, delimiter="\t", quoting=csv.QUOTE_NONE)
    yield from _rows(str(path), lines, columns)


def read_headless(path: str | Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a comma-separated file without a header that has exactly ``columns``.

    Raises
    ------
    InputError
        For a row with another number of fields.
    """
    yield from _rows(str(path), _lines(path, delimiter=","), columns)


def _rows(
    source: str, lines: Iterator[tuple[int, list[str]]], columns: Sequence[str]
) -> Iterator[Row]:
    for number, fields in lines:
        if len(fields) != len(columns):
            rule = f"must have {len(columns)} fields, got {len(fields)}"
            raise InputError(rule, f"line {number}", source)
        yield Row(source, number, dict(zip(columns, fields, strict=True)))


def _lines(
    path: str | Path, delimiter: str | None = None, quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields of every line that is not blank."""
    text = lines_of(path)
    first = next(text, "")
    reader = csv.reader(
        chain([first], text), delimiter=delimiter or _delimiter(first), quoting=quoting
    )
    try:
        yield from ((reader.line_num, fields) for fields in reader if "".join(fields).strip())
    except csv.Error as error:
        line = f"line {reader.line_num}"
        raise InputError(f"must be a table: {error}", line, source_name(path)) from None


def _delimiter(header: str) -> str:
    """Return what separates columns: some spreadsheets write no commas."""
    return next((mark for mark in (",", ";", "\t") if mark in header), ",")


def lines_of(path: str | Path) -> Iterator[str]:
    """Yield the lines of a file with their ends, unpacked if it is a gzip file.

    Raises
    ------
    InputError
        When it cannot be read, is too large, has too many lines or is not UTF-8.
    """
    data = io.BytesIO(read_bytes(path))
    text = io.TextIOWrapper(data, "utf-8-sig", newline="")
    try:
        for count, line in enumerate(text):
            if count == MOST_ROWS:
                raise InputError(f"must have at most {MOST_ROWS} lines", "", source_name(path))
            yield line
    except UnicodeDecodeError as error:
        byte = data.tell() - len(error.object) + error.start
        rule = f"must be UTF-8 text, got another byte at {byte}"
        raise InputError(rule, "", source_name(path)) from None
