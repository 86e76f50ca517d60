"""From the arguments of ``match_pairs`` to whole numbers.

Values are multiplied by a power of two that brings the largest magnitude to at most 2^29 and
rounded *up* to whole units, so that a bound on the rounded problem is one on the true problem.
The error is less than one unit for each group that a plan starts; it is part of the gap. Where
the scaled values are whole (small integers, say) there is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dovetail.solver.pairing import dense
from dovetail.solver.pairing.compilation import Run, over_rows
from dovetail.solver.pairing.graph import Graph
from dovetail.solver.pairing.size_class import NOT_ALONE, ClassData, complete_graph

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_VALUE_BITS = 29
"""Of the largest value: doubled sums and differences of two values stay within 32 bits."""

_SPARE_BITS = 54
"""Bits for value x jobs x size: leaves room to 63 for a penalty, prices beyond it, doubling."""

_PENALTY_BITS = 57
"""Bits for value x jobs^2: the doubled penalties of all jobs together stay within 63."""


@dataclass(frozen=True)
class Problem:
    """The checked arguments of ``match_pairs``.

    Attributes
    ----------
    pair_value : (n, n) float, or scipy.sparse csr array
    single_value : (n,) float
        -inf where a job may not run alone.
    size : (n,) int
    required : (n,) bool
    gpus : int
        The limit; the sum of all sizes where there is none.
    """

    pair_value: Any
    single_value: Floats
    size: Ints
    required: Bools
    gpus: int

    def __len__(self) -> int:
        return len(self.single_value)

    @property
    def is_sparse(self) -> bool:
        """Whether the pairs are given as a sparse array."""
        return not isinstance(self.pair_value, np.ndarray)

    def value_of(self, first: Ints, second: Ints) -> Floats:
        """Return the given values of some pairs."""
        if not self.is_sparse:
            return np.asarray(self.pair_value[first, second], dtype=np.float64)
        found = self.pair_value[first, second] if len(first) else np.zeros(0)
        return np.asarray(found, dtype=np.float64).reshape(-1)


@dataclass(frozen=True)
class Rounded:
    """The problem in whole units of ``1 / scale``.

    Attributes
    ----------
    classes : list of ClassData
        The jobs by size.
    limit : int
        The limit on GPUs; on groups where there is but one class, whose ``size`` is then 1.
    gpus_per_unit : int
        GPUs that one unit of the limit stands for.
    scale : float
    largest : int
        The largest magnitude of a value.
    penalty : int
        The price of leaving out a required job.
    """

    classes: list[ClassData]
    limit: int
    gpus_per_unit: int
    scale: float
    largest: int
    penalty: int


def checked(
    pair_value: Any,  # noqa: ANN401 - dense or any kind of sparse array
    single_value: Floats | None,
    gpus: int | None,
    size: Ints | None,
    required: Bools | None,
) -> Problem:
    """Check the arguments one by one and fill in the defaults."""
    pairs = _pair_values(pair_value)
    n = pairs.shape[0]
    sizes = _sizes(size, n)
    must = np.zeros(n, dtype=bool) if required is None else np.asarray(required)
    if must.shape != (n,) or must.dtype != np.bool_:
        raise ValueError(
            f"required must be a boolean array of shape ({n},), got {must.dtype} {must.shape}"
        )
    limit = int(sizes.sum())
    if gpus is not None:
        if gpus != int(gpus) or gpus < 0:
            raise ValueError(f"gpus must be a whole number >= 0 or None, got {gpus!r}")
        limit = min(limit, int(gpus))
    return Problem(pairs, _single_values(single_value, n), sizes, must, limit)


def _pair_values(pair_value: Any) -> Any:  # noqa: ANN401
    pairs: Any = pair_value
    if sp.issparse(pair_value):
        pairs = sp.csr_array(pairs).astype(np.float64)
        pairs.sum_duplicates()
    else:
        pairs = np.ascontiguousarray(pairs)
        if pairs.dtype not in (np.float32, np.float64):
            pairs = pairs.astype(np.float64)
    if pairs.ndim != 2 or pairs.shape[0] != pairs.shape[1]:
        raise ValueError(f"pair_value must be a square matrix, got shape {pairs.shape}")
    return pairs


def _single_values(single_value: Floats | None, n: int) -> Floats:
    if single_value is None:
        return np.full(n, -np.inf)
    single = np.asarray(single_value, dtype=np.float64)
    if single.shape != (n,):
        raise ValueError(f"single_value must have shape ({n},), got {single.shape}")
    if (single == np.inf).any():
        at = int(np.argmax(single))
        raise ValueError(f"single_value must be less than inf, got inf at {at}")
    return np.where(np.isnan(single), -np.inf, single)


def _sizes(size: Ints | None, n: int) -> Ints:
    if size is None:
        return np.ones(n, dtype=np.int64)
    given = np.asarray(size)
    if given.shape != (n,):
        raise ValueError(f"size must have shape ({n},), got {given.shape}")
    sizes: Ints = given.astype(np.int64)
    if (sizes != given).any() or (sizes < 1).any():
        at = int(np.argmax((sizes != given) | (sizes < 1)))
        raise ValueError(f"size must be whole numbers >= 1, got {given[at]} at {at}")
    return sizes


def rounded(problem: Problem, run: Run) -> Rounded:
    """Round the values and split the jobs into classes by size.

    Raises
    ------
    ValueError
        Where ``pair_value`` is not symmetric or is +inf somewhere.
    """
    n = len(problem)
    largest = max(_largest_pair(problem, run), _largest_single(problem.single_value))
    bits = _bits(n, int(problem.size.max(initial=1)), bool(problem.required.any()))
    scale = 2.0 ** (bits - math.ceil(math.log2(largest))) if largest > 0 else 1.0
    top = math.ceil(largest * scale)
    penalty = 4 * n * top + 1
    sizes = np.unique(problem.size)
    alone = len(sizes) == 1
    single = np.full(n, NOT_ALONE, dtype=np.int64)
    may = problem.single_value > -np.inf
    single[may] = np.ceil(problem.single_value[may] * scale).astype(np.int64)
    rest = np.where(problem.required, -penalty, 0)
    classes = []
    for size in sizes.tolist():
        nodes = np.flatnonzero(problem.size == size)
        fixed, graph = _class_pairs(problem, nodes, scale, run)
        group = 1 if alone else size
        classes.append(ClassData(nodes, group, single[nodes], rest[nodes], fixed, graph))
    per_unit = int(sizes[0]) if alone else 1
    return Rounded(classes, problem.gpus // per_unit, per_unit, scale, top, penalty)


def _bits(n: int, size: int, required: bool) -> int:
    spare = _SPARE_BITS - math.ceil(math.log2(max(1, n) * size))
    if required:
        spare = min(spare, _PENALTY_BITS - 2 * math.ceil(math.log2(n)))
    return min(_VALUE_BITS, spare)


def _largest_single(single: Floats) -> float:
    return float(np.abs(single[single > -np.inf]).max(initial=0.0))


def _largest_pair(problem: Problem, run: Run) -> float:
    """Return the largest magnitude of a pair's value, and check that the values are sound."""
    if problem.is_sparse:
        return _largest_sparse(problem.pair_value)
    n = len(problem)
    largest = np.zeros(n)
    asymmetric = np.full(n, -1, dtype=np.int64)
    infinite = np.full(n, -1, dtype=np.int64)
    over_rows(
        run, dense.inspect_rows, n, n, problem.pair_value, largest, asymmetric, infinite
    )  # fmt: skip
    _refuse(asymmetric, problem.pair_value, "be symmetric")
    _refuse(infinite, problem.pair_value, "be less than inf")
    return float(largest.max(initial=0.0))


