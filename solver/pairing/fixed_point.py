"""From the arguments of ``match_pairs`` to whole numbers.

Values are multiplied by a power of two that brings the largest magnitude to at most 2^29 and
rounded *up* to whole units, so that a bound on the rounded problem is also a bound on the true
problem. The error is less than one unit for each group that a plan starts; it is part of the gap.
If the scaled values are whole (such as small integers), there is no error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.errors import ArgumentError
from dovetail.solver.pairing import dense
from dovetail.solver.pairing.arguments import PairingArguments, PairValues, require_in_range
from dovetail.solver.pairing.compilation import KernelCompiler, over_rows
from dovetail.solver.pairing.dense import DensePairs, MatrixPairs
from dovetail.solver.pairing.size_class import NOT_ALONE, ClassData, Graph, complete_graph

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_VALUE_BITS = 29
"""Bits of the largest value: doubled sums and differences of two values stay within 32 bits."""

_SPARE_BITS = 54
"""Bits for value x jobs x size: up to 63 are left for a penalty, higher prices and doubling."""

_PENALTY_BITS = 57
"""Bits for value x jobs^2: the doubled penalties of all jobs together stay within 63."""


@dataclass(frozen=True)
class Rounded:
    """The problem in whole units of ``1 / scale``.

    Attributes
    ----------
    classes : list of ClassData
        The jobs by size.
    limit : int
        The limit, in units of GPUs; the classes' sizes are in these units too.
    gpus_per_unit : int
        GPUs per unit: the greatest common divisor of all sizes.
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


def rounded(problem: PairingArguments, run: KernelCompiler) -> Rounded:
    """Round the values and split the jobs into classes by size.

    Raises
    ------
    ArgumentError
        If ``pair_value`` is not symmetric or contains +inf, or the largest value is out of range.
    """
    n, per_unit = len(problem), problem.gpus_per_unit
    largest = max(_largest_pair(problem, run), _largest_single(problem.single_value))
    require_in_range(largest)
    most_units = int(problem.size.max(initial=1)) // per_unit
    bits = _bits(n, most_units, bool(problem.required.any()))
    scale = 2.0 ** (bits - math.ceil(math.log2(largest))) if largest > 0 else 1.0
    top = math.ceil(largest * scale)
    penalty = 4 * n * top + 1
    single = np.full(n, NOT_ALONE, dtype=np.int64)
    may = problem.single_value > -np.inf
    single[may] = np.ceil(problem.single_value[may] * scale).astype(np.int64)
    rest = np.where(problem.required, -penalty, 0)
    classes = []
    for size in np.unique(problem.size).tolist():
        nodes = np.flatnonzero(problem.size == size)
        pairs, graph = _class_pairs(problem, nodes, scale, run)
        classes.append(ClassData(nodes, size // per_unit, single[nodes], rest[nodes], pairs, graph))
    return Rounded(classes, problem.gpus // per_unit, per_unit, scale, top, penalty)


def _bits(n: int, size: int, required: bool) -> int:
    spare = _SPARE_BITS - math.ceil(math.log2(max(1, n) * size))
    if required:
        spare = min(spare, _PENALTY_BITS - 2 * math.ceil(math.log2(n)))
    return min(_VALUE_BITS, spare)


def _largest_single(single: Floats) -> float:
    return float(np.abs(single[single > -np.inf]).max(initial=0.0))


def _largest_pair(problem: PairingArguments, run: KernelCompiler) -> float:
    """Return the largest magnitude of a pair's value, and check that the values are valid."""
    if problem.is_sparse:
        return _largest_sparse(problem)
    if isinstance(problem.pair_value, PairValues):
        return problem.pair_value.largest
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
        raise ArgumentError(
            f"pair_value must {rule}, got {pair_value[i, j]} at [{i}, {j}] "
            f"and {pair_value[j, i]} at [{j}, {i}]"
        )


def _largest_sparse(problem: PairingArguments) -> float:
    first, second, value = _allowed(problem)
    if (value == np.inf).any():
        raise ArgumentError("pair_value must be less than inf, got inf")
    n = len(problem)
    order = np.argsort(second * n + first)
    same = np.array_equal(first * n + second, (second * n + first)[order])
    if not same or not np.array_equal(value, value[order]):
        rule = "pair_value must be symmetric, got entries that differ from the mirrored"
        raise ArgumentError(rule)
    return float(np.abs(value).max(initial=0.0))


def _allowed(problem: PairingArguments) -> tuple[Ints, Ints, Floats]:
    """Return the pairs of a sparse problem that may share, in order of rows and columns."""
    first, second, value = problem.entries()
    keep = (first != second) & (value > -np.inf)
    return first[keep], second[keep], value[keep]


def _class_pairs(
    problem: PairingArguments, nodes: Ints, scale: float, run: KernelCompiler
) -> tuple[DensePairs | None, Graph | None]:
    """Return the rounded pairs of a class: all, and as a graph if they are few."""
    if problem.is_sparse:
        return None, _sparse_class(problem, nodes, scale, run)
    if isinstance(problem.pair_value, PairValues):
        by_kinds = problem.pair_value.by_kinds(nodes, scale)
        if by_kinds is not None:
            return by_kinds, None
        fixed, allowed = problem.pair_value.rounded(nodes, scale)
        return MatrixPairs(fixed), complete_graph(fixed, run, allowed)
    m = len(nodes)
    fixed = np.empty((m, m), dtype=np.int32)
    allowed = np.zeros(m, dtype=np.int64)
    over_rows(run, dense.round_rows, m, m, problem.pair_value, nodes, scale, fixed, allowed)
    return MatrixPairs(fixed), complete_graph(fixed, run, allowed)


def _sparse_class(
    problem: PairingArguments, nodes: Ints, scale: float, run: KernelCompiler
) -> Graph:
    first, second, value = _allowed(problem)
    place = np.full(len(problem), -1, dtype=np.int64)
    place[nodes] = np.arange(len(nodes))
    keep = (first < second) & (place[first] >= 0) & (place[second] >= 0)
    weight = np.ceil(value[keep] * scale).astype(np.int64)
    return Graph.of(len(nodes), place[first[keep]], place[second[keep]], weight, run)
