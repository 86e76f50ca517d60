"""Solver: exact pairing by our own engine where it applies, by library matchings elsewhere."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.pair_graph import PairGraph
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import score
from dovetail.solver.answers import Choice, Limits
from dovetail.solver.engines import rustworkx_matching
from dovetail.solver.matching import Matching, graph_of
from dovetail.solver.pairing import match_pairs
from dovetail.solver.pairing.matching import Matching as Pairing
from dovetail.solver.table_pairs import best_of_tables, table_pairs

Ints = NDArray[np.int64]


class ExactPairs:
    """Solves rounds whose plans are matchings (see ``PairGraph``).

    Objectives of one stage go to ``match_pairs``. Those of two stages need whole numbers large
    enough for both at once, which rustworkx has and the engine has not.
    """

    name = "matching"

    def solve(self, problem: Problem, limits: Limits) -> Choice:
        """Return the proven best choice of groups, or the best found when the time is up.

        Raises
        ------
        UnsupportedError
            Where plans are not matchings.
        """
        if problem.values.two_stage:
            return Matching(self.name, rustworkx_matching).solve(problem, limits)
        large = table_pairs(problem)
        if large is not None:
            return best_of_tables(large, limits, self.name)
        graph = graph_of(problem, self.name)
        found, counts = best_pairs(graph, limits)
        fixed = score(problem.groups, problem.values, graph.fixed).gain
        value = score(problem.groups, problem.values, counts).gain
        return Choice(
            counts=counts,
            value=value,
            bound=max(found.bound + fixed, value),
            weight_bound=math.inf,
            stopped="complete" if found.status == "optimal" else "time_limit",
            solver=self.name,
        )


def best_pairs(graph: PairGraph, limits: Limits) -> tuple[Pairing, Ints]:
    """Return the engine's answer for the sum of gains, and how often it takes each group."""
    alone = np.full(graph.jobs, np.nan)
    pair = np.full((graph.jobs, graph.jobs), np.nan)
    edge = np.full((graph.jobs, graph.jobs), -1, dtype=np.int64)
    # Of several edges between two jobs the last one written stays: that of the largest gain.
    order = np.argsort(graph.gain, kind="stable")
    first, second = graph.first[order], graph.second[order]
    edge[first, second] = edge[second, first] = order
    pair[first, second] = pair[second, first] = graph.gain[order]
    single = np.diagonal(edge) >= 0
    alone[single] = graph.gain[np.diagonal(edge)[single]]
    size = np.ones(graph.jobs, dtype=np.int64)
    size[graph.first] = size[graph.second] = graph.size
    found = match_pairs(
        pair,
        alone,
        gpus=graph.capacity,
        size=size,
        required=graph.required,
        time_limit=None if limits.deadline == math.inf else limits.seconds_left,
        seed=limits.seed,
    )
    jobs = np.arange(graph.jobs)
    leads = jobs[(found.mate >= jobs)]
    return found, graph.counts(edge[leads, found.mate[leads]])
