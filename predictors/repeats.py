"""How far repeated measurements of one thing lie apart: their mean, and a bound of the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import harmonic_mean
from typing import Final, NamedTuple

SPREAD: Final = 0.05
"""The spread of repeated measurements of a pair that is expected before any is seen."""

WORTH: Final = 5
"""How many measurements that expectation is worth."""


class Repeats(NamedTuple):
    """The mean of repeated measurements, what the next one stays below, and their number."""

    mean: float
    upper: float
    repeats: int


def repeats_of(slowdowns: Sequence[float], confidence: float = 0.9) -> Repeats:
    """Return the mean of repeated measurements, and what the next one stays below.

    The mean is that of the speeds. Repeats are modelled as draws from a normal distribution whose
    variance has a conjugate prior, as in ``predictors.memory``: the spread is expected to be
    ``SPREAD`` of the mean, which counts as much as ``WORTH`` measurements. The next one then
    follows Student's t distribution. One failure (NaN) is never forgotten.

    Parameters
    ----------
    slowdowns : sequence of float
        As measured, at least one.
    confidence : float
        With which the next one stays below, in (0, 1).
    """
    count = len(slowdowns)
    if any(math.isnan(slowdown) for slowdown in slowdowns):
        return Repeats(math.nan, math.nan, count)
    mean = harmonic_mean(slowdowns)
    freedom = WORTH + count - 1
    squares = WORTH * (SPREAD * mean) ** 2 + sum((x - mean) ** 2 for x in slowdowns)
    scale = math.sqrt(squares / freedom * (1 + 1 / count))
    return Repeats(mean, mean + scale * _quantile(freedom, confidence), count)


@lru_cache(maxsize=1024)
def _quantile(freedom: int, confidence: float) -> float:
    # Here, since it takes a service a fifth of a second to load.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, confidence))
