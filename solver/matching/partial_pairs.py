"""Rounds whose gangs may share some of their GPUs, solved exactly (see ``gang_search``)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.programs.integer_program import build
from dovetail.formulations.programs.worker_graph import WorkerGraph
from dovetail.solver.backends.faster import faster_counts
from dovetail.solver.matching.gang_search import GangSearch
from dovetail.solver.matching.lexicographic import WEIGHT_BITS, WeightPrice
from dovetail.solver.pairing.result import Prices
from dovetail.solver.stages import PLACED, StagedSearch, solve_in_stages, weight_units
from dovetail.solver.types import (
    MATCHING,
    MOST_GROUPS,
    Choice,
    IntegerWeights,
    Limits,
    Maximum,
)

_STEPS_PER_GROUP = 10_000
"""Steps of work per group to build the graph of the workers."""


def best_partial_sharing(groups: Groups, limits: Limits, start: Ints) -> Choice:
    """Return the proven best choice of groups, or the best found when the time is up.

    Parameters
    ----------
    groups : Groups
        The groups of a round of interchangeable GPUs with at most two jobs on one.
    limits : Limits
        When to stop.
    start : (n,) int
        An initial choice of groups.

    Raises
    ------
    UnsupportedError
        If the round is of another kind.
    """
    return solve_in_stages(_PartialSearch(groups, limits, start))


class _PartialSearch(StagedSearch):
    solver = MATCHING

    def __init__(self, groups: Groups, limits: Limits, start: Ints) -> None:
        super().__init__(groups.values, limits, groups)
        self._groups = groups
        self._start = start
        self._building_s = 0.0
        self._weight = weight_units(groups, 2**WEIGHT_BITS)
        self._units = self._weight.numbers[groups.job]
        self._demanded = 0.0
        self._price = WeightPrice()

    def heaviest(self) -> tuple[Maximum, IntegerWeights]:
        unit = float(np.gcd.reduce(self._weight.numbers.astype(np.int64)))
        nothing = np.zeros(len(self._groups))
        limits = self.limits.exact().watched(name=PLACED, factor=1 / self._weight.scale)
        found = self._searched(self._units, nothing, limits, unit)
        self._demanded = self._value(found.counts, self._units, nothing)
        return found, self._weight

    def maximise(
        self, per_gain: float = 1.0, per_cost: float = 0.0, start: Maximum | None = None
    ) -> Maximum:
        groups = self._groups
        worth = per_gain * groups.gain
        cost = per_cost * np.nan_to_num(groups.cost) - per_gain * groups.value
        if start is None:
            return self._searched(worth, cost, self.limits)
        counts, gain = start.counts, self._value(start.counts, worth, cost)
        # The optimum of Dinkelbach's differences is 0: gaps are relative to their terms.
        scale = max(abs(gain + float(cost @ counts)), float(cost @ counts))

        def at(price: float) -> tuple[Maximum, float]:
            offset = price * self._demanded
            graph = self._graph(worth + price * self._units, cost)
            limits = self.limits.watched(offset=-offset)
            if self.values.ratio or self.values.cheapest:
                limits = limits.unwatched()
            found = GangSearch(graph, limits, counts, gain + offset, scale).run()
            found = replace(found, bound=found.bound - offset + price * self._weight.rounding)
            if self._value(found.counts, self._units, 0.0 * cost) < self._demanded:
                return found, -math.inf
            return found, self._value(found.counts, worth, cost)

        largest = float(max(np.abs(worth).max(initial=0.0), np.abs(cost).max(initial=0.0)))
        typical = max(1.0, float(np.median(self._units)) if len(self._units) else 1.0)
        return self._price.maximise(start, gain, at, largest / typical, self._in_time)

    def _searched(self, worth: Floats, cost: Floats, limits: Limits, unit: float = 0.0) -> Maximum:
        """Return the best of all choices, with the jobs' prices; or the start if time is short."""
        counts = self._start
        value = self._value(counts, worth, cost)
        limits.report(value, math.inf)
        start = Maximum(counts=counts, bound=math.inf, stopped="time_limit")
        if limits.passed:  # the graph would be built for nothing
            return start
        graph = self._graph(worth, cost)
        if not self._in_time():
            return start
        previous, jobs = limits.previous, graph.job_of_worker
        search = GangSearch(graph, limits, counts, value, unit=unit)
        found = search.run(previous and Prices(previous.gpu, previous.job[jobs]))
        if found.prices is None:
            return found
        job = np.full(len(graph.workers), np.nan)
        job[jobs] = found.prices.job
        return replace(found, prices=Prices(found.prices.gpu, job))

    def least_cost(self, start: Maximum) -> float:
        """Return a lower bound on the cost of every choice of the largest placed weight."""
        return max(super().least_cost(start), -self.maximise(0.0, 1.0, start).bound)

    def faster(self, cheapest: Maximum, per_cost: float) -> Maximum:
        """Look for a larger gain at this cost; see ``StagedSearch``."""
        if len(self._groups) > MOST_GROUPS:  # the program would be built for nothing
            return cheapest
        counts = faster_counts(build(self._groups), cheapest.counts, per_cost, self.limits)
        return replace(cheapest, counts=counts)

    def _in_time(self) -> bool:
        """Return whether there is time for another graph and its matrices (twice the time)."""
        return self.limits.seconds_left > 2 * self._building_s

    def _graph(self, worth: Floats, cost: Floats) -> WorkerGraph:
        began = self.limits.budget.now()
        graph = WorkerGraph(self._groups, worth, cost, self.limits.budget)
        self.limits.budget.spend(_STEPS_PER_GROUP * len(self._groups))
        self._building_s = self._building_s or self.limits.budget.now() - began
        return graph

    def _value(self, counts: Ints, worth: Floats, cost: Floats) -> float:
        """Return the sum over placed jobs of their least worth, less the costs."""
        members = np.flatnonzero(counts[self._groups.group_of_member] > 0)
        least = np.full(len(self._groups.round), np.inf)
        np.minimum.at(least, self._groups.job[members], worth[members])
        return float(least[np.isfinite(least)].sum() - cost @ counts)
