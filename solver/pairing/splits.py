"""The best split of every pair of jobs, chosen before jobs are matched.

A *split* gives both jobs on a GPU their shares of it, such as 30 % and 70 %, or no cap for either.
Under every objective that sums over jobs, the value of a pair does not depend on the other pairs,
so that the best split of each pair can be chosen beforehand; a maximum weight matching of these
values is then the best choice of pairs and splits together (Muri, Zhao et al. 2022, matches jobs by
such values, without splits).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dovetail.instances.errors import ArgumentError
from dovetail.solver.pairing.arguments import PairValues, whole_sizes
from dovetail.solver.pairing.compilation import (
    can_compile,
    compiled,
    is_compiled,
    kernel,
    over_rows,
)
from dovetail.solver.pairing.dense import FORBIDDEN, MatrixPairs
from dovetail.solver.pairing.kinds import LEAST_JOBS, KindPairs, Tables, count_able, room_of, suits

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Narrow = NDArray[np.int32]
Bools = NDArray[np.bool_]

NO_SPLIT = 255
"""The split of a pair that may not share."""

_MOST_SPLITS = 255
"""Splits and ``NO_SPLIT`` fit a byte: 10,000 jobs have 10^8 of them."""

_VECTORISED_JOBS = 80
"""Number of jobs up to which numpy is faster than loading numba and its cached code."""

_PAIR_BYTES, _KIND_BYTES = 7, 45
"""Bytes of a matching for each cell of a matrix, and of a table of kinds at a split, measured at
10,000 and 20,000 jobs."""

_KINDS_AT_ONCE = 128
"""Rows of a table of thousands of workloads, copied at a time."""

_TILE = 512
"""Columns processed together: their values stay in the cache."""

_MIRRORED = 64
"""Rows and columns that are mirrored together."""

_PADDING = 8
"""Padding that makes the row length no power of two, which caches would map to the same lines."""


@dataclass(frozen=True)
class BestSplits:
    """The values of the pairs of ``n`` jobs, each at its best split.

    Attributes
    ----------
    value : (n, n) float
        The value of each pair, symmetric; NaN where two jobs may not share, and on the
        diagonal. The ``pair_value`` of ``match_pairs``.
    split : (n, n) uint8
        ``split[i, j]`` is the split at which job i runs with j, as an index into the last
        axis of the slowdowns; ``NO_SPLIT`` where they may not share. ``split[j, i]`` is its
        mirror: the same split from the side of j.
    """

    value: NDArray[np.floating[Any]]
    split: Bytes

    def of_mates(self, mate: Ints) -> Ints:
        """Return the split of each job in a matching, (n,); -1 if it does not share.

        Parameters
        ----------
        mate : (n,) int
            The result of ``match_pairs``.
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

    This is one pass over all pairs and splits, on all cores. A pair may share at a split if both
    slowdowns are known, both bounds keep the jobs' gSLAs, their memory fits together and both may
    have the split. Of several splits with the same value the first is taken, from the side of the
    job with the lower index.

    Parameters
    ----------
    slowdown : (k, k, s) float array
        ``slowdown[a, b, p]``: how much longer workload a takes at split p with b than alone;
        NaN where the two may not share. At most 255 splits.
    workload : (n,) int
        The workload of each job, 0..k-1.
    bound : (k, k, s) float array, optional
        The bound that gSLAs are checked against, an upper bound or tail latency; default:
        ``slowdown``. A split is left out if its bound is NaN.
    gsla : (n,) float, optional
        The largest bound that each job accepts. Default: any.
    memory : (n,) float, optional
        The memory that each job needs on a GPU, in the unit of ``memory_limit``.
    memory_limit : float, optional
        The memory that two jobs may need together. Default: no limit.
    weight : (n,) float, optional
        The factor of each job's gain. Default: 1.
    size : (n,) int, optional
        Number of GPUs that each job takes; only jobs of equal size pair. Default: all equal.
    running : (n,) bool, optional
        Jobs that hold GPUs already: no two of them pair.
    allowed : (n, s) bool array, optional
        The splits that each job may have; for a running job, those with its share.
    mirror : (s,) int, optional
        ``mirror[p]``: split p seen from the other side. Default: ``s - 1 - p``, as when splits
        are ordered by the first share and every two shares add up to the same.
    gain : {"throughput", "slowdown"}
        A job's gain is ``weight / slowdown``, or ``-weight * slowdown``; the value of a pair is
        the sum of both.
    dtype : dtype
        Type of the values: float64, or float32 for half the memory and values exact to 6e-8.

    Raises
    ------
    ArgumentError
        If an argument breaks its rule.

    Examples
    --------
    Which jobs share, at which split:

    >>> import numpy as np
    >>> from dovetail.solver import best_splits, match_pairs
    >>> slowdown = np.array(
    ...     [[[2.0, 1.5, 1.2], [3.0, 1.8, 1.1]], [[1.3, 1.6, 2.5], [2.0, 1.4, 1.3]]]
    ... )  # shares 30, 50, 70
    >>> found = best_splits(slowdown, workload=[0, 1, 1], gsla=[1.6, 1.2, 2.0])
    >>> plan = match_pairs(found.value, single_value=np.ones(3), gpus=2)
    >>> plan.mate.tolist(), found.of_mates(plan.mate).tolist()
    ([2, 1, 0], [2, -1, 0])
    """
    values = SplitValues(
        slowdown, workload, bound, gsla, memory, memory_limit, weight, size, running, allowed,
        mirror, gain
    )  # fmt: skip
    return values.matrices(dtype)


class SplitValues(PairValues):
    """The values of all pairs of jobs, each at its best split; the parameters of ``best_splits``.

    As the ``pair_value`` of ``match_pairs`` the values are rounded while they are computed, which
    takes half the memory and a third of the time of a matrix that is rounded later.

    Beyond those of ``best_splits`` there is the parameter ``power_w``, the watts of a GPU with each
    pair at each split, (k, k, s), which ``weighed`` may count.
    """

    def __init__(
        self,
        slowdown: ArrayLike,
        workload: ArrayLike,
        bound: ArrayLike | None = None,
        gsla: ArrayLike | None = None,
        memory: ArrayLike | None = None,
        memory_limit: float = np.inf,
        weight: ArrayLike | None = None,
        size: ArrayLike | None = None,
        running: ArrayLike | None = None,
        allowed: ArrayLike | None = None,
        mirror: ArrayLike | None = None,
        gain: str = "throughput",
        power_w: Floats | None = None,
    ) -> None:
        table = _table("slowdown", slowdown)
        shape = table.shape
        if shape[0] != shape[1] or not 1 <= shape[2] <= _MOST_SPLITS:
            rule = f"must have shape (k, k, s) with s from 1 to {_MOST_SPLITS}"
            raise ArgumentError(f"slowdown {rule}, got {shape}")
        of_job = _whole("workload", workload, shape[0])
        n = len(of_job)
        upper = table if bound is None else _table("bound", bound)
        if upper.shape != shape:
            raise ArgumentError(
                f"bound must have the shape of slowdown, {shape}, got {upper.shape}"
            )
        if gain not in ("throughput", "slowdown"):
            raise ArgumentError(f"gain must be 'throughput' or 'slowdown', got {gain!r}")
        if not memory_limit >= 0:
            raise ArgumentError(f"memory_limit must be >= 0, got {memory_limit!r}")
        _refuse_unsound(table, np.unique(of_job))
        self.shape = n, n
        self._tables = table, upper, _mirror(mirror, shape[2])
        self._minimised = gain == "slowdown"
        self._power = np.zeros((0, 0, 0)) if power_w is None else power_w
        self._per_watt = 0.0
        self._bonus = self._surplus = self._most = self._left = np.zeros(0)
        self._below = 1.0
        self._memory_limit = float(memory_limit)
        self._jobs = (
            of_job,
            _numbers("gsla", gsla, n, np.inf),
            _numbers("memory", memory, n, 0.0),
            _numbers("weight", weight, n, 1.0),
            whole_sizes(size, n),
            _flags("running", running, (n,), False),
            _flags("allowed", allowed, (n, shape[2]), True),
        )

    def __len__(self) -> int:
        return self.shape[0]

    def weighed(self, per_gain: float, per_watt: float) -> SplitValues:
        """Return the values if gains count by a factor, and each watt of the GPUs costs another."""
        workload, gsla, memory, weight, *rest = self._jobs
        changed = {"_jobs": (workload, gsla, memory, per_gain * weight, *rest)}
        return self._with(**changed, _per_watt=per_watt)

    def limited(self, bonus: Floats, surplus: Floats, most: Floats) -> SplitValues:
        """Return values with a bonus for both jobs, of the pairs of limited surplus.

        Parameters
        ----------
        bonus, surplus, most : (n,) float
            The value of a pair has the bonus of both jobs in addition. The surplus of both must be
            at most ``most`` of the first; jobs that may share have the same ``most``.
        """
        return self._with(_bonus=bonus, _surplus=surplus, _most=most)

    def _with(self, **changed: Any) -> SplitValues:  # noqa: ANN401
        found = copy(self)
        vars(found).pop("pairs", None)
        vars(found).update(changed)
        return found

    @cached_property
    def pairs(self) -> BestSplits:
        """The values and splits of all pairs, as matrices."""
        return self.matrices(np.float64)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Floats:
        return np.array(self.pairs.value, dtype=dtype, copy=copy)

    def __getitem__(self, pairs: tuple[Ints, Ints]) -> Floats:
        return self.best(*pairs)[0]

    def matrices(self, dtype: DTypeLike) -> BestSplits:
        """Return the values and splits as matrices."""
        value = np.empty(self.shape, dtype=_value_type(dtype))
        split = np.empty(self.shape, dtype=np.uint8)
        n = len(value)
        if can_compile() and (is_compiled() or n > _VECTORISED_JOBS):
            over_rows(compiled, split_rows, n, n, *self._all_arguments(slice(None)), value, split)
            return BestSplits(value, split)
        return self._row_by_row(value, split)

    def _row_by_row(self, value: NDArray[np.floating[Any]], split: Bytes) -> BestSplits:
        """Return the values and splits of all pairs in these arrays, without kernels."""
        mirror = self._tables[2]
        for i in range(len(value)):
            value[i, i], split[i, i] = np.nan, NO_SPLIT
            others = slice(i + 1, None)
            found, at = self.best(i, np.arange(i + 1, len(value)))
            value[i, others] = value[others, i] = found
            split[i, others] = at
            split[others, i] = np.append(mirror, NO_SPLIT)[np.minimum(at, len(mirror))]
        return BestSplits(value, split)

    @property
    def needed_bytes(self) -> int:
        """About how much memory a matching takes for the values."""
        needed = 0
        for size in np.unique(self._jobs[4]).tolist():
            jobs = np.flatnonzero(self._jobs[4] == size)
            kinds = self._kinds(jobs)
            if kinds is None:
                needed += _PAIR_BYTES * len(jobs) ** 2
            else:
                cells = int(np.count_nonzero(kinds[1])) ** 2 * self._tables[0].shape[2]
                needed += _KIND_BYTES * cells
        return needed

    def _kinds(self, jobs: Ints) -> tuple[Ints, Bools] | None:
        """Return an order of jobs by kind and which begin a kind; None if a matrix is small."""
        if len(jobs) <= LEAST_JOBS:
            return None
        workload, gsla, memory, _, _, running, allowed = self._jobs
        like = workload[jobs], memory[jobs], running[jobs], *np.packbits(allowed[jobs], axis=1).T
        order = np.lexsort((-gsla[jobs], *like))
        new = np.any([np.diff(of[order], prepend=np.nan) != 0 for of in like], axis=0)
        few = suits(len(jobs), int(np.count_nonzero(new)), self._tables[0].shape[2])
        return (order, new) if few else None

    def by_kinds(self, jobs: Ints, scale: float) -> KindPairs | None:  # noqa: D102
        kinds = self._kinds(jobs)
        if kinds is None:
            return None
        order, new = kinds
        workload, gsla, memory, weight, size, running, allowed = self._jobs
        ordered = jobs[order]
        first = ordered[new]
        slowdown, bound, mirror = self._tables
        start = np.append(np.flatnonzero(new), len(jobs))
        row = workload[first]
        there = np.ix_(row, row)
        able = np.empty((len(row), len(row), len(mirror)), dtype=np.int32)
        over_rows(
            compiled, count_able, len(row), len(jobs), start, row, gsla[ordered], slowdown, bound,
            mirror, allowed[first], running[first], memory[first], self._memory_limit, able,
        )  # fmt: skip
        per_job = slowdown[there].astype(np.float64)
        per_watt = self._per_watt * int(size[first[0]])
        bonus, surplus, most = (
            of[ordered] if len(of) else of for of in (self._bonus, self._surplus, self._most)
        )
        tables = Tables(
            start=start,
            row=row,
            able=able,
            rate=2 * scale * (-per_job if self._minimised else 1 / per_job),
            cost=scale * per_watt * self._power[there] if per_watt else np.zeros((0, 0, 0)),
            slowdown=slowdown,
            mirror=mirror,
            minimised=self._minimised,
            power=self._power,
            per_watt=per_watt,
            weight=weight[ordered],
            bonus=bonus,
            surplus=surplus,
            most=most,
            left=self._left[ordered] if len(self._left) else self._left,
            runs=running[ordered],
            below=self._below,
            scale=scale,
            room=room_of(weight[jobs], bonus, per_watt, scale),
        )
        place = np.empty(len(jobs), dtype=np.int64)
        place[order] = np.arange(len(jobs))
        return KindPairs(
            tables=tables,
            order=order,
            place=place,
            kind=np.cumsum(new) - 1,
            matrix=lambda some: MatrixPairs(self.rounded(jobs[some], scale)[0]),
        )

    def highest(self, scale: float) -> Floats:
        """Return at least the highest value of each job's pairs in units, -inf for none, (n,)."""
        found = np.full(len(self), -np.inf)
        for size in np.unique(self._jobs[4]).tolist():
            jobs = np.flatnonzero(self._jobs[4] == size)
            by_kinds = self.by_kinds(jobs, scale)
            if by_kinds is not None:
                found[jobs] = by_kinds.highest(compiled)
                continue
            fixed, joined = self.rounded(jobs, scale)
            highest = fixed.max(axis=1, initial=FORBIDDEN)
            found[jobs] = np.where(joined > 0, highest, -np.inf)
        return found

    def rounded(self, jobs: Ints, scale: float) -> tuple[Narrow, Ints]:  # noqa: D102
        m = len(jobs)
        fixed = np.empty((m, m), dtype=np.int32)
        if can_compile():
            joined = np.empty(m, dtype=np.int64)
            over_rows(compiled, *self._rounding(jobs), scale, fixed)
            over_rows(compiled, mirror_rows, m, m, fixed, joined)
            return fixed, joined
        value = self.pairs.value[np.ix_(jobs, jobs)]
        may = ~np.isnan(value)
        fixed[:] = FORBIDDEN
        fixed[may] = np.ceil(value[may] * scale)
        return fixed, may.sum(axis=1)

    def best(self, first: Ints | int, second: Ints) -> tuple[Floats, Bytes]:
        """Return the values of some pairs, and the splits of their first jobs."""
        worth = self._worth(first, second)
        if len(self._bonus):
            worth = worth + _column(self._bonus[first] + self._bonus[second])
        worth = np.where(self._may(first, second) & ~np.isnan(worth), worth, -np.inf)
        at = worth.argmax(axis=1)
        best = np.take_along_axis(worth, at[:, None], axis=1)[:, 0]
        found = best > -np.inf
        return np.where(found, best, np.nan), np.where(found, at, NO_SPLIT).astype(np.uint8)

    def _may(self, first: Ints | int, second: Ints) -> Bools:
        """Return at which splits pairs may share, apart from what their values say, (m, s)."""
        _, bound, mirror = self._tables
        workload, gsla, memory, _, size, running, allowed = self._jobs
        a, b = workload[first], workload[second]
        may = (bound[a, b] <= _column(gsla[first])) & (
            bound[b, a][:, mirror] <= _column(gsla[second])
        )
        may &= allowed[first] & allowed[second][:, mirror]
        meet = (size[second] == size[first]) & ~(running[second] & running[first])
        meet &= memory[second] + memory[first] <= self._memory_limit
        if len(self._surplus):
            meet &= self._surplus[second] + self._surplus[first] <= self._most[first]
        return np.asarray(may & _column(meet))

    def _slowdowns(self, first: Ints | int, second: Ints) -> tuple[Floats, Floats]:
        """Return the slowdowns of both jobs of pairs at each split of the first, (m, s) each."""
        slowdown, _, mirror = self._tables
        workload = self._jobs[0]
        a, b = workload[first], workload[second]
        return slowdown[a, b], slowdown[b, a][:, mirror]

    def _worth(self, first: Ints | int, second: Ints) -> Floats:
        """Return the values of pairs at each split of the first job, (m, s)."""
        own, other = self._slowdowns(first, second)
        weight = self._jobs[3]
        mine, theirs = _column(weight[first]), _column(weight[second])
        with np.errstate(divide="ignore", invalid="ignore"):
            worth = -mine * own - theirs * other if self._minimised else mine / own + theirs / other
        if self._per_watt:
            workload, size = self._jobs[0], self._jobs[4]
            power = self._power[workload[first], workload[second]]
            worth = worth - self._per_watt * _column(size[first]) * power
        return np.asarray(worth)

    @property
    def largest(self) -> float:  # noqa: D102
        slowdown, bound, mirror = self._tables
        workload, gsla, _, weight, *_ = self._jobs
        most, accepted = np.zeros((2, len(slowdown)))
        np.maximum.at(most, workload, weight)
        np.maximum.at(accepted, workload, gsla)
        kinds = np.unique(workload)
        largest = 0.0
        if self._per_watt:
            largest = abs(self._per_watt) * float(self._power.max() * self._jobs[4].max())
        for begin in range(0, len(kinds), _KINDS_AT_ONCE):
            some = kinds[begin : begin + _KINDS_AT_ONCE]
            there, back = np.ix_(some, kinds), np.ix_(kinds, some)
            own = np.where(bound[there] <= accepted[some, None, None], slowdown[there], np.nan)
            other = np.where(bound[back] <= accepted[kinds, None, None], slowdown[back], np.nan)
            own_most, other_most = most[some, None, None], most[kinds, None, None]
            mine = own_most * own if self._minimised else own_most / own
            theirs = other_most * other if self._minimised else other_most / other
            pairs = mine + theirs.transpose(1, 0, 2)[:, :, mirror]
            largest = max(largest, float(np.fmax.reduce(pairs, None, initial=0)))
        return largest + float(np.sort(np.abs(self._bonus))[-2:].sum())

    def _rounding(self, jobs: Ints) -> tuple[Any, ...]:
        """Return the kernel that rounds the values of these jobs, rows, columns and arguments."""
        return round_split_rows, len(jobs), len(jobs), *self._all_arguments(jobs)

    def _all_arguments(self, jobs: Ints | slice) -> tuple[Any, ...]:
        """Return the arguments of the kernels of this module for these jobs."""
        limits = (of[jobs] if len(of) else of for of in (self._bonus, self._surplus, self._most))
        return *self._arguments(jobs), self._minimised, self._power, self._per_watt, *limits

    def _arguments(self, jobs: Ints | slice) -> tuple[Any, ...]:
        """Return the arguments of all kernels for these jobs, in an order with equals adjacent."""
        workload, gsla, memory, weight, size, running, allowed = (a[jobs] for a in self._jobs)
        order = np.lexsort((size, weight, workload))
        return (
            order, *self._tables, workload, gsla, memory, self._memory_limit, weight, size, running,
            np.ascontiguousarray(allowed.T),
        )  # fmt: skip


