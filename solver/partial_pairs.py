"""Rounds whose gangs may share some of their GPUs, solved exactly (see ``gang_search``)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.groups import member_gains
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import ceiling, open_weight, score
from dovetail.formulations.worker_graph import WorkerGraph
from dovetail.solver.answers import MATCHING, Choice, Limits
from dovetail.solver.gang_search import Found, GangSearch
from dovetail.solver.lexicographic import FIRST_FACTOR, LARGEST_FACTOR, RAISE, WEIGHT_BITS
from dovetail.solver.pairing import Prices
from dovetail.solver.ratio import Maximum, best_ratio
from dovetail.solver.stages import unsearched
from dovetail.solver.starts import paired_counts
from dovetail.solver.whole import power_of_two, whole_weights

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def best_partial_sharing(problem: Problem, limits: Limits) -> Choice:
    """Return the proven best choice of groups, or the best found when the time is up.

    Parameters
    ----------
    problem : Problem
        A round of interchangeable GPUs with at most two jobs on one.
    limits : Limits
        When to stop.

    Raises
    ------
    UnsupportedError
        Where the round is of another kind.
    """
    start = paired_counts(problem, limits)
    if limits.passed:  # the workers' graph would be made for nothing
        return unsearched(problem, start, MATCHING)
    stages = _Stages(problem, start, limits)
    if not problem.values.two_stage:
        return stages.one()
    return stages.two()


class _Stages:
    def __init__(self, problem: Problem, start: Ints, limits: Limits) -> None:
        self._groups = problem.groups
        self._values = problem.values
        self._limits = limits
        self._gain = member_gains(problem.groups, problem.values)
        self._graph = WorkerGraph(problem.groups, self._gain)
        self._start = start
        weight = open_weight(problem.groups, problem.values)
        whole, self._scale, self._rounding = whole_weights(weight, 2**WEIGHT_BITS)
        self._whole = whole[problem.groups.job]

    def one(self) -> Choice:
        """Return the choice of the largest gain."""
        value = score(self._groups, self._values, self._start).gain
        jobs = self._graph.job_of_worker
        previous = self._limits.previous
        search = GangSearch(self._graph, self._limits, self._start, value)
        found = search.run(None if previous is None else Prices(previous.gpu, previous.job[jobs]))
        value = score(self._groups, self._values, found.counts).gain
        return Choice(
            counts=found.counts,
            value=value,
            bound=max(found.bound, value),
            weight_bound=math.inf,
            stopped=found.stopped,
            solver=MATCHING,
            prices=None if found.prices is None else self._by_job(found.prices),
        )

    def _by_job(self, prices: Prices) -> Prices:
        """Return what the workers' prices say of the jobs."""
        job = np.full(len(self._graph.workers), np.nan)
        job[self._graph.job_of_worker] = prices.job
        return Prices(prices.gpu, job)

    def two(self) -> Choice:
        """Return the choice of the largest gain, or ratio, among those of the largest weight."""
        heaviest = self._heaviest()
        self._weight = heaviest.value
        spare = heaviest.bound - heaviest.value
        proven = spare == 0
        best = Maximum(heaviest.counts, math.inf, heaviest.stopped)
        if proven:
            self._start = heaviest.counts
            best = self._best_ratio() if self._values.ratio else self._maximise(1.0, 0.0)
        reached = score(self._groups, self._values, best.x)
        value = reached.value(self._values)
        weight_bound = reached.weight + (spare + self._rounding) / self._scale
        return Choice(best.x, value, max(best.bound, value), weight_bound, best.stopped, MATCHING)

    def _heaviest(self) -> Found:
        """Return a choice of the largest placed weight, in whole units."""
        graph = WorkerGraph(self._groups, self._whole)
        unit = float(np.gcd.reduce(self._whole.astype(np.int64)))
        return GangSearch(
            graph, self._limits.exact(), self._start, self._placed(self._start), unit=unit
        ).run()

    def _best_ratio(self) -> Maximum[Ints]:
        return best_ratio(
            self._start,
            terms=self._gain_and_power,
            maximise=lambda t, _: self._maximise(1.0, t),
            least=max(-self._maximise(0.0, 1.0).bound, ceiling(self._groups, self._values).power_w),
            gap=self._limits.gap,
        )

    def _maximise(self, per_gain: float, per_watt: float) -> Maximum[Ints]:
        """Maximise a sum of gains less power among the choices of the largest placed weight.

        The weight counts too, at a multiplier: whatever that is, a choice that places all of
        the weight has at most the bound found less what the weight counts. If the choice found
        places it, it is the best of them; if not, the multiplier grows.
        """
        worth, cost = per_gain * self._gain, per_watt * np.nan_to_num(self._groups.power_w)
        largest = float(max(np.abs(worth).max(initial=0.0), np.abs(cost).max(initial=0.0)))
        typical = max(1.0, float(np.median(self._whole)) if len(self._whole) else 1.0)
        best, value, bound = self._start, self._sum(self._start, worth, cost), math.inf
        # Of Dinkelbach's differences the optimum is 0: gaps are measured against their terms.
        scale = max(abs(self._sum(best, worth, 0 * cost)), float(cost @ best))
        factor = FIRST_FACTOR
        while not self._limits.passed:
            multiplier = power_of_two(factor * largest / typical) or 1.0
            offset = multiplier * self._weight
            least = offset - multiplier * self._rounding
            graph = WorkerGraph(self._groups, worth + multiplier * self._whole, cost)
            found = GangSearch(graph, self._limits, best, value + offset, scale).run()
            bound = min(bound, found.bound - least)
            if self._placed(found.counts) >= self._weight:
                best = found.counts
                return Maximum(best, bound, found.stopped)
            if found.stopped != "complete" or factor >= LARGEST_FACTOR:
                return Maximum(best, bound, found.stopped)
            factor *= RAISE
        return Maximum(best, bound, "time_limit")

    def _placed(self, counts: Ints) -> float:
        """Return the placed weight of a choice, in whole units."""
        members = np.flatnonzero(counts[self._groups.group_of_member] > 0)
        _, first = np.unique(self._groups.job[members], return_index=True)
        return float(self._whole[members[first]].sum())

    def _sum(self, counts: Ints, worth: Floats, cost: Floats) -> float:
        """Return the sum over placed jobs of their least worth, less the costs."""
        members = np.flatnonzero(counts[self._groups.group_of_member] > 0)
        least = np.full(len(self._groups.round.jobs), np.inf)
        np.minimum.at(least, self._groups.job[members], worth[members])
        return float(least[np.isfinite(least)].sum() - cost @ counts)

    def _gain_and_power(self, counts: Ints) -> tuple[float, float]:
        reached = score(self._groups, self._values, counts)
        return reached.gain, reached.power_w
