"""The toolkit for printed output: a console, tables that fit it, facts by name.

Every text from a file goes through `rich.text.Text`, which does not interpret ``[``. Colour
never says anything that words do not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO, cast

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

WIDTH = 100
NARROWEST = 80
"""Columns that tables need; with fewer, each row of a wider table becomes a paragraph."""
SHORTEST_NAME = 12
_ANY_WIDTH = 10_000
_BLANKS = re.compile(r" +$", re.M)


@dataclass(frozen=True)
class Name:
    """A name in a table: on one line, without its middle if it does not fit."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the width that it takes, and the least width that it needs."""
        width = cell_len(self.text)
        return Measurement(min(width, SHORTEST_NAME), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield as much of the name as fits."""
        shown, kept = self.text, len(self.text)
        while cell_len(shown) > options.max_width and kept:
            kept -= 1
            end = kept // 2
            shown = f"{self.text[: kept - end]}…{self.text[len(self.text) - end :]}"
        yield Text(shown, no_wrap=True)


@dataclass(frozen=True)
class Fitting:
    """A table, or its rows as lines if the table does not fit.

    With ``folds``, names may fold to make room.
    """

    table: Table
    lines: RenderableType
    folds: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the form that fits."""
        needed = self._width(console, options)
        needed = min(needed, NARROWEST) if self.folds else needed
        yield self.table if options.max_width >= needed else self.lines

    def _width(self, console: Console, options: ConsoleOptions) -> int:
        return Measurement.get(console, options.update(max_width=_ANY_WIDTH), self.table).maximum


def console() -> Console:
    """Return a console on standard output that is at most 100 columns wide.

    If standard output is not a terminal, it is exactly that wide, without colour and without
    blanks at the end of lines.
    """
    found = Console(highlight=False)
    if found.is_terminal:
        return Console(highlight=False, width=min(found.width, WIDTH))
    return Console(highlight=False, width=WIDTH, file=cast(TextIO, _Trimmed()))


class _Trimmed:
    """Standard output for whole lines, which removes blanks at their end."""

    @property
    def encoding(self) -> str:
        return sys.stdout.encoding

    def write(self, text: str) -> int:
        return sys.stdout.write(_BLANKS.sub("", text))

    def flush(self) -> None:
        sys.stdout.flush()


def fact_lines(*facts: tuple[str, str]) -> Table:
    """Return a table of names and their texts; the first is the title."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for k, (name, line) in enumerate(facts):
        table.add_row(Text(name), Text(line, "bold" if k == 0 else ""))
    return table


def plain_table(*names: str) -> Table:
    """Return an empty table with these first columns, which may fold."""
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold"
    )
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def row_lines(
    rows: Iterable[tuple[str, ...]], names: int, columns: Sequence[str]
) -> RenderableType:
    """Return a line with the names of each row, and below it its other cells with their columns."""
    lines: list[RenderableType] = []
    for row in rows:
        cells = zip(columns, row[names:], strict=True)
        line = ", ".join(f"{column} {cell}".strip() for column, cell in cells if cell)
        lines.append(Text(" ".join(filter(None, row[:names])), overflow="fold"))
        lines.append(Padding(Text(line, overflow="fold"), (0, 0, 0, 2)))
    return Group(*lines)
