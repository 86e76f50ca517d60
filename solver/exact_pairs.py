"""Rounds whose plans are matchings, solved by our own engine in one stage or two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.pair_graph import PairGraph
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import ceiling, score
from dovetail.solver.answers import MATCHING, Choice, Limits, Proven
from dovetail.solver.lexicographic import Heaviest, why_stopped
from dovetail.solver.pairing import certificate_errors, match_pairs
from dovetail.solver.pairing.matching import Matching as Pairing
from dovetail.solver.ratio import Maximum, best_ratio
from dovetail.solver.table_pairs import best_of_tables, table_pairs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LOOSE = 2.0
"""How far below the power of a plan a bound may be before a better one is worth a matching."""


def best_matching(problem: Problem, limits: Limits) -> Choice:
    """Return the proven best choice of groups, or the best found when the time is up.

    Raises
    ------
    UnsupportedError
        Where plans are not matchings (see ``PairGraph``), with the reason.
    """
    large = table_pairs(problem)
    if large is not None:
        return best_of_tables(large, limits)
    return best_pairs(problem, problem.graph, limits)


def best_pairs(problem: Problem, graph: PairGraph, limits: Limits) -> Choice:
    """Return the best choice of groups among the matchings of a graph of the problem."""
    if problem.values.two_stage:
        return _TwoStages(problem, graph, limits).choice()
    table = EdgeTable.of(graph, graph.gain)
    arguments = _engine_arguments(graph, table)
    found = match_pairs(
        **arguments,
        time_limit=limits.time_limit,
        seed=limits.seed,
        previous=limits.previous,
    )
    counts = _counts(problem, graph, table, found.mate)
    fixed = score(problem.groups, problem.values, graph.fixed).gain
    value = score(problem.groups, problem.values, counts).gain
    return Choice(
        counts=counts,
        value=value,
        bound=max(found.bound + fixed, value),
        weight_bound=math.inf,
        stopped=why_stopped(found, limits),
        solver=MATCHING,
        proof=partial(proven, found),
        prices=found.prices,
    )


def proven(found: Pairing, problem: Problem) -> Proven:
    """Return what the engine's certificate proves, checked against all pairs of jobs."""
    graph = problem.graph
    fixed = score(problem.groups, problem.values, graph.fixed).gain
    arguments = _engine_arguments(graph, EdgeTable.of(graph, graph.gain))
    return Proven(found.bound + fixed, tuple(certificate_errors(found, **arguments)))


def _engine_arguments(graph: PairGraph, table: EdgeTable) -> dict[str, Any]:
    return {
        "pair_value": table.pair,
        "single_value": table.alone,
        "gpus": graph.capacity,
        "size": table.size,
        "required": graph.required,
    }


@dataclass(frozen=True)
class EdgeTable:
    """Of all edges between two jobs the one of the largest value, as matrices.

    Attributes
    ----------
    pair : (jobs, jobs) float
        The value of each pair; NaN where there is no edge.
    alone : (jobs,) float
        The value of each job alone; NaN where it may not be.
    edge : (jobs, jobs) int
        Which edge it is, on the diagonal that of the job alone; -1 where there is none.
    size : (jobs,) int
        GPUs that each job takes; 1 for those without an edge.
    """

    pair: Floats
    alone: Floats
    edge: Ints
    size: Ints

    @classmethod
    def of(cls, graph: PairGraph, value: Floats) -> EdgeTable:
        """Return the table of a graph whose edges have these values, (e,)."""
        pair = np.full((graph.jobs, graph.jobs), np.nan)
        edge = np.full((graph.jobs, graph.jobs), -1, dtype=np.int64)
        # Of several edges between two jobs the last one written stays: that of most value.
        order = np.argsort(value, kind="stable")
        first, second = graph.first[order], graph.second[order]
        edge[first, second] = edge[second, first] = order
        pair[first, second] = pair[second, first] = value[order]
        size = np.ones(graph.jobs, dtype=np.int64)
        size[graph.first] = size[graph.second] = graph.size
        return cls(pair, np.diagonal(pair).copy(), edge, size)

    def counts(self, graph: PairGraph, mate: Ints) -> Ints:
        """Return how often a matching takes each group of the graph."""
        jobs = np.arange(graph.jobs)
        leads = jobs[mate >= jobs]
        return graph.counts(self.edge[leads, mate[leads]])


