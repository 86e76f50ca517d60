"""Axes and paths of drawings in pages: plain SVG that stretches with the page.

A plot is ``SIDE`` units wide and high whatever its size on the screen; y grows downwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

SIDE: Final = 1000
"""Width and height of a plot in its own units."""

MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0
DAY_S: Final = 86400.0

_UNITS: Final = ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min"), (1.0, "s"))
_STEPS: Final = (
    *(s for s in (0.001, 0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0)),
    *(MINUTE_S * m for m in (1, 2, 5, 10, 15, 30)),
    *(HOUR_S * h for h in (1, 2, 3, 6, 12)),
    *(DAY_S * d for d in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)),
)
_LOG_TIMES: Final = (
    *(1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0),
    *(MINUTE_S, 10 * MINUTE_S, HOUR_S, 6 * HOUR_S, DAY_S, 10 * DAY_S, 100 * DAY_S, 1000 * DAY_S),
)
_MORE_LOG_TIMES: Final = (
    *(factor * each for each in _LOG_TIMES[:8] for factor in (2, 3, 5)),
    *(factor * MINUTE_S for factor in (2, 3, 5, 20, 30)),
    *(factor * HOUR_S for factor in (2, 3, 4, 12)),
    *(factor * DAY_S for factor in (2, 3, 5, 20, 50)),
)
_RATIOS: Final = (1.0, 2.0, 5.0, 10.0, 1.5, 3.0, 1.25, 1.75, 1.1, 20.0, 50.0, 100.0, 1000.0)
_MOST_TICKS: Final = 7


@dataclass(frozen=True)
class Axis:
    """What lies where between the two ends of a plot.

    Attributes
    ----------
    low, high : float
        Values at the ends.
    logarithmic : bool
        Whether equal distances are equal ratios.
    ticks : tuple of (float, str)
        Positions from 0 to 100 (per cent) and what is written there.
    """

    low: float
    high: float
    logarithmic: bool
    ticks: tuple[tuple[float, str], ...]

    def at(self, values: FloatArray | float) -> FloatArray:
        """Return positions from 0 to ``SIDE``; what lies outside comes to the nearer end."""
        return SIDE * _part(np.asarray(values, float), self.low, self.high, self.logarithmic)


def time_axis(high_s: float, low_s: float = 0.0) -> Axis:
    """Return a linear axis of time in whole steps of seconds, minutes, hours or days."""
    high_s = max(high_s, low_s + 1e-3)
    step = next((s for s in _STEPS if (high_s - low_s) / s <= _MOST_TICKS), DAY_S * 10000)
    first = math.ceil(low_s / step - 1e-9)
    ticks = [k * step for k in range(first, math.floor(high_s / step + 1e-9) + 1)]
    unit, name = next(each for each in _UNITS if step >= each[0] or each[0] == 1.0)
    labels = [f"{t / unit:g} {name}" if t else "0" for t in ticks]
    return _axis(low_s, high_s, False, ticks, labels)


def log_time_axis(low_s: float, high_s: float, closest: int = 90) -> Axis:
    """Return a logarithmic axis of time between two positive ends.

    ``closest`` is the least distance of two ticks in units of the plot.
    """
    low_s, high_s = low_s / 1.05, high_s * 1.05
    chosen = _spaced((*_LOG_TIMES, *_MORE_LOG_TIMES), low_s, high_s, closest)
    return _axis(low_s, high_s, True, chosen, [short_time(t) for t in chosen])


def ratio_axis(high: float) -> Axis:
    """Return a logarithmic axis of slowdowns from just below 1."""
    low, high = 0.98, max(high, 1.3) * 1.03
    chosen = _spaced(_RATIOS, low, high, 110)
    return _axis(low, high, True, chosen, [f"{t:g}" for t in chosen])


def count_axis(high: float) -> Axis:
    """Return a linear axis of counts from 0 in at most four round steps."""
    high = max(high, 1.0)
    scale = 10 ** math.floor(math.log10(high))
    steps = [part * scale for part in (0.25, 0.5, 1.0, 2.0, 2.5) if part * scale >= 1]
    step = next(s for s in steps if high / s <= 4)
    ticks = [k * step for k in range(math.floor(high / step + 1e-9) + 1)]
    return _axis(0.0, high, False, ticks, [f"{t:,.4g}" for t in ticks])


def part_axis() -> Axis:
    """Return an axis from 0 to 100 per cent."""
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
    return _axis(0.0, 1.0, False, ticks, [f"{100 * t:g} %" for t in ticks])


def short_time(time_s: float) -> str:
    """Return a time in the largest unit in which it is at least 1."""
    if time_s < 1:
        return f"{time_s * 1000:g} ms"
    unit, name = next(each for each in _UNITS if time_s >= each[0])
    return f"{time_s / unit:g} {name}"


def line(x: FloatArray, y: FloatArray) -> str:
    """Return the path through points in units of the plot; y upwards, no points no path."""
    at = [f"{a:.0f} {SIDE - b:.0f}" for a, b in zip(x, y, strict=True)]
    return "M" + "L".join(_without_repeats(at)) if at else ""


def area(x: FloatArray, y: FloatArray) -> str:
    """Return the path around what lies below a line."""
    if not len(x):
        return ""
    return f"{line(x, y)}L{x[-1]:.0f} {SIDE}L{x[0]:.0f} {SIDE}z"


def dots(x: FloatArray, y: FloatArray) -> str:
    """Return strokes of no length, which round or square line caps turn into marks."""
    return "".join(f"M{a:.0f} {SIDE - b:.0f}h0" for a, b in zip(x, y, strict=True))


def stretches(edges: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the corners of a line that is flat between every two edges."""
    return np.repeat(edges, 2)[1:-1], np.repeat(values, 2)


