"""Numbers scaled and rounded to whole ones."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def whole(values: Floats, most: float) -> tuple[Floats, float]:
    """Return the values scaled to whole numbers of at most ``most``, and the scale.

    The scale is a power of two.
    """
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0:
        return np.zeros(len(values)), 1.0
    scale = 2.0 ** math.floor(math.log2(most / largest))
    return np.round(values * scale), scale


def whole_weights(weights: Floats, most: float) -> tuple[Floats, float]:
    """Return whole numbers in the ratio of the weights, and the scale.

    Exact for decimals, so that sums that are equal stay so. Weights of so many digits that the
    numbers would exceed ``most`` are rounded.
    """
    for digits in range(16):
        scale = 10.0**digits
        nearest = np.round(weights * scale)
        if nearest.max(initial=0.0) > most:
            break
        if (np.abs(weights * scale - nearest) <= 1e-12 * nearest).all():
            return nearest, scale
    return whole(weights, most)


def power_of_two(at_least: float) -> float:
    """Return a power of two, which multiplies without an error; 0 for 0."""
    return 2.0 ** math.ceil(math.log2(at_least)) if at_least > 0 else 0.0