def _column(of_pair: NDArray[Any] | np.generic) -> NDArray[Any]:
    return np.asarray(of_pair)[..., None]


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
    power: Floats,
    per_watt: float,
    bonus: Floats,
    surplus: Floats,
    most: Floats,
    value: Floats,
    split: Bytes,
) -> None:
    """Write the rows of the jobs at these positions of ``order``, ordered by workload and weight.

    Values that depend only on the row's workload and weight are computed once for all jobs that
    share them, a tile of columns at a time; the rest is comparisons without branches.
    """
    worth = np.empty((mirror.size, _TILE + _PADDING))
    limit = np.empty((mirror.size, _TILE + _PADDING))
    best = np.empty(_TILE)
    at = np.empty(_TILE)
    for start in range(0, workload.size, _TILE):
        stop = min(start + _TILE, workload.size)
        width = stop - start
        last_like = -1
        for r in range(first, last):
            i = order[r]
            if (
                last_like < 0
                or workload[i] != workload[last_like]
                or weight[i] != weight[last_like]
                or size[i] != size[last_like]
            ):
                last_like = i
                look_up(
                    workload[i], weight[i], slowdown, bound, mirror, workload[start:stop],
                    gsla[start:stop], weight[start:stop], allowed[:, start:stop], minimised,
                    worth, limit,
                )  # fmt: skip
                if per_watt != 0.0:
                    pay_power(workload[i], per_watt * size[i], power, workload[start:stop], worth)
            best[:] = -np.inf
            # Of equal splits the first is taken, from the side of the job with the lower index.
            before = min(max(i - start, 0), width)
            for p in range(mirror.size):
                q = mirror[p]
                if allowed[q, i]:
                    raise_best(
                        q, gsla[i], limit[q, :before], worth[q, :before], best[:before], at[:before]
                    )
                if allowed[p, i]:
                    raise_best(
                        p, gsla[i], limit[p, before:width], worth[p, before:width],
                        best[before:width], at[before:width],
                    )  # fmt: skip
            forbid(i, start, memory, memory_limit, size, running, best[:width])
            if bonus.size > 0:
                add_bonus(i, start, bonus, surplus, most, best[:width])
            for c in range(width):
                value[i, start + c] = best[c] if best[c] > -np.inf else np.nan
            for c in range(width):
                split[i, start + c] = np.uint8(at[c] if best[c] > -np.inf else NO_SPLIT)


