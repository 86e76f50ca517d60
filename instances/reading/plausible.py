"""Numbers that cannot be slowdowns: speeds and percentages, one rule for every reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.instances._record import listed
from dovetail.instances.errors import InputError
from dovetail.instances.slowdowns.columns import Slowdowns

_SPEED: Final = 0.95
"""A median below this indicates speeds."""

_PERCENTAGE: Final = 20.0
"""A median above this indicates percentages."""

_LEAST_BY_NOISE: Final = 0.9
"""If no slowdown is above 1, one below this is not measurement noise."""

_RULE: Final = "must be iteration time together / alone"


def require_slowdowns(slowdowns: ArrayLike, path: str, source: str) -> None:
    """Refuse numbers that cannot be slowdowns: half of all jobs do not run faster together.

    One job of a pair may starve (measured with MPS without caps: 50 times slower), and the other
    then runs as if alone; so the lower median is compared with the limit of percentages.

    Raises
    ------
    InputError
        When their median indicates speeds or percentages, or none is above 1 and some are below
        0.9.
    """
    values = np.asarray(slowdowns, dtype=np.float64).ravel()
    if not len(values):
        return
    halves = (len(values) - 1) // 2, len(values) // 2
    low, high = np.partition(values, halves)[[*halves]].tolist()
    if (middle := (low + high) / 2) < _SPEED:
        odd = f"half are at most {middle:.4g}, as speeds are"
    elif low > _PERCENTAGE:
        odd = f"half are at least {low:.4g}, as percentages are"
    elif values.max() <= 1 and (least := float(values.min())) < _LEAST_BY_NOISE:
        odd = f"none is above 1 and the least is {least:.4g}, as speeds are"
    else:
        return
    raise InputError(f"{_RULE}; {odd}", path, source)


def require_entries(known: Slowdowns, source: str) -> None:
    """Refuse implausible slowdowns of an instance from a file, like those of a table of pairs.

    Raises
    ------
    InputError
        As for ``require_slowdowns``, or when all jobs of an entry have percentages.
    """
    may = known.may_share
    values = known.slowdown if may.all() else known.slowdown[may]
    of_sets = [s for entry in known.sets.values() for s in entry.slowdown or ()]
    values = np.append(values, of_sets) if of_sets else values
    require_slowdowns(values, "slowdowns", source)
    for k in _beyond(known, lambda slowdowns: slowdowns.min(axis=-1) > _PERCENTAGE):
        got = listed(map("{:g}".format, known[k].slowdown or ()))
        raise InputError(f"{_RULE}; {got} are percentages", f"slowdowns[{k}].slowdown", source)


def faster_together(known: Slowdowns) -> Iterator[str]:
    """Yield a line for each entry in which all jobs run clearly faster together than alone.

    This is allowed, since caches are shared and measurements are noisy, but likely a mistake.
    """
    for k in _beyond(known, lambda slowdowns: slowdowns.max(axis=-1) < _SPEED):
        got = listed(map("{:g}".format, known[k].slowdown or ()))
        names = " + ".join(known[k].workloads)
        yield f"slowdowns[{k}]: {names} run faster together than alone, by {got}: speeds?"


def _beyond(
    known: Slowdowns, holds: Callable[[NDArray[np.float64]], NDArray[np.bool_] | np.bool_]
) -> list[int]:
    """Return the positions of the entries of whose slowdowns something holds."""
    pairs = known.row[holds(known.slowdown)].tolist()
    sets = (
        k for k, entry in known.sets.items() if entry.slowdown and holds(np.array(entry.slowdown))
    )
    return sorted([*pairs, *sets])
