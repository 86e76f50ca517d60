"""Records in notebooks: as data frames of pandas, which comes with OR-Tools, and as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

_MOST_ROWS = 20


def frame(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> DataFrame:
    """Return rows as a data frame; pandas is imported here, as that takes half a second."""
    from pandas import DataFrame

    return DataFrame(list(rows), columns=list(columns))


def html(what: object, table: DataFrame) -> str:
    """Return the one-line form of a record and its table, shortened in the middle."""
    return f"<p>{escape(repr(what))}</p>\n{table.to_html(index=False, max_rows=_MOST_ROWS)}"
