"""Scaling and rounding to whole numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dovetail.formulations.arrays import Floats

_EXACT = 2.0**53
"""Whole numbers up to here are exact as floats."""


class IntegerWeights(NamedTuple):
    """Weights as whole numbers.

    Attributes
    ----------
    numbers : (n,) float
        The whole numbers.
    scale : float
        The factor on the weights.
    rounding : float
        The largest rounding error of a difference between two sums of the numbers.
    """

    numbers: Floats
    scale: float
    rounding: float


def integer_scale(values: Floats, most: float) -> float:
    """Return the largest power of two that keeps all values within ``most``; 1 for no values."""
    largest = float(np.abs(values).max(initial=0.0))
    return 2.0 ** min(1023, math.floor(math.log2(most) - math.log2(largest))) if largest else 1.0


def integer_weights(weights: Floats, most: float) -> IntegerWeights:
    """Return whole numbers of at most ``most`` in the ratio of the weights.

    The numbers are exact for decimals, so that equal sums stay equal. Weights with too many digits
    for ``most`` are rounded.
    """
    for digits in range(16):
        scale = 10.0**digits
        nearest = np.round(weights * scale)
        if nearest.max(initial=0.0) > _EXACT:
            break
        if (np.abs(weights * scale - nearest) <= 1e-15 * nearest).all():
            unit = float(np.gcd.reduce(nearest.astype(np.int64))) or 1.0
            if nearest.max(initial=0.0) <= unit * most:
                return IntegerWeights(nearest / unit, scale / unit, 0.0)
            break
    scale = integer_scale(weights, most)
    numbers = np.round(weights * scale)
    return IntegerWeights(numbers, scale, float(np.abs(weights * scale - numbers).sum()))


def power_of_two(at_least: float) -> float:
    """Return a power of two, by which multiplication is exact; 0 for 0."""
    return 2.0 ** math.ceil(math.log2(at_least)) if at_least > 0 else 0.0
