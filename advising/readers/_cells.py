"""Tables read in parts, so that long ones take little memory."""

from __future__ import annotations

import csv
import io
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.instances.errors import InputError, source_name
from dovetail.instances.reading.contents import opened

_FIRST: Final = itemgetter(0)
_ROWS: Final = 4_096
_MOST_BYTES: Final = 4 * 2**30
_CHUNK_BYTES: Final = 2**20
_MOST_LINE: Final = 64 * 2**20


class TablePart(NamedTuple):
    """Some rows of a table: the line of each, and the texts of each column."""

    lines: Sequence[int]
    columns: Sequence[Sequence[str]]

    def refuse(self, column: int, name: str, source: str) -> Callable[[int, str], InputError]:
        """Return what makes the error of a cell from its row and the rule."""
        return lambda row, rule: InputError(rule, f"line {self.lines[row]}: {name}", source)


def header_and_parts(path: Path) -> tuple[int, list[str], Iterator[TablePart]]:
    """Return the line of the header of a table, its cells, and the rows in parts.

    The cells are separated by commas, semicolons or tabs: the first of them in the header.

    Raises
    ------
    InputError
        When it cannot be read, is no table, or rows have unequal lengths (also by the iterator).
    """
    source = source_name(path)
    lines = text_lines(path)
    blank = 0
    while (first := next(lines, "")) and not first.strip():
        blank += 1
    reader = csv.reader(chain([first], lines), delimiter=separator(first))
    rows = _faultless(reader, lambda: f"line {blank + reader.line_num}", source)
    header = [cell.strip() for cell in next(rows, [])]
    line = blank + reader.line_num
    return line, header, _parts(rows, lambda: blank + reader.line_num, len(header), source)


def _faultless(
    rows: Iterator[list[str]], where: Callable[[], str], source: str
) -> Iterator[list[str]]:
    try:
        yield from rows
    except csv.Error as error:
        raise InputError(f"must be a table: {error}", where(), source) from None


def separator(line: str) -> str:
    """Return the character between the cells of a header."""
    return next((mark for mark in (",", ";", "\t") if mark in line), ",")


def cells(line: str) -> list[str]:
    """Return the cells of a line, without blanks around them."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator(line)), [])]
    except csv.Error:
        return []


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text, of which few are in memory at a time.

    Raises
    ------
    InputError
        When it cannot be read, is too large or is not UTF-8.
    """
    return chain.from_iterable(io.StringIO(text, newline="") for text in _texts(path))


def _texts(path: Path) -> Iterator[str]:
    """Yield a text in parts that end with a line."""
    source = source_name(path)
    with opened(path) as file:
        size, lines = 0, 0
        while data := file.read(_CHUNK_BYTES) + file.readline(_MOST_LINE):
            if not size:
                data = data.removeprefix(BOM_UTF8)
            size += len(data)
            if size > _MOST_BYTES:
                rule = f"must hold at most {_MOST_BYTES // 2**30} GiB, got more"
                raise InputError(rule, "", source)
            try:
                yield data.decode()
            except UnicodeDecodeError as error:
                line = lines + data.count(b"\n", 0, error.start) + 1
                raise InputError("must be UTF-8 text", f"line {line}", source) from None
            lines += data.count(b"\n")


def _parts(
    rows: Iterator[list[str]], lines: Callable[[], int], width: int, source: str
) -> Iterator[TablePart]:
    """Yield rows in parts; ``lines`` says how many lines have been read."""
    before = lines()
    while kept := list(islice(rows, _ROWS)):
        numbers: Sequence[int] = range(before + 1, lines() + 1)
        if (
            set(map(len, kept)) != {width}
            or len(numbers) != len(kept)
            or not all(map(_FIRST, kept))
        ):
            numbers, kept = _without_blank(kept, before, width, source)
        before = lines()
        flat = list(chain.from_iterable(kept))
        yield TablePart(numbers, [flat[at::width] for at in range(width)])


def _without_blank(
    rows: Sequence[list[str]], before: int, width: int, source: str
) -> tuple[list[int], list[list[str]]]:
    """Return rows that are not blank, each with its last line; refuse one of another width."""
    numbers, kept = [], []
    line = before
    for fields in rows:
        line += 1 + sum(cell.count("\n") for cell in fields)
        if "".join(fields).strip():
            if len(fields) != width:
                rule = f"must have {width} fields, got {len(fields)}"
                raise InputError(rule, f"line {line}", source)
            numbers.append(line)
            kept.append(fields)
    return numbers, kept
