"""Rounds whose plans are matchings, solved by our own engine in one stage or two."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from dovetail.formulations.arrays import Ints
from dovetail.formulations.candidates.groups import Groups, idle_counts, score
from dovetail.formulations.programs.pair_graph import PairGraph
from dovetail.formulations.values import JobValues
from dovetail.solver.matching.lexicographic import Heaviest, WeightPrice
from dovetail.solver.matching.pair_certificate import proven_by_pairs
from dovetail.solver.matching.pairing_problem import PairingProblem, PairList, maximum
from dovetail.solver.pairing.matching import match_pairs
from dovetail.solver.stages import StagedSearch, solve_in_stages
from dovetail.solver.types import (
    MATCHING,
    Choice,
    IntegerWeights,
    Limits,
    Maximum,
)

PairingAt: TypeAlias = Callable[[float, float], PairingProblem]
"""Returns the pairing problem of a round, given the factors of the gain and of the cost."""

_LOOSE = 2.0
"""Factor below the cost of a plan at which a matching for a better bound pays off."""


_ROUNDING = 1e-9
"""Relative rounding error of a cost."""


def best_matching(groups: Groups, limits: Limits) -> Choice:
    """Return the proven best choice of groups, or the best found when the time is up.

    Raises
    ------
    UnsupportedError
        If plans are not matchings (see ``PairGraph``), with the reason.
    """
    return best_of_graph(PairGraph(groups), limits)


def best_of_graph(graph: PairGraph, limits: Limits) -> Choice:
    """Return the best choice of groups among the matchings of a graph."""
    groups = graph.groups
    pairing_at = partial(graph_pairing, graph)
    return solve_in_stages(MatchingSearch(groups.values, pairing_at, limits, groups))


def paired_counts(groups: Groups, limits: Limits) -> Ints:
    """Return the best choice of groups in pairs of equal size.

    Gangs that may share some of their GPUs may also share as wholes; with this restriction plans
    are matchings if GPUs are interchangeable, and the optimum is a plan of the round.

    Raises
    ------
    UnsupportedError
        If GPUs are not interchangeable.
    """
    graph = PairGraph(groups, restricted=True)
    return best_of_graph(graph, limits.unwatched()).counts  # bounds no other plans


def graph_pairing(graph: PairGraph, per_gain: float = 1.0, per_cost: float = 0.0) -> PairingProblem:
    """Return the pairing problem of a graph; the value is gain less cost, with these factors.

    Of several edges between two jobs, the one with the largest value is taken.
    """
    value = per_gain * graph.gain - per_cost * graph.cost
    ends = graph.first * graph.jobs + graph.second
    order = np.lexsort((value, ends))
    edge = order[np.diff(ends[order], append=-1) != 0]
    is_pair = graph.first[edge] < graph.second[edge]
    edge, single = edge[is_pair], edge[~is_pair]
    edge_alone = np.full(graph.jobs, -1, dtype=np.int64)
    edge_alone[graph.first[single]] = single
    alone = np.full(graph.jobs, np.nan)
    alone[graph.first[single]] = value[single]
    pairs = PairList(graph.jobs, graph.first[edge], graph.second[edge])
    fixed = score(graph.groups, graph.fixed)

    def taken(mate: Ints) -> tuple[Ints, Groups | None]:
        if (graph.required & (mate < 0)).any():
            return idle_counts(graph.groups), None
        jobs = np.arange(graph.jobs)
        first, alone = np.flatnonzero(mate > jobs), np.flatnonzero(mate == jobs)
        shared = edge[pairs.at(first, mate[first])]
        return graph.counts(np.append(shared, edge_alone[alone])), None

    return PairingProblem(
        pairs=pairs,
        pair=value[edge],
        alone=alone,
        constant=per_gain * fixed.gain - per_cost * float(np.nan_to_num(fixed.cost)),
        size=graph.groups.round.jobs.workers,
        gpus=graph.capacity,
        required=graph.required,
        taken=taken,
    )


class MatchingSearch(StagedSearch):
    """Searches with one matching for each linear function."""

    solver = MATCHING

    def __init__(
        self,
        values: JobValues,
        pairing_at: PairingAt,
        limits: Limits,
        groups: Groups | None = None,
    ) -> None:
        super().__init__(values, limits, groups)
        self._pairing_at = pairing_at
        self._heaviest: Heaviest | None = None

    def heaviest(self) -> tuple[Maximum, IntegerWeights]:
        """Maximise the placed weight; see ``StagedSearch``."""
        pairing = self._pairing_at(1.0, 0.0)
        self._heaviest = Heaviest(self.values.weight, pairing, self.limits)
        return self._heaviest.first, self._heaviest.weight

    def maximise(
        self, per_gain: float = 1.0, per_cost: float = 0.0, start: Maximum | None = None
    ) -> Maximum:
        """Maximise a weighted gain less a weighted cost; see ``StagedSearch``."""
        pairing = self._pairing_at(per_gain, per_cost)
        if self._heaviest is None:
            return self._best(pairing)
        return self._heaviest.best(pairing, self.limits)

    def faster(self, cheapest: Maximum, per_cost: float) -> Maximum:
        """Return the choice of this cost with the largest gain; see ``StagedSearch``."""
        least = self._cost(cheapest)

        def at(price: float) -> tuple[Maximum, float]:
            found = self.maximise(1.0, price)
            is_least = self._cost(found) <= least * (1 + _ROUNDING)
            return found, self._gain(found) if is_least else -math.inf

        pairing = self._pairing_at(1.0, 0.0)
        return WeightPrice().maximise(
            cheapest,
            self._gain(cheapest),
            at,
            scale=pairing.pairs.largest(pairing.pair) * per_cost,
            in_time=lambda: not self.limits.passed,
        )

    def _cost(self, found: Maximum) -> float:
        return score(self.groups_of(found), found.counts).cost

    def _gain(self, found: Maximum) -> float:
        return score(self.groups_of(found), found.counts).gain

    def _best(self, pairing: PairingProblem) -> Maximum:
        limits = self.limits
        found = match_pairs(
            **pairing.arguments,
            time_limit=limits.budget,
            seed=limits.seed,
            previous=limits.previous,
        )
        best = maximum(found, pairing, found.bound + pairing.constant, limits)
        proof = partial(proven_by_pairs, found, pairing.required) if self._is_proven else None
        return replace(best, proof=proof, prices=found.prices)

    @property
    def _is_proven(self) -> bool:
        """Whether the values of all pairs, and their completeness, can be read from the instance.

        Neither are the groups of running jobs whose values depend on each other read again, nor the
        sets of three that such an objective allows to share, nor those by a declared rule.
        """
        values, known = self.values, self.values.round.slowdowns
        if values.round.source is None or (values.grouped and not values.relative):
            return False
        declared = known.rules.assumed
        if declared and declared.sets and known.rules.max_jobs_per_gpu > 2:
            return values.pairs_only
        return not (values.grouped and known.sets and known.rules.max_jobs_per_gpu > 2)

    def least_cost(self, start: Maximum) -> float:
        """Return a lower bound on the cost of every choice of the largest placed weight.

        It divides the error of the ratio's bound, so a poor one is replaced by the best.
        """
        pairing = self._pairing_at(0.0, 1.0)
        least = self._heaviest.least_cost(pairing) if self._heaviest else 0.0
        if start.groups is None:
            least = max(least, super().least_cost(start))
        if least > score(self.groups_of(start), start.counts).cost / _LOOSE:
            return least
        return max(least, -self.maximise(0.0, 1.0).bound)
