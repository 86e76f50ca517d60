"""The stages in which rounds are solved, by whatever can maximise a linear function.

One-stage objectives maximise the gain. Two-stage ones first maximise the placed weight, then
demand that weight and maximise the gain, or by Dinkelbach's method its ratio to the power.
Weights are whole numbers, so that no tolerance lets a light job go for a better gain.

Integer programs demand the weight by a row. Matchings cannot, and pay for weight instead
(``WeightPrice``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

from dovetail.formulations.groups import Groups
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import Score, ceiling, open_weight, placed_jobs, score
from dovetail.solver.integer_scaling import IntegerWeights, integer_weights
from dovetail.solver.types import OPTIMAL_GAP, Choice, Limits, Maximum, relative_gap

PLACED = "weight of starting jobs"
"""What the first of two stages maximises."""

_PROVEN_WEIGHT = 1e-7
"""Relative gap of the first stage up to which the second one begins."""

_RATIO_TOLERANCE = 1e-9
"""Part by which a ratio has to grow for the search of the best one to go on."""

_LARGEST_SUM = 2.0**52
"""The largest sum of whole weights; floats have every whole number up to here."""


class StagedSearch(ABC):
    """Maximises linear functions over the choices of a round's groups.

    Parameters
    ----------
    problem : Problem
        The round.
    limits : Limits
        When to stop.

    Attributes
    ----------
    solver : str
        The solver that it is part of.
    """

    solver: str

    def __init__(self, problem: Problem, limits: Limits) -> None:
        self.problem = problem
        self.limits = limits

    @abstractmethod
    def heaviest(self) -> tuple[Maximum, IntegerWeights]:
        """Maximise the placed weight in whole numbers, and demand from now on what was found.

        Returns
        -------
        Maximum
            Its bound in whole numbers.
        IntegerWeights
            What each job adds; 0 where it is settled whether it is placed.
        """

    @abstractmethod
    def maximise(
        self, per_gain: float = 1.0, per_watt: float = 0.0, start: Maximum | None = None
    ) -> Maximum:
        """Maximise so much for the gain less so much for the power, at the weight demanded.

        Parameters
        ----------
        per_gain, per_watt : float
            What a unit of the gain counts, and what a watt costs.
        start : Maximum, optional
            A choice of the weight demanded.
        """

    def least_power(self, start: Maximum) -> float:
        """Return a bound under the power (W) of every choice of the weight demanded."""
        return ceiling(self.problem.groups, self.problem.values).power_w


def weight_units(problem: Problem, largest: float | None = None) -> IntegerWeights:
    """Return what each job adds to the placed weight in whole numbers.

    Parameters
    ----------
    problem : Problem
        The round.
    largest : float, optional
        The largest number there may be; by default floats are exact for all sums.
    """
    weight = open_weight(problem.groups, problem.values)
    return integer_weights(weight, largest or _LARGEST_SUM / max(1, len(weight)))


def solve_in_stages(search: StagedSearch) -> Choice:
    """Return the best choice of groups that a search finds, with what is proven of it."""
    values = search.problem.values
    if not values.two_stage:
        return _choice(search, search.maximise(), math.inf)
    first, weight = search.heaviest()
    placed = float(weight.numbers[placed_jobs(_groups(search.problem, first), first.counts)].sum())
    # Sums of whole numbers are whole.
    most = math.floor(min(first.bound, float(weight.numbers.sum())))
    spare = max(0.0, most - placed) + weight.rounding
    if spare > _PROVEN_WEIGHT * max(placed, float(weight.numbers.max(initial=0.0))):
        return _choice(search, replace(first, bound=math.inf), spare / weight.scale)
    if not values.ratio:
        return _choice(search, search.maximise(start=first), spare / weight.scale)

    gain, power_w = values.outside

    def terms(found: Maximum) -> tuple[float, float]:
        reached = _score(search.problem, found)
        return reached.gain, reached.power_w

    def maximise(ratio: float, best: Maximum) -> Maximum:
        found = search.maximise(1.0, ratio, best)
        return replace(found, bound=found.bound + gain - ratio * power_w)

    least = search.least_power(first) + power_w
    last = best_ratio(first, terms, maximise, least, search.limits)
    return _choice(search, last, spare / weight.scale)


def best_ratio(
    start: Maximum,
    terms: Callable[[Maximum], tuple[float, float]],
    maximise: Callable[[float, Maximum], Maximum],
    least: float,
    limits: Limits,
) -> Maximum:
    """Return what has the largest N / D, with a proven bound on that ratio (Dinkelbach's method).

    With N and D > 0 linear and F(t) = max N - t D, F falls strictly in t and is 0 exactly at the
    best ratio; the maximiser at t = N(x) / D(x) has a ratio at least that of x, and the iteration
    ends where F(t) = 0 (W. Dinkelbach, *On nonlinear fractional programming*, Management Science
    13(7), 1967). Any bound U >= F(t) bounds the ratio by
    t + max(U, 0) / D_min, with D_min the least value of D, because N <= t D + U.

    Parameters
    ----------
    start : Maximum
        Something feasible.
    terms : callable
        Returns N and D of what was found.
    maximise : callable
        Given t and something feasible, maximises N - t D.
    least : float
        A lower bound on D.
    limits : Limits
        The relative gap between ratio and bound at which to stop, and whom to tell both.
    """
    best, bound = start, math.inf
    while True:
        gain, cost = terms(best)
        if cost == 0:
            return replace(best, bound=0.0, stopped="complete")
        ratio = gain / cost
        limits.report(ratio, bound)
        found = maximise(ratio, best)
        bound = min(bound, ratio + max(found.bound, 0.0) / least)
        new_gain, new_cost = terms(found)
        if new_cost > 0 and new_gain / new_cost > ratio * (1 + _RATIO_TOLERANCE):
            best, ratio = found, new_gain / new_cost
        elif found.stopped == "complete" or relative_gap(bound, ratio) <= limits.gap:
            return replace(best, bound=bound, stopped="complete")
        if found.stopped != "complete":
            return replace(best, bound=bound, stopped=found.stopped)


def _groups(problem: Problem, found: Maximum) -> Groups:
    return problem.groups if found.groups is None else found.groups


def _score(problem: Problem, found: Maximum) -> Score:
    reached = score(_groups(problem, found), problem.values, found.counts)
    gain, power_w = problem.values.outside
    return replace(reached, gain=reached.gain + gain, power_w=reached.power_w + power_w)


def _choice(search: StagedSearch, best: Maximum, spare: float) -> Choice:
    """Return what the last stage found; so much more weight at most can be placed."""
    problem, values = search.problem, search.problem.values
    reached = _score(problem, best)
    value, bound = reached.value(values), best.bound
    closed = relative_gap(bound, value) <= OPTIMAL_GAP  # not where there is no bound
    if not (closed or values.two_stage or best.proof):  # a certificate is of its own bound
        bound = min(bound, ceiling(problem.groups, values).gain)
    return Choice(
        counts=best.counts,
        value=value,
        # A bound may lie a rounding error under the value; the truth is then the value.
        bound=max(bound, value),
        weight_bound=reached.weight + spare if values.two_stage else math.inf,
        stopped=best.stopped,
        solver=search.solver,
        proof=best.proof,
        prices=best.prices,
        groups=best.groups,
    )
