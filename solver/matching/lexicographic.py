"""The best matching with the largest placed weight: ``match_pairs`` in two stages.

*First stage.* Job weights are whole numbers, small enough for the engine to be exact. Let W be the
placed weight that it finds, U >= W the bound of its duals. If weights had to be rounded to whole
numbers, W is lowered by the possible error of their sums, so that all bounds hold for the weights
themselves.

*Decisions from the duals.* Relative to U a matching loses at least the reduced cost of every pair
in it and the potential of every job it leaves out. So no matching that places W or more has a pair
with a reduced cost above U - W or leaves out a job with a potential above it. Such pairs are
excluded, and such jobs are required.

*Second stage.* The gain, plus a price (``WeightPrice``) for the weight that is still undecided: the
weights of the jobs less the potentials of the required jobs, whose sum is the same for all
matchings. Weight that the duals have decided needs no price, so the price stays small enough for
the engine's precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.solver.matching.pairing_problem import PairingProblem, PairSet, maximum
from dovetail.solver.pairing.matching import match_pairs
from dovetail.solver.pairing.result import Dual, Prices
from dovetail.solver.types import (
    Limits,
    Maximum,
    integer_weights,
    power_of_two,
)

WEIGHT_BITS = 28
"""Bits of the largest job weight: the sum of two fits the engine's precision of 29."""

_FILLINGS = 2.0
"""A matching for the best gain starts only if this many times the seconds of filling the first
matrix are left: another matrix is filled and read."""

_ROUNDING = 2.0**-50
"""Relative error allowed to sums of gain and multiplied weight."""


@dataclass(frozen=True)
class _Decided:
    """The restrictions on matchings of the largest weight, and the undecided weight."""

    pairs: PairSet
    may_run_alone: Bools
    required: Bools
    undecided: Floats
    demanded: float


class Heaviest:
    """The matchings with the largest placed weight, and the best gain among them.

    Parameters
    ----------
    weight : (n,) float
        The contribution of each job to the placed weight.
    pairing : PairingProblem
        The matchings, with any values.
    limits : Limits
        When to stop.

    Attributes
    ----------
    weight : IntegerWeights
        The contribution of each job to the placed weight, in whole numbers.
    first : Maximum
        A matching with the largest placed weight, with its bound in whole numbers.
    """

    def __init__(self, weight: Floats, pairing: PairingProblem, limits: Limits) -> None:
        fits = pairing.size <= pairing.gpus
        self._pairing = pairing
        self._may_run_alone = ~np.isnan(pairing.alone) & fits
        began = limits.budget.now()
        self._pairs = pairing.pairs.among(fits)
        is_open = (self._may_run_alone | self._pairs.partnered) & ~pairing.required
        self.weight = integer_weights(np.where(is_open, weight, 0.0), 2**WEIGHT_BITS)
        matrix = self._pairs.summed(self.weight.numbers, None)
        self._filling_s = limits.budget.now() - began
        self._found = match_pairs(
            matrix,
            np.where(self._may_run_alone, self.weight.numbers, np.nan),
            gpus=pairing.gpus,
            size=pairing.size,
            required=pairing.required,
            time_limit=limits.budget,
            seed=limits.seed,
        )
        self.first = maximum(self._found, pairing, self._found.bound, limits)
        self._price = WeightPrice()
        self._previous: Prices | None = None

    @cached_property
    def _decided(self) -> _Decided:
        pairing, found, rounding = self._pairing, self._found, self.weight.rounding
        duals = found.certificate.main
        potential = np.zeros(len(pairing.size))
        price = np.zeros(len(pairing.size))
        for dual in duals:
            potential[dual.jobs] = dual.potential
            price[dual.jobs] = dual.price
        spare = _bound(duals, pairing.size, pairing.gpus) - found.value + rounding
        required = pairing.required | (potential > spare)
        surplus = potential - self.weight.numbers
        pairs = self._pairs.within(surplus, spare - price)
        may_run_alone = self._may_run_alone & (surplus <= spare - price)
        undecided = self.weight.numbers - np.where(required, potential, 0.0)
        undecided[~(may_run_alone | pairs.partnered)] = 0.0
        demanded = found.value - rounding - math.fsum(potential[required].tolist())
        return _Decided(pairs, may_run_alone, required, undecided, demanded)

    def best(self, pairing: PairingProblem, limits: Limits) -> Maximum:
        """Return the matching with the largest value among those with the largest placed weight.

        Parameters
        ----------
        pairing : PairingProblem
            The same matchings, with these values.
        limits : Limits
            When to stop.
        """
        decided = self._decided
        alone = np.where(decided.may_run_alone, pairing.alone, np.nan)
        largest = max(
            decided.pairs.largest(pairing.pair),
            float(np.abs(pairing.alone).max(where=decided.may_run_alone, initial=0.0)),
        )
        undecided = float(np.abs(decided.undecided).max(initial=0.0))

        def at(price: float) -> tuple[Maximum, float]:
            bonus = price * decided.undecided
            found = match_pairs(
                decided.pairs.summed(bonus, pairing.pair),
                alone + bonus,
                gpus=pairing.gpus,
                size=pairing.size,
                required=decided.required,
                time_limit=limits.budget,
                seed=limits.seed,
                previous=self._previous,
            )
            self._previous = found.prices
            rounding = _ROUNDING * len(bonus) * (largest + price * undecided)
            bound = found.bound - price * decided.demanded + rounding + pairing.constant
            placed = found.mate >= 0
            enough = self.weight.numbers[placed].sum() >= self._found.value
            able = enough and placed[decided.required].all()
            gain = pairing.value(found.mate) if able else -math.inf
            return maximum(found, pairing, bound, limits), gain

        return self._price.maximise(
            self.first,
            pairing.value(self._found.mate),
            at,
            scale=largest / undecided if undecided else 0.0,
            in_time=lambda: limits.seconds_left > _FILLINGS * self._filling_s,
        )

    def least_cost(self, pairing: PairingProblem) -> float:
        """Return a lower bound on the loss of matchings of the largest weight; all values are <= 0.

        Each job bears half of a pair's loss, or its own loss alone. Jobs that all of them place do
        so, and of the others those of the least loss per weight, down to the largest weight.
        """
        decided, weight = self._decided, self.weight.numbers
        pairs = -decided.pairs.highest(pairing.pair)
        own = np.minimum(pairs / 2, np.where(decided.may_run_alone, -pairing.alone, np.inf))
        others = np.flatnonzero(~decided.required & (weight > 0) & (own < np.inf))
        others = others[np.argsort(own[others] / weight[others])]
        least = self._found.value - self.weight.rounding - weight[decided.required].sum()
        before = np.cumsum(weight[others]) - weight[others]
        part = np.clip((least - before) / weight[others], 0.0, 1.0)
        losses = [own[decided.required].sum(), own[others] @ part, -pairing.constant]
        return math.fsum(losses)


