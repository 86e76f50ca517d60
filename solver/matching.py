"""Solver: exact pairing by networkx's maximum weight matching under the capacity of the GPUs.

Slow, and there to check ``exact_pairs``, with which it shares nothing but the graph.

All values are whole numbers (scaled and rounded once), so nothing here is approximate but that
rounding, which is part of the bound.

*Capacity.* The edges of jobs that take the same number of GPUs form a class. The best value
f(k) of at most k edges is concave in k, because the matching polytope cut by a cardinality
keeps its integral corners. For a price t per edge, f(k) <= L(t) + t k with
L(t) = max over matchings of (value - t edges), a plain maximum weight matching; the price at
which this is tight for k is where the tangents of a matching with more and one with at most k
edges meet. Both are then optimal at that price, so are all that exchange a component of their
symmetric difference, and such components change the number of edges by one at most: exchange
until exactly k remain.

*Several classes* compete for the GPUs. A knapsack over their concave bounds says how many
edges each gets; f is made exact there, which sharpens the bounds, until bound and value meet.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.pair_graph import PairGraph
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import Score, ceiling, score
from dovetail.instances.errors import UnsupportedError
from dovetail.solver.answers import Choice, Limits
from dovetail.solver.greedy import greedy_counts
from dovetail.solver.ratio import Maximum, best_ratio
from dovetail.solver.whole import whole, whole_weights

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PRECISION = 2.0**52


class OutOfTimeError(Exception):
    """The deadline passed between two matchings."""


class Matching:
    """Solves rounds whose plans are matchings."""

    name = "networkx"

    def solve(self, problem: Problem, limits: Limits) -> Choice:
        """Return the proven best choice of groups; greedy's if the time does not suffice.

        Raises
        ------
        UnsupportedError
            Where plans are not matchings (see ``PairGraph``).
        """
        with refusals_of(self.name):
            graph = problem.graph
        try:
            return self._proven(problem, graph, limits)
        except OutOfTimeError:
            return self._unproven(problem, limits)

    def _unproven(self, problem: Problem, limits: Limits) -> Choice:
        counts = greedy_counts(problem, Limits(seed=limits.seed))
        most = ceiling(problem.groups, problem.values)
        value = score(problem.groups, problem.values, counts).value(problem.values)
        bound = math.inf if problem.values.two_stage else max(most.gain, value)
        return Choice(counts, value, bound, most.weight, "time_limit", self.name)

    def _proven(self, problem: Problem, graph: PairGraph, limits: Limits) -> Choice:
        groups, values = problem.groups, problem.values
        fixed = score(groups, values, graph.fixed)

        def maximise(cost: Floats, constant: float) -> Maximum[Ints]:
            numbers, scale = whole(cost, _PRECISION)
            costs = [int(c) for c in numbers.tolist()]
            edges = self._best_edges(graph, costs, values.two_stage, limits)
            # Each edge's cost was rounded by half a unit at most.
            rounding = graph.most_edges / 2 if any(costs) else 0.0
            most = (sum(costs[k] for k in edges) + rounding) / scale + constant
            return Maximum(graph.counts(np.array(edges, dtype=np.int64)), most, "complete")

        if values.ratio:
            best = best_ratio(
                maximise(graph.gain, fixed.gain).x,
                terms=lambda counts: _gain_and_power(score(groups, values, counts)),
                maximise=lambda t, _: maximise(
                    graph.gain - t * graph.power_w, fixed.gain - t * fixed.power_w
                ),
                least=ceiling(groups, values).power_w,
                gap=limits.gap,
            )
        else:
            best = maximise(graph.gain, fixed.gain)
        reached = score(groups, values, best.x)
        value = reached.value(values)
        weight_bound = reached.weight if values.two_stage else math.inf
        return Choice(best.x, value, max(best.bound, value), weight_bound, "complete", self.name)

    def _best_edges(
        self, graph: PairGraph, costs: Sequence[int], two_stage: bool, limits: Limits
    ) -> list[int]:
        """Return the edges of the best matching within the capacity, covering the required."""
        cost = list(costs)
        if two_stage:
            rank = 2 * graph.jobs * max(map(abs, cost), default=0) + 1
            cost = [c + w * rank for c, w in zip(cost, _placed_weights(graph), strict=True)]
        edges: dict[tuple[int, int], int] = {}
        for k, pair in enumerate(zip(graph.first.tolist(), graph.second.tolist(), strict=True)):
            if pair not in edges or cost[k] > cost[edges[pair]]:
                edges[pair] = k
        by_size: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
        for pair, k in edges.items():
            by_size[int(graph.size[k])][pair] = cost[k]
        required = {int(k) for k in np.flatnonzero(graph.required)}
        classes = [
            _SizeClass(size, of_pair, required, graph.jobs, limits)
            for size, of_pair in sorted(by_size.items())
        ]
        return [edges[pair] for pair in _share_capacity(classes, graph.capacity)]


@contextmanager
def refusals_of(solver: str) -> Iterator[None]:
    """Let refusals name the solver, and those to take instead."""
    try:
        yield
    except UnsupportedError as refusal:
        others = "auto, cpsat, highs or milp"
        raise UnsupportedError(
            f"solver {solver} cannot take this instance, {others} can: {refusal}"
        ) from None


@dataclass(frozen=True)
class _Tangent:
    """The best matching at a price per edge."""

    price: Fraction
    pairs: frozenset[tuple[int, int]]
    value: int

    @property
    def count(self) -> int:
        return len(self.pairs)

    def at(self, edges: int) -> Fraction:
        """Return the bound that the tangent gives on the value of so many edges."""
        return self.value + self.price * (edges - self.count)


class _SizeClass:
    """The edges that take the same number of GPUs.

    Costs of edges that cover a required job are raised by a bonus that no other choice can
    outweigh; values are without it.
    """

    def __init__(
        self,
        size: int,
        costs: Mapping[tuple[int, int], int],
        required: set[int],
        jobs: int,
        limits: Limits,
    ) -> None:
        self.size = size
        self._costs = costs
        self._jobs = jobs
        self._limits = limits
        self._must = {pair for pair in costs if required.intersection(pair)}
        self._highest = max(map(abs, costs.values())) + 1
        self._bonus = (2 * jobs + 1) * self._highest
        self.least = len({k for pair in self._must for k in required.intersection(pair)})
        self._tangents = [self._tangent(Fraction(0))]
        self.most = max(self.least, self._tangents[0].count)

    def bound(self, edges: int) -> Fraction:
        """Return what is proven so far of the best value of at most so many edges."""
        return min(tangent.at(edges) for tangent in self._tangents)

    def best(self, edges: int) -> frozenset[tuple[int, int]]:
        """Return the best matching of at most so many edges; its ``bound`` is then its value."""
        more = self._tangents[0]
        if more.count <= edges:
            return more.pairs
        fewer = self._tangent(Fraction(self._highest))
        while fewer.count < edges:
            price = Fraction(more.value - fewer.value, more.count - fewer.count)
            between = self._tangent(price)
            self._tangents.append(between)
            if between.at(more.count) == more.value:
                return _exchanged(fewer.pairs, more.pairs, edges)
            more, fewer = (between, fewer) if between.count > edges else (more, between)
        self._tangents.append(fewer)
        return fewer.pairs

    def value(self, pairs: Iterable[tuple[int, int]]) -> int:
        """Return the total cost of the pairs."""
        return sum(self._costs[pair] for pair in pairs)

    def _tangent(self, price: Fraction) -> _Tangent:
        if self._limits.passed:
            raise OutOfTimeError
        scaled = []
        for (a, b), cost in self._costs.items():
            bonus = self._bonus if (a, b) in self._must else 0
            weight = (cost + bonus) * price.denominator - price.numerator
            if weight > 0:
                scaled.append((a, b if b != a else self._jobs + a, weight))
        found = [(min(p), max(p)) for p in heaviest_matching(scaled)]
        pairs = frozenset((a, b if b < self._jobs else a) for a, b in found)
        return _Tangent(price, pairs, self.value(pairs))


def _share_capacity(classes: Sequence[_SizeClass], capacity: int) -> list[tuple[int, int]]:
    """Return the best matchings of all classes that fit in so many GPUs together."""
    while True:
        bound, numbers = _knapsack(classes, capacity)
        chosen = [c.best(number) for c, number in zip(classes, numbers, strict=True)]
        if sum(c.value(pairs) for c, pairs in zip(classes, chosen, strict=True)) == bound:
            return [pair for pairs in chosen for pair in pairs]


def _knapsack(classes: Sequence[_SizeClass], capacity: int) -> tuple[Fraction, list[int]]:
    """Return the largest sum of the classes' bounds, and the edges each class then gets."""
    best: list[Fraction | None] = [Fraction(0)] * (capacity + 1)
    choices: list[list[int]] = []
    for c in classes:
        bounds = [(k, c.bound(k)) for k in range(c.least, c.most + 1)]
        row: list[Fraction | None] = []
        choice: list[int] = []
        for room in range(capacity + 1):
            options = [
                (before + bound, k)
                for k, bound in bounds
                if c.size * k <= room and (before := best[room - c.size * k]) is not None
            ]
            value, number = max(options, default=(None, 0))
            row.append(value)
            choice.append(number)
        best = row
        choices.append(choice)
    numbers = []
    room = capacity
    for c, choice in zip(reversed(classes), reversed(choices), strict=True):
        numbers.append(choice[room])
        room -= c.size * choice[room]
    return best[capacity] or Fraction(0), numbers[::-1]


