"""How far repeats of one experiment lie apart: what no prediction can be better than."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log, sqrt
from statistics import fmean, median, stdev

from pydantic import Field

from dovetail.executor.measuring.ledger import by_setting, standing
from dovetail.executor.measuring.records import Result, Seat, Throughput
from dovetail.instances._record import Count, Name, NonNegative, Number, Record


class Scatter(Record):
    """The scatter of one worker's iteration time over the repeats of one setting.

    ``deviation`` is the standard deviation (of a sample) over the mean; ``within`` the root of
    the mean square of the windows' own relative standard errors, which explain a part of it.
    """

    setting: Name
    workload: Name
    repeats: Count
    deviation: NonNegative
    within: NonNegative


class Noise(Record):
    """The noise floor of a campaign, in parts of an iteration time.

    ``pooled`` is the root of the mean variance, each weighted by its degrees of freedom: what one
    measurement scatters by. ``typical`` is the median of the deviations, which of few repeats
    lies below. ``within`` is what the windows by themselves would make ``pooled``: where it is
    much smaller, something changes between windows that longer windows do not help against.
    ``drift`` is the geometric mean, over workloads measured alone more than once, of the last
    iteration time over the first, less 1; absent where there is none.
    """

    settings: Count
    pooled: NonNegative
    typical: NonNegative
    worst: Scatter
    within: NonNegative
    drift: Number | None = Field(None)


def noise(results: Iterable[Result]) -> Noise | None:
    """Return how repeats scatter, None where nothing was repeated."""
    found = scatters(results)
    if not found:
        return None
    freedom = [one.repeats - 1 for one in found]
    return Noise(
        settings=len({one.setting for one in found}),
        pooled=_pooled([one.deviation for one in found], freedom),
        typical=median(one.deviation for one in found),
        worst=max(found, key=lambda one: one.deviation),
        within=_pooled([one.within for one in found], freedom),
        drift=_drift(results),
    )


def scatters(results: Iterable[Result]) -> tuple[Scatter, ...]:
    """Return the scatter of every worker whose setting was measured soundly more than once."""
    return tuple(
        _scatter(seats, at, repeats)
        for seats, repeats in _paces(results).items()
        if len(repeats) > 1
        for at in range(len(seats))
    )


def _paces(results: Iterable[Result]) -> dict[tuple[Seat, ...], list[tuple[Throughput, ...]]]:
    """Return what was soundly measured of each setting, in the order of time."""
    in_time = sorted(standing(results).values(), key=lambda one: one.date)
    return {
        seats: [one.paces for one in repeats if one.paces]
        for seats, repeats in by_setting(in_time).items()
    }


def _scatter(
    seats: tuple[Seat, ...], at: int, repeats: Sequence[tuple[Throughput, ...]]
) -> Scatter:
    times = [1 / paces[at].iterations_s for paces in repeats]
    return Scatter(
        setting=setting_told(seats),
        workload=seats[at].workload,
        repeats=len(times),
        deviation=stdev(times) / fmean(times),
        within=sqrt(fmean(paces[at].relative_error ** 2 for paces in repeats)),
    )


def setting_told(seats: tuple[Seat, ...]) -> str:
    """Return who ran and how, for people: ``conv@50 + lstm@50``."""
    told = " + ".join(
        f"{seat.workload}{'' if seat.share is None else f'@{seat.share}'}"
        f"{' (preferred)' if seat.first else ''}"
        for seat in seats
    )
    return f"{told}, time-sliced" if seats[0].mode == "time-sliced" else told


def _pooled(deviations: Sequence[float], freedom: Sequence[int]) -> float:
    squares = sum(k * deviation**2 for k, deviation in zip(freedom, deviations, strict=True))
    return sqrt(squares / sum(freedom))


def _drift(results: Iterable[Result]) -> float | None:
    """Return by what part iterations took longer alone at the end than at the beginning."""
    changes = [
        log(repeats[0][0].iterations_s / repeats[-1][0].iterations_s)
        for seats, repeats in _paces(results).items()
        if len(seats) == 1 and len(repeats) > 1
    ]
    return exp(fmean(changes)) - 1 if changes else None
