"""The figures of simulated runs, each in a unit that suits it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from dovetail.executor.simulation.metrics import METRICS
from dovetail.toolkit.wording import NO_FIGURE

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0

_MOST_WRITTEN_OUT: Final = 1e9
_MOST_OF_A_UNIT: Final = ((90.0, 1.0, "s"), (90.0, MINUTE_S, "min"), (72.0, HOUR_S, "h"))
_STATISTICS: Final = {"p50": "median"}


def label(name: str) -> str:
    """Return the name of a metric for readers, the statistic first: ``mean JCT``."""
    thing, _, statistic = METRICS[name].label.partition(", ")
    return f"{_STATISTICS.get(statistic, statistic)} {thing}".strip()


def time_unit(time_s: float) -> tuple[float, str]:
    """Return the seconds and the name of a unit that suits a time."""
    if 0 < time_s < 1:
        return (1e-3, "ms") if time_s >= 1e-3 else (1e-6, "µs")
    fitting = (u for u in _MOST_OF_A_UNIT if time_s < u[0] * u[1])
    _, unit, name = next(fitting, (0.0, DAY_S, "d"))
    return unit, name


def duration(time_s: float) -> str:
    """Return a time with its unit and three digits."""
    if not math.isfinite(time_s):
        return NO_FIGURE
    unit, name = time_unit(time_s)
    return f"{three_digits(time_s / unit)} {name}"


def scale(name: str, values: Sequence[float]) -> tuple[float, str]:
    """Return the size and the name of a unit of a metric that suits these values."""
    unit = METRICS[name].unit
    if unit == "s":
        known = [value for value in values if math.isfinite(value) and value > 0]
        return time_unit(median(known) if known else 0.0)
    return {"part": (0.01, "%"), "number": (1.0, "")}.get(unit, (1.0, unit))


def measured(name: str, value: float) -> str:
    """Return a metric's value with its unit."""
    if not math.isfinite(value):
        return NO_FIGURE
    if METRICS[name].unit == "number" and value == int(value) and value < _MOST_WRITTEN_OUT:
        return f"{value:,.0f}"
    size, unit = scale(name, [value])
    return f"{three_digits(value / size)} {unit}".strip()


def three_digits(value: float) -> str:
    """Return a figure with three significant digits, whole from 100 on, one if small."""
    if not math.isfinite(value):
        return NO_FIGURE
    if value == 0:
        return "0"
    if abs(value) < 0.001:
        return f"{value:.1g}"
    if abs(value) >= _MOST_WRITTEN_OUT:
        return f"{value:.2e}"
    value = float(f"{value:.3g}") if abs(value) < 100 else value
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def digits(values: Sequence[float]) -> int:
    """Return the decimals of a column: three significant digits at the median, 0 for integers."""
    known = [abs(value) for value in values if math.isfinite(value) and value]
    if all(value.is_integer() for value in known):
        return 0
    return max(0, min(4, 2 - math.floor(math.log10(median(known)))))


def fixed(value: float, digits: int) -> str:
    """Return a figure with ``digits`` decimals."""
    if not math.isfinite(value):
        return NO_FIGURE
    return f"{value:,.{digits}f}" if abs(value) < _MOST_WRITTEN_OUT else f"{value:.2e}"