def _exchanged(
    fewer: frozenset[tuple[int, int]], more: frozenset[tuple[int, int]], count: int
) -> frozenset[tuple[int, int]]:
    """Return a matching of ``count`` edges between two that are optimal at one price.

    Every component of the symmetric difference has the same worth at that price on both
    sides, or one of the two would not be optimal, and changes the count by at most one.
    """
    import networkx as nx

    # A job alone is an edge to a node of its own, so that it cannot close a component.
    ends = {pair: pair if pair[0] != pair[1] else (pair[0], ~pair[0]) for pair in fewer ^ more}
    pairs = {frozenset(end): pair for pair, end in ends.items()}
    difference = nx.Graph(ends.values())
    chosen = set(fewer)
    for component in nx.connected_components(difference):
        if len(chosen) == count:
            break
        edges = {pairs[frozenset(e)] for e in difference.subgraph(component).edges}
        if len(edges & more) > len(edges & fewer):
            chosen ^= edges
    return frozenset(chosen)


def heaviest_matching(edges: Sequence[tuple[int, int, int]]) -> Iterable[tuple[int, int]]:
    """Return a maximum weight matching of the edges (node, node, whole weight), as node pairs."""
    import networkx as nx

    graph: nx.Graph[int] = nx.Graph()
    graph.add_weighted_edges_from(edges)
    return list(nx.max_weight_matching(graph))


def _placed_weights(graph: PairGraph) -> list[int]:
    """Return the weight of each edge's jobs as a whole number.

    Jobs are rounded, not edges, so that plans that place the same jobs stay equal.
    """
    is_open = np.zeros(graph.jobs, dtype=bool)
    is_open[graph.first] = is_open[graph.second] = True
    weight = np.where(is_open & ~graph.required, graph.weight, 0.0)
    of_job = [int(w) for w in whole_weights(weight, _PRECISION).numbers.tolist()]
    jobs = zip(graph.first.tolist(), graph.second.tolist(), strict=True)
    return [of_job[a] + of_job[b] if a != b else of_job[a] for a, b in jobs]


def _gain_and_power(reached: Score) -> tuple[float, float]:
    return reached.gain, reached.power_w
