"""The posterior of the hierarchical process: moments of any pairs, and updates by measurements.

A fitted ``Hierarchy`` has the answer for every pair but not the joint covariance of several, and
no way to add a further measurement. A ``Posterior`` keeps the inverse of the covariance K of the
measurements, which gives both: with the prior covariance k of queried pairs and measured pairs,

    mean = m + k K^-1 (y - m),    covariance = k_asked - k K^-1 k'

(C. E. Rasmussen and C. K. I. Williams, *Gaussian Processes for Machine Learning*, MIT Press 2006,
equations 2.25 and 2.26). The variances of the process are those of the ``Hierarchy``, and so is
the function of the slowdown that it describes (``forms.hierarchy.warped``): moments are those of
the logarithms, whose errors are those upwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple, Self

import numpy as np

from dovetail.predictors.forms.hierarchy import (
    FEATURES,
    SLOPE_VARIANCE,
    Hierarchy,
    kernels,
    log_alone,
    spread,
    steepness,
    unwarped,
    warped,
)
from dovetail.predictors.predictor import FloatArray, IntArray

_BLOCK: Final = 500


class JobsWithCoRunners(NamedTuple):
    """Jobs at shares, each with a co-runner.

    Attributes
    ----------
    states : ndarray of float, shape (states, 18)
        As in ``forms.hierarchy.FEATURES``.
    own, other : ndarray of int, shape (pairs,)
        The state of the slowed-down job and the state of its co-runner.
    """

    states: FloatArray
    own: IntArray
    other: IntArray

    @classmethod
    def of(cls, table: FloatArray) -> Self:
        """Return the rows of a table whose columns are the job's features, then its co-runner's."""
        rows = np.arange(len(table))
        return cls(np.vstack(np.hsplit(table, 2)), rows, rows + len(table))


class Moments(NamedTuple):
    """Mean and covariance of the logarithms of slowdowns.

    Attributes
    ----------
    mean : ndarray of float, shape (pairs,)
    covariance : ndarray of float, shape (pairs, pairs)
        The covariance, without measurement noise.
    noise : float
        Variance of a single measurement around the true value.
    """

    mean: FloatArray
    covariance: FloatArray
    noise: float

    def of_truth(self, measured: IntArray, slowdown: FloatArray) -> Self:
        """Return the moments if the measurement of a pair is treated as its true value.

        The noise of the process is then a property of the pair: measured pairs are known exactly,
        and the variance of others is that of a measurement.

        Parameters
        ----------
        measured : ndarray of int, shape (m,)
            The pairs that were measured.
        slowdown : ndarray of float, shape (m,)
            Their measured slowdowns.
        """
        mean, covariance = self.mean.copy(), self.covariance.copy()
        covariance[np.diag_indices_from(covariance)] += self.noise
        mean[measured] = np.log(slowdown)
        covariance[measured] = covariance[:, measured] = 0.0
        return self._replace(mean=mean, covariance=covariance, noise=0.0)


@dataclass(frozen=True, eq=False)
class Posterior:
    """A Gaussian process given measurements; see the module.

    Attributes
    ----------
    like : Hierarchy
        Variances and scales of the process.
    pairs : JobsWithCoRunners
        The measured pairs, each pair of states once.
    value : ndarray of float, shape (pairs,)
        The mean logarithm of the slowdowns of each, minus that of the job alone.
    repeats : ndarray of float, shape (pairs,)
        Number of measurements of each.
    inverse : ndarray of float, shape (pairs, pairs)
        K^-1.
    """

    like: Hierarchy
    pairs: JobsWithCoRunners
    value: FloatArray
    repeats: FloatArray
    inverse: FloatArray

    @classmethod
    def of(cls, like: Hierarchy, pairs: JobsWithCoRunners, slowdown: FloatArray) -> Self:
        """Return the posterior after measurements.

        Parameters
        ----------
        like : Hierarchy
            The process.
        pairs : JobsWithCoRunners
            The measured pairs; repeated measurements are separate rows.
        slowdown : ndarray of float, shape (pairs,)
            Their measured slowdowns.
        """
        nothing = JobsWithCoRunners(np.empty((0, len(FEATURES))), *(np.empty(0, np.int64),) * 2)
        empty = np.empty(0)
        return cls(like, nothing, empty, empty, np.empty((0, 0))).updated(pairs, slowdown)

    def updated(self, pairs: JobsWithCoRunners, slowdown: FloatArray) -> Self:
        """Return the posterior after further measurements, in time quadratic in their number.

        Another measurement of a known pair lowers its noise, which changes one entry of K
        (Sherman-Morrison); new pairs add a block to K (inverse of a partitioned matrix). Except
        for rounding, the result is that of all measurements together.

        Parameters
        ----------
        pairs : JobsWithCoRunners
            The newly measured pairs.
        slowdown : ndarray of float, shape (pairs,)
            Their measured slowdowns.
        """
        known, cell = self._placed(pairs)
        logarithm = np.log(np.maximum(slowdown, np.finfo(float).tiny))
        logarithm -= log_alone(pairs.states, self.like.exponent[0])[pairs.own]
        before, count = len(self.value), len(known.own)
        more = np.bincount(cell, minlength=count).astype(np.float64)
        repeats = np.append(self.repeats, np.zeros(count - before)) + more
        value = np.append(self.value * self.repeats, np.zeros(count - before))
        value = (value + np.bincount(cell, logarithm, minlength=count)) / repeats
        posterior = replace(self, pairs=known, value=value, repeats=repeats)
        inverse, noise = self.inverse, self.like.noise[0] / posterior.precision
        for k in np.flatnonzero(more[:before]):
            less = self.like.noise[0] / self.precision[k] - noise[k]
            column = inverse[:, k].copy()
            inverse = inverse + np.outer(column, column) * (less / (1 - less * column[k]))
        if count > before:
            old, new = slice(before), slice(before, None)
            border = self._prior(_taken(known, new), _taken(known, old))
            block = self._prior(_taken(known, new), _taken(known, new))
            block[np.diag_indices_from(block)] += noise[new]
            inverse = _bordered(inverse, border, block)
        return replace(posterior, inverse=inverse)

    @property
    def precision(self) -> FloatArray:
        """The inverse variance of each value, in units of that of a logarithm's measurement."""
        slope = steepness(warped(self.value, self.like.shift[0]), self.like.shift[0])
        return np.asarray(self.repeats * slope**2)

    @property
    def residual(self) -> FloatArray:
        """What the contention model leaves of the measurements, ``warped``."""
        return warped(self.value, self.like.shift[0]) - self.like.contention(*self.pairs)

    @property
    def mean(self) -> float:
        """The mean of the process: the median residual of the contention model."""
        return float(np.median(self.residual))

    @cached_property
    def form(self) -> Hierarchy:
        """The process as a form with the same means."""
        states, own, other = self.pairs
        residual = self.residual
        dual = self.inverse @ (residual - self.mean)
        gathered = np.zeros((len(states),) * 2)
        gathered[own, other] = dual
        return replace(
            self.like,
            mean=np.array([self.mean]),
            limits=np.array([residual.min(), residual.max()]),
            slope=np.array([1 + SLOPE_VARIANCE * self.like.contention(*self.pairs) @ dual]),
            trained=states,
            dual=gathered,
            completed=self.like.without_low_rank(states, own, other),
        )

    def moments(self, asked: JobsWithCoRunners) -> Moments:
        """Return the means and the joint covariance of some pairs."""
        cross = self._prior(asked, self.pairs)
        explained = cross @ self.inverse
        residual = self.residual
        mean = self.mean + explained @ (residual - self.mean)
        mean = np.clip(mean, residual.min(), residual.max()) + self.like.contention(*asked)
        covariance = self._prior(asked, asked) - explained @ cross.T
        error = np.sqrt(np.maximum(np.diag(covariance), 1e-12))
        slope = spread(mean, error, self.like.shift[0]) / error
        logarithm = unwarped(mean, self.like.shift[0])
        logarithm = logarithm + log_alone(asked.states, self.like.exponent[0])[asked.own]
        noise = float(self.like.noise[0])
        return Moments(logarithm, covariance * np.outer(slope, slope), noise)

    def each(self, asked: JobsWithCoRunners) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of each of some pairs, in memory linear in their number."""
        mean, variance = np.empty(len(asked.own)), np.empty(len(asked.own))
        for start in range(0, len(mean), _BLOCK):
            rows = slice(start, start + _BLOCK)
            found = self.moments(_taken(asked, rows))
            mean[rows], variance[rows] = found.mean, np.diag(found.covariance)
        return mean, variance

    def residuals(self, asked: JobsWithCoRunners, slowdown: FloatArray) -> FloatArray:
        """Return how far new measurements lie from the predictions, in standard errors."""
        mean, variance = self.each(asked)
        error = np.sqrt(np.maximum(variance, 0.0) + self.like.noise[0])
        return np.asarray((np.log(slowdown) - mean) / error)

    def _prior(self, first: JobsWithCoRunners, second: JobsWithCoRunners) -> FloatArray:
        """Return the prior covariance of two lists of pairs."""
        alike = kernels(first.states, second.states, self.like.scale, self.like.batches[0])
        of_other = np.tensordot(self.like.weights, alike, 1)
        said = self.like.contention(*first), self.like.contention(*second)
        found = SLOPE_VARIANCE * np.outer(*said)
        for mine, theirs in zip(alike, of_other, strict=True):
            part = np.take(mine[first.own], second.own, axis=1)
            part *= np.take(theirs[first.other], second.other, axis=1)
            found += part
        return found

    def _placed(self, new: JobsWithCoRunners) -> tuple[JobsWithCoRunners, IntArray]:
        """Return the known pairs of states with new ones, and the position of each new row."""
        states, own, other = self.pairs
        stacked = np.vstack([states, new.states])
        # NaN does not equal NaN in a comparison of rows, so it is replaced by a number.
        known = np.where(np.isnan(stacked), np.inf, stacked)
        _, first, place = np.unique(known, axis=0, return_index=True, return_inverse=True)
        # In the order of their first appearance, so that those known keep their places.
        order = np.argsort(first)
        rank = np.argsort(order)[place.reshape(-1)]
        moved = rank[len(states) :]
        used = np.unique(np.concatenate([np.arange(len(states)), moved[new.own], moved[new.other]]))
        code = len(first) * np.append(own, moved[new.own]) + np.append(other, moved[new.other])
        _, begin, cell = np.unique(code, return_index=True, return_inverse=True)
        order_of_cells = np.argsort(begin)
        cell = np.argsort(order_of_cells)[cell.reshape(-1)]
        ends = np.divmod(code[begin[order_of_cells]], len(first))
        compact = (np.searchsorted(used, end) for end in ends)
        return JobsWithCoRunners(stacked[first[order]][used], *compact), cell[len(own) :]


def _taken(pairs: JobsWithCoRunners, which: slice) -> JobsWithCoRunners:
    return pairs._replace(own=pairs.own[which], other=pairs.other[which])


def _bordered(inverse: FloatArray, border: FloatArray, block: FloatArray) -> FloatArray:
    """Return the inverse of K with further rows, from the inverse of K."""
    explained = border @ inverse
    corner = np.linalg.inv(block - explained @ border.T)
    corner = (corner + corner.T) / 2
    side = -corner @ explained
    return np.block([[inverse - explained.T @ side, side.T], [side, corner]])