class _TwoStages:
    """The largest placed weight, then the best gain or, for ``energy``, the best ratio."""

    def __init__(self, problem: Problem, graph: PairGraph, limits: Limits) -> None:
        self._problem = problem
        self._groups = problem.groups
        self._values = problem.values
        self._graph = graph
        self._limits = limits
        self._fixed = score(problem.groups, problem.values, graph.fixed)
        self._table = EdgeTable.of(graph, graph.gain)
        self._heaviest = Heaviest(
            graph.weight,
            may_share=self._table.edge >= 0,
            may_run_alone=np.diagonal(self._table.edge) >= 0,
            gpus=graph.capacity,
            size=self._table.size,
            required=graph.required,
            limits=limits,
        )

    def choice(self) -> Choice:
        """Return the best choice of groups, with what is proven of it."""
        if not self._heaviest.proven:
            return self._unproven()
        best = self._best_ratio() if self._values.ratio else self._best_gain()
        reached = score(self._groups, self._values, best.x)
        value = reached.value(self._values)
        return Choice(
            counts=best.x,
            value=value,
            bound=max(best.bound, value),
            weight_bound=reached.weight + self._heaviest.spare,
            stopped=best.stopped,
            solver=MATCHING,
        )

    def _unproven(self) -> Choice:
        counts = _counts(self._problem, self._graph, self._table, self._heaviest.mate)
        reached = score(self._groups, self._values, counts)
        most = ceiling(self._groups, self._values).weight
        return Choice(
            counts=counts,
            value=reached.value(self._values),
            bound=math.inf,
            weight_bound=min(reached.weight + self._heaviest.spare, most),
            stopped=self._heaviest.stopped,
            solver=MATCHING,
        )

    def _best_gain(self) -> Maximum[Ints]:
        return self._maximise(self._graph.gain, self._fixed.gain)

    def _best_ratio(self) -> Maximum[Ints]:
        graph, fixed = self._graph, self._fixed
        start = self._table.counts(graph, self._heaviest.mate)
        return best_ratio(
            start,
            terms=self._gain_and_power,
            maximise=lambda t, _: self._maximise(
                graph.gain - t * graph.power_w, fixed.gain - t * fixed.power_w
            ),
            least=self._least_power(start),
            gap=self._limits.gap,
        )

    def _least_power(self, start: Ints) -> float:
        """Return a bound under the power of every choice of the largest placed weight.

        It divides the error of the ratio's bound, so a poor one is replaced by the best.
        """
        graph, fixed = self._graph, self._fixed.power_w
        table = EdgeTable.of(graph, -graph.power_w)
        own = fixed + self._heaviest.least_cost(-table.pair, -table.alone)
        least = max(own, ceiling(self._groups, self._values).power_w)
        if least > self._gain_and_power(start)[1] / _LOOSE:
            return least
        return max(least, -self._maximise(-graph.power_w, -fixed).bound)

    def _maximise(self, cost: Floats, constant: float) -> Maximum[Ints]:
        """Maximise the sum of what the edges are worth, at the largest placed weight."""
        table = EdgeTable.of(self._graph, cost)
        found = self._heaviest.best(table.pair, table.alone, self._limits)
        counts = table.counts(self._graph, found.mate)
        return Maximum(counts, found.bound + constant, found.stopped)

    def _gain_and_power(self, counts: Ints) -> tuple[float, float]:
        reached = score(self._groups, self._values, counts)
        return reached.gain, reached.power_w


def _counts(problem: Problem, graph: PairGraph, table: EdgeTable, mate: Ints) -> Ints:
    """Return the choice of a matching; where it came too late for the running jobs, that alone."""
    if (graph.required & (mate < 0)).any():
        return problem.idle_counts
    return table.counts(graph, mate)
