"""Iteration rates from readings of a counter, and their noise."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from statistics import median, stdev
from typing import Final, NamedTuple

PIECES: Final = 8
"""Number of pieces of about equal length into which a time span is cut."""

_LEAST_PIECES: Final = 4
_MEDIAN_OVER_MEAN: Final = math.sqrt(math.pi / 2)
_at_s = attrgetter("at_s")


class Sample(NamedTuple):
    """A reading: ``iterations`` had been counted when the last of them ended at ``at_s``."""

    at_s: float
    iterations: float


class Rate(NamedTuple):
    """Iterations per second over a time span.

    Attributes
    ----------
    per_s : float
        The median over the pieces, which pauses (an evaluation, a checkpoint) do not change.
    noise : float
        Relative standard error of ``per_s``; infinite if there are too few pieces.
    drift : float
        The median of the second half over the median of the first, less 1; infinite if there are
        too few pieces.
    iterations, seconds : float
        Number of counted iterations, and the time they took.
    """

    per_s: float
    noise: float
    drift: float
    iterations: float
    seconds: float


def rate_of(samples: Sequence[Sample], since_s: float) -> Rate | None:
    """Return the rate over the samples from ``since_s`` on; None if they show no progress.

    The noise is the standard error of a median of independent pieces (batch means: Law and
    Kelton, Simulation Modeling and Analysis), ``sqrt(pi / 2) s / sqrt(n)`` for a normal
    distribution.

    Parameters
    ----------
    samples : sequence of Sample
        Samples in strict order of time.
    since_s : float
        Earlier samples are ignored.
    """
    ends = _ends(samples, since_s)
    rates = [
        (after.iterations - before.iterations) / (after.at_s - before.at_s)
        for before, after in pairwise(ends)
    ]
    if not rates or median(rates) <= 0:
        return None
    whole = Sample(ends[-1].at_s - ends[0].at_s, ends[-1].iterations - ends[0].iterations)
    return Rate(median(rates), _noise(rates), _drift(rates), whole.iterations, whole.at_s)


def _ends(samples: Sequence[Sample], since_s: float) -> list[Sample]:
    """Return the samples that delimit the pieces: the first at or after each of equal steps.

    If iterations are longer than a step, there are fewer pieces.
    """
    first, last = bisect_left(samples, since_s, key=_at_s), len(samples) - 1
    if first >= last:
        return []
    begin_s, length_s = samples[first].at_s, samples[last].at_s - samples[first].at_s
    steps = (begin_s + length_s * k / PIECES for k in range(1, PIECES))
    inner = {bisect_left(samples, step_s, first + 1, last, key=_at_s) for step_s in steps}
    return [samples[k] for k in sorted({first, last} | inner)]


def _noise(rates: Sequence[float]) -> float:
    if len(rates) < _LEAST_PIECES:
        return math.inf
    return _MEDIAN_OVER_MEAN * stdev(rates) / math.sqrt(len(rates)) / median(rates)


def _drift(rates: Sequence[float]) -> float:
    half = len(rates) // 2
    if len(rates) < _LEAST_PIECES or median(rates[:half]) <= 0:
        return math.inf
    return median(rates[-half:]) / median(rates[:half]) - 1
