"""Numbers that cannot be slowdowns: speeds and percentages, one rule for every reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median, median_low
from typing import Final

from dovetail.instances._record import listed
from dovetail.instances.errors import InputError
from dovetail.instances.slowdowns.entry import SlowdownEntry

_SPEED: Final = 0.95
"""A median below this indicates speeds."""

_PERCENTAGE: Final = 20.0
"""A median above this indicates percentages."""

_LEAST_BY_NOISE: Final = 0.9
"""If no slowdown is above 1, one below this is not measurement noise."""

_RULE: Final = "must be iteration time together / alone"


def require_slowdowns(slowdowns: Iterable[float], path: str, source: str) -> None:
    """Refuse numbers that cannot be slowdowns: half of all jobs do not run faster together.

    One job of a pair may starve (measured with MPS without caps: 50 times slower), and the other
    then runs as if alone; so the lower median is compared with the limit of percentages.

    Raises
    ------
    InputError
        When their median indicates speeds or percentages, or none is above 1 and some are below
        0.9.
    """
    values = list(slowdowns)
    if not values:
        return
    if (middle := median(values)) < _SPEED:
        odd = f"half are at most {middle:.4g}, as speeds are"
    elif (middle := median_low(values)) > _PERCENTAGE:
        odd = f"half are at least {middle:.4g}, as percentages are"
    elif max(values) <= 1 and min(values) < _LEAST_BY_NOISE:
        odd = f"none is above 1 and the least is {min(values):.4g}, as speeds are"
    else:
        return
    raise InputError(f"{_RULE}; {odd}", path, source)


def require_entries(entries: Sequence[SlowdownEntry], source: str) -> None:
    """Refuse implausible slowdowns of an instance from a file, like those of a table of pairs.

    Raises
    ------
    InputError
        As for ``require_slowdowns``, or when all jobs of an entry have percentages.
    """
    require_slowdowns((s for e in entries for s in e.slowdown or ()), "slowdowns", source)
    for k, entry in enumerate(entries):
        if entry.slowdown and min(entry.slowdown) > _PERCENTAGE:
            got = listed(map("{:g}".format, entry.slowdown))
            raise InputError(f"{_RULE}; {got} are percentages", f"slowdowns[{k}].slowdown", source)


def faster_together(entries: Sequence[SlowdownEntry]) -> Iterator[str]:
    """Yield a line for each entry in which all jobs run clearly faster together than alone.

    This is allowed, since caches are shared and measurements are noisy, but likely a mistake.
    """
    for k, entry in enumerate(entries):
        if entry.slowdown and max(entry.slowdown) < _SPEED:
            got = listed(map("{:g}".format, entry.slowdown))
            names = " + ".join(entry.workloads)
            yield f"slowdowns[{k}]: {names} run faster together than alone, by {got}: speeds?"
