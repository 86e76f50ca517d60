"""The toolkit for printed output: a console, tables that fit it, facts by name.

Every text from a file goes through `rich.text.Text`, which does not interpret ``[``. Colour
never says anything that words do not. Rich is imported when something is printed, so that commands
can import this module where they are declared.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

WIDTH: Final = 80
NARROWEST: Final = 80
"""Columns that tables need; with fewer, each row of a wider table becomes a paragraph."""
SHORTEST_NAME: Final = 12
_ANY_WIDTH: Final = 10_000
_BLANKS: Final = re.compile(r" +$", re.M)


class TableColumn(NamedTuple):
    """A column of a table: its head, and how its cells are set.

    A column whose cells are all among ``silent`` says nothing, and is left out.
    """

    head: str
    right: bool = False
    folds: bool = False
    most: int | None = None
    silent: Container[str] = ()


class Name(NamedTuple):
    """A name in a table: on one line, without its middle if it does not fit."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the width that it takes, and the least width that it needs."""
        from rich.cells import cell_len
        from rich.measure import Measurement

        width = cell_len(self.text)
        return Measurement(min(width, SHORTEST_NAME), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield as much of the name as fits."""
        from rich.cells import cell_len
        from rich.text import Text

        shown, kept = self.text, len(self.text)
        while cell_len(shown) > options.max_width and kept:
            kept -= 1
            end = kept // 2
            shown = f"{self.text[: kept - end]}…{self.text[len(self.text) - end :]}"
        yield Text(shown, no_wrap=True)

    def __str__(self) -> str:
        return self.text


class Fitting(NamedTuple):
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
        from rich.measure import Measurement

        return Measurement.get(console, options.update(max_width=_ANY_WIDTH), self.table).maximum


def console() -> Console:
    """Return a console on standard output that is at most 80 columns wide.

    If standard output is not a terminal, it is exactly that wide, without colour and without
    blanks at the end of lines.
    """
    from rich.console import Console

    found = Console(highlight=False)
    if found.is_terminal:
        return Console(highlight=False, width=min(found.width, WIDTH))
    return Console(highlight=False, width=WIDTH, file=cast(TextIO, _Trimmed()))


def note(text: str) -> None:
    """Print a note on standard error; what does not fit goes on below, indented."""
    from textwrap import fill

    line = fill(
        f"dovetail: {text}",
        WIDTH,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    print(line, file=sys.stderr)


class _Trimmed:
    """Standard output for whole lines, which removes blanks at their end."""

    @property
    def encoding(self) -> str:
        return sys.stdout.encoding

    def write(self, text: str) -> int:
        return sys.stdout.write(_BLANKS.sub("", text))

    def flush(self) -> None:
        sys.stdout.flush()


def stacked(*parts: RenderableType | None) -> RenderableType:
    """Return parts one below the other; texts are shown as they are, and None is left out."""
    from rich.console import Group
    from rich.text import Text

    shown = (Text(each) if isinstance(each, str) else each for each in parts)
    return Group(*(each for each in shown if each is not None))


def title(text: str) -> Text:
    """Return a title after an empty line."""
    from rich.text import Text

    return Text(f"\n{text}", "bold")


def styled(text: str, style: str) -> Text:
    """Return a text in a style of Rich."""
    from rich.text import Text

    return Text(text, style)


def fact_lines(*facts: tuple[str, str]) -> Table:
    """Return a table of names and their texts; the first is the title."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for k, (name, line) in enumerate(facts):
        table.add_row(Text(name), Text(line, "bold" if k == 0 else ""))
    return table


def named_lines(lines: Iterable[tuple[str, str]]) -> RenderableType:
    """Return a text beside each name."""
    from rich.table import Table
    from rich.text import Text

    table, rows = Table.grid(padding=(0, 2)), list(lines)
    table.add_column(max_width=WIDTH // 3)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Name(name), Text(text))
    return Fitting(table, row_lines(rows, 1, ("",)))


def text_rows(rows: Iterable[Sequence[str]]) -> Table:
    """Return texts in columns without heads; all but the last take a third of the width at most."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for k, row in enumerate(rows):
        for left in range(len(row), 0, -1) if k == 0 else ():
            table.add_column(overflow="fold", max_width=WIDTH // 3 if left > 1 else None)
        table.add_row(*map(Text, row))
    return table


def plain_table(*names: str) -> Table:
    """Return an empty table with these first columns, which may fold."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold"
    )
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def table(
    columns: Iterable[TableColumn | str],
    rows: Iterable[Sequence[str | Text | Name]],
    *,
    names: int = 1,
    ends: Container[int] = (),
    bold: Container[int] = (),
    folds: bool = True,
) -> Fitting:
    """Return a table, or its rows as lines if it does not fit.

    Parameters
    ----------
    columns : iterable of TableColumn or str
        A text is the head of a column of figures.
    rows : iterable of sequences
        The cells of each row.
    names : int
        How many of the first columns name a row.
    ends : container of int
        Rows below which a line is drawn.
    bold : container of int
        Rows in bold.
    folds : bool
        Whether cells may fold to make room.
    """
    from rich.text import Text

    every = [TableColumn(each, right=True) if isinstance(each, str) else each for each in columns]
    found = list(rows)
    shown = [
        k
        for k, head in enumerate(every)
        if not found or any(str(row[k]) not in head.silent for row in found)
    ]
    heads = [every[k] for k in shown]
    made, lines = plain_table(), []
    for each in heads:
        made.add_column(
            each.head,
            justify="right" if each.right else "left",
            no_wrap=not each.folds,
            overflow="fold",
            max_width=each.most,
        )
    for nth, row in enumerate(found):
        cells = [row[k] for k in shown]
        texts = (Text(each) if isinstance(each, str) else each for each in cells)
        made.add_row(*texts, end_section=nth in ends, style="bold" if nth in bold else None)
        lines.append(tuple(" ".join(str(each).split()) for each in cells))
    named = sum(k < names for k in shown)
    below = [" ".join(each.head.split()) for each in heads[named:]]
    return Fitting(made, row_lines(lines, named, below), folds)


def row_lines(
    rows: Iterable[tuple[str, ...]], names: int, columns: Sequence[str]
) -> RenderableType:
    """Return a line with the names of each row, and below it its other cells with their columns."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    lines: list[RenderableType] = []
    for row in rows:
        cells = zip(columns, row[names:], strict=True)
        line = ", ".join(f"{column} {cell}".strip() for column, cell in cells if cell)
        lines.append(Text(" ".join(filter(None, row[:names])), overflow="fold"))
        lines.append(Padding(Text(line, overflow="fold"), (0, 0, 0, 2)))
    return Group(*lines)
