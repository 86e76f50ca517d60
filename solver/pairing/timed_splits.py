"""The best split of every pair of jobs, if its value depends on when the jobs end.

Two rules of the objectives need this: pairs that must end earlier on average than one after the
other (``ShorteningSplits``), and gains that are completion time saved (``SavedTimeSplits``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dovetail.formulations.prices import Ends
from dovetail.solver.pairing.compilation import kernel
from dovetail.solver.pairing.splits import (
    _PADDING,
    _TILE,
    BestSplits,
    Bools,
    Floats,
    Ints,
    Narrow,
    SplitValues,
    _column,
    forbid,
    round_best,
)

_BUCKETS = 2**14
"""Buckets in which prices at a time are looked up."""


class ShorteningSplits(SplitValues):
    """Values of pairs that share only if they end earlier on average than one after the other.

    The mean end of sharing, until the first of the two jobs ends, is compared with the mean end if
    the running or else the shorter job runs first (Castor, 2025, theorem 1).

    Parameters
    ----------
    left : (n,) float
        Seconds that each job still needs alone.
    shorter_by : float
        The relative amount by which sharing must shorten the mean end.
    arguments
        Those of ``SplitValues``.
    """

    def __init__(self, left: Floats, shorter_by: float, **arguments: Any) -> None:  # noqa: ANN401
        super().__init__(**arguments)
        self._left, self._below = left, 1 - shorter_by

    def matrices(self, dtype: DTypeLike) -> BestSplits:  # noqa: D102
        return self._row_by_row(np.empty(self.shape, dtype), np.empty(self.shape, np.uint8))

    def _worth(self, first: Ints | int, second: Ints) -> Floats:
        worth = super()._worth(first, second)
        a, b = self._slowdowns(first, second)
        left_a, left_b = _column(self._left[first]), _column(self._left[second])
        running = self._jobs[5]
        runs_a, runs_b = _column(running[first]), _column(running[second])
        end_a, end_b = a * left_a, b * left_b
        after = np.where(end_a <= end_b, left_b - end_a / b, left_a - end_b / a)
        shared = np.minimum(end_a, end_b) + after / 2
        a_leads = runs_a | (~runs_b & (left_a <= left_b))
        turn = np.where(a_leads, left_a + left_b / 2, left_b + left_a / 2)
        return np.where(shared < turn * self._below, worth, np.nan)

    def _rounding(self, jobs: Ints) -> tuple[Any, ...]:
        m = len(jobs)
        return round_shortening_rows, m, m, *self._arguments(jobs), self._left[jobs], self._below


class SavedTimeSplits(SplitValues):
    """Values of pairs as completion time saved, less the price of the GPU (``completion``).

    Each job takes one GPU. Pairs that are worth less than 0 are left out: to start neither job is
    worth 0.

    Parameters
    ----------
    ends : Ends
        What is known of the ends of jobs.
    arguments
        Those of ``SplitValues``.
    """

    def __init__(self, ends: Ends, **arguments: Any) -> None:  # noqa: ANN401
        super().__init__(**arguments)
        self._ends = ends

    def _kinds(self, jobs: Ints) -> None:
        return None

    def matrices(self, dtype: DTypeLike) -> BestSplits:  # noqa: D102
        return self._row_by_row(np.empty(self.shape, dtype), np.empty(self.shape, np.uint8))

    @property
    def largest(self) -> float:  # noqa: D102
        weight, running = self._jobs[3], self._jobs[5]
        ends, end = self._ends, self._least_ends
        gain = weight * (ends.due - end) + ends.rent
        # A running job pays from its own end, a waiting one at least half of the price of both.
        idle = self._from_idle(end)
        most = np.where(running, gain + ends.hold * ends.until(ends.due), gain - idle / 2)
        two = np.sort(most)[-2:]
        return float(np.maximum(two, 0.0).sum())

    @property
    def _least_ends(self) -> Floats:
        """Seconds before which no job ends, (n,)."""
        slowdown, workload, ends = self._tables[0], self._jobs[0], self._ends
        fastest = np.fmin(np.fmin.reduce(slowdown, axis=(1, 2)), ends.after.min(axis=1))
        return np.asarray(ends.left * fastest[workload])

    def _from_idle(self, end: Floats) -> Floats:
        """Return the price of an idle GPU until some times."""
        before = np.minimum(end, self._ends.claimed)
        until = self._ends.until
        return np.asarray(until(end) - until(before) + self._ends.floor * before)

    def _worth(self, first: Ints | int, second: Ints) -> Floats:
        ends, mirror = self._ends, self._tables[2]
        workload, _, _, weight, _, running, _ = self._jobs
        slowdown = self._slowdowns(first, second)
        left = _column(ends.left[first]), _column(ends.left[second])
        after = ends.after[workload[first]], ends.after[workload[second]][:, mirror]
        whole = slowdown[0] * left[0], slowdown[1] * left[1]
        sooner = np.minimum(*whole)
        total = np.zeros(sooner.shape)
        late = np.zeros(sooner.shape, dtype=bool)
        last, held = np.zeros(sooner.shape), np.zeros(sooner.shape)
        for k, of in enumerate((first, second)):
            rest = np.maximum(0.0, left[k] - sooner / slowdown[k])
            end = np.minimum(whole[k], sooner + rest * after[k])
            due, runs = _column(ends.due[of]), _column(running[of])
            gain = _column(weight[of]) * (due - end) + _column(ends.rent[of])
            total += gain + _column(ends.hold[of]) * (ends.until(due) - ends.until(end))
            late |= (end > ends.last) & (~runs | (due <= ends.last))
            last, held = np.maximum(last, end), np.where(runs, end, held)
        one_runs = _column(running[first] | running[second])
        price = np.where(one_runs, ends.until(last) - ends.until(held), self._from_idle(last))
        total -= np.maximum(price, 0.0)
        return np.where(late | (total < 0), np.nan, total)

    def _rounding(self, jobs: Ints) -> tuple[Any, ...]:
        m, e = len(jobs), self._ends
        step = np.diff(e.times)
        slope = np.append(np.diff(e.paid) / np.where(step > 0, step, 1.0), 0.0)
        return (
            round_saved_rows, m, m, *self._arguments(jobs), e.left[jobs], e.due[jobs],
            e.rent[jobs], e.hold[jobs], np.ascontiguousarray(e.after), e.times, e.paid, slope,
            _near(e.times), e.floor, e.claimed, e.last, e.until(e.due[jobs]),
            self._from_idle(self._least_ends)[jobs],
        )  # fmt: skip


def _near(times: Floats) -> Ints:
    """Return the last time at or before the start of each bucket (see ``price_until``)."""
    at = np.arange(_BUCKETS) / _BUCKETS
    starts = times[len(times) // 2] * at / (1 - at)
    return np.asarray(np.searchsorted(times, starts, side="right") - 1, dtype=np.int64)


@kernel
def gather(
    a: int,
    slowdown: Floats,
    bound: Floats,
    mirror: Ints,
    others: Ints,
    gsla: Floats,
    allowed: Bools,
    own: Floats,
    other: Floats,
    limit: Floats,
) -> None:
    """Gather the slowdowns of a workload and of others at each split, and the own bounds.

    The own slowdown is NaN where the others may not have the split.
    """
    for c in range(others.size):
        b = others[c]
        for p in range(mirror.size):
            q = mirror[p]
            limit[p, c] = bound[a, b, p]
            other[p, c] = slowdown[b, a, q]
            may = (bound[b, a, q] <= gsla[c]) & allowed[q, c]
            own[p, c] = slowdown[a, b, p] if may else np.nan


@kernel
def round_shortening_rows(
    first: int,
    last: int,
    order: Ints,
    slowdown: Floats,
    bound: Floats,
    mirror: Ints,
    workload: Ints,
    gsla: Floats,
    memory: Floats,
    memory_limit: float,
    weight: Floats,
    size: Ints,
    running: Bools,
    allowed: Bools,
    left: Floats,
    most: float,
    scale: float,
    fixed: Narrow,
) -> None:
    """Write the rounded rows of ``ShorteningSplits``; see ``round_split_rows``."""
    own = np.empty((mirror.size, _TILE + _PADDING))
    other = np.empty((mirror.size, _TILE + _PADDING))
    limit = np.empty((mirror.size, _TILE + _PADDING))
    best = np.empty(_TILE)
    for start in range(0, workload.size, _TILE):
        stop = min(start + _TILE, workload.size)
        width = stop - start
        workload_before = -1
        for r in range(first, last):
            i = order[r]
            if i >= stop:
                continue
            if workload[i] != workload_before:
                workload_before = workload[i]
                gather(
                    workload[i], slowdown, bound, mirror, workload[start:stop], gsla[start:stop],
                    allowed[:, start:stop], own, other, limit,
                )  # fmt: skip
            best[:] = -np.inf
            for p in range(mirror.size):
                if allowed[p, i]:
                    raise_shortening(
                        gsla[i], weight[i], left[i], running[i], most, own[p, :width],
                        other[p, :width], limit[p, :width], weight[start:stop], left[start:stop],
                        running[start:stop], best[:width],
                    )  # fmt: skip
            forbid(i, start, memory, memory_limit, size, running, best[:width])
            round_best(best[:width], scale, fixed[i, start:stop])


@kernel
def raise_shortening(
    gsla: float,
    weight: float,
    left: float,
    runs: bool,
    most: float,
    own: Floats,
    other: Floats,
    limit: Floats,
    weights: Floats,
    lefts: Floats,
    running: Bools,
    best: Floats,
) -> None:
    """Keep the value of a split for the columns where it is the best so far."""
    for c in range(best.size):
        worth = np.divide(weights[c], other[c]) + np.divide(weight, own[c])
        end, its_end = own[c] * left, other[c] * lefts[c]
        after = (
            lefts[c] - np.divide(end, other[c])
            if end <= its_end
            else left - np.divide(its_end, own[c])
        )
        shared = min(end, its_end) + after / 2
        leads = runs | (not running[c]) & (left <= lefts[c])
        turn = left + lefts[c] / 2 if leads else lefts[c] + left / 2
        may = (limit[c] <= gsla) & (shared < turn * most) & (worth > best[c])
        best[c] = worth if may else best[c]


@kernel
def price_until(end: float, times: Floats, paid: Floats, slope: Floats, near: Ints) -> float:
    """Return the price of a GPU from now until a time, as ``Ends.until`` does without ``floor``.

    ``near`` has the last time at or before the start of each bucket of ``end / (end + middle)``,
    where ``middle`` is the time in the middle.
    """
    middle = times[times.size // 2]
    bucket = int(end / (end + middle) * near.size) if middle > 0.0 and end < np.inf else 0
    k = near[min(bucket, near.size - 1)]
    while k > 0 and times[k] > end:
        k -= 1
    while k + 1 < times.size and times[k + 1] <= end:
        k += 1
    return float(slope[k] * (end - times[k]) + paid[k])


@kernel
def round_saved_rows(
    first: int,
    last: int,
    order: Ints,
    slowdown: Floats,
    bound: Floats,
    mirror: Ints,
    workload: Ints,
    gsla: Floats,
    memory: Floats,
    memory_limit: float,
    weight: Floats,
    size: Ints,
    running: Bools,
    allowed: Bools,
    left: Floats,
    due: Floats,
    rent: Floats,
    hold: Floats,
    after: Floats,
    times: Floats,
    paid: Floats,
    slope: Floats,
    near: Ints,
    floor: float,
    claimed: float,
    latest: float,
    paid_due: Floats,
    least: Floats,
    scale: float,
    fixed: Narrow,
) -> None:
    """Write the rounded rows of ``SavedTimeSplits``; see ``round_split_rows``."""
    own = np.empty((mirror.size, _TILE + _PADDING))
    other = np.empty((mirror.size, _TILE + _PADDING))
    limit = np.empty((mirror.size, _TILE + _PADDING))
    best = np.empty(_TILE)
    before_claimed = min(claimed, times[times.size - 1])
    unclaimed = price_until(before_claimed, times, paid, slope, near)
    for start in range(0, workload.size, _TILE):
        stop = min(start + _TILE, workload.size)
        width = stop - start
        workload_before = -1
        for r in range(first, last):
            i = order[r]
            if i >= stop:
                continue
            if workload[i] != workload_before:
                workload_before = workload[i]
                gather(
                    workload[i], slowdown, bound, mirror, workload[start:stop], gsla[start:stop],
                    allowed[:, start:stop], own, other, limit,
                )  # fmt: skip
            best[:] = -np.inf
            for p in range(mirror.size):
                if not allowed[p, i]:
                    continue
                mine = after[workload[i], p]
                for c in range(width):
                    # False for NaN
                    if not (limit[p, c] <= gsla[i] and own[p, c] > 0):
                        continue
                    j = start + c
                    if j <= i or memory[i] + memory[j] > memory_limit:
                        continue
                    whole, its_whole = own[p, c] * left[i], other[p, c] * left[j]
                    # The job that ends first ends at the slowdown of sharing.
                    end, its_end = whole, its_whole
                    if whole <= its_whole:
                        rest = max(0.0, left[j] - np.divide(whole, other[p, c]))
                        its_end = min(its_whole, whole + rest * after[workload[j], mirror[p]])
                    else:
                        rest = max(0.0, left[i] - np.divide(its_whole, own[p, c]))
                        end = min(whole, its_whole + rest * mine)
                    if end > latest and (not running[i] or due[i] <= latest):
                        continue
                    if its_end > latest and (not running[j] or due[j] <= latest):
                        continue
                    total = weight[i] * (due[i] - end) + rent[i]
                    total += weight[j] * (due[j] - its_end) + rent[j]
                    if running[i] or running[j]:
                        held = end if running[i] else its_end
                        so_far = price_until(held, times, paid, slope, near) + floor * held
                        total += (paid_due[i] if running[i] else paid_due[j]) - so_far
                        if max(end, its_end) > held:
                            until = max(end, its_end)
                            cost = price_until(until, times, paid, slope, near) - so_far
                            cost += floor * until
                            total -= max(0.0, cost)
                    else:
                        most = total - max(least[i], least[j])
                        if most < 0 or most <= best[c]:
                            continue
                        until = max(end, its_end)
                        if until > claimed:
                            cost = price_until(until, times, paid, slope, near) - unclaimed
                            total -= max(0.0, cost + floor * until)
                        else:
                            total -= floor * until
                    if total >= 0 and total > best[c]:
                        best[c] = total
            forbid(i, start, memory, memory_limit, size, running, best[:width])
            round_best(best[:width], scale, fixed[i, start:stop])
