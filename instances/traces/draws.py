"""Random workloads and gSLAs for traces that lack them.

The draw for a job depends on the seed and on its position in the trace, and not on the values of
other jobs; workloads and gSLAs come from separate streams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.instances._record import shown
from dovetail.instances.errors import InputError
from dovetail.instances.traces._streams import stream
from dovetail.instances.traces.trace import Trace, missing

_Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


def with_workloads(
    trace: Trace, names: Sequence[str], seed: int, weights: Sequence[float] | None = None
) -> Trace:
    """Return the trace with a workload drawn for each job that has none.

    Parameters
    ----------
    trace : Trace
        Jobs that name a workload keep it.
    names : sequence of str
        The workloads to draw from.
    seed : int
        Of the draw, >= 0.
    weights : sequence of float, optional
        Relative frequency of each name; by default all are equal.

    Raises
    ------
    InputError
        When there is nothing to draw from, or the weights do not fit.
    """
    if not names:
        raise InputError("must name at least one workload", "workloads")
    odds = None if weights is None else _odds(names, weights)
    drawn = stream(seed, "workload").choice(len(names), len(trace), p=odds)
    own = trace.columns.workload
    found = np.array(names, dtype=object)[drawn]
    return trace.altered(workload=np.where(missing(own), found, own))


def _odds(names: Sequence[str], weights: Sequence[float]) -> NDArray[np.float64]:
    odds = np.array(weights, dtype=np.float64)
    if odds.shape != (len(names),) or not (np.isfinite(odds) & (odds >= 0)).all() or not odds.any():
        rule = f"must be {len(names)} finite numbers >= 0, not all 0"
        raise InputError(rule, "workload weights")
    odds /= odds.sum()
    return odds


def with_gslas(trace: Trace, spec: str, seed: int) -> Trace:
    """Return the trace with a gSLA drawn for each job that has none.

    Parameters
    ----------
    trace : Trace
        Jobs that have a gSLA keep it.
    spec : str
        ``none`` (nothing is drawn), ``fixed:1.5``, ``uniform:1:2`` (from 1 to 2) or
        ``choice:1.2,1.5,2`` (one of these); with ``@PART`` appended, a job gets one only with
        probability ``PART``: ``uniform:1:2@0.5``.
    seed : int
        Of the draw, >= 0.

    Raises
    ------
    InputError
        When the text has another form.
    """
    if spec == "none":
        return trace
    parsed = _Spec.of(spec)
    values = parsed.draw(stream(seed, "gsla"), len(trace))
    gets = stream(seed, "gsla part").random(len(trace)) < parsed.part
    own = trace.columns.gsla
    return trace.altered(gsla=np.where(gets & np.isnan(own), values, own))


class _Spec(NamedTuple):
    """The distribution of gSLAs, and the fraction of the jobs that get one."""

    draw: _Draw
    part: float

    @classmethod
    def of(cls, text: str) -> _Spec:
        what, at, part = text.partition("@")
        kind, _, rest = what.partition(":")
        draw = _DRAWS[kind](rest) if kind in _DRAWS else None
        odds = _numbers(part, "@") if at else [1.0]
        if draw is None or len(odds) != 1 or not 0 <= odds[0] <= 1:
            forms = "none, fixed:1.5, uniform:1:2, choice:1.2,1.5,2 (>= 1; @0.5 for a part)"
            raise InputError(f"must be like one of {forms}, got {shown(text)}", "gsla")
        return cls(draw, odds[0])


def _fixed(text: str) -> _Draw | None:
    values = _gslas(text, ":")
    return None if len(values) != 1 else lambda draw, count: np.full(count, values[0])


def _uniform(text: str) -> _Draw | None:
    ends = _gslas(text, ":")
    if len(ends) != 2 or ends[0] > ends[1]:
        return None
    return lambda draw, count: draw.uniform(ends[0], ends[1], count)


def _choice(text: str) -> _Draw | None:
    values = _gslas(text, ",")
    return None if not values else lambda draw, count: draw.choice(values, count)


_DRAWS: dict[str, Callable[[str], _Draw | None]] = {
    "fixed": _fixed,
    "uniform": _uniform,
    "choice": _choice,
}


def _gslas(text: str, separator: str) -> list[float]:
    """Return the numbers of a text, or none if one of them is not a gSLA."""
    numbers = _numbers(text, separator)
    return numbers if all(1 <= number < math.inf for number in numbers) else []


def _numbers(text: str, separator: str) -> list[float]:
    try:
        return [float(part) for part in text.split(separator)]
    except ValueError:
        return []
