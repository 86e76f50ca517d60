"""From the events of a worker and a window to its pace, and when a window may end."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.executor.measuring.campaign import Windows
from dovetail.executor.measuring.records import Latency, Throughput

LEAST: Final = 3
"""A window with fewer whole chunks, or answered requests, says nothing of a worker."""

BATCHES: Final = 10
"""So many batches, or a batch a chunk: fewer make a standard error that is itself too uncertain
to end a window by; more, of one window, depend on each other more (Schmeiser, Operations Research
30(3), 1982: between 10 and 30)."""


class Steps(NamedTuple):
    """A chunk of iterations that was known to be done.

    Attributes
    ----------
    at : float
        When, by the monotonic clock, in seconds.
    n : float
        Iterations: whole ones, but where they are simulated.
    busy_s : float
        Seconds that the worker says to have been busy with it.
    """

    at: float
    n: float
    busy_s: float


class Answered(NamedTuple):
    """A request that was answered; moments by the monotonic clock, in seconds.

    Attributes
    ----------
    at : float
        When its answer was there.
    arrived : float
        When it came.
    started : float
        When work on it began: later, if another was worked on.
    """

    at: float
    arrived: float
    started: float


_Series = NDArray[np.float64]

Events = Sequence[Steps] | Sequence[Answered]
"""All events of one worker, in the order of time."""


def pace(
    events: Events,
    start: float,
    end: float,
    memory_mib: float | None = None,
    sms: int | None = None,
) -> Throughput | None:
    """Return how fast a worker was within a window, None where it did too little in it.

    A closed loop's iteration time is that of the whole chunks in the window: from the end of its
    first chunk to that of its last. For requests it is the mean time from ``started`` to ``at``
    of those that were answered in the window.

    The standard error is that of batch means (Law, Simulation Modeling and Analysis, 5th ed.,
    section 9.5.3): consecutive chunks are joined into `BATCHES` batches, whose means
    depend on each other much less than neighbouring chunks do; of these the standard error of a
    ratio of means is taken (Cochran, Sampling Techniques, 3rd ed., section 2.11). It is too small
    where rates change more slowly than a batch is long; repeats tell that (``noise.py``).

    Parameters
    ----------
    events : sequence of Steps or of Answered
        Those of the worker; others than in the window are passed over.
    start, end : float
        The window, by the monotonic clock.
    memory_mib, sms : optional
        Passed on.
    """
    within = _within(events, start, end)
    spent, done = _spent(within)
    if len(spent) < LEAST or spent.sum() <= 0:
        return None
    return Throughput(
        iterations_s=done.sum() / spent.sum(),
        iterations=max(1, round(done.sum())),
        relative_error=_relative_error(spent, done),
        latency=latency([event for event in within if isinstance(event, Answered)]),
        memory_mib=memory_mib,
        sms=sms,
    )


def latency(answered: Sequence[Answered]) -> Latency | None:
    """Return the latency of requests from arrival to answer, None where there were none.

    Percentiles are those of NumPy's default (``linear``: definition 7 of Hyndman and Fan, 1996):
    between the two requests around rank ``1 + q (n - 1)`` they are interpolated. Below a
    hundred requests the 99th percentile is little more than the longest.
    """
    if not answered:
        return None
    waited = np.array([request.at - request.arrived for request in answered])
    p50, p99 = np.percentile(waited, (50, 99))
    return Latency(
        p50_s=float(p50), p99_s=float(p99), mean_s=float(waited.mean()), requests=len(answered)
    )


def is_over(windows: Windows, start: float, now: float, workers: Sequence[Events]) -> bool:
    """Tell whether a window that began at ``start``, behind ``settle_s``, may end.

    The rule of `Windows`. A standard error counts from `BATCHES` chunks on: looked at again
    and again, one of a few chunks would soon be small by chance.

    Parameters
    ----------
    windows : Windows
        The rule.
    start, now : float
        By the monotonic clock.
    workers : sequence of Events
        Of each worker its events so far.
    """
    if now - start < windows.least_s:
        return False
    return now - start >= windows.most_s or all(
        _is_stable(_within(events, start, now), windows.relative_error) for events in workers
    )


def _is_stable(within: Events, relative_error: float) -> bool:
    spent, done = _spent(within)
    return len(spent) >= BATCHES and _relative_error(spent, done) <= relative_error


def _within(events: Events, start: float, end: float) -> Events:
    return [event for event in events if start <= event.at <= end]  # type: ignore[return-value]


def _spent(within: Events) -> tuple[_Series, _Series]:
    """Return of each whole chunk, or request, how long it took, and its iterations."""
    if within and isinstance(within[0], Answered):
        took = [event.at - event.started for event in within if isinstance(event, Answered)]
        return np.array(took), np.ones(len(took))
    ends = np.array([event.at for event in within])
    return np.diff(ends), np.array([event.n for event in within[1:] if isinstance(event, Steps)])


def _relative_error(spent: _Series, done: _Series) -> float:
    """Return the standard error of the mean iteration time over this mean."""
    batches = min(len(spent), BATCHES)
    firsts = np.arange(batches) * len(spent) // batches
    spent, done = np.add.reduceat(spent, firsts), np.add.reduceat(done, firsts)
    residuals = spent - done * (spent.sum() / done.sum())
    return float(sqrt(batches / (batches - 1) * (residuals**2).sum()) / spent.sum())
