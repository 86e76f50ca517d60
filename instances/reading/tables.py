"""Reading tables: every fault becomes one line with file, line and value."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from dovetail.instances._record import Record, listed, shown
from dovetail.instances.errors import InputError, closest, source_name
from dovetail.instances.reading.contents import read_bytes

MOST_ROWS = 2_000_000
"""A small compressed file may hold any number of short rows, each of which becomes a record."""

_MOST_COLUMNS = 12
"""How many columns a message about an unknown one lists."""

Cell = str | int | float | None
_R = TypeVar("_R", bound=Record)


@dataclass(slots=True)
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
        """Return the error with the position in the file at which the rule is broken."""
        return InputError(rule, f"{self.counted_as} {self.line}: {column}", self.source)

    def record(self, kind: type[_R], **data: object) -> _R:
        """Build the record of the row; a broken rule names the line."""
        try:
            return kind.from_data(data)
        except InputError as error:
            raise self.broken(error.path, error.rule) from None


class Table(NamedTuple):
    """A table being read.

    Attributes
    ----------
    source : str
        The file.
    columns_at : str
        The position of the column names in the file.
    header : sequence of str
        The names of the columns.
    rows : iterator of Row
        The rows, with cells as texts, empty if unknown.
    """

    source: str
    columns_at: str
    header: Sequence[str]
    rows: Iterator[Row]


class Column(NamedTuple):
    """A column of a table: the path of its value in the record, its type, and an allowed word."""

    name: str
    path: str
    kind: type[str] | type[int] | type[float]
    word: str | None = None


def as_number(text: str) -> float | None:
    """Return the number in a cell, or None if it is not a number.

    Spellings that only Python accepts, such as ``1_0``, are not numbers.
    """
    if "_" in text or not text.isascii():
        return None
    try:
        return float(text)
    except ValueError:
        return None


def table_of(directory: str, name: str) -> str:
    """Return the path of a table in a folder, plain or compressed.

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
        For a missing column, or a row with a different length than the header.
    """
    yield from _having(read_table(path), columns)


def read_piped(path: str | Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a table separated by ``|``, without quotes, like `read_csv`."""
    lines = _lines(path, delimiter="|", quoting=csv.QUOTE_NONE)
    _, header = next(lines, (1, []))
    source = source_name(path)
    yield from _having(Table(source, "line 1", header, _rows(source, lines, header)), columns)


def _having(table: Table, columns: Sequence[str]) -> Iterator[Row]:
    missing = [name for name in columns if name not in table.header]
    if missing:
        rule = f"must have the columns {', '.join(columns)}; missing: {', '.join(missing)}"
        raise InputError(f"{rule}, got {listed(table.header)}", table.columns_at, table.source)
    yield from table.rows


def read_table(path: str | Path) -> Table:
    """Return the table of a comma-separated file.

    Raises
    ------
    InputError
        When it cannot be read; while rows are read, for a row with a different length.
    """
    lines = _lines(path)
    _, header = next(lines, (1, []))
    return Table(source_name(path), "line 1", header, _rows(str(path), lines, header))


