"""Solver: exact pairing by networkx's maximum weight matching under the capacity of the GPUs.

It is slow and serves to check ``exact_pairs``, with which it shares nothing but the graph. All
values are whole numbers (scaled and rounded once), so nothing here is approximate except this
rounding, which is part of the bound.

All values are whole numbers (scaled and rounded once), so nothing here is approximate but that
rounding, which is part of the bound.

*Capacity.* The edges of jobs that take the same number of GPUs form a class. The best value f(k) of
at most k edges is concave in k, because the matching polytope cut by a cardinality keeps its
integral corners. For a price t per edge, f(k) <= L(t) + t k with L(t) = max over matchings of
(value - t edges), a plain maximum weight matching; the price at which this is tight for k is where
the tangents of a matching with more and one with at most k edges meet. Both are then optimal at
that price, and so are all matchings that exchange a component of their symmetric difference. Such
components change the number of edges by at most one, so they are exchanged until exactly k edges
remain.

*Several classes* compete for the GPUs. A knapsack over their concave bounds decides how many edges
each gets; f is made exact there, which sharpens the bounds, until bound and value meet.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from typing import NamedTuple, TypeAlias

import numpy as np

from dovetail.formulations.arrays import Ints
from dovetail.formulations.budget import Budget, OutOfTimeError
from dovetail.formulations.candidates.groups import Groups, score
from dovetail.formulations.candidates.listing import candidate_groups
from dovetail.formulations.programs.pair_graph import PairGraph, require_matchings
from dovetail.formulations.values import JobValues
from dovetail.instances.plugins import require_package
from dovetail.solver.greedy import AT_LEAST, greedy_counts
from dovetail.solver.stages import StagedSearch, solve_in_stages, weight_units
from dovetail.solver.types import (
    Choice,
    IntegerWeights,
    Limits,
    Maximum,
    integer_scale,
    refusals_of,
)

Edge: TypeAlias = frozenset[int]
"""The two nodes of an edge: two jobs, or a job and its extra node."""

_PRECISION = 2.0**52


class NetworkxSolver:
    """Solves rounds whose plans are matchings.

    Raises
    ------
    UnsupportedError
        When networkx is not installed.
    """

    name = "networkx"

    def __init__(self) -> None:
        require_package("networkx", "networkx", f"solver {self.name}")

    def solve(self, values: JobValues, limits: Limits) -> Choice:
        """Return the proven best choice of groups; out of time, that of an earlier stage or greedy.

        Raises
        ------
        UnsupportedError
            If plans are not matchings (see ``PairGraph``).
        """
        with refusals_of(self.name):
            groups = candidate_groups(values, limits.budget)
            require_matchings(groups)
            return solve_in_stages(_NetworkxSearch(groups.apart, limits)).merged(groups)


class _NetworkxSearch(StagedSearch):
    solver = NetworkxSolver.name

    def __init__(self, groups: Groups, limits: Limits) -> None:
        super().__init__(groups.values, limits, groups)
        self._graph = PairGraph(groups)
        self._start = greedy_counts(groups, limits, at_least=AT_LEAST)
        self._required: list[Sequence[int]] = []

    def heaviest(self) -> tuple[Maximum, IntegerWeights]:
        graph, weight = self._graph, weight_units(self.groups)
        second = np.where(graph.first == graph.second, 0.0, weight.numbers[graph.second])
        units = [int(unit) for unit in (weight.numbers[graph.first] + second).tolist()]
        found = self._best(units, self._start)
        self._required = [units]
        return found, weight

    def maximise(
        self, per_gain: float = 1.0, per_cost: float = 0.0, start: Maximum | None = None
    ) -> Maximum:
        graph = self._graph
        worth = per_gain * graph.gain - per_cost * graph.cost
        scale = integer_scale(worth, _PRECISION)
        numbers = np.round(worth * scale)
        counts = start.counts if start else self._start
        found = self._best([int(c) for c in numbers.tolist()], counts)
        fixed = score(self.groups, graph.fixed)
        constant = per_gain * fixed.gain - per_cost * float(np.nan_to_num(fixed.cost))
        # Each edge's cost was rounded by at most half a unit.
        rounding = graph.most_edges / 2 if numbers.any() else 0.0
        return replace(found, bound=(found.bound + rounding) / scale + constant)

    def faster(self, cheapest: Maximum, per_cost: float) -> Maximum:
        """Return the choice of this cost with the largest gain; see ``StagedSearch``."""
        saved = np.round(-per_cost * self._graph.cost)
        self._required.insert(0, [int(each) for each in saved.tolist()])
        return self.maximise(start=cheapest)

    def _best(self, costs: Sequence[int], start: Ints) -> Maximum:
        """Return the best matching that places the required weight, else the start."""
        graph = self._graph
        covered = graph.required[graph.first] | graph.required[graph.second]
        ranked = [0] * len(costs)
        for level in (costs, *self._required, covered.tolist()):
            rank = 2 * graph.jobs * max(map(abs, ranked), default=0) + 1
            ranked = [c + rank * int(more) for c, more in zip(ranked, level, strict=True)]
        try:
            edges = _best_edges(graph, ranked, self.limits)
        except OutOfTimeError:
            return Maximum(counts=start, bound=math.inf, stopped="time_limit")
        counts = graph.counts(np.array(edges, dtype=np.int64))
        return Maximum(counts=counts, bound=sum(costs[k] for k in edges), stopped="complete")


def _best_edges(graph: PairGraph, costs: Sequence[int], limits: Limits) -> list[int]:
    """Return the edges of the best matching within the capacity."""
    # A single job is an edge to an extra node.
    second = np.where(graph.first == graph.second, ~graph.first, graph.second)
    edges: dict[Edge, int] = {}
    for k, ends in enumerate(zip(graph.first.tolist(), second.tolist(), strict=True)):
        edge = frozenset(ends)
        if edge not in edges or costs[k] > costs[edges[edge]]:
            edges[edge] = k
    by_size: dict[int, dict[Edge, int]] = defaultdict(dict)
    for edge, k in edges.items():
        by_size[int(graph.size[k])][edge] = costs[k]
    classes = [_EdgesOfSize(size, of_edge, limits) for size, of_edge in sorted(by_size.items())]
    return [edges[edge] for edge in _share_capacity(classes, graph.capacity)]


class _PriceOptimum(NamedTuple):
    """The best matching at a price per edge."""

    price: Fraction
    edges: frozenset[Edge]
    value: int

    def at(self, number: int) -> Fraction:
        """Return the tangent's bound on the value of ``number`` edges."""
        return self.value + self.price * (number - len(self.edges))


