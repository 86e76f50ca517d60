"""The stages of solving a round with any search that maximises a linear function.

One-stage objectives maximise the gain. Two-stage objectives first maximise the placed weight, then
require that weight and maximise the gain or, by Dinkelbach's method, its ratio to the cost of the
GPUs; or they minimise this cost, and then look for a larger gain at the least cost.
Weights are whole numbers, so that no tolerance trades a light job for a better gain.

Integer programs require the weight by a row. Matchings cannot, and put a price on weight instead
(``WeightPrice``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dovetail.formulations.candidates.groups import (
    Groups,
    Score,
    ceiling,
    gain_ceiling,
    open_weight,
    places_all,
    score,
)
from dovetail.formulations.values import JobValues
from dovetail.solver.types import (
    OPTIMAL_GAP,
    Choice,
    IntegerWeights,
    Limits,
    Maximum,
    integer_weights,
    relative_gap,
)

_NOT_ALL_LISTED = "the time was up before all groups were listed: the bound is rough"

_CHOSEN_BY_PRICES = "the sets of jobs are too many to list: some were chosen, the bound is for all"

PLACED = "weight of starting jobs"
"""The name of the quantity that the first of two stages maximises."""

_PROVEN_WEIGHT = 1e-7
"""Relative gap of the first stage up to which the second stage starts."""

_RATIO_TOLERANCE = 1e-9
"""Relative growth of a ratio that is needed for its search to continue."""

_COST_ROUNDING = 1e-6
"""Units of cost by which a bound on whole units may be wrong: rounding in sums."""

_LARGEST_COST = 2.0**30
"""The largest cost of a GPU in whole units."""

_LARGEST_SUM = 2.0**52
"""The largest sum of whole weights; floats represent every whole number up to it."""


class StagedSearch(ABC):
    """Maximises linear functions over the choices of a round's groups.

    Parameters
    ----------
    values : JobValues
        The objective, with its round.
    limits : Limits
        When to stop.
    groups : Groups, optional
        The groups to choose from; by default each ``Maximum`` has its own.

    Attributes
    ----------
    solver : str
        The solver that it is part of.
    """

    solver: str

    def __init__(self, values: JobValues, limits: Limits, groups: Groups | None = None) -> None:
        self.values = values
        self.limits = limits
        self._listed = groups

    @property
    def groups(self) -> Groups:
        """The groups to choose from."""
        assert self._listed is not None
        return self._listed

    def groups_of(self, found: Maximum) -> Groups:
        """Return the groups of a choice."""
        return self.groups if found.groups is None else found.groups

    @abstractmethod
    def heaviest(self) -> tuple[Maximum, IntegerWeights]:
        """Maximise the placed weight in whole numbers, and require the result from now on.

        Returns
        -------
        Maximum
            The choice, with its bound in whole numbers.
        IntegerWeights
            The contribution of each job; 0 if its placement is already decided.
        """

    @abstractmethod
    def maximise(
        self, per_gain: float = 1.0, per_cost: float = 0.0, start: Maximum | None = None
    ) -> Maximum:
        """Maximise a weighted gain less a weighted cost, at the required weight.

        Parameters
        ----------
        per_gain, per_cost : float
            The factors of the gain and of the cost of the GPUs.
        start : Maximum, optional
            A choice with the required weight.
        """

    def least_cost(self, start: Maximum) -> float:
        """Return a lower bound on the cost of every choice with the required weight."""
        return ceiling(self.groups).cost

    def least_cost_of_all(self, first: Maximum) -> float:
        """Return a lower bound on the cost of every choice of the weight that a choice places.

        It is -inf if not all jobs of some weight are placed, or not all groups are listed.
        """
        if self._listed is None or not places_all(self._listed, first.counts):
            return -math.inf
        return ceiling(self._listed).cost

    def faster(self, cheapest: Maximum, per_cost: float) -> Maximum:
        """Return a choice of the required weight and this cost, with a larger gain if one is found.

        Its bound has no meaning. By default it is the given choice.

        Parameters
        ----------
        cheapest : Maximum
            A choice of the required weight.
        per_cost : float
            Whole units of a cost of 1.
        """
        return cheapest


def weight_units(groups: Groups, largest: float | None = None) -> IntegerWeights:
    """Return the contribution of each job to the placed weight in whole numbers.

    Parameters
    ----------
    groups : Groups
        The groups to choose from.
    largest : float, optional
        The largest allowed number; by default floats are exact for all sums.
    """
    weight = open_weight(groups)
    return integer_weights(weight, largest or _LARGEST_SUM / max(1, len(weight)))


def solve_in_stages(search: StagedSearch) -> Choice:
    """Return the best choice of groups that a search finds, with its proven bounds."""
    values = search.values
    if not values.two_stage:
        return _choice(search, search.maximise(), math.inf)
    first, weight = search.heaviest()
    placed = float(weight.numbers[search.groups_of(first).placed(first.counts)].sum())
    # Sums of whole numbers are whole.
    most = math.floor(min(first.bound, float(weight.numbers.sum())))
    spare = max(0.0, most - placed) + weight.rounding
    if spare > _PROVEN_WEIGHT * max(placed, float(weight.numbers.max(initial=0.0))):
        return _choice(search, replace(first, bound=math.inf), spare / weight.scale)
    if values.cheapest:
        return _choice(search, _cheapest(search, first), spare / weight.scale)
    if not values.ratio:
        return _choice(search, search.maximise(start=first), spare / weight.scale)

    gain, cost = values.outside

    def terms(found: Maximum) -> tuple[float, float]:
        reached = _score(search, found)
        return reached.gain, reached.cost

    def maximise(ratio: float, best: Maximum) -> Maximum:
        found = search.maximise(1.0, ratio, best)
        return replace(found, bound=found.bound + gain - ratio * cost)

    least = search.least_cost(first) + cost
    last = best_ratio(first, terms, maximise, least, search.limits)
    return _choice(search, last, spare / weight.scale)


def _cheapest(search: StagedSearch, first: Maximum) -> Maximum:
    """Return the choice of the required weight and the least cost, with a bound on minus the cost.

    Costs are counted in whole units if they have any, so that bounds can be rounded.
    """
    per_cost, _ = _cost_units(search.groups_of(first))
    found = search.maximise(0.0, per_cost, first)
    bound = min(found.bound / per_cost, -search.least_cost_of_all(first))
    bound = _in_whole_units(search.groups_of(first), bound)
    found = replace(found, bound=bound - search.values.outside[1])
    if found.stopped != "complete":
        return found
    return replace(search.faster(found, per_cost), bound=found.bound)


def _cost_units(groups: Groups) -> tuple[float, bool]:
    """Return how many units a cost of 1 is, and whether all costs are whole numbers of them."""
    units = integer_weights(np.unique(groups.cost), _LARGEST_COST)
    return (1.0, False) if units.rounding else (units.scale, True)


def _in_whole_units(groups: Groups, bound: float) -> float:
    """Return a bound on minus the cost of any choice, rounded to whole units of cost."""
    per_cost, whole = _cost_units(groups)
    if not whole or math.isinf(bound):
        return bound
    return math.floor(bound * per_cost + _COST_ROUNDING) / per_cost


def best_ratio(
    start: Maximum,
    terms: Callable[[Maximum], tuple[float, float]],
    maximise: Callable[[float, Maximum], Maximum],
    least: float,
    limits: Limits,
) -> Maximum:
    """Return the choice with the largest N / D and a proven bound on it (Dinkelbach's method).

    With N and D > 0 linear and F(t) = max N - t D, F falls strictly in t and is 0 exactly at the
    best ratio; the maximiser at t = N(x) / D(x) has a ratio at least that of x, and the iteration
    ends where F(t) = 0 (W. Dinkelbach, *On nonlinear fractional programming*, Management Science
    13(7), 1967). Any bound U >= F(t) bounds the ratio by
    t + max(U, 0) / D_min, with D_min the least value of D, because N <= t D + U.

    Parameters
    ----------
    start : Maximum
        A feasible choice.
    terms : callable
        Returns N and D of a choice.
    maximise : callable
        Maximises N - t D, given t and a feasible choice.
    least : float
        A lower bound on D.
    limits : Limits
        The relative gap between ratio and bound at which to stop, and the watch for both.
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


def _score(search: StagedSearch, found: Maximum) -> Score:
    reached = score(search.groups_of(found), found.counts)
    gain, cost = search.values.outside
    return replace(reached, gain=reached.gain + gain, cost=reached.cost + cost)


def _choice(search: StagedSearch, best: Maximum, spare: float) -> Choice:
    """Return the result of the last stage; at most ``spare`` more weight can be placed."""
    values = search.values
    reached = _score(search, best)
    value, bound = reached.value(values), best.bound
    closed = relative_gap(bound, value) <= OPTIMAL_GAP  # false if there is no bound
    if not (closed or values.two_stage or best.proof):  # a certificate proves its own bound
        bound = min(bound, ceiling(search.groups).gain)
    return Choice(
        groups=search.groups_of(best),
        counts=best.counts,
        value=value,
        # A bound may lie a rounding error below the value; the value is then the bound.
        bound=max(bound, value),
        weight_bound=reached.weight + spare if values.two_stage else math.inf,
        stopped=best.stopped,
        solver=search.solver,
        proof=best.proof,
        prices=best.prices,
        selected=best.groups is not None,
    )


def bounded(choice: Choice) -> Choice:
    """Return a choice with bounds that hold even if groups are missing."""
    groups, values = choice.groups, choice.groups.values
    if groups.complete:
        return choice
    if groups.ceiling is None:
        most = math.inf if values.two_stage else gain_ceiling(values)
        weight_bound, why = float(values.weight.sum()), _NOT_ALL_LISTED
        choice = replace(choice, stopped="time_limit")
    else:
        # The largest weight that can be placed is no less, and its price is not below 0.
        placed = score(groups, choice.counts).weight
        most = groups.ceiling.gain - groups.ceiling.per_weight * placed
        most = _in_whole_units(groups, most) if values.cheapest else most
        weight_bound, why = max(groups.ceiling.weight, placed), _CHOSEN_BY_PRICES
    return replace(
        choice,
        bound=max(choice.value, most),
        weight_bound=weight_bound,
        note="; ".join(filter(None, (choice.note, why))),
        proof=None,
    )
