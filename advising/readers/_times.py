"""Moments in cells: ISO texts, seconds or milliseconds since 1970, or seconds since the start."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.readers._metrics import numbers_of
from dovetail.instances._record import shown
from dovetail.instances.errors import InputError

_SLASHES: Final = re.compile(r"(\d{4})/(\d{1,2})/(\d{1,2})")
_NUMBER: Final = re.compile(r"\d+(\.\d*)?([eE][-+]?\d+)?")
_RULE: Final = "must be a time as 2026-11-29T13:00:00Z, or seconds since 1970 or since the start"

_SCALES: Final = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""From which number on times are nanoseconds, microseconds and milliseconds since 1970: seconds so
large are in the year 5138."""


def is_time(text: str) -> bool:
    """Return whether a text is a moment: a number, or a date and time that begins with the year."""
    cell = text.strip()
    if _NUMBER.fullmatch(cell):
        return True
    return bool(re.match(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([ T]\d|$)", cell))


def times_s(
    texts: Sequence[str], factor: float, refuse: Callable[[int, str], InputError]
) -> NDArray[np.float64]:
    """Return moments in seconds; texts without a zone are in UTC.

    Parameters
    ----------
    texts : sequence of str
        The cells, at least one.
    factor : float
        Seconds of the unit of numbers; NaN if it must be seen from their size.
    refuse : callable
        Makes the error of a cell from its position and the rule.
    """
    try:
        found = numbers_of(texts)
    except ValueError:
        return _dates_s(texts, refuse)
    fine = np.isfinite(found) & (found >= 0)
    if not fine.all():
        raise _refused(texts, fine, refuse)
    if np.isnan(factor):
        most = found.max()
        factor = next((scale for least, scale in _SCALES if most >= least), 1.0)
    return found * factor


def _dates_s(texts: Sequence[str], refuse: Callable[[int, str], InputError]) -> NDArray[np.float64]:
    import pandas as pd

    names = list(dict.fromkeys(texts))
    cells = [_SLASHES.sub(r"\1-\2-\3", text.strip()) for text in names]
    found = pd.to_datetime(pd.Series(cells), errors="coerce", utc=True, format="ISO8601")
    seconds = (found - pd.Timestamp(0, tz="UTC")).dt.total_seconds().to_numpy(np.float64)
    known = dict(zip(names, seconds.tolist(), strict=True))
    times = np.array([known[text] for text in texts], dtype=np.float64)
    fine = ~np.isnan(times)
    if not fine.all():
        raise _refused(texts, fine, refuse)
    return times


def _refused(
    texts: Sequence[str], fine: NDArray[np.bool_], refuse: Callable[[int, str], InputError]
) -> InputError:
    at = int(np.argmin(fine))
    return refuse(at, f"{_RULE}, got {shown(texts[at])}")
