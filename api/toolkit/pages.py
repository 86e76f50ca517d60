"""The template engine of all pages, and their sortable tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from dovetail.toolkit import charts, wording

UNFOLDED: Final = 50
"""Rows of a long table that are visible before the reader asks for the rest."""


class Head(NamedTuple):
    """The head of a column: its name, and its unit or another remark in small print."""

    text: str
    small: str = ""
    number: bool = True


class Cell(NamedTuple):
    """A cell, with lines in small print below it; ``mark`` makes it stand out."""

    text: str
    small: tuple[str, ...] = ()
    mark: bool = False


class PageTable(NamedTuple):
    """A table of a page.

    Attributes
    ----------
    caption : str
        Caption of the table.
    heads : sequence of Head
        A head for each column; the first column names the rows.
    rows : sequence of sequences of str or Cell
        The cells of each row.
    strong : frozenset of int
        Rows in bold.
    """

    caption: str
    heads: Sequence[Head]
    rows: Sequence[Sequence[str | Cell]]
    strong: frozenset[int] = frozenset()


def unbroken(text: str) -> str:
    """Return a sentence with no-break spaces between figures and their units."""
    return re.sub(r"(?<=\d) (?=(?:%|µs|ms|s|min|h|d|kWh)(?![A-Za-z]))", "\N{NO-BREAK SPACE}", text)


def environment(*packages: str) -> Environment:
    """Return the template engine of all pages, with the templates of ``packages`` as well."""
    folders = map(PackageLoader, ("dovetail.toolkit", *packages))
    environment = Environment(
        loader=ChoiceLoader(list(folders)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = unbroken
    environment.globals.update(
        wording=wording,
        svg=charts.svg,
        drawable=charts.available(),
        unfolded=UNFOLDED,
    )
    return environment