def binned(time_s: FloatArray, values: FloatArray, edges: FloatArray) -> FloatArray:
    """Return the mean over time, in each bin, of what changes at certain moments.

    Parameters
    ----------
    time_s, values : ndarray
        From ``time_s[k]`` to the next moment it is ``values[k]``; 0 before the first.
    edges : ndarray
        Ends of the bins in seconds, growing; from the last moment on the last value lasts.
    """
    if not len(time_s):
        return np.zeros(len(edges) - 1)
    end = max(float(edges[-1]), float(time_s[-1]))
    moments = np.concatenate([[min(0.0, float(time_s[0]))], time_s, [end]])
    steps = np.concatenate([[0.0], values])
    total = np.concatenate([[0.0], np.cumsum(steps * np.diff(moments))])
    summed = np.interp(edges, moments, total)
    means: FloatArray = np.diff(summed) / np.diff(edges)
    return means


def _axis(
    low: float, high: float, logarithmic: bool, ticks: Sequence[float], labels: Iterable[str]
) -> Axis:
    at = 100 * _part(np.asarray(ticks, float), low, high, logarithmic)
    marks = tuple((round(float(a), 2), t) for a, t in zip(at, labels, strict=True))
    return Axis(low, high, logarithmic, marks)


def _part(values: FloatArray, low: float, high: float, logarithmic: bool) -> FloatArray:
    if logarithmic:
        values, low, high = np.log(np.maximum(values, low)), math.log(low), math.log(high)
    return np.clip((values - low) / (high - low), 0.0, 1.0)


def _spaced(wanted: Sequence[float], low: float, high: float, closest: int) -> list[float]:
    """Return those of the wanted ticks that leave room to each other, the first ones first."""
    chosen: list[float] = []
    where: list[float] = []
    for tick in wanted:
        if not low <= tick <= high:
            continue
        at = float(SIDE * _part(np.asarray(tick), low, high, True))
        if all(abs(at - other) >= closest for other in where):
            chosen.append(tick)
            where.append(at)
    return sorted(chosen)


def _without_repeats(points: Sequence[str]) -> list[str]:
    return [p for k, p in enumerate(points) if k == 0 or p != points[k - 1]]
