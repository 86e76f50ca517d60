"""Parts and variants of a trace. Each function returns a new one; arrivals keep their times.

Raises: every function raises ``InputError`` when an argument is out of its range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from dovetail.instances._record import listed, shown
from dovetail.instances.errors import InputError
from dovetail.instances.traces._streams import stream
from dovetail.instances.traces.trace import NODE_RULES, Trace


def window(trace: Trace, from_s: float, to_s: float) -> Trace:
    """Return the jobs that arrive at ``from_s`` or later and before ``to_s``."""
    if not 0 <= from_s < to_s:
        raise InputError(f"must be 0 <= from < to, got {from_s:.15g} and {to_s:.15g}", "window")
    arrival_s = trace.columns.arrival_s
    return trace.take((from_s <= arrival_s) & (arrival_s < to_s))


def busiest(trace: Trace, jobs: int) -> Trace:
    """Return the ``jobs`` consecutive arrivals that offer the largest load.

    The load is their GPU seconds divided by the time from the first of them to the last. Between
    equal loads (infinite if all arrive at the same time) the larger demand is preferred, then the
    earlier arrival.
    """
    _check_count(trace, jobs, "busiest")
    arrival_s = trace.columns.arrival_s
    demand = trace.columns.workers * trace.columns.duration_s
    before = np.concatenate([[0.0], np.cumsum(demand)])
    gpu_s = before[jobs:] - before[:-jobs]
    span_s = arrival_s[jobs - 1 :] - arrival_s[: len(arrival_s) - jobs + 1]
    load = np.divide(gpu_s, span_s, out=np.full_like(gpu_s, math.inf), where=span_s > 0)
    start = int(np.lexsort((np.arange(len(load)), -gpu_s, -load))[0])
    return trace.take(slice(start, start + jobs))


def busiest_period(trace: Trace, length_s: float) -> Trace:
    """Return the jobs of the period of ``length_s`` with the most arrivals, the first in a tie.

    A period begins with an arrival and ends before ``length_s`` have passed. Pollux (OSDI 2021,
    section 5.1) and later papers sample the jobs of the busiest eight hours.
    """
    _check_above_0(length_s, "busiest_period")
    if not len(trace):
        return trace
    arrival_s = trace.columns.arrival_s
    ends = np.searchsorted(arrival_s, arrival_s + length_s)
    start = int(np.argmax(ends - np.arange(len(ends))))
    return trace.take(slice(start, int(ends[start])))


def sample(trace: Trace, jobs: int, seed: int) -> Trace:
    """Return ``jobs`` of the jobs, drawn without replacement."""
    _check_count(trace, jobs, "sample")
    drawn = stream(seed, "sample").choice(len(trace), jobs, replace=False)
    return trace.take(np.sort(drawn))


def faster(trace: Trace, factor: float) -> Trace:
    """Return the trace with every gap between arrivals divided by ``factor``."""
    _check_above_0(factor, "factor of arrivals")
    first_s = _first(trace)
    return trace.altered(arrival_s=first_s + (trace.columns.arrival_s - first_s) / factor)


def from_zero(trace: Trace) -> Trace:
    """Return the trace shifted so that its first job arrives at 0."""
    first_s = _first(trace)
    if not first_s:
        return trace
    return trace.altered(arrival_s=trace.columns.arrival_s - first_s)


def largest(trace: Trace, workers: int) -> Trace:
    """Return the jobs of at most ``workers`` GPUs."""
    _check_above_0(workers, "largest gang")
    return trace.take(trace.columns.workers <= workers)


def clipped(trace: Trace, workers: int) -> Trace:
    """Return the trace with larger gangs cut to ``workers`` GPUs, with unchanged durations.

    Their rules for nodes are left out if they do not divide this number.
    """
    _check_above_0(workers, "largest gang")
    cut = np.minimum(workers, trace.columns.workers)
    given = {name: getattr(trace.columns, name) for name in NODE_RULES}
    fits = {name: np.where(cut % size == 0, size, np.nan) for name, size in given.items()}
    return trace.altered(workers=cut, **fits)


def tenants(trace: Trace, names: Collection[str]) -> Trace:
    """Return the jobs of some tenants."""
    owners = trace.columns.tenant.tolist()
    known = dict.fromkeys(owner for owner in owners if owner is not None)
    for name in names:
        if name not in known:
            raise InputError(f"must be one of {listed(known, 20)}, got {shown(name)}", "tenants")
    return trace.take(np.array([owner in names for owner in owners], dtype=np.bool_))


def with_durations(trace: Trace, factor: float) -> Trace:
    """Return the trace with every duration multiplied by ``factor``."""
    _check_above_0(factor, "duration factor")
    return trace.altered(duration_s=trace.columns.duration_s * factor)


def at_most(trace: Trace, duration_s: float) -> Trace:
    """Return the trace with longer durations cut to ``duration_s``."""
    _check_above_0(duration_s, "longest duration")
    return trace.altered(duration_s=np.minimum(duration_s, trace.columns.duration_s))


def filtered(trace: Trace, filters: Iterable[str], seed: int = 0) -> Trace:
    """Return the trace after filters, which are given as texts and applied in order.

    Parameters
    ----------
    trace : Trace
        The trace to start with.
    filters : iterable of str
        ``window:FROM_S:TO_S``: arrivals from the first on and before the second; ``busiest:JOBS``:
        this many consecutive arrivals, with the largest load; ``busiest_period:SECONDS``: the
        period of this length with the most arrivals; ``sample:JOBS``: this many jobs, drawn by the
        seed; ``faster:FACTOR``: gaps between arrivals divided by it; ``from_zero``: shifted so
        that the first job arrives at 0; ``largest:GPUS``: gangs of at most this many GPUs;
        ``clipped:GPUS``: larger gangs cut to this size; ``tenants:A,B``: jobs of these tenants;
        ``durations:FACTOR``: durations multiplied by it; ``at_most:SECONDS``: longer durations cut
        to it. Arrivals keep their times except with ``faster`` and ``from_zero``.
    seed : int
        Seed of ``sample``.

    Raises
    ------
    InputError
        When a text is not a known filter, or an argument is out of its range.
    """
    for text in filters:
        trace = _applied(trace, text, seed)
    return trace


_Numbers = Sequence[float]
_BY_NAME: dict[str, tuple[int, Callable[[Trace, _Numbers, int], Trace]]] = {
    "window": (2, lambda trace, given, _: window(trace, given[0], given[1])),
    "busiest": (1, lambda trace, given, _: busiest(trace, _whole(given[0], "busiest"))),
    "busiest_period": (1, lambda trace, given, _: busiest_period(trace, given[0])),
    "sample": (1, lambda trace, given, seed: sample(trace, _whole(given[0], "sample"), seed)),
    "faster": (1, lambda trace, given, _: faster(trace, given[0])),
    "from_zero": (0, lambda trace, given, _: from_zero(trace)),
    "largest": (1, lambda trace, given, _: largest(trace, _whole(given[0], "largest gang"))),
    "clipped": (1, lambda trace, given, _: clipped(trace, _whole(given[0], "largest gang"))),
    "durations": (1, lambda trace, given, _: with_durations(trace, given[0])),
    "at_most": (1, lambda trace, given, _: at_most(trace, given[0])),
}
FILTERS = (*_BY_NAME, "tenants")
"""The names of the filters that `filtered` knows."""


def _applied(trace: Trace, text: str, seed: int) -> Trace:
    name, *given = text.split(":")
    if name == "tenants":
        return tenants(trace, text.partition(":")[2].split(","))
    if name not in _BY_NAME:
        raise InputError(f"must be one of {listed(FILTERS, 20)}, got {shown(text)}", "filter")
    count, function = _BY_NAME[name]
    return function(trace, _numbers(name, given, count, text), seed)


def _numbers(name: str, given: Sequence[str], count: int, text: str) -> list[float]:
    wanted = ("no numbers", "1 number", "2 numbers")[count]
    rule = f"{name} takes {wanted}, got {shown(text)}"
    if len(given) != count:
        raise InputError(rule, "filter")
    try:
        return [float(each) for each in given]
    except ValueError:
        raise InputError(rule, "filter") from None


def _whole(number: float, name: str) -> int:
    if not number.is_integer():
        raise InputError(f"must be a whole number, got {number:.15g}", name)
    return int(number)


def _first(trace: Trace) -> float:
    return float(trace.columns.arrival_s[0]) if len(trace) else 0.0


def _check_count(trace: Trace, jobs: int, name: str) -> None:
    if not 1 <= jobs <= len(trace):
        rule = f"must be between 1 and the {len(trace)} jobs of the trace, got {jobs}"
        raise InputError(rule, name, trace.name)


def _check_above_0(value: float, name: str) -> None:
    if not 0 < value < math.inf:
        raise InputError(f"must be a finite number > 0, got {value:.15g}", name)
