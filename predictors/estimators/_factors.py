"""The matrix of slowdowns as effects and low-rank factors, from the measured cells.

Bayesian probabilistic matrix factorisation by Gibbs sampling (Salakhutdinov and Mnih, ICML 2008),
on the logarithm of the slowdown, with Student's t for noise and one prior for the slowdown that a
workload suffers and causes. Paragon (ASPLOS 2013), the throughput estimator of Gavel (OSDI 2020)
and Heet (Castor, section 2) also complete the matrix from few cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from scipy.sparse import csr_array

from dovetail.predictors.predictor import FloatArray, IntArray

_TAILS = 4.0
"""Degrees of freedom of the noise: Student's t, as single measurements can be far off."""

_PRIOR_PART = 0.2
"""Prior fraction of the variance of the cells that effects, and factors, each explain."""


class Cells(NamedTuple):
    """The measured cells, every cell once.

    Attributes
    ----------
    own, other : ndarray of int, shape (cells,)
        Row and column.
    value : ndarray of float, shape (cells,)
        The mean of the measurements.
    repeats : ndarray of float, shape (cells,)
        The number of measurements.
    """

    own: IntArray
    other: IntArray
    value: FloatArray
    repeats: FloatArray


@dataclass
class Chains:
    """Markov chains, side by side, over the effects and factors of the measured cells.

    Cell (i, j) is ``mean + a_i + b_j + u_i . v_j`` plus noise. Row i and column i are the same
    state, as the one that is slowed down and as the one that slows down; its parameters in both
    roles, ``w_i = (a_i, u_i, b_i, v_i)``, are drawn around the mean of its group with one
    covariance for all, so a row of measurements also informs column i. The covariances, the means
    of the groups, the noise and the weight of each cell are drawn too: there is no regularisation
    strength to choose.

    Attributes
    ----------
    own, other : ndarray of float, shape (chains, states, 1 + rank)
        Effect and factors in both roles: ``(a, u)`` and ``(b, v)``.
    group_mean : ndarray of float, shape (chains, groups, 2 + 2 * rank)
        The mean of w in each group.
    spread, group_spread : ndarray of float, shape (chains, 2 + 2 * rank, 2 + 2 * rank)
        Covariance of w within groups, and of the means of groups.
    mean, noise : ndarray of float, shape (chains,)
        The overall mean, and the squared scale of the noise.
    expected : ndarray of float, shape (2 + 2 * rank, 2 + 2 * rank)
        The prior covariance.
    rng : Generator
        Source of the draws.
    """

    own: FloatArray
    other: FloatArray
    group_mean: FloatArray
    spread: FloatArray
    group_spread: FloatArray
    mean: FloatArray
    noise: FloatArray
    expected: FloatArray
    rng: np.random.Generator

    @classmethod
    def started(
        cls, cells: Cells, group: IntArray, rank: int, chains: int, rng: np.random.Generator
    ) -> Self:
        """Start at random, from the priors.

        Parameters
        ----------
        cells : Cells
            The measured cells.
        group : ndarray of int, shape (states,)
            The group of each state.
        rank, chains : int
            Number of factors, and of chains.
        rng : Generator
            Source of the draws.
        """
        variance = max(float(np.var(cells.value)), 1e-8)
        effect = _PRIOR_PART * variance
        factor = np.full(rank, np.sqrt(effect / max(rank, 1)))
        expected = np.diag(np.tile(np.concatenate([[effect], factor]), 2))
        empty = np.empty((chains, 0, 1 + rank))
        made = cls(
            own=empty,
            other=empty,
            group_mean=np.zeros((chains, int(group.max()) + 1, 2 + 2 * rank)),
            spread=np.tile(expected, (chains, 1, 1)),
            group_spread=np.tile(expected, (chains, 1, 1)),
            mean=np.full(chains, np.median(cells.value)),
            noise=np.full(chains, effect),
            expected=expected,
            rng=rng,
        )
        drawn = made._drawn_from(_inverse(made.spread), len(group))
        made.own, made.other = drawn[..., : 1 + rank], drawn[..., 1 + rank :]
        return made

    def sweep(self, cells: Cells, group: IntArray) -> None:
        """Draw every variable once, each given all others (Gibbs sampling).

        Parameters
        ----------
        cells : Cells
            The measured cells.
        group : ndarray of int, shape (states,)
            The group of each state.
        """
        size = self.own.shape[-1]
        residual = cells.value - self._explained(cells)
        weight = self._weight(residual, cells.repeats)
        self.mean += self._common(residual, weight)
        around = self.group_mean[:, group]
        precision = _inverse(self.spread)
        self.own = self._role(
            cells, weight, self.other, around, precision, _Role(cells.own, cells.other)
        )
        swapped = np.roll(around, size, axis=-1)
        mirrored = np.roll(precision, (size, size), axis=(1, 2))
        self.other = self._role(
            cells, weight, self.own, swapped, mirrored, _Role(cells.other, cells.own)
        )
        self.noise = self._noise(cells, weight)
        self._regroup(group)

    def cells(self, chain: int) -> FloatArray:
        """Return the whole matrix of one chain, shape (states, states)."""
        own, other = self.own[chain], self.other[chain]
        effects = own[:, :1] + other[:, 0]
        return np.asarray(self.mean[chain] + effects + own[:, 1:] @ other[:, 1:].T)

    def _explained(self, cells: Cells) -> FloatArray:
        own, other = self.own[:, cells.own], self.other[:, cells.other]
        product = np.sum(own[..., 1:] * other[..., 1:], axis=-1)
        return np.asarray(self.mean[:, np.newaxis] + own[..., 0] + other[..., 0] + product)

    def _weight(self, residual: FloatArray, repeats: FloatArray) -> FloatArray:
        """Draw the weight of each cell: the noise as a scale mixture of normals."""
        rate = (_TAILS + repeats * residual**2 / self.noise[:, np.newaxis]) / 2
        return np.asarray(repeats * self.rng.gamma((_TAILS + 1) / 2, size=rate.shape) / rate)

    def _common(self, residual: FloatArray, weight: FloatArray) -> FloatArray:
        total = weight.sum(axis=1)
        drawn = self.rng.normal(size=len(total)) * np.sqrt(self.noise / total)
        return np.asarray(np.sum(weight * residual, axis=1) / total + drawn)

    def _role(
        self,
        cells: Cells,
        weight: FloatArray,
        partner: FloatArray,
        around: FloatArray,
        precision: FloatArray,
        role: _Role,
    ) -> FloatArray:
        """Draw effect and factors of one role given those of the other role."""
        size = partner.shape[-1]
        design = partner.copy()
        design[..., 0] = 1.0
        left = cells.value - self.mean[:, np.newaxis] - partner[:, role.column, 0]
        squares = design[..., :, np.newaxis] * design[..., np.newaxis, :]
        noise = self.noise[:, np.newaxis, np.newaxis]
        mine, cross = precision[:, :size, :size], precision[:, :size, size:]
        seen = _summed(role, weight, squares.reshape(*design.shape[:2], -1)) / noise
        pull = _summed(role, weight * left, design) / noise
        pull += around[..., :size] @ mine - (partner - around[..., size:]) @ cross.mT
        return self._drawn(seen.reshape(squares.shape) + mine[:, np.newaxis], pull)

    def _noise(self, cells: Cells, weight: FloatArray) -> FloatArray:
        squares = weight * (cells.value - self._explained(cells)) ** 2
        rate = squares.sum(axis=1) / 2 + 1e-3 * self.expected[0, 0]
        return np.asarray(rate / self.rng.gamma(len(cells.value) / 2 + 1, size=len(rate)))

    def _regroup(self, group: IntArray) -> None:
        """Draw the means of the groups and both covariances."""
        both = np.concatenate([self.own, self.other], axis=-1)
        groups = self.group_mean.shape[1]
        member = np.equal.outer(np.arange(groups), group).astype(np.float64)
        within = _inverse(self.spread)
        size = member.sum(axis=1)[:, np.newaxis, np.newaxis]
        between = _inverse(self.group_spread)[:, np.newaxis]
        pull = (member @ both) @ within
        self.group_mean = self._drawn(between + size * within[:, np.newaxis], pull)
        self.spread = self._covariance(both - self.group_mean[:, group])
        self.group_spread = self._covariance(self.group_mean)

    def _covariance(self, sample: FloatArray) -> FloatArray:
        """Draw a covariance from its inverse Wishart distribution."""
        freedom = len(self.expected) + 2
        scatter = freedom / 2 * self.expected + sample.mT @ sample
        drawn = self._drawn_from(scatter, freedom + sample.shape[1])
        return _inverse(drawn.mT @ drawn)

    def _drawn_from(self, precision: FloatArray, count: int) -> FloatArray:
        """Draw normal vectors, shape (chains, count, size), with one precision per chain."""
        normal = self.rng.normal(size=(len(precision), precision.shape[-1], count))
        return np.asarray(np.linalg.solve(np.linalg.cholesky(precision).mT, normal).mT)

    def _drawn(self, precision: FloatArray, pull: FloatArray) -> FloatArray:
        """Draw normal vectors of mean ``precision^-1 pull``, each with its own precision."""
        half = np.linalg.cholesky(precision)
        shifted = np.linalg.solve(half, pull[..., np.newaxis])
        shifted += self.rng.normal(size=shifted.shape)
        return np.asarray(np.linalg.solve(half.mT, shifted)[..., 0])


