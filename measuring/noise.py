"""Noise: the deviation between repeats of a setting, which bounds the accuracy of predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log, sqrt
from statistics import fmean, median, stdev

from dovetail.instances._record import Count, Name, NonNegative, Number, Record
from dovetail.measuring.campaign import WorkerSeat
from dovetail.measuring.ledger import by_setting
from dovetail.measuring.results import ExperimentResult


class Scatter(Record):
    """Deviation of one worker's iteration time over the repeats of a setting.

    ``deviation`` is the sample standard deviation over the mean, ``within`` the root mean square of
    the windows' own relative standard errors, which explain a part of it.
    """

    setting: Name
    workload: Name
    repeats: Count
    deviation: NonNegative
    within: NonNegative


class CampaignNoise(Record):
    """Noise of a campaign, relative to iteration times.

    ``pooled`` is the root of the mean variance, weighted by degrees of freedom: the standard
    deviation of one measurement. ``typical`` is the median of the deviations, which is lower for
    few repeats. ``within`` is ``pooled`` as it would be from the windows' own errors alone: if it
    is much smaller, something changes between windows that longer windows do not average out.
    ``drift`` is the geometric mean of the last iteration time over the first, less 1, over
    workloads measured alone more than once.
    """

    settings: Count
    pooled: NonNegative
    typical: NonNegative
    worst: Scatter
    within: NonNegative
    drift: Number | None = None


def noise(results: Iterable[ExperimentResult]) -> CampaignNoise | None:
    """Return the noise between repeats; None if nothing was repeated."""
    settings = by_setting(results)
    found = [
        _scatter(seats, at, repeats)
        for seats, repeats in settings.items()
        if len(repeats) > 1
        for at in range(len(seats))
    ]
    if not found:
        return None
    freedom = [one.repeats - 1 for one in found]
    changes = [
        log(_time_s(repeats[-1], 0) / _time_s(repeats[0], 0))
        for seats, repeats in settings.items()
        if len(seats) == 1 and len(repeats) > 1
    ]
    return CampaignNoise(
        settings=len({one.setting for one in found}),
        pooled=_pooled([one.deviation for one in found], freedom),
        typical=median(one.deviation for one in found),
        worst=max(found, key=lambda one: one.deviation),
        within=_pooled([one.within for one in found], freedom),
        drift=exp(fmean(changes)) - 1 if changes else None,
    )


def _scatter(
    seats: tuple[WorkerSeat, ...], at: int, repeats: Sequence[ExperimentResult]
) -> Scatter:
    times = [_time_s(one, at) for one in repeats]
    return Scatter(
        setting=_setting_text(seats),
        workload=seats[at].workload,
        repeats=len(times),
        deviation=stdev(times) / fmean(times),
        within=sqrt(fmean((one.paces or ())[at].relative_error ** 2 for one in repeats)),
    )


def _time_s(one: ExperimentResult, at: int) -> float:
    return 1 / (one.paces or ())[at].iterations_s


def _setting_text(seats: tuple[WorkerSeat, ...]) -> str:
    """Return a setting in words: ``conv@50 + lstm@50``."""
    text = " + ".join(f"{seat.text}{' (preferred)' if seat.first else ''}" for seat in seats)
    return text if seats[0].mode == "mps" else f"{text}, {seats[0].mode}"


def _pooled(deviations: Sequence[float], freedom: Sequence[int]) -> float:
    squares = sum(k * deviation**2 for k, deviation in zip(freedom, deviations, strict=True))
    return sqrt(squares / sum(freedom))
