"""Tables read in parts, so that long ones take little memory."""

from __future__ import annotations

import csv
import io
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.instances.errors import InputError, source_name
from dovetail.instances.reading.contents import opened

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
    texts = _texts(path)
    text, line = "", 0
    while not text.strip():
        line += text.count("\n")
        text = next(texts, "")
        if not text:
            return 1, [], iter(())
    head = text[: len(text) - len(text.lstrip())]
    text = text[len(head) :]
    line += head.count("\n") + 1
    first, _, rest = text.partition("\n")
    try:
        header = [cell.strip() for cell in next(csv.reader([first], delimiter=separator(first)))]
    except csv.Error as error:
        raise InputError(f"must be a table: {error}", f"line {line}", source) from None
    table = _CellTable(separator(first), len(header), source)
    return line, header, table.parts(chain([rest], texts), line)


class _CellTable(NamedTuple):
    """The form of a table: the character between cells, and the number of columns."""

    mark: str
    width: int
    source: str

    def parts(self, texts: Iterator[str], line: int) -> Iterator[TablePart]:
        """Yield the rows of texts that follow a line."""
        for text in texts:
            lines = text.removesuffix("\n").split("\n") if text else []
            if not self._are_plain(text, lines):
                yield from self._read(chain([text], texts), line)
                return
            if lines:
                cells = self.mark.join(lines).split(self.mark)
                columns = [cells[at :: self.width] for at in range(self.width)]
                yield TablePart(range(line + 1, line + len(lines) + 1), columns)
                line += len(lines)

    def _are_plain(self, text: str, lines: Sequence[str]) -> bool:
        """Return whether lines are rows without quotes, none of them blank or of another width."""
        marks = self.width - 1
        return not any(sign in text for sign in ('"', "\r", "\0")) and (
            all(lines)
            and {line.count(self.mark) for line in lines} <= {marks}
            and self.mark * marks not in lines
        )

    def _read(self, texts: Iterator[str], before: int) -> Iterator[TablePart]:
        """Yield the rows of any texts as a reader of CSV sees them."""
        lines = chain.from_iterable(io.StringIO(text, newline="") for text in texts)
        reader = csv.reader(lines, delimiter=self.mark)
        numbers: list[int] = []
        rows: list[list[str]] = []
        try:
            for fields in reader:
                if "".join(fields).strip():
                    numbers.append(before + reader.line_num)
                    rows.append(self._fitting(fields, numbers[-1]))
                if len(rows) == _ROWS:
                    yield TablePart(numbers, list(zip(*rows, strict=True)))
                    numbers, rows = [], []
        except csv.Error as error:
            where = f"line {before + reader.line_num}"
            raise InputError(f"must be a table: {error}", where, self.source) from None
        if rows:
            yield TablePart(numbers, list(zip(*rows, strict=True)))

    def _fitting(self, fields: list[str], line: int) -> list[str]:
        if len(fields) != self.width:
            rule = f"must have {self.width} fields, got {len(fields)}"
            raise InputError(rule, f"line {line}", self.source)
        return fields


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
