"""The best split of every pair of jobs, chosen before jobs are matched.

A *split* gives both jobs on a GPU their shares of it: 30 % and 70 %, say, or no cap for either.
Under every objective that sums over jobs, what a pair is worth does not depend on who else
shares, so that the best split of each pair can be chosen beforehand; a maximum weight matching
of these values is then the best choice of pairs and splits together (Muri, Zhao et al. 2022,
matches jobs by such values, without splits).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dovetail.instances.errors import ArgumentError
from dovetail.solver.pairing.arguments import whole_sizes
from dovetail.solver.pairing.compilation import (
    can_compile,
    compiled,
    is_compiled,
    kernel,
    over_rows,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]

NO_SPLIT = 255
"""In place of the split of a pair that may not share."""

_MOST_SPLITS = 255
"""So that a split and ``NO_SPLIT`` fit a byte: with 10,000 jobs there are 10^8 of them."""

_VECTORISED_JOBS = 80
"""Jobs up to which numpy is done sooner than numba and its cached code are loaded."""

_TILE = 512
"""Columns looked at together: what is looked up of them stays in the cache."""

_PADDING = 8
"""Keeps rows of a tile apart by other than a power of two, which caches map to the same places."""


@dataclass(frozen=True)
class BestSplits:
    """What the pairs of ``n`` jobs are worth, each at its best split.

    Attributes
    ----------
    value : (n, n) float
        The value of each pair, symmetric; NaN where two jobs may not share, and on the
        diagonal. The ``pair_value`` of ``match_pairs``.
    split : (n, n) uint8
        ``split[i, j]`` is the split at which job i runs beside j, as an index into the last
        axis of the slowdowns; ``NO_SPLIT`` where they may not share. ``split[j, i]`` is its
        mirror: the same split from the side of j.
    """

    value: NDArray[np.floating[Any]]
    split: Bytes

    def of_mates(self, mate: Ints) -> Ints:
        """Return the split of each job in a matching, (n,); -1 where it shares with nobody.

        Parameters
        ----------
        mate : (n,) int
            As ``match_pairs`` returns it.
        """
        jobs = np.arange(len(mate))
        paired = (mate >= 0) & (mate != jobs)
        return np.where(paired, self.split[jobs, mate].astype(np.int64), -1)


def best_splits(
    slowdown: ArrayLike,
    workload: ArrayLike,
    *,
    bound: ArrayLike | None = None,
    gsla: ArrayLike | None = None,
    memory: ArrayLike | None = None,
    memory_limit: float = np.inf,
    weight: ArrayLike | None = None,
    size: ArrayLike | None = None,
    running: ArrayLike | None = None,
    allowed: ArrayLike | None = None,
    mirror: ArrayLike | None = None,
    gain: Literal["throughput", "slowdown"] = "throughput",
    dtype: DTypeLike = np.float64,
) -> BestSplits:
    """Return the value of every pair of jobs at its best split, and that split.

    One pass over all pairs and splits, on all cores. A pair may share at a split where both
    slowdowns are known, both bounds keep the jobs' gSLAs, their memory fits together and both
    may have the split. Of several splits of one value the first counts, seen from the job of
    the lower index.

    Parameters
    ----------
    slowdown : (k, k, s) float array
        ``slowdown[a, b, p]``: how much longer workload a takes at split p beside b than alone;
        NaN where the two may not share. At most 255 splits.
    workload : (n,) int
        The workload of each job, 0..k-1.
    bound : (k, k, s) float array, optional
        What gSLAs are checked against, an upper bound or tail latency; default: ``slowdown``.
        A split is left out where it is NaN.
    gsla : (n,) float, optional
        The largest bound that each job accepts. Default: any.
    memory : (n,) float, optional
        What each job needs of a GPU, in the unit of ``memory_limit``.
    memory_limit : float, optional
        What two jobs may need together. Default: no limit.
    weight : (n,) float, optional
        Multiplies each job's gain. Default: 1.
    size : (n,) int, optional
        GPUs that each job takes; only jobs of equal size pair. Default: all equal.
    running : (n,) bool, optional
        Jobs that hold GPUs already: no two of them pair.
    allowed : (n, s) bool array, optional
        The splits that each job may have: of a running job those with the share it has.
    mirror : (s,) int, optional
        ``mirror[p]``: split p seen from the other side. Default: ``s - 1 - p``, as when splits
        are ordered by the first share and every two shares add up to the same.
    gain : {"throughput", "slowdown"}
        A job's gain is ``weight / slowdown``, or ``-weight * slowdown``; the value of a pair is
        the sum of both.
    dtype : dtype
        Of the values: float64, or float32 for half the memory and values exact to 6e-8.

    Raises
    ------
    ArgumentError
        Where an argument breaks its rule.

    Examples
    --------
    Which jobs share, at which split:

    >>> import numpy as np
    >>> from dovetail.solver import best_splits, match_pairs
    >>> slowdown = np.array([[[2.0, 1.5, 1.2], [3.0, 1.8, 1.1]],
    ...                      [[1.3, 1.6, 2.5], [2.0, 1.4, 1.3]]])  # shares 30, 50, 70
    >>> found = best_splits(slowdown, workload=[0, 1, 1], gsla=[1.6, 1.2, 2.0])
    >>> plan = match_pairs(found.value, single_value=np.ones(3), gpus=2)
    >>> plan.mate.tolist(), found.of_mates(plan.mate).tolist()
    ([2, 1, 0], [2, -1, 0])
    """
    task = _Task(
        slowdown, workload, bound, gsla, memory, memory_limit, weight, size, running, allowed,
        mirror, gain
    )  # fmt: skip
    n = len(task.workload)
    value = np.empty((n, n), dtype=_value_type(dtype))
    split = np.empty((n, n), dtype=np.uint8)
    unsound = np.zeros(len(task.slowdown), dtype=bool)
    if can_compile() and (is_compiled() or n > _VECTORISED_JOBS):
        order = np.argsort(task.workload, kind="stable")
        over_rows(compiled, split_rows, n, n, order, *task.arrays, value, split, unsound)
    else:
        _split_rows_vectorised(*task.arrays, value, split, unsound)
    _refuse_unsound(task.slowdown, unsound)
    return BestSplits(value, split)


@kernel
def split_rows(
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
    minimised: bool,
    value: Floats,
    split: Bytes,
    unsound: Bools,
) -> None:
    """Write the rows of the jobs at these positions of ``order``, which is by workload.

    What does not depend on the row's job but on its workload alone is looked up once for all
    jobs of that workload, a tile of columns at a time; the rest is arithmetic without branches.
    """
    splits = mirror.size
    tables = np.empty((4, splits, _TILE + _PADDING))
    best = np.empty(_TILE)
    at = np.empty(_TILE)
    for start in range(0, workload.size, _TILE):
        stop = min(start + _TILE, workload.size)
        width = stop - start
        a = -1
        for r in range(first, last):
            i = order[r]
            if workload[i] != a:
                a = workload[i]
                look_up(a, slowdown, bound, mirror, workload[start:stop], tables)
                for p in range(splits):
                    q = mirror[p]
                    if worth_beside(
                        gsla[start:stop], weight[start:stop], allowed[q, start:stop],
                        minimised, tables[0, p], tables[2, p], tables[3, p],
                    ):  # fmt: skip
                        unsound[a] = True
            best[:] = -np.inf
            # Of equal splits the first counts, seen from the job of the lower index.
            before = min(max(i - start, 0), width)
            for p in range(splits):
                q = mirror[p]
                if allowed[q, i]:
                    raise_best(
                        q, gsla[i], weight[i], minimised,
                        tables[0, q, :before], tables[1, q, :before], tables[2, q, :before],
                        best[:before], at[:before],
                    )  # fmt: skip
                if allowed[p, i]:
                    raise_best(
                        p, gsla[i], weight[i], minimised,
                        tables[0, p, before:width], tables[1, p, before:width],
                        tables[2, p, before:width], best[before:width], at[before:width],
                    )  # fmt: skip
            for c in range(width):
                fits = memory[i] + memory[start + c] <= memory_limit
                meets = fits & (size[i] == size[start + c]) & (i != start + c)
                best[c] = best[c] if meets else -np.inf
            if running[i]:
                best[:width][running[start:stop]] = -np.inf
            write_row(best[:width], at, value[i, start:stop], split[i, start:stop])


@kernel
def look_up(
    a: int, slowdown: Floats, bound: Floats, mirror: Ints, others: Ints, tables: Floats
) -> None:
    """Gather what is known of a workload beside others: own slowdown and bound, then theirs."""
    for c in range(others.size):
        b = others[c]
        for p in range(mirror.size):
            tables[0, p, c] = slowdown[a, b, p]
            tables[1, p, c] = bound[a, b, p]
            tables[2, p, c] = slowdown[b, a, mirror[p]]
            tables[3, p, c] = bound[b, a, mirror[p]]


@kernel
def worth_beside(
    gsla: Floats,
    weight: Floats,
    allowed: Bools,
    minimised: bool,
    own_slowdown: Floats,
    slowdown: Floats,
    bound: Floats,
) -> bool:
    """Replace the others' slowdowns by their gains, -inf where they may not have the split.

    Return whether a slowdown is not positive.
    """
    unsound = False
    for c in range(gsla.size):
        unsound |= (slowdown[c] <= 0) | (own_slowdown[c] <= 0)
    for c in range(gsla.size):
        gain = -weight[c] * slowdown[c] if minimised else np.divide(weight[c], slowdown[c])
        slowdown[c] = gain if (bound[c] <= gsla[c]) & allowed[c] else -np.inf
    return unsound


@kernel
def raise_best(
    split: int,
    gsla: float,
    weight: float,
    minimised: bool,
    slowdown: Floats,
    bound: Floats,
    other: Floats,
    best: Floats,
    at: Floats,
) -> None:
    """Keep the value of a split, and the split, for the columns where it is the best so far."""
    if minimised:
        for c in range(best.size):
            worth = other[c] - weight * slowdown[c]
            better = (bound[c] <= gsla) & (worth > best[c])
            best[c] = worth if better else best[c]
            at[c] = split if better else at[c]
        return
    for c in range(best.size):
        worth = other[c] + np.divide(weight, slowdown[c])
        better = (bound[c] <= gsla) & (worth > best[c])
        best[c] = worth if better else best[c]
        at[c] = split if better else at[c]


@kernel
def write_row(best: Floats, at: Floats, value: Floats, split: Bytes) -> None:
    """Write a part of a row, NaN and ``NO_SPLIT`` where nothing is allowed."""
    for c in range(best.size):
        value[c] = best[c] if best[c] > -np.inf else np.nan
    for c in range(best.size):
        split[c] = np.uint8(at[c] if best[c] > -np.inf else NO_SPLIT)


def _split_rows_vectorised(
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
    minimised: bool,
    value: Floats,
    split: Bytes,
    unsound: Bools,
) -> None:
    """Do what ``split_rows`` does to all rows, with numpy."""
    for i, a in enumerate(workload.tolist()):
        value[i, i], split[i, i] = np.nan, NO_SPLIT
        others = slice(i + 1, None)
        b = workload[others]
        if not len(b):
            continue
        may = (bound[a, b] <= gsla[i]) & (bound[b, a][:, mirror] <= gsla[others, None])
        may &= allowed[:, i] & allowed[:, others].T[:, mirror]
        meet = (size[others] == size[i]) & ~(running[others] & running[i])
        meet &= memory[others] + memory[i] <= memory_limit
        may &= meet[:, None]
        own, other = slowdown[a, b], slowdown[b, a][:, mirror]
        unsound[a] |= ((own <= 0) | (other <= 0)).any()
        mine, theirs = weight[i], weight[others, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            worth = -mine * own - theirs * other if minimised else mine / own + theirs / other
        worth = np.where(may & ~np.isnan(worth), worth, -np.inf)
        at = worth.argmax(axis=1)
        best = np.take_along_axis(worth, at[:, None], axis=1)[:, 0]
        found = best > -np.inf
        value[i, others] = value[others, i] = np.where(found, best, np.nan)
        split[i, others] = np.where(found, at, NO_SPLIT)
        split[others, i] = np.where(found, mirror[at], NO_SPLIT)


class _Task:
    """The checked arguments of ``best_splits``, defaults filled in."""

    def __init__(
        self,
        slowdown: ArrayLike,
        workload: ArrayLike,
        bound: ArrayLike | None,
        gsla: ArrayLike | None,
        memory: ArrayLike | None,
        memory_limit: float,
        weight: ArrayLike | None,
        size: ArrayLike | None,
        running: ArrayLike | None,
        allowed: ArrayLike | None,
        mirror: ArrayLike | None,
        gain: str,
    ) -> None:
        self.slowdown = _table("slowdown", slowdown)
        shape = self.slowdown.shape
        if shape[0] != shape[1] or not 1 <= shape[2] <= _MOST_SPLITS:
            rule = f"must have shape (k, k, s) with s from 1 to {_MOST_SPLITS}"
            raise ArgumentError(f"slowdown {rule}, got {shape}")
        self.workload = _whole("workload", workload, shape[0])
        n = len(self.workload)
        upper = self.slowdown if bound is None else _table("bound", bound)
        if upper.shape != shape:
            raise ArgumentError(
                f"bound must have the shape of slowdown, {shape}, got {upper.shape}"
            )
        if gain not in ("throughput", "slowdown"):
            raise ArgumentError(f"gain must be 'throughput' or 'slowdown', got {gain!r}")
        if not memory_limit >= 0:
            raise ArgumentError(f"memory_limit must be >= 0, got {memory_limit!r}")
        mirrored = _mirror(mirror, shape[2])
        may = _flags("allowed", allowed, (n, shape[2]), True)
        self.arrays = (
            self.slowdown,
            upper,
            mirrored,
            self.workload,
            _numbers("gsla", gsla, n, np.inf),
            _numbers("memory", memory, n, 0.0),
            float(memory_limit),
            _numbers("weight", weight, n, 1.0),
            whole_sizes(size, n),
            _flags("running", running, (n,), False),
            np.ascontiguousarray(may.T),
            gain == "slowdown",
        )


def _table(name: str, given: ArrayLike) -> Floats:
    table = np.asarray(given)
    if table.dtype not in (np.float32, np.float64):
        table = table.astype(np.float64)
    if table.ndim != 3:
        raise ArgumentError(f"{name} must have three dimensions, got shape {table.shape}")
    return table


def _whole(name: str, given: ArrayLike, count: int) -> Ints:
    """Return a vector of whole numbers from 0 to ``count - 1``."""
    numbers = np.asarray(given)
    if numbers.ndim != 1:
        raise ArgumentError(f"{name} must be a vector, got shape {numbers.shape}")
    whole: Ints = numbers.astype(np.int64)
    wrong = (whole != numbers) | (whole < 0) | (whole >= count)
    if wrong.any():
        at = int(np.argmax(wrong))
        rule = f"must be whole numbers from 0 to {count - 1}"
        raise ArgumentError(f"{name} {rule}, got {numbers[at]} at {at}")
    return whole


def _mirror(given: ArrayLike | None, splits: int) -> Ints:
    if given is None:
        return np.arange(splits)[::-1].copy()
    mirror = _whole("mirror", given, splits)
    if len(mirror) != splits or (mirror[mirror] != np.arange(splits)).any():
        raise ArgumentError(
            f"mirror must map {splits} splits onto each other in pairs, got {given}"
        )
    return mirror


def _numbers(name: str, given: ArrayLike | None, n: int, default: float) -> Floats:
    if given is None:
        return np.full(n, default)
    numbers = np.asarray(given, dtype=np.float64)
    if numbers.shape != (n,):
        raise ArgumentError(f"{name} must have shape ({n},), got {numbers.shape}")
    wrong = ~(numbers >= 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ArgumentError(f"{name} must be >= 0, got {numbers[at]} at {at}")
    return numbers


def _flags(name: str, given: ArrayLike | None, shape: tuple[int, ...], default: bool) -> Bools:
    if given is None:
        return np.full(shape, default)
    flags = np.asarray(given)
    if flags.shape != shape or flags.dtype != np.bool_:
        found = f"{flags.dtype} {flags.shape}"
        raise ArgumentError(f"{name} must be a boolean array of shape {shape}, got {found}")
    return flags


def _value_type(dtype: DTypeLike) -> np.dtype[Any]:
    if np.dtype(dtype) not in (np.float32, np.float64):
        raise ArgumentError(f"dtype must be float32 or float64, got {dtype!r}")
    return np.dtype(dtype)


def _refuse_unsound(slowdown: Floats, unsound: Bools) -> None:
    if unsound.any():
        a = int(np.argmax(unsound))
        least = float(np.fmin.reduce(np.fmin(slowdown[a], slowdown[:, a]), axis=None))
        raise ArgumentError(f"slowdown must be > 0, got {least} with workload {a}")
