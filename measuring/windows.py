"""Throughput and latency of a worker within a window, and when a window may end."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.measuring.campaign import Windows
from dovetail.measuring.results import Latency, Throughput

LEAST: Final = 3
"""Fewest complete chunks, or answered requests, that a throughput is computed from."""

GROWTH: Final = 5
"""A window grows to at most this many times its greatest length for a worker that does little."""

BATCHES: Final = 10
"""Number of batches, at most one per chunk. Fewer make the standard error too uncertain to end a
window by; more are correlated with each other (Schmeiser, Operations Research 30(3), 1982: between
10 and 30)."""


class Steps(NamedTuple):
    """A completed chunk of iterations.

    Attributes
    ----------
    at : float
        When it was complete, in seconds of the monotonic clock.
    n : float
        Number of iterations; fractional only if simulated.
    busy_s : float
        Seconds that the worker spent on it.
    """

    at: float
    n: float
    busy_s: float


class Answered(NamedTuple):
    """An answered request; times in seconds of the monotonic clock.

    Attributes
    ----------
    at : float
        When the answer was complete.
    arrived : float
        When the request arrived.
    started : float
        When work on it began, which may be later.
    """

    at: float
    arrived: float
    started: float


_Series = NDArray[np.float64]

Events = Sequence[Steps] | Sequence[Answered]
"""All events of one worker, in order of time."""


def pace(events: Events, start: float, end: float) -> Throughput | None:
    """Return the throughput of a worker within a window; None if it did too little.

    The iteration time of a closed loop is taken over the complete chunks in the window: from the
    end of its first chunk to the end of its last. For requests it is the mean time from ``started``
    to ``at`` of the requests answered in the window.

    The standard error is computed from batch means (Law, Simulation Modeling and Analysis, 5th ed.,
    section 9.5.3): consecutive chunks are joined into `BATCHES` batches, whose means are much less
    correlated than neighbouring chunks; from these follows the standard error of a ratio of means
    (Cochran, Sampling Techniques, 3rd ed., section 2.11). It is too small if rates change more
    slowly than the length of a batch, which repeats reveal (``noise.py``).

    Parameters
    ----------
    events : sequence of Steps or of Answered
        The worker's events; those outside the window are ignored.
    start, end : float
        The window, in seconds of the monotonic clock.
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
    )


def most_pace(events: Sequence[Steps], chunk: float, start: float, end: float) -> float:
    """Return the most iterations a second that a closed loop can have had within a window.

    In addition to the reported chunks, the first of which may have begun before the window, there
    is at most one complete chunk that was not reported yet, and one incomplete chunk.

    Parameters
    ----------
    events : sequence of Steps
        The worker's events; those outside the window are ignored.
    chunk : float
        Iterations of a chunk.
    start, end : float
        The window, in seconds of the monotonic clock.
    """
    done = sum(event.n for event in events if start <= event.at <= end)
    return (done + 2 * chunk) / (end - start)


def latency(answered: Sequence[Answered]) -> Latency | None:
    """Return the latency of requests from arrival to answer; None without requests.

    Percentiles are NumPy's default (``linear``: definition 7 of Hyndman and Fan, 1996), which
    interpolates between the two requests around rank ``1 + q (n - 1)``. Below a hundred requests
    the 99th percentile is hardly more than the maximum.
    """
    if not answered:
        return None
    waited = np.array([request.at - request.arrived for request in answered])
    p50, p99 = np.percentile(waited, (50, 99))
    return Latency(
        p50_s=float(p50), p99_s=float(p99), mean_s=float(waited.mean()), requests=len(answered)
    )


def is_over(
    windows: Windows,
    start: float,
    now: float,
    workers: Sequence[Events],
    until: float = float("inf"),
) -> bool:
    """Return whether a window that began at ``start`` may end.

    This is the rule of `Windows`. A standard error is used only from `BATCHES` chunks on: evaluated
    repeatedly, the error of a few chunks would soon be small by chance. While a worker has done too
    little for a throughput, the window grows up to `GROWTH` times its greatest length: strongly
    slowed workers are the most informative.

    Parameters
    ----------
    windows : Windows
        The rule.
    start, now : float
        In seconds of the monotonic clock.
    workers : sequence of Events
        The events of each worker so far.
    until : float, optional
        When a window of its greatest length ends at the latest, likewise.
    """
    if now - start < windows.least_s:
        return False
    if now - start >= windows.most_s:
        grown = now >= until or now - start >= GROWTH * windows.most_s
        return grown or all(pace(events, start, now) is not None for events in workers)
    return all(
        _is_stable(_within(events, start, now), windows.relative_error) for events in workers
    )


def _is_stable(within: Events, relative_error: float) -> bool:
    spent, done = _spent(within)
    return len(spent) >= BATCHES and _relative_error(spent, done) <= relative_error


def _within(events: Events, start: float, end: float) -> Events:
    return [event for event in events if start <= event.at <= end]  # type: ignore[return-value]


def _spent(within: Events) -> tuple[_Series, _Series]:
    """Return the duration and the iterations of each complete chunk, or request."""
    if within and isinstance(within[0], Answered):
        took = [event.at - event.started for event in within if isinstance(event, Answered)]
        return np.array(took), np.ones(len(took))
    ends = np.array([event.at for event in within])
    return np.diff(ends), np.array([event.n for event in within[1:] if isinstance(event, Steps)])


def _relative_error(spent: _Series, done: _Series) -> float:
    """Return the standard error of the mean iteration time over that mean."""
    batches = min(len(spent), BATCHES)
    firsts = np.arange(batches) * len(spent) // batches
    spent, done = np.add.reduceat(spent, firsts), np.add.reduceat(done, firsts)
    residuals = spent - done * (spent.sum() / done.sum())
    return float(sqrt(batches / (batches - 1) * (residuals**2).sum()) / spent.sum())
