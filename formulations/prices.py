"""The price of a GPU at every future time: what the waiting jobs would pay for it.

The queue (``completion.forecast_order``) is laid out on the GPUs as they are expected to become
idle. With w the weight of a job, p its GPUs and r its seconds, a job that starts at t on this
schedule starts at its best time if a GPU costs

    price(t) = w / p + price(t + r)

per second: what an earlier start saves the job itself and the jobs that use its GPUs after it.
These are dual prices of the time-indexed program for weighted completion times (Sousa and Wolsey,
*Mathematical Programming* 54, 1992) along the schedule. If no job waits, the price is 0, or the
operator's price.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from dovetail.formulations.arrays import Floats, Ints

ROUNDING = 1e-9
"""Relative difference up to which two times are treated as equal."""

Compiler: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
"""Returns the compiled form of a loop over arrays."""


class Asks(NamedTuple):
    """Requests of n waiting jobs, (n,) each: ``workers`` GPUs for ``seconds``, at a ``weight``."""

    workers: ArrayLike
    seconds: ArrayLike
    weight: ArrayLike


class GpuPrice:
    """The price of a GPU as a function of time, seconds from now.

    Parameters
    ----------
    starts : array_like of float
        When each waiting job starts on the schedule.
    asks : Asks
        The requests of these jobs.
    floor : float
        The least price, at any time.
    run : Compiler, optional
        Compiles the loop; by default it is plain Python.

    Attributes
    ----------
    floor : float
        The least price.
    times, paid : (k,) float
        What a GPU costs until each time beyond ``floor``: linear in between, constant afterwards.
    """

    def __init__(
        self, starts: ArrayLike, asks: Asks, floor: float = 0.0, run: Compiler | None = None
    ) -> None:
        self.floor = floor
        at = np.asarray(starts, dtype=np.float64)
        later = np.flatnonzero(at > 0)
        order = later[np.argsort(at[later], kind="stable")]
        times = at[order]
        workers, seconds, weight = (np.asarray(of, dtype=np.float64)[order] for of in asks)
        after = np.searchsorted(times, (times + seconds) * (1 - ROUNDING))
        after = np.maximum(after, np.arange(1, len(times) + 1))
        saved = weight / workers
        price = np.zeros(len(order) + 1)
        if run is None:
            plain = price.tolist()
            fill_prices(plain, saved.tolist(), after.tolist())
            price[:] = plain
        else:
            run(fill_prices)(price, saved, after)
        self.times = np.concatenate(([0.0], times))
        paid = price[:-1] * np.diff(self.times)
        self.paid = np.concatenate(([0.0], np.cumsum(paid)))

    def until(self, seconds: ArrayLike) -> Floats:
        """Return the cost of a GPU from now until ``seconds`` from now."""
        at = np.asarray(seconds, dtype=np.float64)
        return np.asarray(np.interp(at, self.times, self.paid) + self.floor * at)


def fill_prices(
    price: list[float] | Floats, saved: Sequence[float] | Floats, after: Sequence[int] | Ints
) -> None:
    """Set the price at the start of each job, given what each saves and who starts after it."""
    for place in range(len(saved) - 1, -1, -1):
        price[place] = max(price[place + 1], saved[place] + price[after[place]])


def layout(free_s: Sequence[float] | Floats, asks: Asks, run: Compiler | None = None) -> Floats:
    """Return when each job would start if all ran alone, in this order.

    Parameters
    ----------
    free_s : (m,) float
        Seconds until each GPU is expected to be idle, in ascending order.
    asks : Asks
        The requests of the jobs; of the GPUs that are idle in time, a job takes those that become
        idle last, so that others may run on the rest before.
    run : Compiler, optional
        Compiles ``fill_starts``; by default a loop over lists is used.

    Returns
    -------
    (n,) float
    """
    if run is not None:
        workers, seconds = np.asarray(asks.workers), np.asarray(asks.seconds, dtype=np.float64)
        found = np.empty(len(workers))
        run(fill_starts)(np.array(free_s, dtype=np.float64), workers, seconds, found)
        return found
    free: list[float] = np.asarray(free_s, dtype=np.float64).tolist()
    starts = []
    needs = zip(np.asarray(asks.workers).tolist(), np.asarray(asks.seconds).tolist(), strict=True)
    for workers, seconds in needs:
        if workers > len(free):
            starts.append(free[-1] if free else 0.0)
            continue
        start = free[workers - 1]
        last = bisect_right(free, start)
        del free[last - workers : last]
        end = start + seconds
        place = bisect_left(free, end)
        free[place:place] = [end] * workers
        starts.append(start)
    return np.array(starts, dtype=np.float64)


def fill_starts(free: Floats, workers: Ints, seconds: Floats, starts: Floats) -> None:
    """Set the starts of ``layout`` by loops over arrays; ``free`` is used as a binary heap."""
    count = len(free)
    held = np.empty(count)
    for k in range(len(workers)):
        need = workers[k]
        if need > count:
            starts[k] = free.max() if count else 0.0
            continue
        size = count
        found = 0
        while found < need or (size and free[0] == held[found - 1]):
            held[found] = free[0]
            found += 1
            size -= 1
            replace_first(free, size, free[size])
            if need == 1:  # equal moments need not be told apart
                break
        starts[k] = held[found - 1]
        for place in range(found - need):
            add_to_heap(free, size, held[place])
            size += 1
        for _ in range(need):
            add_to_heap(free, size, starts[k] + seconds[k])
            size += 1


def replace_first(heap: Floats, size: int, value: float) -> None:
    """Replace the least value of a heap."""
    place = 0
    below = 1
    while below < size:
        if below + 1 < size and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= value:
            break
        heap[place] = heap[below]
        place = below
        below = 2 * place + 1
    if place < size:
        heap[place] = value


def add_to_heap(heap: Floats, size: int, value: float) -> None:
    """Add a value to a heap of this size."""
    place = size
    while place and heap[(place - 1) // 2] > value:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = value


class Ends(NamedTuple):
    """What a round knows of the ends of its jobs, and of the price of a GPU until then.

    Attributes
    ----------
    left, due, rent, hold : (n,) float
        Seconds that each job needs alone; when it ends unless the round changes that; the price of
        a worker's GPU from its start until then; 1 if it runs, else 0.
    after : (k, s) float
        The slowdown of each workload at each share once the other job has ended.
    times, paid : (k,) float
        The price of a GPU until each time, linear in between and constant after the last.
    floor : float
        The price of a second in addition.
    claimed, last : float
        When the first waiting job would start, before which an idle GPU costs ``floor``; and when
        the last job ends, beyond which no job shares.
    """

    left: Floats
    due: Floats
    rent: Floats
    hold: Floats
    after: Floats
    times: Floats
    paid: Floats
    floor: float
    claimed: float
    last: float

    def until(self, end: Floats) -> Floats:
        """Return the price of a GPU from now until some times."""
        return np.asarray(np.interp(end, self.times, self.paid) + self.floor * end)
