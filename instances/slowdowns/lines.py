"""The entries of slowdowns as lines of text, from their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final

from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import EACH, MODES, SINGLE, SOURCES
from dovetail.instances.slowdowns.gathering import AT_ONCE, DEFAULTS, FIELDS
from dovetail.instances.slowdowns.shares import NO_CAP, share_of

_NOT_GIVEN: Final = "nan"


def entry_lines(known: Slowdowns, as_text: Callable[[object], str]) -> Iterator[list[str]]:
    """Yield the text of each entry, some entries at a time.

    Parameters
    ----------
    known : Slowdowns
        The entries.
    as_text : callable
        Makes one line of plain data. Of mappings and lists, the result joins what their members
        give, with ``{``, ``[``, ``, `` and ``: ``, as in JSON.
    """
    writing = _Writing(known, as_text)
    for start in range(0, len(known), AT_ONCE):
        yield writing.lines(known[start : start + AT_ONCE])


class _Writing:
    """Texts of the fields of pairs; None where a field has its default."""

    def __init__(self, known: Slowdowns, as_text: Callable[[object], str]) -> None:
        self._as_text = as_text
        self._begin = {name: f"{as_text(field)}: " for name, field in FIELDS.items()}
        self._names = [*map(as_text, known.names)]
        words = {"model": known.models, "source": SOURCES, "mode": MODES}
        self._words = {
            name: {k: f"{self._begin[name]}{as_text(word)}" for k, word in enumerate(given)}
            for name, given in words.items()
        }
        for name, texts in self._words.items():
            texts[int(DEFAULTS[name])] = ""
        self._shares = cache(self._of_shares)

    def lines(self, part: Slowdowns) -> list[str]:
        columns = [self._texts(part, name) for name in FIELDS if part.has(name, slice(None))]
        pairs = [f"{{{', '.join(filter(None, row))}}}" for row in zip(*columns, strict=True)]
        if not part.sets:
            return pairs
        left = iter(pairs)
        return [
            self._as_text(part.sets[k].to_data()) if k in part.sets else next(left)
            for k in range(len(part))
        ]

    def _texts(self, part: Slowdowns, name: str) -> list[str]:
        """Return the text of a field in each row, empty where it is left out."""
        begin, rows = self._begin[name], getattr(part, name)
        if name in EACH:
            null = f"{begin}{self._as_text(None)}" if name == "slowdown" else ""
            texts = self._numbers(rows.ravel().tolist())
            return [
                null if a == _NOT_GIVEN else f"{begin}[{a}, {b}]"
                for a, b in zip(texts[::2], texts[1::2], strict=True)
            ]
        if name in SINGLE:
            texts = self._numbers(rows.tolist())
            return ["" if text == _NOT_GIVEN else f"{begin}{text}" for text in texts]
        if name == "workload":
            names = self._names
            return [f"{begin}[{names[a]}, {names[b]}]" for a, b in rows.tolist()]
        if name == "share":
            return [self._shares(a, b) for a, b in rows.tolist()]
        words = self._words[name]
        return [words[k] for k in rows.tolist()]

    def _numbers(self, values: Sequence[float]) -> list[str]:
        # Formats differ in numbers with exponents alone.
        return [self._as_text(float(text)) if "e" in text else text for text in map(repr, values)]

    def _of_shares(self, one: int, other: int) -> str:
        if one == other == NO_CAP:
            return ""
        return f"{self._begin['share']}{self._as_text([share_of(one), share_of(other)])}"
