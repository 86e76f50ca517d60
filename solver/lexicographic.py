"""The best matching among those of the largest placed weight: ``match_pairs`` in two stages.

*First stage.* Job weights are whole numbers, small enough for the engine to be exact. Let W be
the placed weight that it finds, U >= W the bound of its duals. Where weights had to be rounded
to whole numbers, W is below by what sums of them can be off, so that all bounds hold for the
weights themselves.

*What the duals decide.* Against U a matching loses at least the reduced cost of every pair in
it and the potential of every job it leaves out. So of the matchings that place W or more, none
has a pair of reduced cost above U - W or leaves out a job of a potential above it. The former
may not share any more, the latter are required.

*Second stage.* The gain, plus a multiplier R >= 0 times the weight that is still undecided: the
weights of the jobs less the potentials of the required ones, whose sum is the same for all
matchings. Whatever R is, a matching that places W or more gains at most

    bound(R) - R (W - potentials of the required jobs),

and if the one found places W, that is its gain (up to the engine's rounding) and it is the best.
If it places less, R grows. This is a Lagrangean relaxation of the demand for W; what the duals
have decided needs no R, which so stays small enough for the engine's precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.plan import Stopped
from dovetail.solver.answers import Limits
from dovetail.solver.pairing import Matching, Prices, match_pairs
from dovetail.solver.pairing.certificate import Dual
from dovetail.solver.whole import power_of_two, whole_weights

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

WEIGHT_BITS = 28
"""Of the largest job weight: the sum of two fits the engine's precision of 29."""

_PROVEN_WEIGHT = 1e-7
"""Relative gap of the first stage below which the weight counts as proven."""

FIRST_FACTOR = 4.0
"""The multiplier to begin with: the largest multiplied weight in terms of the largest gain."""

RAISE = 8.0

LARGEST_FACTOR = 2.0**20
"""Beyond this factor the gains have too few of the engine's bits left."""

_ROUNDING = 2.0**-50
"""Relative error allowed to sums of gain and multiplied weight."""


@dataclass(frozen=True)
class Best:
    """The second stage's result.

    Attributes
    ----------
    mate : (n,) int
        Each job's partner; its own index where it runs alone; -1 where it is not placed.
    bound : float
        Proven upper bound on the gain of any matching that places as much weight.
    stopped : str
        Why the search ended.
    """

    mate: Ints
    bound: float
    stopped: Stopped