@kernel
def round_split_rows(
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
    power: Floats,
    per_watt: float,
    bonus: Floats,
    surplus: Floats,
    most: Floats,
    scale: float,
    fixed: Narrow,
) -> None:
    """Write the rows that ``split_rows`` writes, rounded up to whole units of 1 / scale.

    Values are written beyond the diagonal, and some before it (see ``mirror_rows``).
    """
    worth = np.empty((mirror.size, _TILE + _PADDING))
    limit = np.empty((mirror.size, _TILE + _PADDING))
    best = np.empty(_TILE)
    for start in range(0, workload.size, _TILE):
        stop = min(start + _TILE, workload.size)
        width = stop - start
        last_like = -1
        for r in range(first, last):
            i = order[r]
            if i >= stop:
                continue
            if (
                last_like < 0
                or workload[i] != workload[last_like]
                or weight[i] != weight[last_like]
                or size[i] != size[last_like]
            ):
                last_like = i
                look_up(
                    workload[i], weight[i], slowdown, bound, mirror, workload[start:stop],
                    gsla[start:stop], weight[start:stop], allowed[:, start:stop], minimised,
                    worth, limit,
                )  # fmt: skip
                if per_watt != 0.0:
                    pay_power(workload[i], per_watt * size[i], power, workload[start:stop], worth)
            best[:] = -np.inf
            for p in range(mirror.size):
                if allowed[p, i]:
                    raise_value(gsla[i], limit[p, :width], worth[p, :width], best[:width])
            forbid(i, start, memory, memory_limit, size, running, best[:width])
            if bonus.size > 0:
                add_bonus(i, start, bonus, surplus, most, best[:width])
            round_best(best[:width], scale, fixed[i, start:stop])


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