def _bound(duals: tuple[Dual, ...], size: Ints, gpus: int) -> float:
    """Return the bound that one dual per class proves, all with the same price per GPU."""
    gpus = min(gpus, int(size.sum()))
    if len(duals) == 1:
        groups = gpus // int(size[0])
        return duals[0].constant + duals[0].price * groups
    per_gpu = max((d.price / int(size[d.jobs[0]]) for d in duals), default=0.0)
    return math.fsum(d.constant for d in duals) + per_gpu * gpus


_FIRST_FACTOR = 4.0
"""The initial price of weight: the value of the largest weight relative to the largest gain."""


_RAISE = 8.0


_LARGEST_FACTOR = 2.0**20
"""Above this factor too few of the engine's bits are left for the gains."""


class WeightPrice:
    """Requires a placed weight from a search that can only maximise, by Lagrangean relaxation.

    The gain is maximised plus a price R >= 0 times the weight. For any R, a choice that places W or
    more gains at most bound(R) - R W; if the choice found places W, this is its gain (up to
    rounding) and it is the best. If it places less, R is increased, also for later calls.
    """

    def __init__(self) -> None:
        self._factor = _FIRST_FACTOR

    def maximise(
        self,
        start: Maximum,
        gain: float,
        at: Callable[[float], tuple[Maximum, float]],
        scale: float,
        in_time: Callable[[], bool],
    ) -> Maximum:
        """Return the choice of the required weight with the largest gain, or the best found.

        Parameters
        ----------
        start : Maximum
            A choice with that weight.
        gain : float
            Its gain.
        at : callable
            Maximises at a price. Returns the choice found, with the resulting bound on gains, and
            its gain, -inf if it does not place the weight.
        scale : float
            The largest gain divided by the largest weight.
        in_time : callable
            Whether there is time for a search.
        """
        best, bound = start, math.inf
        while in_time():
            price = power_of_two(self._factor * scale)
            found, reached = at(price)
            bound = min(bound, found.bound)
            if reached > gain:
                best, gain = found, reached
            last = not price or self._factor >= _LARGEST_FACTOR
            if reached > -math.inf or last or found.stopped != "complete":
                return replace(best, bound=max(bound, gain), stopped=found.stopped)
            self._factor *= _RAISE
        return replace(best, bound=max(bound, gain), stopped="time_limit")
