r"""The expected worth of measuring a pair to the plan.

The logarithms of slowdowns are assumed to be normal, with means m, variances v and covariance C.
The worth of a pair of jobs on a GPU is the mean gain of both, ``scale E[1 / slowdown]`` each:

    W_ij = scale_i exp(-m_ij + v_ij / 2) + scale_ji exp(-m_ji + v_ji / 2).

Measuring pair c gives two numbers with covariance ``S = C_cc + noise I``. As seen beforehand, they
change the means by ``A z`` with ``A = C_.c S^(-1/2)'`` and z standard normal in two dimensions, and
lower the variances by the squares of A's rows. With V(W) the value of the best plan and x* the plan
that is best today, the measurement is worth

    KG(c) = E[V(W(z))] - V(W) = E[V(W(z)) - W(z) x*] >= 0,

as W(z) is W on average: the *knowledge gradient* (P. I. Frazier, W. B. Powell and S. Dayanik: *The
Knowledge-Gradient Policy for Correlated Normal Beliefs*, INFORMS Journal on Computing 21(4), 2009),
with plans as the alternatives. The expectation is a sum over twelve z that is exact for polynomials
of degree five. V is the value of the linear relaxation of the matching at today's price of a GPU,
an assignment.

Most measurements need no assignment. With the reduced cost r of a pair (by the duals of today's
plan, the worth that it lacks to enter a best plan; 0 for pairs in the plan), and the standard
deviation d of the change of its worth,

    KG(c) <= sum over pairs of d f(r / d),    f(x) = phi(x) - x Phi(-x),

since no plan is worth more than the duals plus the worth above them. The sum is over pairs whose r
is at most three standard errors of the posterior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import ndtr

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.solver.pairing.matching import match_pairs

REACH: Final = 3.0
"""Most standard errors by which a pair's worth may rise."""

_ANGLES: Final = np.arange(12) * np.pi / 6
_RADIUS: Final = np.where(np.arange(12) % 2, 3.0, np.sqrt(1.5))
_POINTS: Final = np.column_stack([_RADIUS * np.cos(_ANGLES), _RADIUS * np.sin(_ANGLES)])
_WEIGHTS: Final = np.where(np.arange(12) % 2, 1 / 81, 4 / 27)
"""Two hexagons, with the rest of the weight (1/27) in the middle, where nothing changes: of degree
five for two normal numbers (A. H. Stroud, *Approximate Calculation of Multiple Integrals*, 1971),
and far enough out to see plans that are three standard errors away."""

_NEVER: Final = -1e9

_FAR: Final = 40.0
"""Standard errors that are never exceeded."""


@dataclass(frozen=True)
class SharingGains:
    """Which jobs may share a GPU, and the gains of jobs alone and together.

    Attributes
    ----------
    first, second : (e,) int
        The jobs of each pair that may share; a pair occurs once for each split.
    mine, theirs : (e,) int
        The beliefs about the slowdowns of the first and the second.
    scale, alone : (n,) float
        Gain of each job at a slowdown of 1, and alone; NaN if it may not run alone.
    size : (n,) int
        Number of GPUs that it takes; only jobs of one size share.
    gpus : int
        Total number of GPUs.
    gsla : (n,) float
        The slowdown that each job accepts; inf for any.
    """

    first: Ints
    second: Ints
    mine: Ints
    theirs: Ints
    scale: Floats
    alone: Floats
    size: Ints
    gpus: int
    gsla: Floats

    def worth(self, mean: Floats, variance: Floats) -> Floats:
        """Return the worth of each pair, (e,), or (..., e) of beliefs (..., m)."""
        rate = np.exp(variance / 2 - mean)
        mine = self.scale[self.first] * rate[..., self.mine]
        return np.asarray(mine + self.scale[self.second] * rate[..., self.theirs])

    def kept(self, slowdown: Floats) -> Bools:
        """Return which pairs keep the gSLAs of both jobs at these slowdowns, (..., e)."""
        mine = slowdown[..., self.mine] <= self.gsla[self.first]
        return np.asarray(mine & (slowdown[..., self.theirs] <= self.gsla[self.second]))

    def table(self, worth: Floats, nothing: float) -> Floats:
        """Return the worth of the best split of every two jobs, (n, n), symmetric."""
        found = np.full((len(self.scale),) * 2, -np.inf)
        np.maximum.at(found, (self.first, self.second), worth)
        found = np.maximum(found, found.T)
        return np.where(np.isneginf(found), nothing, found)


