"""Loops over tiles of pairs of jobs: the value of each pair at its best split.

What depends only on the row's workload and weight is computed once for all jobs that share them, a
tile of columns at a time; the rest is comparisons without branches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.pairing.compilation import kernel
from dovetail.solver.pairing.dense import FORBIDDEN

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Narrow = NDArray[np.int32]
Bools = NDArray[np.bool_]

NO_SPLIT = 255
"""The split of a pair that may not share."""

_TILE = 512
"""Columns processed together: their values stay in the cache."""

_MIRRORED = 64
"""Rows and columns that are mirrored together."""

_PADDING = 8
"""Padding that makes the row length no power of two, which caches would map to the same lines."""


class TiledJobs(NamedTuple):
    """The jobs of a class, m of them; see ``SplitValues`` and ``ShorteningSplits``.

    ``order`` has jobs of equal workload, weight and size adjacent. ``bonus``, ``surplus`` and
    ``most`` are empty without limits, ``left`` without a rule or ends. ``allowed`` is (s, m).
    """

    order: Ints
    slowdown: Floats
    bound: Floats
    mirror: Ints
    workload: Ints
    gsla: Floats
    memory: Floats
    memory_limit: float
    weight: Floats
    size: Ints
    running: Bools
    allowed: Bools
    minimised: bool
    gpu_cost: Floats
    per_cost: float
    bonus: Floats
    surplus: Floats
    most: Floats
    left: Floats
    below: float


class Times(NamedTuple):
    """What decides values that are completion time saved; see ``Ends`` and ``price_until``.

    All are empty if values are no times. ``paid_due`` is the price of a GPU until each job is due,
    ``least`` the least price of an idle GPU until a job ends.
    """

    due: Floats
    rent: Floats
    after: Floats
    times: Floats
    paid: Floats
    slope: Floats
    near: Ints
    floor: float
    claimed: float
    latest: float
    paid_due: Floats
    least: Floats


@kernel
def fill_rows_of_pairs(
    first: int,
    last: int,
    jobs: TiledJobs,
    times: Times,
    scale: float,
    fixed: Narrow,
    value: Floats,
    split: Bytes,
) -> None:
    """Write the rows of the jobs at these positions of ``order``.

    Either values and splits are written, or values rounded up to whole units of 1 / scale: those
    beyond the diagonal, and some before it (see ``mirror_rows``).
    """
    splits, n = jobs.mirror.size, jobs.workload.size
    timed, exact = jobs.left.size > 0, split.size > 0
    worth = np.empty((splits, _TILE + _PADDING))
    other = np.empty((splits, _TILE + _PADDING))
    limit = np.empty((splits, _TILE + _PADDING))
    best = np.empty(_TILE)
    at = np.empty(_TILE)
    for start in range(0, n, _TILE):
        stop = min(start + _TILE, n)
        width = stop - start
        like = -1
        for r in range(first, last):
            i = jobs.order[r]
            if i >= stop and not exact:
                continue
            if like < 0 or not are_alike(jobs, i, like, timed):
                like = i
                if timed:
                    gather(jobs, i, start, stop, worth, other, limit)
                else:
                    look_up(jobs, i, start, stop, worth, limit)
                if jobs.per_cost != 0.0 and not timed:
                    pay_cost(jobs, i, start, stop, worth)
            best[:] = -np.inf
            # Of equal splits the first is taken, from the side of the job with the lower index.
            before = min(max(i - start, 0), width) if exact else 0
            for p in range(splits):
                q = jobs.mirror[p]
                if exact and jobs.allowed[q, i]:
                    raise_best(
                        q, jobs.gsla[i], limit[q, :before], worth[q, :before], best[:before],
                        at[:before],
                    )  # fmt: skip
                if not jobs.allowed[p, i]:
                    continue
                if exact:
                    raise_best(
                        p, jobs.gsla[i], limit[p, before:width], worth[p, before:width],
                        best[before:width], at[before:width],
                    )  # fmt: skip
                elif times.due.size > 0:
                    raise_saved(
                        jobs, times, i, p, start, worth[p, :width], other[p, :width],
                        limit[p, :width], best[:width],
                    )  # fmt: skip
                elif timed:
                    raise_shortening(
                        jobs, i, start, worth[p, :width], other[p, :width], limit[p, :width],
                        best[:width],
                    )  # fmt: skip
                else:
                    raise_value(jobs.gsla[i], limit[p, :width], worth[p, :width], best[:width])
            forbid(jobs, i, start, best[:width])
            if jobs.bonus.size > 0:
                add_bonus(i, start, jobs.bonus, jobs.surplus, jobs.most, best[:width])
            if not exact:
                round_best(best[:width], scale, fixed[i, start:stop])
                continue
            for c in range(width):
                value[i, start + c] = best[c] if best[c] > -np.inf else np.nan
            for c in range(width):
                split[i, start + c] = np.uint8(at[c] if best[c] > -np.inf else NO_SPLIT)


@kernel
def are_alike(jobs: TiledJobs, i: int, j: int, timed: bool) -> bool:
    """Return whether what is gathered for a row is also that of another."""
    if jobs.workload[i] != jobs.workload[j]:
        return False
    return timed or (jobs.weight[i] == jobs.weight[j] and jobs.size[i] == jobs.size[j])


@kernel
def look_up(jobs: TiledJobs, i: int, start: int, stop: int, worth: Floats, limit: Floats) -> None:
    """Gather the values of a job with others at each split, and the own bounds.

    The value is -inf where the others may not have the split.
    """
    a, own_weight = jobs.workload[i], jobs.weight[i]
    slowdown, bound = jobs.slowdown, jobs.bound
    for c in range(stop - start):
        b, weight, gsla = jobs.workload[start + c], jobs.weight[start + c], jobs.gsla[start + c]
        for p in range(jobs.mirror.size):
            q = jobs.mirror[p]
            own, other = slowdown[a, b, p], slowdown[b, a, q]
            limit[p, c] = bound[a, b, p]
            gain = (
                -weight * other - own_weight * own
                if jobs.minimised
                else np.divide(weight, other) + np.divide(own_weight, own)
            )
            may = (bound[b, a, q] <= gsla) & jobs.allowed[q, start + c]
            worth[p, c] = gain if may else -np.inf


@kernel
def gather(
    jobs: TiledJobs, i: int, start: int, stop: int, own: Floats, other: Floats, limit: Floats
) -> None:
    """Gather the slowdowns of a job and of others at each split, and the own bounds.

    The own slowdown is NaN where the others may not have the split.
    """
    a = jobs.workload[i]
    slowdown, bound = jobs.slowdown, jobs.bound
    for c in range(stop - start):
        b, gsla = jobs.workload[start + c], jobs.gsla[start + c]
        for p in range(jobs.mirror.size):
            q = jobs.mirror[p]
            limit[p, c] = bound[a, b, p]
            other[p, c] = slowdown[b, a, q]
            may = (bound[b, a, q] <= gsla) & jobs.allowed[q, start + c]
            own[p, c] = slowdown[a, b, p] if may else np.nan


@kernel
def pay_cost(jobs: TiledJobs, i: int, start: int, stop: int, worth: Floats) -> None:
    """Subtract the cost of the GPUs of a job with others at each split."""
    a, per_cost = jobs.workload[i], jobs.per_cost * jobs.size[i]
    for c in range(stop - start):
        for p in range(worth.shape[0]):
            worth[p, c] -= per_cost * jobs.gpu_cost[a, jobs.workload[start + c], p]


@kernel
def raise_shortening(
    jobs: TiledJobs, i: int, start: int, own: Floats, other: Floats, limit: Floats, best: Floats
) -> None:
    """Keep the value of a split for the columns where it is the best so far."""
    gsla, weight, left, runs = jobs.gsla[i], jobs.weight[i], jobs.left[i], jobs.running[i]
    stop = start + best.size
    weights, lefts, running = (
        jobs.weight[start:stop],
        jobs.left[start:stop],
        jobs.running[start:stop],
    )
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
        may = (limit[c] <= gsla) & (shared < turn * jobs.below) & (worth > best[c])
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
def raise_saved(
    jobs: TiledJobs,
    times: Times,
    i: int,
    p: int,
    start: int,
    own: Floats,
    other: Floats,
    limit: Floats,
    best: Floats,
) -> None:
    """Keep the time that a split saves for the columns where it is the best so far."""
    mine = times.after[jobs.workload[i], p]
    at, paid, slope, near = times.times, times.paid, times.slope, times.near
    unclaimed = price_until(min(times.claimed, at[at.size - 1]), at, paid, slope, near)
    for c in range(best.size):
        # False for NaN
        if not (limit[c] <= jobs.gsla[i] and own[c] > 0):
            continue
        j = start + c
        if j <= i or jobs.memory[i] + jobs.memory[j] > jobs.memory_limit:
            continue
        whole, its_whole = own[c] * jobs.left[i], other[c] * jobs.left[j]
        # The job that ends first ends at the slowdown of sharing.
        end, its_end = whole, its_whole
        if whole <= its_whole:
            rest = max(0.0, jobs.left[j] - np.divide(whole, other[c]))
            its_end = min(its_whole, whole + rest * times.after[jobs.workload[j], jobs.mirror[p]])
        else:
            rest = max(0.0, jobs.left[i] - np.divide(its_whole, own[c]))
            end = min(whole, its_whole + rest * mine)
        if end > times.latest and (not jobs.running[i] or times.due[i] <= times.latest):
            continue
        if its_end > times.latest and (not jobs.running[j] or times.due[j] <= times.latest):
            continue
        total = jobs.weight[i] * (times.due[i] - end) + times.rent[i]
        total += jobs.weight[j] * (times.due[j] - its_end) + times.rent[j]
        if jobs.running[i] or jobs.running[j]:
            held = end if jobs.running[i] else its_end
            so_far = price_until(held, at, paid, slope, near) + times.floor * held
            total += (times.paid_due[i] if jobs.running[i] else times.paid_due[j]) - so_far
            if max(end, its_end) > held:
                until = max(end, its_end)
                cost = price_until(until, at, paid, slope, near) - so_far
                cost += times.floor * until
                total -= max(0.0, cost)
        else:
            most = total - max(times.least[i], times.least[j])
            if most < 0 or most <= best[c]:
                continue
            until = max(end, its_end)
            if until > times.claimed:
                cost = price_until(until, at, paid, slope, near) - unclaimed
                total -= max(0.0, cost + times.floor * until)
            else:
                total -= times.floor * until
        if total >= 0 and total > best[c]:
            best[c] = total


@kernel
def add_bonus(
    i: int, start: int, bonus: Floats, surplus: Floats, most: Floats, best: Floats
) -> None:
    """Add the bonus of both jobs, and exclude pairs of too much surplus."""
    for c in range(best.size):
        may = surplus[start + c] + surplus[i] <= most[i]
        best[c] = best[c] + (bonus[i] + bonus[start + c]) if may else -np.inf


@kernel
def raise_value(gsla: float, limit: Floats, worth: Floats, best: Floats) -> None:
    """Keep the value of a split for the columns where it is the best so far."""
    for c in range(best.size):
        allowed = worth[c] if limit[c] <= gsla else -np.inf
        best[c] = allowed if allowed > best[c] else best[c]


@kernel
def raise_best(
    split: int, gsla: float, limit: Floats, worth: Floats, best: Floats, at: Floats
) -> None:
    """Keep the value of a split, and the split, for the columns where it is the best so far."""
    for c in range(best.size):
        allowed = worth[c] if limit[c] <= gsla else -np.inf
        better = allowed > best[c]
        best[c] = allowed if better else best[c]
        at[c] = split if better else at[c]


@kernel
def forbid(jobs: TiledJobs, i: int, start: int, best: Floats) -> None:
    """Exclude pairs that do not fit, of unequal size, or of two running jobs."""
    stop = start + best.size
    memory, size = jobs.memory[start:stop], jobs.size[start:stop]
    for c in range(best.size):
        best[c] = best[c] if jobs.memory[i] + memory[c] <= jobs.memory_limit else -np.inf
    for c in range(best.size):
        best[c] = best[c] if jobs.size[i] == size[c] else -np.inf
    if jobs.running[i]:
        best[jobs.running[start:stop]] = -np.inf
    if start <= i < stop:
        best[i - start] = -np.inf


@kernel
def round_best(best: Floats, scale: float, fixed: Narrow) -> None:
    """Write values rounded up to whole units of 1 / scale."""
    for c in range(best.size):
        units = np.ceil(best[c] * scale) if best[c] > -np.inf else np.float64(FORBIDDEN)
        fixed[c] = np.int32(units)


@kernel
def mirror_rows(first: int, last: int, fixed: Narrow, joined: Ints) -> None:
    """Copy the values beyond the diagonal before it, and count the allowed pairs of each row."""
    for above in range(first, last, _MIRRORED):
        below = min(above + _MIRRORED, last)
        for left in range(0, below, _MIRRORED):
            right = min(left + _MIRRORED, below)
            for i in range(above, below):
                for j in range(left, min(right, i)):
                    fixed[i, j] = fixed[j, i]
        for i in range(above, below):
            count = 0
            for j in range(fixed.shape[1]):
                count += 1 if fixed[i, j] != FORBIDDEN else 0
            joined[i] = count