def _inverse(matrices: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.inv(matrices), dtype=np.float64)


def completed(
    cells: Cells,
    group: IntArray,
    *,
    rank: int = 3,
    chains: int = 4,
    sweeps: int = 25,
    seed: int = 0,
) -> FloatArray:
    """Return the expected value of every cell, shape (states, states).

    Draws are clipped to the measured range, as a few outliers would outweigh all others (Gavel's
    V100: MAE 0.48 instead of 0.51).

    Parameters
    ----------
    cells : Cells
        The measured cells.
    group : ndarray of int, shape (states,)
        The group of each state, from 0; states of a group share a mean.
    rank : int
        Number of factors; superfluous ones are shrunk away.
    chains, sweeps : int
        Number of Markov chains, and of the sweeps of each that are discarded; the same number is
        kept.
    seed : int
        Seed of the draws.
    """
    draws = Chains.started(cells, group, rank, chains, np.random.default_rng(seed))
    total = np.zeros((len(group),) * 2)
    for sweep in range(2 * sweeps):
        draws.sweep(cells, group)
        if sweep >= sweeps:
            for chain in range(chains):
                total += draws.cells(chain).clip(cells.value.min(), cells.value.max())
    return np.asarray(total / (sweeps * chains))


class _Role(NamedTuple):
    """The cells from one side: the drawn states and their partners."""

    row: IntArray
    column: IntArray


def _summed(role: _Role, factor: FloatArray, table: FloatArray) -> FloatArray:
    """Return for each row i the sum over its cells of ``factor * table[column]``.

    ``factor`` has shape (chains, cells) and ``table`` (chains, states, size).
    """
    chains, states, size = table.shape
    shift = states * np.arange(chains)[:, np.newaxis]
    ends = ((shift + role.row).ravel(), (shift + role.column).ravel())
    block = csr_array((factor.ravel(), ends), shape=(chains * states, chains * states))
    return np.asarray(block @ table.reshape(-1, size)).reshape(table.shape)
