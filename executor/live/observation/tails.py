"""Tail latencies of a run over a time span, from the histograms that it reports."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final, NamedTuple

from dovetail.executor.pools.pool import Progress
from dovetail.executor.pools.progress_hook.dovetail_progress import BUCKETS, latency_at

LEAST: Final = 500
"""The fewest latencies that give a 99th percentile: five are above it."""

_QUANTILE: Final = 0.99
_MOST_READINGS: Final = 256
_BUCKETS: Final = frozenset(range(BUCKETS))
_at_s = attrgetter("at_s")


class LatencyTail(NamedTuple):
    """The 99th percentile of latencies.

    Attributes
    ----------
    p99_s : float
        In seconds, to within the width of a bucket, 2.2 %.
    least_s : float
        A lower bound on it at two standard deviations.
    """

    p99_s: float
    least_s: float


class _TailReading(NamedTuple):
    at_s: float
    counts: Mapping[int, int]


class Tails:
    """The histograms that a run has reported; the difference of two covers a time span."""

    def __init__(self) -> None:
        self._readings: list[_TailReading] = []

    @property
    def reported(self) -> bool:
        """Whether any latency was reported."""
        return bool(self._readings and self._readings[-1].counts)

    def note(self, at_s: float, ranks: Sequence[Progress | None]) -> None:
        """Add a later report of all ranks of a run.

        It is ignored if a rank reports nothing: that rank's earlier latencies would later seem to
        arrive all at the same time.
        """
        if any(rank is None for rank in ranks):
            return
        counts: Counter[int] = Counter()
        for rank in ranks:
            counts.update(dict(rank.latencies) if rank else {})
        self._readings.append(_TailReading(at_s, counts))
        if len(self._readings) > _MOST_READINGS:
            del self._readings[1:-1:2]

    def clear(self) -> None:
        """Forget all reports, because another process begins to count."""
        self._readings.clear()

    def since(self, since_s: float) -> LatencyTail | None:
        """Return the tail of the latencies reported since then; None if they are too few."""
        first = bisect_left(self._readings, since_s, key=_at_s)
        if first >= len(self._readings):
            return None
        counts = Counter(self._readings[-1].counts)
        counts.subtract(self._readings[first].counts)
        return tail_of(counts)


def tail_of(counts: Mapping[int, int]) -> LatencyTail | None:
    """Return the tail of a histogram; None if it has too few latencies or is invalid.

    The bound holds for any distribution of latencies: the number of n independent latencies below
    the quantile p is binomial, with mean n p and standard deviation sqrt(n p (1 - p)) (Conover,
    Practical Nonparametric Statistics, section 3.2). Within a bucket, latencies are assumed to be
    spread evenly on a logarithmic scale.
    """
    total = sum(counts.values())
    if total < LEAST or min(counts.values()) < 0 or not counts.keys() <= _BUCKETS:
        return None
    rank = _QUANTILE * total
    spread = math.sqrt(rank * (1 - _QUANTILE))
    return LatencyTail(_latency_of_rank(counts, rank), _latency_of_rank(counts, rank - 2 * spread))


def _latency_of_rank(counts: Mapping[int, int], rank: float) -> float:
    buckets = sorted(counts)
    up_to = list(accumulate(counts[bucket] for bucket in buckets))
    k = bisect_left(up_to, rank)
    return latency_at(buckets[k] + 1 - (up_to[k] - rank) / counts[buckets[k]])