def knowledge_gradient(
    sharing: SharingGains,
    mean: Floats,
    covariance: Floats,
    noise: float,
    upper: Floats,
    candidates: Ints,
    most: int = 32,
) -> Floats:
    """Return the expected gain in the best plan's value from measuring each candidate.

    Parameters
    ----------
    sharing : SharingGains
        The jobs; its pairs refer to the beliefs by number.
    mean : (m,) float
        Means of the logarithms of slowdowns.
    covariance : (m, m) float
        Their covariance.
    noise : float
        Variance of one measurement.
    upper : (m,) float
        The upper bounds that gSLAs limit. A pair whose bounds break them may share once it has
        been measured and keeps them.
    candidates : (c, 2) int
        The two beliefs about each measured pair, one per job.
    most : int
        Number of candidates to compute, by largest upper bound; for others, the bound is
        returned, limited to the least computed value.

    Returns
    -------
    (c,) float
        In the units of the gains, at least 0.
    """
    variance = np.diag(covariance)
    allowed = sharing.kept(upper)
    plain = sharing.worth(mean, variance)
    plan = BestPlan.of(sharing, np.where(allowed, plain, -np.inf))
    bound = _bounds(plan, plain, allowed, mean, covariance, noise, candidates)
    order = np.argsort(-bound, kind="stable")
    found = bound.copy()
    for k in order[:most].tolist():
        pair = candidates[k]
        effect = effects(covariance, noise, pair)
        means = mean + _POINTS @ effect.T
        worth = sharing.worth(means, variance - (effect**2).sum(axis=1))
        own = np.isin(sharing.mine, pair) & np.isin(sharing.theirs, pair)
        able = np.where(own, sharing.kept(np.exp(means)), allowed)
        found[k] = _WEIGHTS @ [plan.gained(each) for each in np.where(able, worth, -np.inf)]
    rest, least = order[most:], found[order[:most]].min(initial=np.inf)
    found[rest] = np.minimum(bound[rest], least)
    return found


def effects(covariance: Floats, noise: float, pair: Ints) -> Floats:
    """Return the change of the means by a pair's measurement, for each of two normal numbers.

    The measurement lowers the covariance by ``effects @ effects.T``.
    """
    root = _roots(covariance, noise, pair[np.newaxis])[0]
    return np.asarray(np.linalg.solve(root, covariance[pair]).T)


def _roots(covariance: Floats, noise: float, candidates: Ints) -> Floats:
    """Return the Cholesky factor of the covariance of each measurement, (c, 2, 2)."""
    spread = covariance[candidates[:, :, np.newaxis], candidates[:, np.newaxis]]
    noise = noise + 1e-9 * float(np.diag(covariance).max(initial=0.0)) + 1e-300
    return np.asarray(np.linalg.cholesky(spread + noise * np.eye(2)), dtype=np.float64)