@kernel
def look_up(
    a: int,
    own_weight: float,
    slowdown: Floats,
    bound: Floats,
    mirror: Ints,
    others: Ints,
    gsla: Floats,
    weight: Floats,
    allowed: Bools,
    minimised: bool,
    worth: Floats,
    limit: Floats,
) -> None:
    """Gather the values of a workload with others at each split, and the own bounds.

    The value is -inf where the others may not have the split.
    """
    for c in range(others.size):
        b = others[c]
        for p in range(mirror.size):
            q = mirror[p]
            own, other = slowdown[a, b, p], slowdown[b, a, q]
            limit[p, c] = bound[a, b, p]
            gain = (
                -weight[c] * other - own_weight * own
                if minimised
                else np.divide(weight[c], other) + np.divide(own_weight, own)
            )
            worth[p, c] = gain if (bound[b, a, q] <= gsla[c]) & allowed[q, c] else -np.inf


@kernel
def pay_power(a: int, per_watt: float, power: Floats, others: Ints, worth: Floats) -> None:
    """Subtract the cost of the power of a workload with others at each split."""
    for c in range(others.size):
        for p in range(worth.shape[0]):
            worth[p, c] -= per_watt * power[a, others[c], p]


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
def forbid(
    i: int,
    start: int,
    memory: Floats,
    memory_limit: float,
    size: Ints,
    running: Bools,
    best: Floats,
) -> None:
    """Exclude pairs that do not fit, of unequal size, or of two running jobs."""
    needed, of_size = memory[start : start + best.size], size[start : start + best.size]
    for c in range(best.size):
        best[c] = best[c] if memory[i] + needed[c] <= memory_limit else -np.inf
    for c in range(best.size):
        best[c] = best[c] if size[i] == of_size[c] else -np.inf
    if running[i]:
        best[running[start : start + best.size]] = -np.inf
    if start <= i < start + best.size:
        best[i - start] = -np.inf


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


def _refuse_unsound(slowdown: Floats, kinds: Ints) -> None:
    table = slowdown[np.ix_(kinds, kinds)]
    if (table <= 0).any():
        a = kinds[(table <= 0).any(axis=(1, 2)).argmax()]
        least = float(np.fmin.reduce(table, axis=None))
        raise ArgumentError(f"slowdown must be > 0, got {least} with workload {a}")