def _refuse(column: Ints, pair_value: Floats, rule: str) -> None:
    if (column >= 0).any():
        i = int(np.argmax(column >= 0))
        j = int(column[i])
        raise ValueError(
            f"pair_value must {rule}, got {pair_value[i, j]} at [{i}, {j}] "
            f"and {pair_value[j, i]} at [{j}, {i}]"
        )


def _largest_sparse(pairs: Any) -> float:  # noqa: ANN401
    first, second, value = _entries(pairs)
    if (value == np.inf).any():
        raise ValueError("pair_value must be less than inf, got inf")
    n = pairs.shape[0]
    order = np.argsort(second * n + first)
    same = np.array_equal(first * n + second, (second * n + first)[order])
    if not same or not np.array_equal(value, value[order]):
        raise ValueError("pair_value must be symmetric, got entries that differ from the mirrored")
    return float(np.abs(value).max(initial=0.0))


def _entries(pairs: Any) -> tuple[Ints, Ints, Floats]:  # noqa: ANN401
    """Return the allowed entries off the diagonal, in order of rows and columns."""
    pairs.sort_indices()
    first = np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr))
    second = pairs.indices.astype(np.int64)
    keep = (first != second) & ~(np.isnan(pairs.data) | (pairs.data == -np.inf))
    return first[keep], second[keep], pairs.data[keep]


def _class_pairs(
    problem: Problem, nodes: Ints, scale: float, run: Run
) -> tuple[NDArray[np.int32] | None, Graph | None]:
    """Return the rounded pairs of a class: dense, and as a graph where they are few."""
    if problem.is_sparse:
        return None, _sparse_class(problem, nodes, scale, run)
    m = len(nodes)
    fixed = np.empty((m, m), dtype=np.int32)
    allowed = np.zeros(m, dtype=np.int64)
    over_rows(run, dense.round_rows, m, m, problem.pair_value, nodes, scale, fixed, allowed)
    return fixed, complete_graph(fixed, run, allowed)


def _sparse_class(problem: Problem, nodes: Ints, scale: float, run: Run) -> Graph:
    first, second, value = _entries(problem.pair_value)
    place = np.full(len(problem), -1, dtype=np.int64)
    place[nodes] = np.arange(len(nodes))
    keep = (first < second) & (place[first] >= 0) & (place[second] >= 0)
    weight = np.ceil(value[keep] * scale).astype(np.int64)
    return Graph.of(len(nodes), place[first[keep]], place[second[keep]], weight, run)
