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

from dovetail.formulations.prices import Ends
from dovetail.instances.errors import ArgumentError
from dovetail.solver.pairing.arguments import PairValues, whole_sizes
from dovetail.solver.pairing.compilation import can_compile, compiled, is_compiled, over_rows
from dovetail.solver.pairing.dense import FORBIDDEN, MatrixPairs
from dovetail.solver.pairing.kinds import LEAST_JOBS, KindPairs, Tables, count_able, room_of, suits
from dovetail.solver.pairing.tiles import (
    NO_SPLIT,
    TiledJobs,
    Times,
    fill_rows_of_pairs,
    mirror_rows,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Narrow = NDArray[np.int32]
Bools = NDArray[np.bool_]

_MOST_SPLITS = 255
"""Splits and ``NO_SPLIT`` fit a byte: 10,000 jobs have 10^8 of them."""

_VECTORISED_JOBS = 80
"""Number of jobs up to which numpy is faster than loading numba and its cached code."""

_PAIR_BYTES, _KIND_BYTES = 7, 45
"""Bytes of a matching for each cell of a matrix, and of a table of kinds at a split, measured at
10,000 and 20,000 jobs."""

_KINDS_AT_ONCE = 128
"""Rows of a table of thousands of workloads, copied at a time."""

_BUCKETS = 2**14
"""Buckets in which prices at a time are looked up."""

_NO_VALUES, _NO_SPLITS, _NO_UNITS = (np.zeros((0, 0), t) for t in (np.float64, np.uint8, np.int32))
"""What ``fill_rows_of_pairs`` does not write."""

_NONE, _NO_INDEX = np.zeros(0), np.zeros(0, np.int64)
_NO_TIMES = Times(
    _NONE, _NONE, _NO_VALUES, _NONE, _NONE, _NONE, _NO_INDEX, 0.0, 0.0, 0.0, _NONE, _NONE
)  # fmt: skip
"""Values that are no times."""


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

    Beyond those of ``best_splits`` there is the parameter ``cost``, what a GPU with each pair costs
    at each split, (k, k, s), which ``weighed`` may count.
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
        cost: Floats | None = None,
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
        self._gpu_cost = np.zeros((0, 0, 0)) if cost is None else cost
        self._per_cost = 0.0
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

    def weighed(self, per_gain: float, per_cost: float) -> SplitValues:
        """Return the values if gains and the costs of GPUs count by these factors."""
        workload, gsla, memory, weight, *rest = self._jobs
        changed = {"_jobs": (workload, gsla, memory, per_gain * weight, *rest)}
        return self._with(**changed, _per_cost=per_cost)

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
            over_rows(
                compiled, fill_rows_of_pairs, n, n, self._columns(slice(None)), _NO_TIMES, 1.0,
                _NO_UNITS, value, split,
            )  # fmt: skip
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
        per_cost = self._per_cost * int(size[first[0]])
        bonus, surplus, most = (
            of[ordered] if len(of) else of for of in (self._bonus, self._surplus, self._most)
        )
        tables = Tables(
            start=start,
            row=row,
            able=able,
            rate=2 * scale * (-per_job if self._minimised else 1 / per_job),
            cost=scale * per_cost * self._gpu_cost[there] if per_cost else np.zeros((0, 0, 0)),
            slowdown=slowdown,
            mirror=mirror,
            minimised=self._minimised,
            gpu_cost=self._gpu_cost,
            per_cost=per_cost,
            weight=weight[ordered],
            bonus=bonus,
            surplus=surplus,
            most=most,
            left=self._left[ordered] if len(self._left) else self._left,
            runs=running[ordered],
            below=self._below,
            scale=scale,
            room=room_of(weight[jobs], bonus, per_cost, scale),
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
            over_rows(
                compiled, fill_rows_of_pairs, m, m, self._columns(jobs), self._times(jobs), scale,
                fixed, _NO_VALUES, _NO_SPLITS,
            )  # fmt: skip
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
        if self._per_cost:
            workload, size = self._jobs[0], self._jobs[4]
            cost = self._gpu_cost[workload[first], workload[second]]
            worth = worth - self._per_cost * _column(size[first]) * cost
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
        if self._per_cost:
            largest = abs(self._per_cost) * float(self._gpu_cost.max() * self._jobs[4].max())
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

    def _columns(self, jobs: Ints | slice) -> TiledJobs:
        """Return these jobs in the form for kernels."""
        workload, gsla, memory, weight, size, running, allowed = self._jobs
        slowdown, bound, mirror = self._tables
        bonus, surplus, most, left = (
            of[jobs] if len(of) else of
            for of in (self._bonus, self._surplus, self._most, self._left)
        )
        return TiledJobs(
            order=np.lexsort((size[jobs], weight[jobs], workload[jobs])),
            slowdown=slowdown,
            bound=bound,
            mirror=mirror,
            workload=workload[jobs],
            gsla=gsla[jobs],
            memory=memory[jobs],
            memory_limit=self._memory_limit,
            weight=weight[jobs],
            size=size[jobs],
            running=running[jobs],
            allowed=np.ascontiguousarray(allowed[jobs].T),
            minimised=self._minimised,
            gpu_cost=self._gpu_cost,
            per_cost=self._per_cost,
            bonus=bonus,
            surplus=surplus,
            most=most,
            left=left,
            below=self._below,
        )

    def _times(self, jobs: Ints) -> Times:
        """Return what decides values of these jobs that are times."""
        return _NO_TIMES


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
        self._ends, self._left = ends, ends.left

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

    def _times(self, jobs: Ints) -> Times:
        e = self._ends
        step = np.diff(e.times)
        return Times(
            due=e.due[jobs],
            rent=e.rent[jobs],
            after=np.ascontiguousarray(e.after),
            times=e.times,
            paid=e.paid,
            slope=np.append(np.diff(e.paid) / np.where(step > 0, step, 1.0), 0.0),
            near=_near(e.times),
            floor=e.floor,
            claimed=e.claimed,
            latest=e.last,
            paid_due=e.until(e.due[jobs]),
            least=self._from_idle(self._least_ends)[jobs],
        )


def _near(times: Floats) -> Ints:
    """Return the last time at or before the start of each bucket (see ``price_until``)."""
    at = np.arange(_BUCKETS) / _BUCKETS
    starts = times[len(times) // 2] * at / (1 - at)
    return np.asarray(np.searchsorted(times, starts, side="right") - 1, dtype=np.int64)


def _column(of_pair: NDArray[Any] | np.generic) -> NDArray[Any]:
    return np.asarray(of_pair)[..., None]


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
