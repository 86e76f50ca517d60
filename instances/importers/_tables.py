"""Reading other people's files: every fault becomes one line with file, line and value."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from dovetail.instances._record import Record, listed, shown
from dovetail.instances.errors import InputError

_R = TypeVar("_R", bound=Record)


@dataclass(frozen=True)
class Row:
    """One row of a table, and where it stands."""

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
            raise self.broken(column, f"must be a whole number >= {least}, got {number:g}")
        return int(number)

    def fraction(self, column: str) -> float:
        """Return the value of a column that must hold a percentage, as a fraction."""
        percent = self.number(column)
        if percent > 100:
            raise self.broken(column, f"must be a percentage <= 100, got {percent:g}")
        return percent / 100

    def broken(self, column: str, rule: str) -> InputError:
        """Return the error that says where in the file the rule is broken."""
        return InputError(rule, f"{self.counted_as} {self.line}: {column}", self.source)

    def record(self, kind: type[_R], **data: object) -> _R:
        """Build the record that the row tells; a rule it breaks is told with the line."""
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


def read_text(path: str | Path) -> str:
    """Return the text of a file, unpacked where its name ends in ``.gz``.

    Raises
    ------
    InputError
        When it cannot be read or is not UTF-8.
    """
    source = str(path)
    try:
        data = Path(path).read_bytes()
        if source.endswith(".gz"):
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"must be UTF-8 text, byte {error.start} is not", "", source) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"must be a whole gzip file ({error})", "", source) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read: {reason}", "", source) from None


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


def _rows(
    source: str, lines: Iterator[tuple[int, list[str]]], columns: Sequence[str]
) -> Iterator[Row]:
    for number, fields in lines:
        if len(fields) != len(columns):
            rule = f"must have {len(columns)} fields, got {len(fields)}"
            raise InputError(rule, f"line {number}", source)
        yield Row(source, number, dict(zip(columns, fields, strict=True)))


def _lines(
    path: str | Path, delimiter: str = ",", quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields of every line that is not empty."""
    text = io.StringIO(read_text(path), newline="")
    reader = csv.reader(text, delimiter=delimiter, quoting=quoting)
    try:
        yield from ((reader.line_num, fields) for fields in reader if fields)
    except csv.Error as error:
        raise InputError(
            f"must be a table: {error}", f"line {reader.line_num}", str(path)
        ) from None
