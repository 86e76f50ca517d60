"""Repeated measurements: their mean, an upper bound of the next one, and the table of all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import fmean, harmonic_mean
from typing import Final, NamedTuple

import numpy as np

from dovetail.instances._record import IDLE, AnyShare
from dovetail.instances.datasets.records import Measurement
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import SharingMode, SlowdownEntry
from dovetail.instances.slowdowns.shares import share_code
from dovetail.predictors.predictor import IntArray

SPREAD: Final = 0.05
"""The prior spread of repeated measurements of a pair, relative to their mean."""

_Member = tuple[str, AnyShare]
"""A workload and its share."""

_Colocation = tuple[SharingMode, str, tuple[_Member, ...]]
"""How members share a GPU, its model, and the members in order."""

WORTH: Final = 5
"""How many measurements the prior is worth."""

_MOST: Final = 1e15
"""The largest figure of an entry; the bound of measurements below it may exceed it."""


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
    return Repeats(mean, mean + scale * t_quantile(freedom, confidence), count)


@lru_cache(maxsize=1024)
def t_quantile(freedom: int, confidence: float) -> float:
    """Return a quantile of Student's t distribution."""
    # Here, since it takes a service a fifth of a second to load.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, confidence))


def measured_slowdowns(
    measurements: Iterable[Measurement], confidence: float = 0.9
) -> tuple[Slowdowns, IntArray]:
    """Return what was measured of workloads that shared a GPU: each pair and each set once.

    Slowdowns and p99s have the mean and the bound of ``repeats_of``; of p99s, only the bound is in
    the table. A set has p99s if all its measurements have. A power is the mean. Workloads that were
    all at ``idle`` are left out, as nothing ran whose idle time they used.

    Returns
    -------
    measured : Slowdowns
        The pairs and sets, by the mode in which they shared.
    times : (n,) int
        How often each pair was measured; twice for each measurement of equal jobs.
    """
    repeated: dict[_Colocation, list[Measurement]] = {}
    for one in measurements:
        if all(share == IDLE for share in one.shares):
            continue
        members = sorted(zip(one.workloads, one.shares, strict=True), key=_member_order)
        repeated.setdefault((one.mode, one.gpu_model, tuple(members)), []).append(one)
    found = {where: _figures(where[2], same, confidence) for where, same in repeated.items()}
    measured = Slowdowns.of([_entry(*where, figures) for where, figures in found.items()])
    pairs = [figures for (*_, members), figures in found.items() if len(members) == 2]
    # An entry has no p99 of one job only, and neither p99 nor power if they failed to run once.
    p99 = np.array([figures.p99 for figures in pairs]).reshape(-1, 2)
    power_w = np.array([figures.power_w for figures in pairs], dtype=np.float64)
    times = np.array([figures.slowdown[0].repeats for figures in pairs], dtype=np.int64)
    return replace(measured, p99=p99, power_w=power_w), times


class _Figures(NamedTuple):
    """The figures of workloads together: of each member, and the power; NaN if unknown.

    ``tails``: whether each measurement of each member has its p99.
    """

    slowdown: Sequence[Repeats]
    p99: Sequence[float]
    tails: bool
    power_w: float


def _member_order(member: _Member) -> tuple[str, int]:
    return member[0], share_code(member[1])


def _figures(
    members: Sequence[_Member], repeated: Sequence[Measurement], confidence: float
) -> _Figures:
    """Return the figures of workloads together; equal members have equal figures."""
    slowdowns: dict[_Member, list[float]] = {member: [] for member in members}
    tails: dict[_Member, list[float]] = {member: [] for member in members}
    for one in repeated:
        for k, member in enumerate(zip(one.workloads, one.shares, strict=True)):
            slowdowns[member].append(one.slowdown[k] if one.slowdown else math.nan)
            if one.p99 and (tail := one.p99[k]) is not None:
                tails[member].append(tail)
    powers = [one.power_w for one in repeated if one.power_w is not None]
    return _Figures(
        [repeats_of(slowdowns[member], confidence) for member in members],
        [repeats_of(found, confidence).upper if (found := tails[m]) else math.nan for m in members],
        all(len(tails[member]) == len(slowdowns[member]) for member in members),
        fmean(powers) if powers else math.nan,
    )


def _entry(
    mode: SharingMode, gpu_model: str, members: Sequence[_Member], figures: _Figures
) -> SlowdownEntry:
    together = not any(math.isnan(each.mean) for each in figures.slowdown)
    names, pair = tuple(name for name, _ in members), len(members) == 2
    return SlowdownEntry(
        pair=names if pair else None,
        set=None if pair else names,
        share=tuple(share for _, share in members),
        slowdown=tuple(each.mean for each in figures.slowdown) if together else None,
        upper=tuple(min(each.upper, _MOST) for each in figures.slowdown) if together else None,
        p99=tuple(min(tail, _MOST) for tail in figures.p99) if together and figures.tails else None,
        gpu_model=gpu_model,
        source="measured",
        mode=mode,
    )