def _bounds(
    plan: BestPlan,
    plain: Floats,
    allowed: Bools,
    mean: Floats,
    covariance: Floats,
    noise: float,
    candidates: Ints,
) -> Floats:
    """Return the upper bound of each candidate, to first order in the change of the means."""
    jobs, variance = plan.sharing, np.diag(covariance)
    rate = np.exp(variance / 2 - mean)
    ends = jobs.mine, jobs.theirs
    slopes = [
        jobs.scale[job] * rate[end]
        for job, end in zip((jobs.first, jobs.second), ends, strict=True)
    ]
    error = sum(
        slope * np.sqrt(np.maximum(variance[end], 0.0))
        for slope, end in zip(slopes, ends, strict=True)
    )
    reduced = np.maximum(plan.reduced(plain), 0.0)
    near = np.flatnonzero(reduced <= REACH * error)
    root = _roots(covariance, noise, candidates)
    change = np.zeros((2, len(near), len(candidates)))
    for slope, end in zip(slopes, ends, strict=True):
        first, second = (covariance[np.ix_(end[near], c)] for c in candidates.T)
        one = first / root[:, 0, 0]
        two = (second - root[:, 1, 0] * one) / root[:, 1, 1]
        change += slope[near, np.newaxis] * np.stack([one, two])
    deviation = np.sqrt((change**2).sum(axis=0))
    # A pair that may not share yet can only enter by its own measurement.
    own = (jobs.mine[near, np.newaxis, np.newaxis] == candidates).any(axis=-1)
    counts = allowed[near, np.newaxis] | own
    lacks = np.minimum(reduced[near, np.newaxis], _FAR * deviation) / np.maximum(deviation, 1e-300)
    return np.asarray((counts * deviation * _expected_excess(lacks)).sum(axis=0))


def _expected_excess(x: Floats) -> Floats:
    """Return E[max(0, z - x)] of a standard normal z."""
    return np.asarray(np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) - x * ndtr(-x))


@dataclass(frozen=True)
class BestPlan:
    """The best plan under the beliefs, and the assignment that relaxes it.

    In an assignment, each job takes a partner or itself: a matching twice, or odd cycles.

    Attributes
    ----------
    sharing : SharingGains
        The jobs.
    price : (n,) float
        Price of each job, including its part of the GPUs.
    cost : (n,) float
        Price of the GPUs that each job takes.
    blossoms : sequence of ((k,) int, float)
        Odd sets of jobs, and their duals.
    partner : (n,) int
        Partner of each job in the best assignment.
    value : float
        Value of the plan.
    """

    sharing: SharingGains
    price: Floats
    cost: Floats
    blossoms: Sequence[tuple[Ints, float]]
    partner: Ints
    value: float

    @classmethod
    def of(cls, jobs: SharingGains, worth: Floats) -> BestPlan:
        """Return the best plan for pairs of this worth, ``-inf`` if they may not share."""
        found = match_pairs(jobs.table(worth, np.nan), jobs.alone, jobs.gpus, jobs.size)
        price, cost = np.zeros(len(jobs.scale)), np.zeros(len(jobs.scale))
        blossoms: list[tuple[Ints, float]] = []
        for dual in found.certificate.main:
            cost[dual.jobs] = dual.price
            price[dual.jobs] = dual.potential + dual.price / 2
            blossoms += dual.blossoms
        nobody = np.arange(len(price))
        plan = cls(jobs, price, cost, blossoms, nobody, found.value)
        return replace(plan, partner=linear_sum_assignment(plan._table(worth), maximize=True)[1])

    def reduced(self, worth: Floats) -> Floats:
        """Return the reduced cost of each pair, (e,): the worth that it lacks for a best plan."""
        first, second = self.sharing.first, self.sharing.second
        found = self.price[first] + self.price[second] - worth
        for members, z in self.blossoms:
            found += z * (np.isin(first, members) & np.isin(second, members))
        return np.asarray(found)

    def gained(self, worth: Floats) -> float:
        """Return the gain of the best plan for pairs of this worth over this plan."""
        table, rows = self._table(worth), np.arange(len(self.partner))
        best = table[linear_sum_assignment(table, maximize=True)].sum()
        # A pair that may no longer share leaves its jobs alone.
        kept = np.maximum(table[rows, self.partner], table[rows, rows])
        return float(max(0.0, best - kept.sum()))

    def _table(self, worth: Floats) -> Floats:
        table = (self.sharing.table(worth, _NEVER) - self.cost) / 2
        table[np.diag_indices_from(table)] = np.fmax(self.sharing.alone - self.cost, 0.0)
        return table