class _Edge(dict[str, int]):
    """The attributes of an edge: networkx reads the weight in each of its loops."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self._budget = budget

    def get(self, key: str, default: int | None = None) -> int | None:  # type: ignore[override]
        """Return the weight if there is time.

        Raises
        ------
        OutOfTimeError
            If the time is up.
        """
        self._budget.check()
        return super().get(key, default)


class _EdgesOfSize:
    """The edges that take the same number of GPUs."""

    def __init__(self, size: int, costs: Mapping[Edge, int], limits: Limits) -> None:
        self.size = size
        self._costs = costs
        self._limits = limits
        self._tangents = [self._tangent(Fraction(0))]
        self.most = len(self._tangents[0].edges)

    def bound(self, number: int) -> Fraction:
        """Return the bound proven so far on the value of at most ``number`` edges."""
        return min(tangent.at(number) for tangent in self._tangents)

    def best(self, number: int) -> frozenset[Edge]:
        """Return the best matching of at most ``number`` edges; ``bound`` is then its value."""
        more = self._tangents[0]
        if len(more.edges) <= number:
            return more.edges
        fewer = self._tangent(Fraction(max(map(abs, self._costs.values())) + 1))
        while len(fewer.edges) < number:
            price = Fraction(more.value - fewer.value, len(more.edges) - len(fewer.edges))
            between = self._tangent(price)
            self._tangents.append(between)
            if between.at(len(more.edges)) == more.value:
                return _exchanged(fewer.edges, more.edges, number)
            more, fewer = (between, fewer) if len(between.edges) > number else (more, between)
        self._tangents.append(fewer)
        return fewer.edges

    def value(self, edges: Iterable[Edge]) -> int:
        """Return the total cost of the edges."""
        return sum(self._costs[edge] for edge in edges)

    def _tangent(self, price: Fraction) -> _PriceOptimum:
        import networkx as nx

        class OrderedGraph(nx.Graph):  # type: ignore[type-arg]
            edge_attr_dict_factory = partial(_Edge, self._limits.budget)

        self._limits.budget.check()
        graph = OrderedGraph()
        for edge, cost in self._costs.items():
            if (weight := cost * price.denominator - price.numerator) > 0:
                graph.add_edge(*edge, weight=weight)
        edges = frozenset(map(frozenset, nx.max_weight_matching(graph)))
        return _PriceOptimum(price, edges, self.value(edges))


def _share_capacity(classes: Sequence[_EdgesOfSize], capacity: int) -> list[Edge]:
    """Return the best matchings of all classes that fit in ``capacity`` GPUs together."""
    while True:
        bound, numbers = _knapsack(classes, capacity)
        chosen = [c.best(number) for c, number in zip(classes, numbers, strict=True)]
        if sum(c.value(edges) for c, edges in zip(classes, chosen, strict=True)) == bound:
            return [edge for edges in chosen for edge in edges]


def _knapsack(classes: Sequence[_EdgesOfSize], capacity: int) -> tuple[Fraction, tuple[int, ...]]:
    """Return the largest sum of the classes' bounds, and the edges each class then gets."""
    bounds = [[c.bound(number) for number in range(c.most + 1)] for c in classes]

    @cache
    def best(first: int, room: int) -> tuple[Fraction, tuple[int, ...]]:
        """Return the same for the first classes, in ``room`` GPUs."""
        if not first:
            return Fraction(0), ()
        size = classes[first - 1].size
        before = (best(first - 1, room - size * number) for number in range(room // size + 1))
        options = zip(bounds[first - 1], before, strict=False)
        return max(
            (value + bound, (*numbers, k)) for k, (bound, (value, numbers)) in enumerate(options)
        )

    return best(len(classes), capacity)


def _exchanged(fewer: frozenset[Edge], more: frozenset[Edge], number: int) -> frozenset[Edge]:
    """Return a matching of ``number`` edges between two that are optimal at one price.

    Every component of the symmetric difference has the same worth at that price on both
    sides, or one of the two would not be optimal, and changes the number by at most one.
    """
    import networkx as nx

    chosen, difference = fewer, fewer ^ more
    graph: nx.Graph[int] = nx.Graph([(min(edge), max(edge)) for edge in difference])
    for component in nx.connected_components(graph):
        if len(chosen) == number:
            break
        edges = {edge for edge in difference if edge <= component}
        if len(edges & more) > len(edges & fewer):
            chosen ^= edges
    return chosen
