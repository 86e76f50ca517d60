"""Iteration rates from readings of a counter, and how far they can be trusted."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from statistics import median, stdev
from typing import Final, NamedTuple

PIECES: Final = 8
"""A stretch of time is cut into so many pieces of about equal length."""

_LEAST_PIECES: Final = 4
_MEDIAN_OVER_MEAN: Final = math.sqrt(math.pi / 2)
_at_s = attrgetter("at_s")


class Sample(NamedTuple):
    """A counter was at ``iterations`` when the last of them ended at ``at_s``."""

    at_s: float
    iterations: float


class Rate(NamedTuple):
    """Iterations per second over a stretch of time.

    Attributes
    ----------
    per_s : float
        The median over the pieces, which a pause (an evaluation, a checkpoint) does not move.
    noise : float
        Standard error of ``per_s`` relative to it; infinite if there are too few pieces.
    drift : float
        The median of the second half over that of the first, less 1; infinite likewise.
    iterations, seconds : float
        What was counted, and how long that took.
    """

    per_s: float
    noise: float
    drift: float
    iterations: float
    seconds: float


def rate_of(samples: Sequence[Sample], since_s: float) -> Rate | None:
    """Return the rate over the samples from ``since_s`` on; None where they show none.

    The noise is the standard error of a median of independent pieces (batch means: Law and
    Kelton, Simulation Modeling and Analysis), ``sqrt(pi / 2) s / sqrt(n)`` for normal ones.

    Parameters
    ----------
    samples : sequence of Sample
        In order of time, no two of one time.
    since_s : float
        What came before does not count.
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
    """Return the samples between which pieces lie: the first at or after each equal step.

    Where iterations are longer than a step, there are fewer pieces.
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