class Heaviest:
    """The matchings of the largest placed weight, and the one of the best gain among them.

    Parameters
    ----------
    weight : (n,) float
        What each job adds to the placed weight.
    may_share : (n, n) bool
        Which jobs may share, symmetric; the diagonal is ignored.
    may_run_alone : (n,) bool
        Which jobs may run alone.
    gpus : int
        The most GPUs that may be used.
    size : (n,) int
        GPUs that a job takes; only equal sizes pair, and a pair takes that many.
    required : (n,) bool
        Jobs that must be placed.
    limits : Limits
        When to stop.

    Attributes
    ----------
    mate : (n,) int
        A matching of the largest placed weight, or of the largest found (see ``Best``).
    spare : float
        How much more than ``mate`` a matching may place at most; inf where ``mate`` lacks a
        required job.
    proven : bool
        Whether ``mate`` places the largest weight.
    stopped : str
        Why the search for it ended.
    """

    def __init__(
        self,
        weight: Floats,
        may_share: Bools,
        may_run_alone: Bools,
        gpus: int,
        size: Ints,
        required: Bools,
        limits: Limits,
    ) -> None:
        fits = size <= gpus
        may_share, may_run_alone = may_share & fits, may_run_alone & fits
        is_open = (may_share.any(axis=1) | may_run_alone) & ~required
        whole, scale, rounding = whole_weights(np.where(is_open, weight, 0.0), 2**WEIGHT_BITS)
        found = match_pairs(
            np.where(may_share, whole[:, None] + whole, np.nan),
            np.where(may_run_alone, whole, np.nan),
            gpus=gpus,
            size=size,
            required=required,
            time_limit=limits.time_limit,
            seed=limits.seed,
        )
        self.mate = found.mate
        largest = max(found.value, float(whole.max(initial=0.0)))
        # Sums of whole numbers are whole.
        spare = math.floor(found.bound) - found.value if found.value > -math.inf else math.inf
        self.proven = spare + rounding <= _PROVEN_WEIGHT * largest
        self.stopped = why_stopped(found, limits)
        self.spare = (spare + rounding) / scale
        self._rounding = rounding
        self._gpus = gpus
        self._size = size
        self._seed = limits.seed
        self._whole = whole
        self._weight = found.value
        self._decide(found, may_share, may_run_alone, required)
        self._factor = FIRST_FACTOR
        self._previous: Prices | None = None

    def _decide(
        self, found: Matching, may_share: Bools, may_run_alone: Bools, required: Bools
    ) -> None:
        """Keep what a matching of this weight may do, and the weight that is then undecided."""
        duals = found.certificate.main
        potential = np.zeros(len(self._whole))
        price = np.zeros(len(self._whole))
        for dual in duals:
            potential[dual.jobs] = dual.potential
            price[dual.jobs] = dual.price
        spare = _bound(duals, self._size, self._gpus) - found.value + self._rounding
        self._required = required | (potential > spare)
        surplus = potential - self._whole
        self._may_share = may_share & (surplus[:, None] + surplus <= (spare - price)[:, None])
        np.fill_diagonal(self._may_share, False)
        self._may_run_alone = may_run_alone & (surplus <= spare - price)
        possible = self._may_share.any(axis=1) | self._may_run_alone
        undecided = self._whole - np.where(self._required, potential, 0.0)
        self._undecided = np.where(possible, undecided, 0.0)
        decided = math.fsum(potential[self._required].tolist())
        self._demanded = found.value - self._rounding - decided

    def best(self, pair_gain: Floats, single_gain: Floats, limits: Limits) -> Best:
        """Return the matching of the best gain among those of the largest placed weight.

        Parameters
        ----------
        pair_gain : (n, n) float
            Gain of each pair, symmetric; NaN where the jobs may not share.
        single_gain : (n,) float
            Gain of each job alone; NaN where it may not be.
        limits : Limits
            When to stop.

        Raises
        ------
        ValueError
            Where the largest weight is not proven.
        """
        if not self.proven:
            raise ValueError("the largest placed weight must be proven before the best gain")
        pairs = np.where(self._may_share, pair_gain, np.nan)
        singles = np.where(self._may_run_alone, single_gain, np.nan)
        largest = max(_largest(pairs), _largest(singles))
        undecided = float(np.abs(self._undecided).max(initial=0.0))
        best, gain, bound = self.mate, _gain(self.mate, pair_gain, single_gain), math.inf
        stopped: Stopped = "time_limit"
        while not limits.passed:
            multiplier = power_of_two(self._factor * largest / undecided) if undecided else 0.0
            bonus = multiplier * self._undecided
            found = match_pairs(
                pairs + (bonus[:, None] + bonus),
                singles + bonus,
                gpus=self._gpus,
                size=self._size,
                required=self._required,
                time_limit=limits.time_limit,
                seed=self._seed,
                previous=self._previous,
            )
            self._previous = found.prices
            rounding = _ROUNDING * len(bonus) * (largest + multiplier * undecided)
            bound = min(bound, found.bound - multiplier * self._demanded + rounding)
            reached = self._places(found.mate) >= self._weight
            if reached and (new := _gain(found.mate, pair_gain, single_gain)) > gain:
                best, gain = found.mate, new
            ended = why_stopped(found, limits)
            last = not multiplier or self._factor >= LARGEST_FACTOR
            if reached or last or ended == "time_limit":
                stopped = ended
                break
            self._factor *= RAISE
        return Best(best, max(bound, gain), stopped)

    def least_cost(self, pair_cost: Floats, single_cost: Floats) -> float:
        """Return a bound under the costs (>= 0) of every matching of the largest weight.

        Each job that all of them place bears half of a pair's cost or its own alone.

        Parameters
        ----------
        pair_cost : (n, n) float
            Cost of each pair, symmetric.
        single_cost : (n,) float
            Cost of each job alone.
        """
        pairs = np.where(self._may_share, pair_cost, np.inf)
        singles = np.where(self._may_run_alone, single_cost, np.inf)
        own = np.minimum(pairs.min(axis=1, initial=np.inf) / 2, singles)
        return float(own[self._required].sum())

    def _places(self, mate: Ints) -> float:
        """Return the placed weight in whole units; -inf where a required job is left out."""
        if (self._required & (mate < 0)).any():
            return -math.inf
        return float(self._whole[mate >= 0].sum())


def why_stopped(found: Matching, limits: Limits) -> Stopped:
    """Return why ``match_pairs`` ended within these limits."""
    return "complete" if found.status == "optimal" or limits.time_limit is None else "time_limit"


def _bound(duals: tuple[Dual, ...], size: Ints, gpus: int) -> float:
    """Return the bound that one dual per class proves, all at one price per GPU."""
    gpus = min(gpus, int(size.sum()))
    if len(duals) == 1:
        groups = gpus // int(size[0])
        return duals[0].constant + duals[0].price * groups
    per_gpu = max((d.price / int(size[d.jobs[0]]) for d in duals), default=0.0)
    return math.fsum(d.constant for d in duals) + per_gpu * gpus


def _gain(mate: Ints, pair_gain: Floats, single_gain: Floats) -> float:
    first = np.flatnonzero(mate > np.arange(len(mate)))
    alone = np.flatnonzero(mate == np.arange(len(mate)))
    return math.fsum([*pair_gain[first, mate[first]].tolist(), *single_gain[alone].tolist()])


def _largest(gains: Floats) -> float:
    return float(np.nanmax(np.abs(gains), initial=0.0))
