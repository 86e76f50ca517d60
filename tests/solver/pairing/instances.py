"""Random pairing problems and their exact value by other means."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import rustworkx as rx
import scipy.sparse as sp

KINDS = ("small integers", "integers", "floats", "two values", "euclidean", "separable")


@dataclass(frozen=True)
class Case:
    """The arguments of ``match_pairs``."""

    pair_value: Any
    single_value: Any = None
    gpus: int | None = None
    size: Any = None
    required: Any = None

    def arguments(self) -> dict[str, Any]:
        return dict(vars(self))

    def dense(self) -> np.ndarray:
        """Return the values of pairs as a matrix, NaN where none is stored."""
        if isinstance(self.pair_value, np.ndarray):
            return self.pair_value
        entries = self.pair_value.tocoo()
        dense = np.full(entries.shape, np.nan)
        dense[entries.row, entries.col] = entries.data
        return dense

    def sparse(self) -> Case:
        i, j = np.nonzero(np.isfinite(self.pair_value))
        shape = self.pair_value.shape
        return replace(self, pair_value=sp.csr_array((self.pair_value[i, j], (i, j)), shape=shape))


def pair_values(rng: np.random.Generator, n: int, kind: str, absent: float = 0.0) -> Any:
    """Return symmetric values of the kind, a part of the pairs being forbidden."""
    if kind == "small integers":
        values = rng.integers(-3, 6, (n, n)).astype(float)
    elif kind == "integers":
        values = rng.integers(1, 100, (n, n)).astype(float)
    elif kind == "floats":
        values = rng.random((n, n)) * 10 - 2
    elif kind == "two values":
        values = rng.choice([1.0, 2.0], (n, n))
    elif kind == "euclidean":
        at = rng.random((n, 2))
        values = 1.5 - np.hypot(*(at[:, None] - at[None]).transpose(2, 0, 1))
    else:
        x = rng.random(n)
        values = 2 - np.outer(x, x)
    values = np.triu(values, 1)
    values = values + values.T
    gone = np.triu(rng.random((n, n)) < absent, 1)
    values[gone | gone.T] = rng.choice([-np.inf, np.nan])
    np.fill_diagonal(values, rng.choice([0.0, 5.0, np.nan]))
    return values


def random_case(rng: np.random.Generator, n: int) -> Case:
    """Return a case with any mixture of features."""
    values = pair_values(rng, n, str(rng.choice(KINDS)), float(rng.choice([0.0, 0.3, 0.6, 0.85])))
    single = size = required = gpus = None
    if rng.random() < 0.7:
        some = rng.integers(-1, 4, n).astype(float) if rng.random() < 0.5 else rng.random(n) * 2
        single = np.where(rng.random(n) < 0.2, -np.inf, some)
    if rng.random() < 0.5:
        size = rng.choice([1, 2, 3, 4][: int(rng.integers(1, 5))], n)
    if rng.random() < 0.7:
        gpus = int(rng.integers(0, (n if size is None else int(size.sum())) + 2))
    if rng.random() < 0.4:
        required = rng.random(n) < 0.3
    return Case(values, single, gpus, size, required)


def random_cases(seed: int, count: int, most: int) -> Iterator[Case]:
    """Yield cases of 0 to ``most`` jobs, some of them sparse."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        case = random_case(rng, int(rng.integers(0, most + 1)))
        yield case.sparse() if rng.random() < 0.3 else case


def enumerated(case: Case) -> float:
    """Return the optimum by trying every solution; -inf where there is none."""
    dense = case.dense()
    n = len(dense)
    pair = np.where(np.isnan(dense), -np.inf, dense)
    single = np.full(n, -np.inf) if case.single_value is None else case.single_value
    size = np.ones(n, dtype=int) if case.size is None else case.size
    required = np.zeros(n, dtype=bool) if case.required is None else case.required

    @functools.cache
    def best(i: int, placed: int, left: int) -> float:
        while i < n and placed >> i & 1:
            i += 1
        if i == n:
            return 0.0
        value = -math.inf if required[i] else best(i + 1, placed, left)
        if size[i] > left:
            return value
        rest = left - int(size[i])
        value = max(value, single[i] + best(i + 1, placed, rest))
        for j in range(i + 1, n):
            if not placed >> j & 1 and size[j] == size[i] and pair[i, j] > -math.inf:
                value = max(value, pair[i, j] + best(i + 1, placed | 1 << j, rest))
        return value

    return best(0, 0, int(size.sum()) if case.gpus is None else case.gpus)


def rustworkx_value(values: Any) -> float:
    """Return the weight of a maximum weight matching, on 40-bit fixed point values."""
    n = len(values)
    i, j = np.nonzero(np.triu(np.nan_to_num(values, nan=-np.inf) > 0, 1))
    graph = rx.PyGraph(multigraph=False)
    graph.add_nodes_from(range(n))
    whole = np.round(values[i, j] * 2**40).astype(np.int64).tolist()
    graph.add_edges_from(list(zip(i.tolist(), j.tolist(), whole, strict=True)))
    matching = rx.max_weight_matching(graph, weight_fn=int)
    return math.fsum(float(values[a, b]) for a, b in matching)


def cpsat_value(case: Case) -> float:
    """Return the optimum by CP-SAT for whole values; -inf where there is none."""
    from ortools.sat.python import cp_model

    values, n = case.pair_value, len(case.pair_value)
    size = np.ones(n, dtype=int) if case.size is None else case.size
    model = cp_model.CpModel()
    covering: list[list[Any]] = [[] for _ in range(n)]
    terms = []
    for i in range(n):
        if case.single_value is not None and math.isfinite(case.single_value[i]):
            x = model.new_bool_var("")
            covering[i].append(x)
            terms.append((x, int(case.single_value[i]), int(size[i])))
        for j in range(i + 1, n):
            if math.isfinite(values[i, j]) and size[i] == size[j]:
                x = model.new_bool_var("")
                covering[i].append(x)
                covering[j].append(x)
                terms.append((x, int(values[i, j]), int(size[i])))
    for i in range(n):
        if case.required is not None and case.required[i]:
            model.add_exactly_one(covering[i])
        else:
            model.add_at_most_one(covering[i])
    if case.gpus is not None:
        model.add(sum(x * s for x, _, s in terms) <= case.gpus)
    model.maximize(sum(x * value for x, value, _ in terms))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return -math.inf
    assert status == cp_model.OPTIMAL
    return float(solver.objective_value)
