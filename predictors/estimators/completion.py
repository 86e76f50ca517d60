"""Completion of the matrix of pairs, for workloads that are known by name only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from dovetail.predictors.estimators._factors import TAILS, Cells, Chains
from dovetail.predictors.estimators.registry import ModelSpec
from dovetail.predictors.features import WORKLOAD
from dovetail.predictors.forms.low_rank import LowRank
from dovetail.predictors.predictor import FloatArray, IntArray

State = tuple[float, ...]

_SLOPE_RIDGE = 0.05
"""Of the slopes of priors; about the noise variance of the logarithm of a slowdown, or more."""


class Completion(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Low-rank completion of the matrix of slowdowns from the cells that were measured.

    It needs no indicators: a workload that ran beside a few others is placed by what they did
    to each other. Completing the matrix from few entries is what Heet does by PQ decomposition
    (Castor, section 2) and, before it, Paragon (ASPLOS 2013) and the throughput estimator of
    Gavel (OSDI 2020). The method here is Bayesian probabilistic matrix factorisation by Gibbs
    sampling (Salakhutdinov and Mnih, ICML 2008) on the logarithm of the slowdown, with
    Student's t for noise and one prior for what a workload suffers and what it causes; see
    ``_factors.Chains`` for the model.

    X has the own state's columns, then the same columns of the co-runner: the workload as a
    number, then its condition (share). A workload at another share is another state; states of
    one condition and group are drawn around one mean. ``LowRank`` says what is answered for
    unknown workloads and for conditions that were never measured together.

    Parameters
    ----------
    rank : int
        Number of factors; superfluous ones are shrunk away.
    groups : sequence of int, optional
        The group (family) of each workload, by its number; all in one by default.
    priors : sequence of LowRank, optional
        The completed matrices of other GPU models, of the same workloads by number. Their
        logarithms enter with one slope each, fitted by ridge regression; what they leave is
        completed. With few measurements this helps, with none it hardly does: how workloads
        get on with each other differs between GPU models.
    chains, warm_up, draws : int
        Markov chains, the sweeps of each that are thrown away, and those that are kept.
    random_state : int
        Seed.

    Attributes
    ----------
    form_ : LowRank
        The completed matrix.
    """

    def __init__(
        self,
        rank: int = 3,
        groups: Sequence[int] | None = None,
        priors: Sequence[LowRank] | None = None,
        chains: int = 16,
        warm_up: int = 40,
        draws: int = 40,
        random_state: int = 0,
    ) -> None:
        self.rank = rank
        self.groups = groups
        self.priors = priors
        self.chains = chains
        self.warm_up = warm_up
        self.draws = draws
        self.random_state = random_state

    def fit(self, X: FloatArray, y: FloatArray) -> Self:  # noqa: N803
        """Complete the matrix from these measurements alone.

        Parameters
        ----------
        X : ndarray of float, shape (rows, 2 * features)
            Own state, then the co-runner's.
        y : ndarray of float, shape (rows,)
            Slowdown of the own state, > 0.

        Raises
        ------
        ValueError
            When X has an odd number of columns or a value that is not finite, a slowdown is
            not positive, or a workload has no group.
        """
        self._ends, self._log_slowdown = self._checked(X, y, reset=True)
        self._states: dict[State, int] = {}
        self._groups: dict[State, int] = {}
        self._chains: Chains | None = None
        self.form_ = self._completed(self.warm_up, self.draws)
        return self

    def partial_fit(self, X: FloatArray, y: FloatArray) -> Self:  # noqa: N803
        """Add measurements to those there are and go on from the chains' present place.

        A quarter of the sweeps of ``fit`` is enough for that. The answers differ from those of
        ``fit`` on all the rows by the error of sampling only. See ``fit`` for the parameters.
        """
        if not hasattr(self, "form_"):
            return self.fit(X, y)
        ends, log_slowdown = self._checked(X, y, reset=False)
        self._ends = np.concatenate([self._ends, ends])
        self._log_slowdown = np.concatenate([self._log_slowdown, log_slowdown])
        self.form_ = self._completed(self.warm_up // 4, self.draws // 4)
        return self

    def predict(self, X: FloatArray) -> FloatArray:  # noqa: N803
        """Return slowdowns, shape (rows,); NaN where ``LowRank`` has no answer."""
        check_is_fitted(self)
        table = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
        states = np.concatenate(np.split(table, 2, axis=1))
        rows = np.arange(len(table))
        return self.form_.predict(states, rows, rows + len(table))

    def to_form(self) -> LowRank:
        """Return the completed matrix."""
        check_is_fitted(self)
        return self.form_

    def __sklearn_tags__(self) -> Tags:
        """Say that slowdowns are positive."""
        tags: Tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def _checked(
        self,
        X: FloatArray,  # noqa: N803
        y: FloatArray,
        reset: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """Return the states of each row, shape (rows, 2, features), and the log slowdowns."""
        table, slowdown = validate_data(self, X, y, dtype=np.float64, y_numeric=True, reset=reset)
        if table.shape[1] % 2:
            raise ValueError(
                f"X must have an even number of columns, got {table.shape[1]} feature(s)"
            )
        if (slowdown <= 0).any():
            raise ValueError(f"slowdowns must be > 0, got {slowdown.min()}")
        ends = table.reshape(len(table), 2, -1)
        if self.groups is not None and not np.isin(ends[..., 0], range(len(self.groups))).all():
            raise ValueError(f"workloads must be numbers in 0..{len(self.groups) - 1}, see groups")
        return ends, np.log(slowdown.astype(np.float64))

    def _indexed(self) -> tuple[IntArray, IntArray]:
        """Return the position of each row's states; states seen for the first time get one."""
        flat = self._ends.reshape(-1, self._ends.shape[-1])
        where = [self._states.setdefault(tuple(s), len(self._states)) for s in flat.tolist()]
        index = np.array(where, dtype=np.int64).reshape(-1, 2)
        return index[:, 0], index[:, 1]

    def _group(self, state: State) -> int:
        workload, *condition = state
        family = 0 if self.groups is None else self.groups[int(workload)]
        return self._groups.setdefault((family, *condition), len(self._groups))

    def _completed(self, warm_up: int, draws: int) -> LowRank:
        own, other = self._indexed()
        offset = self._offset(own, other)
        left = self._log_slowdown - offset[own, other]
        mean, variance = self._drawn(Cells.collected(own, other, left), warm_up, draws)
        return self._form(mean + offset, variance, own, other)

    def _offset(self, own: IntArray, other: IntArray) -> FloatArray:
        """Return what the priors say of every cell, shape (states, states)."""
        known = np.array(list(self._states))
        rows, columns = np.indices((len(known), len(known))).reshape(2, -1)
        told = [np.log(prior.predict(known, rows, columns)) for prior in self.priors or ()]
        if not told:
            return np.zeros((len(known), len(known)))
        cell = own * len(known) + other
        cells = np.stack([_centred(table, cell) for table in told])
        seen = cells[:, cell]
        target = seen @ (self._log_slowdown - self._log_slowdown.mean())
        slopes = np.linalg.solve(seen @ seen.T + _SLOPE_RIDGE * np.eye(len(cells)), target)
        return np.asarray(slopes @ cells).reshape(len(known), len(known))

    def _drawn(self, cells: Cells, warm_up: int, draws: int) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of a new measurement of every cell.

        Draws are kept within the range of what was measured: the few that run away would
        outweigh all others (gavel, V100: MAE 0.48 instead of 0.51). What lies beyond the range
        is therefore underestimated.
        """
        if self._chains is None:
            rng = np.random.default_rng(self.random_state)
            self._chains = Chains.started(cells, self.rank, self.chains, rng)
        group = np.array([self._group(state) for state in self._states], dtype=np.int64)
        self._chains.extend(len(self._groups), len(group))
        total = np.zeros((len(group), len(group)))
        squares = np.zeros_like(total)
        noise = 0.0
        for sweep in range(warm_up + draws):
            self._chains.sweep(cells, group)
            if sweep >= warm_up:
                noise += float(self._chains.noise.mean()) / draws
                for chain in range(self.chains):
                    cell = self._chains.cells(chain).clip(cells.value.min(), cells.value.max())
                    total += cell
                    squares += cell**2
        mean = total / (draws * self.chains)
        variance = np.maximum(0.0, squares / (draws * self.chains) - mean**2)
        return mean, variance + noise * TAILS / (TAILS - 2)

    def _form(
        self, mean: FloatArray, variance: FloatArray, own: IntArray, other: IntArray
    ) -> LowRank:
        known = np.array(list(self._states))
        conditions, condition = np.unique(known[:, 1:], axis=0, return_inverse=True)
        condition = condition.ravel()
        member = np.equal.outer(np.arange(len(conditions)), condition)
        average = np.vstack([np.eye(len(known)), member / member.sum(axis=1, keepdims=True)])
        overall = average @ mean @ average.T
        # Of an average workload: the variance within each cell and between them.
        spread = average @ (variance + mean**2) @ average.T - overall**2
        together = np.zeros((len(conditions), len(conditions)), dtype=np.bool_)
        together[condition[own], condition[other]] = True
        return LowRank(known, conditions, together, overall, np.maximum(0.0, spread))


def _centred(table: FloatArray, cell: IntArray) -> FloatArray:
    """Subtract the mean of the measured cells; cells without an answer become 0."""
    seen = table[cell]
    answered = seen[~np.isnan(seen)]
    return np.nan_to_num(table - (answered.mean() if answered.size else 0.0))


SPEC = ModelSpec(features=(WORKLOAD, "share"), build=lambda seed: Completion(random_state=seed))