def read_tsv(path: str | Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a tab-separated file without a header, with exactly ``columns``.

    Raises
    ------
    InputError
        For a row with another number of fields.
    """
    lines = _lines(path, delimiter="\t", quoting=csv.QUOTE_NONE)
    yield from _rows(str(path), lines, columns)


def read_headless(path: str | Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a comma-separated file without a header, with exactly ``columns``.

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
    """Return the column separator: some spreadsheets write no commas."""
    return next((mark for mark in (",", ";", "\t") if mark in header), ",")


def lines_of(path: str | Path) -> Iterator[str]:
    """Yield the lines of a file with their line ends, decompressed if it is a gzip file.

    Raises
    ------
    InputError
        When it cannot be read, is too large, has too many lines or is not UTF-8.
    """
    yield from lines_in(read_bytes(path), path)


def lines_in(content: bytes, path: str | Path) -> Iterator[str]:
    """Yield the lines of the content of a file, like `lines_of`."""
    if content.count(b"\n") > MOST_ROWS:
        # Checked before rows are collected.
        raise _too_many_lines(path)
    data = io.BytesIO(content)
    text = io.TextIOWrapper(data, "utf-8-sig", newline="")
    try:
        for count, line in enumerate(text):
            if count == MOST_ROWS:
                raise _too_many_lines(path)
            yield line
    except UnicodeDecodeError as error:
        byte = data.tell() - len(error.object) + error.start
        rule = f"must be UTF-8 text, got another byte at {byte}"
        raise InputError(rule, "", source_name(path)) from None


def first_line(path: str | Path) -> str:
    """Return the first line of a file that is not blank, without its line end, or an empty text.

    Raises
    ------
    InputError
        When it cannot be read, is too large or its first line is not UTF-8.
    """
    content = io.BytesIO(read_bytes(path))
    first = next((line for line in content if line.strip()), b"")
    try:
        return first.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError as error:
        byte = content.tell() - len(first) + error.start
        rule = f"must be UTF-8 text, got another byte at {byte}"
        raise InputError(rule, "", source_name(path)) from None


def _too_many_lines(path: str | Path) -> InputError:
    return InputError(f"must have at most {MOST_ROWS} lines", "", source_name(path))


def cell_value(row: Row, column: Column) -> Cell:
    """Return the value of a cell, or None if it is empty."""
    text = row.values[column.name]
    if not text or column.kind is str or text == column.word:
        return text or None
    number = as_number(text)
    if number is None:
        hint = _number_hint(text, column)
        raise row.broken(column.name, f"must be a number, got {shown(text)}{hint}")
    if column.kind is float:
        return number
    if not number.is_integer():
        raise row.broken(column.name, f"must be a whole number, got {shown(text)}")
    return int(number)


def _number_hint(text: str, column: Column) -> str:
    if as_number(text.replace(",", ".")) is not None:
        return " (write a decimal point)"
    if column.kind is float and text.endswith("%") and as_number(text[:-1]) is not None:
        return " (divide by 100)"
    return ""


def column_of(path: str, columns: Iterable[Column]) -> str:
    """Return the file's name of the column for a path in a record."""
    return next((column.name for column in columns if column.path == path), path)


def known_columns(
    table: Table, columns: Iterable[Column], required: Sequence[str], others: bool = False
) -> tuple[Column, ...]:
    """Return the columns of the header; a repeated or missing one is refused.

    An unknown one is refused unless ``others`` is set.
    """
    by_name = {column.name: column for column in columns}
    unknown = [name for name in table.header if name not in by_name]
    header = [name for name in table.header if name in by_name]
    rule = (
        _unknown_column(unknown[0], by_name)
        if unknown and not others
        else _repeated_column(header, by_name) or _missing_columns(table.header, by_name, required)
    )
    if rule:
        raise InputError(rule, table.columns_at, table.source)
    return tuple(by_name[name] for name in header)


def _unknown_column(name: str, known: Mapping[str, Column]) -> str:
    close = closest(name, known)
    hint = f"did you mean {close}?" if close else f"known: {listed(known, _MOST_COLUMNS)}"
    return f"unknown column {shown(name)}, {hint}"


def _repeated_column(header: Sequence[str], known: Mapping[str, Column]) -> str | None:
    paths = [known[name].path for name in header]
    repeated = next((k for k, path in enumerate(paths) if path in paths[:k]), None)
    if repeated is None:
        return None
    first, again = header[paths.index(paths[repeated])], header[repeated]
    same = "" if first == again else f", as {shown(first)}"
    return f"column {shown(again)} is given twice{same}"


def _missing_columns(
    header: Sequence[str], known: Mapping[str, Column], required: Sequence[str]
) -> str | None:
    paths = {known[name].path for name in header if name in known}
    missing = [name for name in required if known[name].path not in paths]
    if not missing:
        return None
    others = {name.casefold(): name for name in header if name not in known}
    close = {name: closest(name.casefold(), others) for name in missing}
    names = [
        f"{name} (is it {shown(others[near])}?)" if near else name for name, near in close.items()
    ]
    needed, got = ", ".join(required), listed(header, _MOST_COLUMNS) or "none"
    return f"must have the columns {needed}; missing: {', '.join(names)}, got {got}"


def used(
    columns: Iterable[Column], required: Iterable[str], rows: Iterable[Mapping[str, Cell]]
) -> list[Column]:
    """Return the columns that are required or hold a value in some row."""
    filled = {name for row in rows for name, cell in row.items() if cell is not None}
    return [column for column in columns if column.name in filled.union(required)]


def csv_bytes(columns: Sequence[Column], rows: Iterable[Mapping[str, Cell]]) -> bytes:
    """Return the content of a file with these rows."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.name for column in columns)
    writer.writerows([row.get(column.name) for column in columns] for row in rows)
    return text.getvalue().encode()
