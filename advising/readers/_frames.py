"""Tables of texts read by pandas; every fault is one line with file, line and value."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dovetail.instances._record import listed, shown
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.reading.tables import lines_of

if TYPE_CHECKING:
    import pandas as pd


def text_frame(
    path: str | Path,
    required: Collection[str] = (),
    optional: Collection[str] | None = None,
    separator: str = ",",
    quoted: bool = True,
    free: str | None = None,
    names: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Return a table with a header as texts; empty cells are empty texts.

    The index is the number of each row's line, for messages.

    Parameters
    ----------
    path : str or Path
        The file, which may be compressed by gzip.
    required : collection of str
        Columns that the header must have.
    optional : collection of str, optional
        The other columns to return if the header has them; None returns all.
    separator : str
        The text between cells, a single character if quotes have a meaning.
    quoted : bool
        Whether quotes have a meaning.
    free : str, optional
        The column whose cells may hold the separator, if it is not quoted.
    names : sequence of str, optional
        The header of a table that may have none.

    Raises
    ------
    InputError
        When it cannot be read, a required column is missing, or rows have unequal lengths.
    """
    import pandas as pd

    source = source_name(path)
    rows = _rows(path, separator, quoted, source)
    line, first = next(rows, (1, []))
    header = [name.strip() for name in first]
    if names is not None and header != list(names):
        rows = chain([(line, first)] if first else [], rows)
        header = list(names)
    _require_header(header, required, line, source)
    wanted = [
        at
        for at, name in enumerate(header)
        if optional is None or name in required or name in optional
    ]
    lines, kept = [], []
    free_at = header.index(free) if free in header else None
    for line, fields in rows:
        beyond = len(fields) - len(header)
        if beyond > 0 and free_at is not None:
            cell = fields[free_at : free_at + beyond + 1]
            fields[free_at : free_at + beyond + 1] = [separator.join(cell)]
        if len(fields) != len(header):
            rule = f"must have {len(header)} fields, got {len(fields)}"
            raise InputError(rule, f"line {line}", source)
        lines.append(line)
        # Unlike lists, tuples of texts cost the garbage collector nothing.
        kept.append(tuple([fields[at] for at in wanted]))
    return pd.DataFrame(kept, lines, [header[at] for at in wanted], dtype=object)


def _rows(
    path: str | Path, separator: str, quoted: bool, source: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields of every line that is not blank."""
    lines = lines_of(path)
    if not quoted:
        for number, text in enumerate(lines, 1):
            if text.replace(separator, "").strip():
                yield number, text.rstrip("\r\n").split(separator)
        return
    reader = csv.reader(lines, delimiter=separator)
    try:
        yield from ((reader.line_num, fields) for fields in reader if "".join(fields).strip())
    except csv.Error as error:
        rule = f"must be a table: {error}"
        raise InputError(rule, f"line {reader.line_num}", source) from None


def _require_header(header: list[str], required: Collection[str], line: int, source: str) -> None:
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        rule = f"must name each column once, got {shown(twice)} twice"
        raise InputError(rule, f"line {line}", source)
    missing = [name for name in required if name not in header]
    if missing:
        rule = f"must have the columns {', '.join(missing)}, got {listed(header) or 'none'}"
        raise InputError(rule, f"line {line}", source)


def numbers(
    column: pd.Series[str], source: str, least: float = 0.0, most: float = np.inf
) -> NDArray[np.float64]:
    """Return the numbers of a column, NaN for empty cells.

    Raises
    ------
    InputError
        For the first cell that is no finite number or out of range.
    """
    import pandas as pd

    found = np.asarray(pd.to_numeric(column, errors="coerce"), dtype=np.float64)
    empty = np.isnan(found)
    empty[empty] = [not text.strip() for text in column[empty]]
    with np.errstate(invalid="ignore"):
        fine = np.isfinite(found) & (found >= least) & (found <= most)
    limits = f">= {least:g}" if np.isinf(most) else f"from {least:g} to {most:g}"
    require(column, empty | fine, f"must be a number {limits}", source)
    return found


def require(column: pd.Series[str], fine: NDArray[np.bool_], rule: str, source: str) -> None:
    """Refuse the first cell of a column for which a rule does not hold.

    Raises
    ------
    InputError
        With its line, the rule and its text.
    """
    if not fine.all():
        row = int(np.argmin(fine))
        text = shown(str(column.iloc[row]))
        where = f"line {column.index[row]}: {column.name}"
        raise InputError(f"{rule}, got {text}", where, source)


def mapped(
    column: pd.Series[str], words: Callable[[str], object], source: str
) -> dict[str, object]:
    """Return the value of each different text of a column, computed once.

    Raises
    ------
    InputError
        For the first cell whose text ``words`` refuses with an ``InputError``, with its line.
    """
    found: dict[str, object] = {}
    for text in column.unique():
        try:
            found[text] = words(text)
        except InputError as error:
            line = column.index[int(np.argmax((column == text).to_numpy()))]
            where = f"line {line}: {column.name}"
            raise InputError(error.rule, where, source) from None
    return found
