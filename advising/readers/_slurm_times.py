"""Times in Slurm's tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.readers._frames import mapped, numbers, require
from dovetail.advising.readers._slurm import seconds_of
from dovetail.instances.importers._tres import UNKNOWN

if TYPE_CHECKING:
    import pandas as pd

LASTS: Final = ("End", "ElapsedRaw", "Elapsed")
"""Columns of which one says when a job or a step ended."""

_LATEST_S: Final = 1e11
_LOCAL: Final = re.compile(r"[0-9-]+T[0-9:.]+")


def moments(column: pd.Series[str], source: str) -> NDArray[np.float64]:
    """Return times in seconds since 1970, NaN if unknown; those without a zone are taken as UTC.

    Raises
    ------
    InputError
        For the first other text.
    """
    import pandas as pd

    place, each = pd.factorize(column)
    texts = pd.Series(each, dtype=object)
    epoch = texts.str.fullmatch(r"[0-9]{1,11}").to_numpy(bool)
    given = texts.where(~texts.isin(UNKNOWN) & ~epoch, None)
    times = pd.to_datetime(given, format="ISO8601", utc=True, errors="coerce")
    since_s = np.array((times - pd.Timestamp(0, tz="UTC")).dt.total_seconds(), np.float64)
    since_s[epoch] = texts[epoch].astype(np.float64)
    fine = (given.isna().to_numpy() & ~epoch) | (np.abs(since_s) < _LATEST_S)
    require(column, fine[place], "must be a time like 2026-08-11T14:36:24", source)
    return np.asarray(since_s[place], np.float64)


def ends(frame: pd.DataFrame, start_s: NDArray[np.float64], source: str) -> NDArray[np.float64]:
    """Return when each row ended: by its run time if ``End`` is unknown or before the start.

    A local time may be before the start when clocks were put back.
    """
    end_s = moments(frame["End"], source) if "End" in frame else np.full(len(frame), np.nan)
    return np.where(end_s >= start_s, end_s, start_s + _lasted_s(frame, source))


def _lasted_s(frame: pd.DataFrame, source: str) -> NDArray[np.float64]:
    if "ElapsedRaw" in frame:
        return numbers(frame["ElapsedRaw"], source, most=_LATEST_S)
    if "Elapsed" in frame:
        durations = mapped(frame["Elapsed"], _duration_s, source)
        return np.array(frame["Elapsed"].map(durations), np.float64)
    return np.full(len(frame), np.nan)


def _duration_s(text: str) -> float:
    return np.nan if text in UNKNOWN else seconds_of(text)


def without_zone(column: pd.Series[str]) -> int:
    """Return how many times have no zone, if others of the column have one."""
    counts = column[~column.isin(UNKNOWN)].value_counts()
    local = np.array([_LOCAL.fullmatch(text) is not None for text in counts.index], bool)
    return 0 if local.all() else int(counts[local].sum())
