"""When requests arrive."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def poisson(seed: int, rate: float, end_s: float) -> NDArray[np.float64]:
    """Draw moments of arrival until ``end_s`` with exponential times between them."""
    rng = np.random.default_rng(seed)
    return np.sort(rng.uniform(0, end_s, rng.poisson(rate * end_s)))


def regular(seed: int, rate: float, end_s: float) -> NDArray[np.float64]:
    """Draw arrivals at equal distances, each up to a tenth of the distance too early or late."""
    count = int(rate * end_s)
    late = np.random.default_rng(seed).uniform(-0.1, 0.1, count)
    return np.asarray((np.arange(count) + 0.5 + late) / rate)


def bursts(
    seed: int, rate: float, end_s: float, *, phase_s: float = 0.1, sigma: float = 1.0
) -> NDArray[np.float64]:
    """Draw arrivals in phases whose rates are log-normal: quiet times and bursts.

    This stands for the function traces of Azure (MAF2), of which it has the manner only: it was
    drawn, not read from them.

    Parameters
    ----------
    seed : int
        Of the draw.
    rate : float
        Arrivals a second, on average.
    end_s : float
        When they end.
    phase_s : float
        Mean length of a phase; lengths are exponential.
    sigma : float
        Standard deviation of the logarithm of a phase's rate.
    """
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.exponential(phase_s, math.ceil(4 * end_s / phase_s) + 20))
    ends = np.append(ends[ends < end_s], end_s)
    lengths = np.diff(ends, prepend=0.0)
    weights = lengths * np.exp(sigma * rng.standard_normal(len(ends)))
    counts = rng.multinomial(round(rate * end_s), weights / weights.sum())
    drawn = [
        rng.uniform(end - length, end, count)
        for end, length, count in zip(ends, lengths, counts, strict=True)
    ]
    return np.sort(np.concatenate(drawn))
