"""The jobs that take the same number of GPUs, and their best matchings at a price per group.

A *group* is a pair, or a job alone. f(k), the best value of k groups, is concave, because the
matching polytope keeps its integral corners when it is cut by a cardinality. So a price per
group gives a tangent to f:

    f(k) <= L(price) + price k,   L(price) = max over matchings of (value - price x groups),

and L is a plain maximum weight matching, computed on a sparse graph of likely pairs. It holds
for all pairs once none prices in (``dense``).

Required jobs may be left out too, at a penalty larger than any value: so every problem has a
solution, and an optimum that pays the penalty proves that the original problem has none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.budget import Budget
from dovetail.solver.pairing import assignment, blossom
from dovetail.solver.pairing.compilation import KernelCompiler, kernel
from dovetail.solver.pairing.dense import FORBIDDEN, DensePairs, MatrixPairs

Ints = NDArray[np.int64]
Narrow = NDArray[np.int32]

NOT_ALONE = -(2**60)
"""The value of a job that may not run alone."""

_PARTNERS = 10
"""Likely partners per job in the initial sparse graph."""

_CARRIED = 10
"""Pairs per job that are carried to the next round, over all jobs."""

_ADDED_PER_ROW = 8
"""Maximum number of pairs that one round of pricing adds per job, the worst first."""

_DITHER = 2**26 - 1
"""Noise on the choice of likely partners: a sixteenth of the largest doubled value. Without it
equal jobs would all choose the same few partners."""

_COMPLETE = 128
"""Number of jobs up to which the graph has all pairs from the start and needs no pricing."""

_SPARSE_DEGREE = 16
"""Average number of allowed partners up to which the same applies to any number of jobs."""

_BATCH = 128
"""Augmentations between two checks of the clock."""

_STEPS_TO_EVALUATE, _STEPS_TO_GROW, _PASSES = 100_000, 20_000, 10
"""Steps of work of an evaluation and of a tree, and their additional passes over the edges."""


@dataclass(frozen=True)
class Graph:
    """The sparse graph of likely pairs in compressed rows, each edge in the rows of both ends.

    Attributes
    ----------
    start : (nodes + 1,) int
        The index at which each node's edges start in ``head`` and ``weight``.
    head : (2 edges,) int
        The other end of each edge.
    weight : (2 edges,) int
        The fixed-point value of each pair.
    first, second, once : (edges,) int
        Every edge once, in order: its ends (the smaller first) and its weight.
    """

    start: Ints
    head: Ints
    weight: Ints
    first: Ints
    second: Ints
    once: Ints

    @classmethod
    def of(cls, nodes: int, first: Ints, second: Ints, weight: Ints, run: KernelCompiler) -> Graph:
        """Return the graph of these edges (first < second), each given once, in order."""
        start = np.zeros(nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(first, minlength=nodes), out=start[1:])
        start[1:] += np.cumsum(np.bincount(second, minlength=nodes))
        head = np.empty(2 * len(first), dtype=np.int64)
        both = np.empty(2 * len(first), dtype=np.int64)
        run(fill_rows)(first, second, weight, start[:-1].copy(), head, both)
        return cls(start, head, both, first, second, weight)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.start) - 1

    def extended(self, first: Ints, second: Ints, pairs: DensePairs, run: KernelCompiler) -> Graph:
        """Return the graph with these edges added; it may already have some of them.

        Parameters
        ----------
        first, second : (e,) int
            The ends of the edges, first < second.
        pairs : DensePairs
            The weights.
        """
        old = self.first * self.nodes + self.second
        new = np.unique(first * self.nodes + second)
        place = np.searchsorted(old, new)
        fresh = np.append(old, -1)[place] != new
        new, place = new[fresh], place[fresh]
        first, second = new // self.nodes, new % self.nodes
        weight = pairs.values(first, second, run)
        return Graph.of(
            self.nodes,
            np.insert(self.first, place, first),
            np.insert(self.second, place, second),
            np.insert(self.once, place, weight),
            run,
        )

    def reweighted(self, weight: Ints, run: KernelCompiler) -> Graph:
        """Return the graph with other weights, (edges,)."""
        return Graph.of(self.nodes, self.first, self.second, weight, run)


@dataclass(frozen=True)
class Tangent:
    """The optimum at a price per group, fractional or integral. All numbers are doubled.

    Attributes
    ----------
    price : int
        The price per group (not doubled).
    dual2 : int
        L(price).
    count2 : int
        The number of groups.
    partner : (m,) int
        The matching: a job's partner, itself if alone, -1 if not placed.
    potential : (m,) int
        P_i, with P_i + P_j + blossoms >= 2 (w_ij - price).
    relaxed : (m,) int
        The potentials of the fractional optimum.
    column : (m,) int
        The fractional optimum: the column that each row takes (see ``assignment``).
    parent, dual : (2 m + 2,) int
        The smallest blossom around each job or blossom, and the duals of blossoms.
    integral : bool
        Whether ``partner`` attains ``dual2``.
    """

    price: int
    dual2: int
    count2: int
    partner: Ints
    potential: Ints
    relaxed: Ints
    column: Ints
    parent: Ints
    dual: Ints
    integral: bool

    @property
    def value2(self) -> int:
        """The value of the solution, doubled."""
        return self.dual2 + self.price * self.count2

    @property
    def start(self) -> ClassStart:
        """The start for a similar class with the same likely pairs."""
        return ClassStart(self.relaxed, self.column, None, np.zeros(0, dtype=np.int64))

    def bound2(self, count: int) -> int:
        """Return the doubled bound on the value of ``count`` groups."""
        return self.dual2 + 2 * self.price * count


@dataclass(frozen=True)
class ClassData:
    """The data of a class.

    Attributes
    ----------
    nodes : (m,) int
        The jobs.
    size : int
        GPUs per group.
    single : (m,) int
        Fixed-point value of running alone, ``NOT_ALONE`` if that is not allowed.
    rest : (m,) int
        The value of not being placed: 0, or minus the penalty for required jobs.
    pairs : DensePairs or None
        The values of all pairs.
    graph : Graph or None
        All allowed pairs, if they are few.
    """

    nodes: Ints
    size: int
    single: Ints
    rest: Ints
    pairs: DensePairs | None
    graph: Graph | None

    def sample(self, run: KernelCompiler, chosen: Ints) -> ClassData:
        """Return the class of some of its jobs (positions)."""
        graph = None
        pairs = None
        if self.pairs is not None:
            pairs = self.pairs.sample(chosen)
            graph = complete_graph(pairs.fixed, run)
        return ClassData(
            self.nodes[chosen],
            self.size,
            self.single[chosen],
            np.zeros(len(chosen), dtype=np.int64),
            pairs,
            graph,
        )


@dataclass(frozen=True)
class ClassStart:
    """The start for solving a class.

    Attributes
    ----------
    potential : (m,) int
        Doubled potentials.
    partner : (m,) int
        The column that a row takes, -1 if unknown.
    pairs : ((e,) int, (e,) int) or None
        Likely pairs, the smaller index first.
    new : (k,) int
        The jobs whose likely pairs are not in ``pairs``.
    """

    potential: Ints
    partner: Ints
    pairs: tuple[Ints, Ints] | None
    new: Ints

    @classmethod
    def unknown(cls, data: ClassData) -> ClassStart:
        """Return the start without prior knowledge."""
        m = len(data.nodes)
        return cls(
            2 * np.maximum(data.single, 0), np.full(m, -1, dtype=np.int64), None, np.arange(m)
        )


def complete_graph(fixed: Narrow, run: KernelCompiler, allowed: Ints | None = None) -> Graph | None:
    """Return the graph of all allowed pairs, or None if they are too many."""
    m = len(fixed)
    if allowed is None:
        allowed = np.count_nonzero(fixed != FORBIDDEN, axis=1)
    if m > _COMPLETE and allowed.sum() > _SPARSE_DEGREE * m:
        return None
    first, second = np.divmod(np.flatnonzero(np.triu(fixed != FORBIDDEN, 1)), m)
    weight = fixed[first, second].astype(np.int64)
    return Graph.of(m, first, second, weight, run)


class SizeClass:
    """Solves a class at successive prices, each starting from the previous solution.

    Parameters
    ----------
    data : ClassData
        The class.
    run : KernelCompiler
        Chooses plain or compiled kernels.
    start : ClassStart
        The start.
    price : int
        The price of the start.
    """

    def __init__(self, data: ClassData, run: KernelCompiler, start: ClassStart, price: int) -> None:
        self.data = data
        self.run = run
        m = len(data.nodes)
        self.graph = self._likely_pairs(start) if data.graph is None else data.graph
        self.complete = data.graph is not None
        self.resume(start, price)
        self.u = np.zeros(m, dtype=np.int64)
        self._owner = np.full(m, -1, dtype=np.int64)
        self._free = np.empty(m, dtype=np.int64)

    def revalue(self, jobs: Ints, fixed: Narrow, single: Ints, rest: Ints) -> None:
        """Give some jobs other values: for their pairs (k, m), alone and not placed."""
        data = self.data
        assert isinstance(data.pairs, MatrixPairs)
        data.pairs.fixed[jobs] = fixed
        data.pairs.fixed[:, jobs] = fixed.T
        data.single[jobs] = single
        data.rest[jobs] = rest
        weight = data.pairs.values(self.graph.first, self.graph.second, self.run)
        weight[weight == FORBIDDEN] = NOT_ALONE
        self.graph = self.graph.reweighted(weight, self.run)

    def resume(self, start: ClassStart, price: int) -> None:
        """Continue from other potentials and partners, which belong to a price."""
        self.price = price
        self.v = start.potential // 2
        self.mate = start.partner.copy()

    def __len__(self) -> int:
        return len(self.data.nodes)

    def alone(self, price: int) -> Ints:
        """Return the value of each job without a partner."""
        return np.maximum(self.data.rest, self.data.single - price)

    def evaluate(self, price: int, integral: bool, budget: Budget) -> Tangent:
        """Return the fractional or integral optimum of the working graph at a price."""
        alone = self.alone(price)
        profit = self.graph.weight - price
        self.v -= (price - self.price) // 2
        self.price = price
        self._assign(profit, alone, budget)
        partner = np.empty(len(self), dtype=np.int64)
        potential = self.u + self.v
        graph = self.graph
        lossy = self.run(assignment.split_cycles)(
            graph.start, graph.head, profit, alone, potential, self.mate, partner
        )
        runs_alone = self.data.single - price > self.data.rest
        if not integral or lossy == 0:
            column = self.mate.copy()
            none = np.full(2 * len(self) + 2, -1, dtype=np.int64)
            taken = column if lossy else partner
            partner = _with_singles(partner, runs_alone)
            paired = (taken >= 0) & (taken != np.arange(len(self)))
            count2 = int(paired.sum()) + 2 * int((runs_alone & ~paired).sum())
            return Tangent(
                price, exact_sum(potential), count2, partner, potential, potential, column,
                none, np.zeros_like(none), lossy == 0,
            )  # fmt: skip
        return self._integral(price, profit, alone, potential, partner, runs_alone, budget)

    def _assign(self, profit: Ints, alone: Ints, budget: Budget) -> None:
        """Solve the assignment on the double cover from the present prices and rows."""
        graph = (self.graph.start, self.graph.head, profit, alone, self.u, self.v)
        free, edges = self._free, len(self) + self.graph.head.size
        budget.spend(_STEPS_TO_EVALUATE + _PASSES * edges)
        self.run(assignment.settle_rows)(*graph, self.mate, self._owner)
        count = self.run(assignment.take_free_columns)(*graph, self.mate, self._owner, free)
        for _ in range(assignment.REDUCTIONS):
            count = self.run(assignment.reduce_rows)(*graph, self.mate, self._owner, free, count)
        self.run(assignment.best_responses)(*graph, free, count)
        for k in range(0, count, _BATCH):
            budget.check()
            last = min(count, k + _BATCH)
            budget.spend((last - k) * edges)
            self.run(assignment.augment_rows)(*graph, self.mate, self._owner, free, k, last)
        budget.check()

    def _integral(
        self,
        price: int,
        profit: Ints,
        alone: Ints,
        potential: Ints,
        partner: Ints,
        runs_alone: NDArray[np.bool_],
        budget: Budget,
    ) -> Tangent:
        """Match the nodes that odd cycles left exposed."""
        graph = self.graph
        tail = np.repeat(np.arange(len(self)), np.diff(graph.start))
        benefit = 2 * (profit - alone[tail] - alone[graph.head])
        pi = potential - 2 * alone
        state = blossom.no_blossoms(len(self))
        for root in np.flatnonzero((partner < 0) & (pi > 0)).tolist():
            if partner[root] < 0 and pi[root] > 0:
                budget.check()
                budget.spend(_STEPS_TO_GROW + _PASSES * tail.size)
                self.run(blossom.grow_tree)(
                    root, graph.start, graph.head, benefit, pi, partner, state
                )
        relaxed, potential = potential, pi + 2 * alone
        halves = (self.run(blossom.sizes)(state) - 1) // 2
        dual2 = exact_sum(potential) + exact_sum(
            state.blossom[blossom.DUAL] * np.maximum(halves, 0)
        )
        partner = _with_singles(partner, runs_alone)
        groups = int((partner >= np.arange(len(self))).sum())
        return Tangent(
            price,
            dual2,
            2 * groups,
            partner,
            potential,
            relaxed,
            self.mate.copy(),
            state.blossom[blossom.PARENT],
            state.blossom[blossom.DUAL],
            True,
        )

    def feasible(self) -> Tangent:
        """Return feasible duals for all pairs, from any present prices.

        u is set to its best response to v, and potentials are raised by the remaining shortfall.
        """
        m = len(self)
        alone = self.alone(self.price)
        profit = self.graph.weight - self.price
        self.run(assignment.best_responses)(
            self.graph.start, self.graph.head, profit, alone, self.u, self.v, np.arange(m), m
        )
        none = np.full(2 * m + 2, -1, dtype=np.int64)
        potential = np.maximum(self.u + self.v, 2 * alone)
        zero = np.zeros_like(none)
        column = self.mate.copy()
        tangent = Tangent(self.price, 0, 0, none, potential, potential, column, none, zero, False)
        if self.data.pairs is not None and not self.complete:
            potential = potential + self.data.pairs.shortfall(potential, self.price, self.run)
        return replace(tangent, dual2=exact_sum(potential), potential=potential)

    def price_in(self, tangent: Tangent, budget: Budget) -> int:
        """Add pairs of negative reduced cost to the graph; return how many there are in total."""
        if self.complete:
            return 0
        budget.check()
        budget.spend(len(self) ** 2)
        found, partner = self._short(tangent, 0, _ADDED_PER_ROW)
        if found.any():
            self._add(partner)
        return int(found.sum())

    def add_survivors(self, tangent: Tangent, gap2: int, most: int) -> bool:
        """Add the pairs of doubled reduced cost below ``gap2``, if no job has too many."""
        if self.complete:
            return True
        room = int(self._short(tangent, -gap2, 1)[0].max(initial=0))
        if 0 < room <= most:
            self._add(self._short(tangent, -gap2, room)[1])
        return room <= most

    def _short(self, tangent: Tangent, slack: int, room: int) -> tuple[Ints, Ints]:
        """Return count and partners of the pairs of each row (see ``price_rows``)."""
        assert self.data.pairs is not None
        nested = blossom.nested(tangent.parent, tangent.dual, self.run)
        return self.data.pairs.short(
            tangent.potential, tangent.price, slack, nested, room, self.run
        )

    def _add(self, partner: Ints) -> None:
        assert self.data.pairs is not None
        rows, columns = np.nonzero(partner >= 0)
        self.graph = self.graph.extended(
            *_in_order(rows, partner[rows, columns]), self.data.pairs, self.run
        )

    def _likely_pairs(self, start: ClassStart) -> Graph:
        """Return the graph of the likely pairs, and of the best partners of each new job."""
        pairs = self.data.pairs
        assert pairs is not None
        best = pairs.best_partners(start.new, start.potential, _DITHER, _PARTNERS, self.run)
        rows, columns = np.nonzero(best >= 0)
        first, second = _in_order(start.new[rows], best[rows, columns])
        if start.pairs is not None:
            allowed = pairs.values(*start.pairs, self.run) != FORBIDDEN
            first = np.concatenate([first, start.pairs[0][allowed]])
            second = np.concatenate([second, start.pairs[1][allowed]])
        none = Graph.of(len(self), *(np.zeros(0, dtype=np.int64),) * 3, self.run)
        return none.extended(first, second, pairs, self.run)

    def likely_pairs(self, tangent: Tangent) -> tuple[Ints, Ints]:
        """Return the pairs of the working graph with the least reduced cost at a tangent."""
        first, second = self.graph.first, self.graph.second
        cost = tangent.relaxed[first] + tangent.relaxed[second] - 2 * self.graph.once
        most = _CARRIED * len(self)
        kept = cost <= np.partition(cost, most)[most] if len(cost) > most else slice(None)
        return first[kept], second[kept]


def _in_order(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Return the ends of edges with the smaller first."""
    return np.minimum(first, second), np.maximum(first, second)


def exact_sum(amounts: Ints) -> int:
    """Return a sum that may exceed 64 bits, such as the penalties of many jobs."""
    return (int((amounts >> 31).sum()) << 31) + int((amounts & (2**31 - 1)).sum())


def _with_singles(partner: Ints, runs_alone: NDArray[np.bool_]) -> Ints:
    """Let jobs without a partner run alone if that is worth more than not running."""
    return np.where((partner < 0) & runs_alone, np.arange(len(partner)), partner)


@kernel
def fill_rows(first: Ints, second: Ints, weight: Ints, place: Ints, head: Ints, both: Ints) -> None:
    """Write every edge to the rows of both its ends, starting at ``place``."""
    for e in range(first.size):
        i = first[e]
        j = second[e]
        head[place[i]] = j
        both[place[i]] = weight[e]
        place[i] += 1
        head[place[j]] = i
        both[place[j]] = weight[e]
        place[j] += 1
