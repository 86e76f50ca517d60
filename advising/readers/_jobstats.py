"""The summaries that jobstats leaves in a job's comment: ``JS1:`` and base64 of gzip of JSON.

Source: jobstats of Princeton University, which writes for each GPU of each node the mean of its
utilisation in per cent, and the largest used and the total memory in bytes, over the job's time.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

PREFIX: Final = "JS1:"
_EMPTY: Final = ("", "Short", "None")
_MOST_BYTES: Final = 1 << 20
_MOST_OF_ALL_BYTES: Final = 1 << 28
_MIB: Final = 1 << 20
_NUMBER: Final = (int, float)
_PERCENT: Final = 100.0
_MOST_MEMORY: Final = 1e15
_FIELDS: Final = ("gpu_utilization", "gpu_used_memory", "gpu_total_memory")


class JobSummary(NamedTuple):
    """What a summary tells of a job's GPUs; NaN if it does not.

    Attributes
    ----------
    gpu_util_mean : float
        The mean over time and GPUs, a fraction.
    memory_max_mib : float
        The most memory that was used on a GPU.
    card_mib : float
        The memory of that GPU.
    """

    gpu_util_mean: float = math.nan
    memory_max_mib: float = math.nan
    card_mib: float = math.nan


NOTHING: Final = JobSummary()


class Summaries:
    """Reads summaries, which are not trusted: what unpacks to too much counts as unreadable.

    Attributes
    ----------
    unreadable : int
        How many could not be read.
    """

    def __init__(self) -> None:
        self.unreadable = 0
        self._left_bytes = _MOST_OF_ALL_BYTES

    def read(self, comment: str) -> JobSummary:
        """Return what a comment that begins with ``PREFIX`` tells, nothing if it cannot be read."""
        packed = comment.removeprefix(PREFIX).strip()
        if packed in _EMPTY:
            return NOTHING
        try:
            return _summary(json.loads(self._unpacked(packed)))
        except (ValueError, RecursionError, zlib.error):
            self.unreadable += 1
            return NOTHING

    def _unpacked(self, packed: str) -> bytes:
        """Return the JSON, which may be plain; raise ``ValueError`` if it is too long."""
        if packed.startswith("{"):
            return packed.encode()
        most = min(_MOST_BYTES, self._left_bytes)
        if most <= 0:
            raise ValueError
        stream = zlib.decompressobj(wbits=31)
        content = stream.decompress(base64.b64decode(packed, validate=True), most)
        self._left_bytes -= len(content)
        if not stream.eof:
            raise ValueError
        return content


def _summary(data: object) -> JobSummary:
    percents: list[float] = []
    memories: list[tuple[float, float]] = []
    for node in _mapping(_mapping(data).get("nodes")).values():
        util, used, total = (_mapping(_mapping(node).get(field)) for field in _FIELDS)
        percents += _amounts(util.values(), _PERCENT)
        memories += zip(
            _amounts(used.values(), _MOST_MEMORY),
            _amounts((total.get(gpu, 0) for gpu in used), _MOST_MEMORY),
            strict=True,
        )
    used_bytes, card_bytes = max(memories, default=(math.nan, math.nan))
    known = percents and len(percents) >= len(memories)
    mean = sum(percents) / len(percents) / _PERCENT if known else math.nan
    return JobSummary(mean, used_bytes / _MIB, card_bytes / _MIB or math.nan)


def _mapping(value: object) -> Mapping[str, object]:
    """Return an object of JSON, empty if it is missing."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004
    return value


def _amounts(values: Iterable[object], most: float) -> list[float]:
    """Return numbers from 0 to ``most``; raise ``ValueError`` for others."""
    found = []
    for value in values:
        if not isinstance(value, _NUMBER) or not 0 <= value <= most:
            raise ValueError
        found.append(float(value))
    return found
