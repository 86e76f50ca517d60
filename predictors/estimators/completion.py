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


class Completion(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Low-rank completion of the matrix of slowdowns from the cells that were measured.

    It needs no indicators: a workload that ran beside a few others is placed by what they did
    to each other. The idea is that of Paragon (ASPLOS 2013, section 3) and of the throughput
    estimator of Gavel (OSDI 2020, section 6), which complete the matrix of pairs from
    few entries; the method is Bayesian probabilistic matrix factorisation by Gibbs sampling
    (Salakhutdinov and Mnih, ICML 2008) with Student's t for noise and with one prior for what
    a workload suffers and what it causes. It works on the logarithm of the slowdown; see
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
        chains: int = 16,
        warm_up: int = 40,
        draws: int = 40,
        random_state: int = 0,
    ) -> None:
        self.rank = rank
        self.groups = groups
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
        ends, log_slowdown = self._checked(X, y, reset=True)
        self._ends, self._log_slowdown = ends, log_slowdown
        self._states: dict[State, int] = {}
        self._groups: dict[State, int] = {}
        own, other = self._indexed()
        cells = Cells.collected(own, other, log_slowdown)
        rng = np.random.default_rng(self.random_state)
        self._chains = Chains.started(cells, self.rank, self.chains, rng)
        self.form_ = self._completed(cells, self.warm_up)
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
        own, other = self._indexed()
        cells = Cells.collected(own, other, self._log_slowdown)
        self.form_ = self._completed(cells, self.warm_up // 4)
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

    def _completed(self, cells: Cells, warm_up: int) -> LowRank:
        """Draw on and return the mean and variance of every cell.

        Draws are kept within the range of what was measured.
        """
        group = np.array([self._group(state) for state in self._states], dtype=np.int64)
        self._chains.extend(len(self._groups), len(group))
        for _ in range(warm_up):
            self._chains.sweep(cells, group)
        total = np.zeros((len(group), len(group)))
        squares = np.zeros_like(total)
        noise = 0.0
        lowest, highest = cells.value.min(), cells.value.max()
        for _ in range(self.draws):
            self._chains.sweep(cells, group)
            noise += float(self._chains.noise.mean()) / self.draws
            for chain in range(self.chains):
                drawn = np.clip(self._chains.cells(chain), lowest, highest)
                total += drawn
                squares += drawn**2
        mean = total / (self.draws * self.chains)
        variance = np.maximum(0.0, squares / (self.draws * self.chains) - mean**2)
        return self._form(mean, variance + noise * TAILS / (TAILS - 2))

    def _form(self, mean: FloatArray, variance: FloatArray) -> LowRank:
        known = np.array(list(self._states), dtype=np.float64)
        conditions, condition = np.unique(known[:, 1:], axis=0, return_inverse=True)
        condition = condition.ravel()
        member = np.equal.outer(np.arange(len(conditions)), condition)
        average = np.vstack([np.eye(len(known)), member / member.sum(axis=1, keepdims=True)])
        overall = average @ mean @ average.T
        # Of an average workload: the variance within each cell and between them.
        spread = average @ (variance + mean**2) @ average.T - overall**2
        together = np.zeros((len(conditions), len(conditions)), dtype=np.bool_)
        own, other = self._indexed()
        together[condition[own], condition[other]] = True
        return LowRank(known, conditions, together, overall, np.maximum(0.0, spread))


SPEC = ModelSpec(features=(WORKLOAD, "share"), build=lambda seed: Completion(random_state=seed))
