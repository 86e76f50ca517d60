"""The mean of repeated measurements of a pair, and an upper bound of the next one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import harmonic_mean
from typing import Final, NamedTuple

SPREAD: Final = 0.05
"""The prior spread of repeated measurements of a pair, relative to their mean."""

WORTH: Final = 5
"""How many measurements the prior is worth."""


class Repeats(NamedTuple):
    """The mean of repeated measurements, an upper bound of the next one, and their number."""

    mean: float
    upper: float
    repeats: int


def repeats_of(slowdowns: Sequence[float], confidence: float = 0.9) -> Repeats:
    """Return the mean of repeated measurements, and an upper bound of the next one.

    The mean is harmonic: the mean of the rates. Repeats are modelled as draws from a normal
    distribution whose variance has a conjugate prior, as in ``predictors.memory``: the expected
    spread is ``SPREAD`` of the mean, worth ``WORTH`` measurements. The next measurement then
    follows Student's t distribution. A single failure (NaN) makes the result NaN.

    Parameters
    ----------
    slowdowns : sequence of float
        The measured slowdowns, at least one.
    confidence : float
        The probability that the next one stays below the bound, in (0, 1).
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
