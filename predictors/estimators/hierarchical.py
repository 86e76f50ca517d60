"""A hierarchical Gaussian process: GPU model, family, workload, batch size, profile, pair."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple, Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve, lapack
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

from dovetail.predictors.estimators._factors import Cells, completed
from dovetail.predictors.estimators.kernels import LawOfMps
from dovetail.predictors.estimators.registry import ModelSpec
from dovetail.predictors.forms.hierarchy import (
    ALONE,
    BATCH,
    DESCRIBED,
    FAMILY,
    FEATURES,
    INSTEAD,
    KERNEL,
    KERNELS,
    LAUNCHES,
    SHARE,
    SLOPE_VARIANCE,
    TERMS,
    WORKLOAD,
    ContentionParameters,
    Hierarchy,
    contention,
    kernels,
    log_alone,
    steepness,
    unwarped,
    warped,
)
from dovetail.predictors.forms.kernels import FEATURES as LAW_FEATURES
from dovetail.predictors.kernels import RANGES, Law
from dovetail.predictors.predictor import BoolArray, FloatArray, IntArray

_PRIOR_SPREAD: Final = 1.5
"""Prior standard deviation of the logarithm of a variance."""

_STEPS: Final = 40

SHIFTS: Final = (1.0, 0.3, 0.1)
"""The shifts of the target that are tried, see ``forms.hierarchy.warped``."""

LENGTHS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""The length scales of the batch size that are tried, in doublings."""

_LEAST_ROWS: Final = 20
"""With fewer pairs of states, neither can be chosen."""

_DRAWS: Final = 4
"""Draws of folds for choosing the shift."""

_FOLDS: Final = 5
_WEIGHTS: Final = 11
"""Folds of the pairs for choosing the weight of effects and factors, and the weights tried."""

_CHAINS: Final = 6
_TRIED_CHAINS: Final = 2
"""Markov chains of the final completion, and of those on folds."""

_LAW_ROWS: Final = 400
"""Most rows for the numbers of the law."""

_LEAST_STATES: Final = 5
"""With fewer states, effects cannot be distinguished from factors."""


class Hierarchical(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gaussian process regression that corrects the law of MPS, with a hierarchy of variances.

    C. E. Rasmussen and C. K. I. Williams, *Gaussian Processes for Machine Learning*, MIT Press
    2006, chapters 2 and 5; the covariance is that of a mixed model with random effects of family,
    batch size, workload and profile of either side and of both (``forms.hierarchy``). The variance
    of each effect maximises the marginal likelihood under a log-normal prior; so the data decide
    how much a family says about its members, and a profile about its workload. A completion of the
    matrix of workloads by effects and low-rank factors is stacked onto this (``_factors``), with
    the weight of the smallest error on folds of the pairs: a product of identities knows only
    measured pairs, and workloads that are known by name alone have nothing else in common. The
    mean is the law of MPS (``predictors.kernels``), its numbers fitted to the pairs of which it
    knows the kernels, and the process its correction; for a workload without measurements nothing
    else remains. If kernels are unknown, the mean is that of the analytic model; without metrics it
    is that of the GPU model. What is regressed on, the logarithm of the slowdown or of its excess,
    and how far a batch size reaches are chosen on a part of the pairs.

    X has the columns of ``FEATURES`` for the job, then for its co-runner.

    Parameters
    ----------
    most_rows : int
        The most distinct pairs of states that are fitted; if there are more, a random subset.
    searched_rows, tried_rows : int
        The number of pairs for choosing the variances, and for choosing the target and the length
        scale of batch sizes.
    random_state : int
        Seed of both draws.
    like : Hierarchy, optional
        Use its variances and scales instead of choosing them, for an update with new measurements.

    Attributes
    ----------
    process_ : Hierarchy
        The process alone.
    form_ : Hierarchy
        The process with effects and factors stacked onto it.
    """

    process_: Hierarchy

    def __init__(
        self,
        most_rows: int = 4000,
        searched_rows: int = 600,
        tried_rows: int = 200,
        random_state: int = 0,
        like: Hierarchy | None = None,
    ) -> None:
        self.most_rows = most_rows
        self.searched_rows = searched_rows
        self.tried_rows = tried_rows
        self.random_state = random_state
        self.like = like

    def fit(self, X: FloatArray, y: FloatArray) -> Self:  # noqa: N803
        """Choose the variances and solve for the dual coefficient of every pair of states."""
        table, slowdown = validate_data(
            self, X, y, dtype=np.float64, y_numeric=True, ensure_all_finite="allow-nan"
        )
        if table.shape[1] != 2 * len(FEATURES):
            rule = f"X must have {2 * len(FEATURES)} columns"
            raise ValueError(f"{rule}, got {table.shape[1]} feature(s)")
        draw = np.random.default_rng(self.random_state)
        problem = _DistinctPairs.of(table, slowdown, self.like).part(self.most_rows, draw)
        if self.like is None:
            problem = problem.like_best(problem.part(self.tried_rows, draw).best())
            variances = problem.part(self.searched_rows, draw).variances().chosen
        else:
            chosen = [self.like.weights[term] for term in TERMS]
            variances = np.array([*chosen, SLOPE_VARIANCE, self.like.noise[0]])
        self.process_ = problem.solved(variances)
        self._fitted = problem, variances
        self.__dict__.pop("form_", None)
        return self

    @cached_property
    def form_(self) -> Hierarchy:
        """The fitted form, made on first use: new workloads need no factors."""
        problem, variances = self._fitted
        if self.like is None:
            return problem.stacked(self.process_, variances, self.random_state)
        known = self.like.without_low_rank(problem.states, problem.own, problem.other)
        return replace(self.process_, stack=self.like.stack, named=self.like.named, completed=known)

    def predict(self, X: FloatArray) -> FloatArray:  # noqa: N803
        """Return the slowdown of each row."""
        check_is_fitted(self)
        table = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
        states, own, other = _states_of(table)
        known = np.isin(states[:, WORKLOAD], self.process_.trained[:, WORKLOAD])
        form = self.form_ if (known[own] & known[other]).any() else self.process_
        return form.predict(states, own, other)

    def standard_error(self, X: FloatArray) -> FloatArray:  # noqa: N803
        """Return the standard error of the logarithm of each row for a single new measurement."""
        return self.process_.standard_error(*_states_of(X))

    def to_form(self) -> Hierarchy:
        """Return the fitted form."""
        check_is_fitted(self)
        return self.form_

    def __sklearn_tags__(self) -> Tags:
        """Declare that features may be unknown and that slowdowns are positive."""
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.positive_only = True
        return tags


class _Variances(NamedTuple):
    """The variances, and the negative logarithm of their posterior."""

    chosen: FloatArray
    loss: float


class _DistinctPairs(NamedTuple):
    """Distinct pairs of states, with the mean of their measurements.

    Attributes
    ----------
    states : ndarray of float, shape (states, 18)
        As in ``FEATURES``.
    own, other : ndarray of int, shape (cells,)
        The two states of each pair.
    logarithm, said : ndarray of float, shape (cells,)
        The logarithm of the slowdown minus that of the own state alone, measured and by the
        contention model.
    repeats : ndarray of float, shape (cells,)
        The number of measurements of the pair.
    scale : ndarray of float, shape (2, 6)
    exponent : float
    law : ndarray of float, shape (4,)
    shift, batches : float
        See ``Hierarchy``.
    """

    states: FloatArray
    own: IntArray
    other: IntArray
    logarithm: FloatArray
    said: FloatArray
    repeats: FloatArray
    scale: FloatArray
    exponent: float
    law: FloatArray
    shift: float = 1.0
    batches: float = 2.0

    @classmethod
    def of(cls, table: FloatArray, slowdown: FloatArray, like: Hierarchy | None) -> Self:
        """Collect the measurements of each pair of states."""
        stacked = np.vstack(np.hsplit(table, 2))
        # NaN does not equal NaN in a comparison of rows, so it is replaced by a number.
        known = np.where(np.isnan(stacked), np.inf, stacked)
        _, first, place = np.unique(known, axis=0, return_index=True, return_inverse=True)
        states, ends = stacked[first], place.reshape(2, -1)
        (own, other), cell = np.unique(ends, axis=1, return_inverse=True)
        scale = _scale(states) if like is None else like.scale
        exponent = _exponent(states) if like is None else float(like.exponent[0])
        logarithm = np.log(np.maximum(slowdown, np.finfo(float).tiny))
        logarithm -= log_alone(states, exponent)[ends[0]]
        repeats = np.bincount(cell).astype(np.float64)
        mean = np.bincount(cell, logarithm) / repeats
        if like is None:
            law = _law(table, slowdown)
            said = contention(states, own, other, ContentionParameters(law, exponent))
            return cls(states, own, other, mean, said, repeats, scale, exponent, law)
        said = contention(states, own, other, ContentionParameters(like.law, exponent))
        chosen = float(like.shift[0]), float(like.batches[0])
        return cls(states, own, other, mean, said, repeats, scale, exponent, like.law, *chosen)

    @property
    def value(self) -> FloatArray:
        """The logarithm, ``warped``."""
        return warped(self.logarithm, self.shift)

    @property
    def contention(self) -> FloatArray:
        """The contention, ``warped`` and 0 if there is none."""
        return warped(self.said, self.shift) - warped(np.zeros(1), self.shift)

    @property
    def precision(self) -> FloatArray:
        """The inverse variance of each value, in units of that of a logarithm's measurement."""
        return self.repeats * steepness(self.value, self.shift) ** 2

    def part(self, most: int, draw: np.random.Generator) -> _DistinctPairs:
        """Return the problem with at most ``most`` pairs of states, drawn at random."""
        if len(self.own) <= most:
            return self
        kept = np.sort(draw.choice(len(self.own), most, replace=False))
        return self._replace(
            own=self.own[kept],
            other=self.other[kept],
            logarithm=self.logarithm[kept],
            said=self.said[kept],
            repeats=self.repeats[kept],
        )

    @property
    def mean(self) -> float:
        """The mean of the process: the median residual of the contention model."""
        return float(np.median(self.value - self.contention))

    # With so few rows each step takes a millisecond: threads would wait for each other for longer.
    @threadpool_limits.wrap(limits=1, user_api="blas")  # type: ignore[untyped-decorator]
    def variances(self) -> _Variances:
        """Choose the variances of ``TERMS``, of the slope and of the noise.

        The negative logarithm of the marginal likelihood and its gradient are in closed form
        (Rasmussen and Williams, equations 5.8 and 5.9); the prior of each variance is log-normal
        around an equal part of the variance of the data.
        """
        left, precision = self._left, self.precision
        spread = max(float(left.var()), 1e-6)
        count = len(left)
        # Half of each symmetric matrix, in single precision: most of the time goes into reading.
        lower = row, column = np.tril_indices(count)
        on = row == column
        parts = (*self._parts(), np.outer(self.contention, self.contention))
        flat = np.stack([part[lower] for part in parts]).astype(np.float32)
        times = np.where(on, 1.0, 2.0)
        center = np.log(np.append(np.full(len(flat), spread / len(flat)), 0.05 * spread))
        center[-2] = np.log(SLOPE_VARIANCE)
        diagonal = np.diag_indices(count)
        covariance = np.zeros((count, count))

        def loss(logarithms: FloatArray) -> tuple[float, FloatArray]:
            weight = np.exp(logarithms)
            covariance[lower] = weight[:-1].astype(np.float32) @ flat
            covariance[diagonal] += weight[-1] / precision + 1e-4 * spread
            half, failed = lapack.dpotrf(covariance, lower=1)
            if failed:
                return np.inf, np.zeros_like(logarithms)
            dual = lapack.dpotrs(half, left, lower=1)[0]
            gap = lapack.dpotri(half, lower=1)[0][lower] - dual[row] * dual[column]
            slopes = np.append(flat @ (gap * times).astype(np.float32), (gap[on] / precision).sum())
            off = (logarithms - center) / _PRIOR_SPREAD
            value = 0.5 * left @ dual + np.log(np.diag(half)).sum() + 0.5 * off @ off
            return float(value), 0.5 * weight * slopes + off / _PRIOR_SPREAD

        found = minimize(
            loss,
            center,
            jac=True,
            method="L-BFGS-B",
            bounds=[(c - 14, c + 6) for c in center],
            # Finer steps move predictions by less than half a per cent and take twice as long.
            options={"maxiter": _STEPS, "ftol": 1e-6},
        )
        chosen = np.exp(found.x)
        chosen[-1] += 1e-4 * spread
        return _Variances(np.asarray(chosen), float(found.fun))

    def best(self) -> _DistinctPairs:
        """Return the problem with the best target and length scale of batch sizes.

        The shift of the target has the smallest error of slowdowns on folds of the pairs, the
        length scale the largest marginal likelihood.
        """
        if len(self.value) < _LEAST_ROWS:
            return self
        tried = [self._replace(shift=shift) for shift in SHIFTS]
        errors = [one.error_held_out(one.variances().chosen) for one in tried]
        best = tried[int(np.argmin(errors))]
        if not best.sizes_differ:
            return best
        tried = [best._replace(batches=length) for length in LENGTHS]
        losses = [one.variances().loss for one in tried]
        return tried[int(np.argmin(losses))]

    def like_best(self, best: _DistinctPairs) -> _DistinctPairs:
        """Return the problem with the target and the length scale of another."""
        return self._replace(shift=best.shift, batches=best.batches)

    @property
    def sizes_differ(self) -> bool:
        """Whether a family has several batch sizes."""
        described = np.nan_to_num(self.states[:, [FAMILY, BATCH]], nan=-1.0)
        return len(np.unique(described, axis=0)) > len(np.unique(described[:, 0]))

    def error_held_out(self, variances: FloatArray) -> float:
        """Return the mean absolute error of slowdowns by the process, over several draws of folds.

        One draw would decide by chance where there are few pairs.
        """
        alone = log_alone(self.states, self.exponent)[self.own]
        truth = np.exp(alone + self.logarithm)
        found = [self.held_out(variances, seed) for seed in range(_DRAWS)]
        return float(np.mean([abs(np.exp(alone + unwarped(v, self.shift)) - truth) for v in found]))

    def solved(self, variances: FloatArray) -> Hierarchy:
        """Return the process fitted to all of the pairs."""
        *terms, of_slope, noise = variances.tolist()
        weights = np.zeros((KERNELS, KERNELS))
        for (a, b), weight in zip(TERMS, terms, strict=True):
            weights[a, b] = weight
        dual = cho_solve(self._factored(variances), self._left)
        gathered = np.zeros((len(self.states),) * 2)
        gathered[self.own, self.other] = dual
        return Hierarchy(
            mean=np.array([self.mean]),
            limits=self.limits,
            weights=weights,
            slope=np.array([1 + of_slope * self.contention @ dual]),
            noise=np.array([noise]),
            exponent=np.array([self.exponent]),
            shift=np.array([self.shift]),
            batches=np.array([self.batches]),
            law=self.law,
            scale=self.scale,
            trained=self.states,
            dual=gathered,
        )

    def held_out(self, variances: FloatArray, seed: int = 0) -> FloatArray:
        """Return the prediction of the process for each pair from the pairs of the other folds.

        With the inverse G of the covariance and the dual a, this is the value minus ``G_BB^-1
        a_B`` for a fold B (Rasmussen and Williams, section 5.4.2, for blocks).
        """
        half = self._factored(variances)
        inverse = cho_solve(half, np.eye(len(self.value)))
        dual = inverse @ self._left
        fold, found = self.fold(seed), np.empty(len(self.value))
        for k in range(_FOLDS):
            rows = np.flatnonzero(fold == k)
            found[rows] = np.linalg.solve(inverse[np.ix_(rows, rows)], dual[rows])
        return self.contention + np.clip(self.value - found - self.contention, *self.limits)

    def _factored(self, variances: FloatArray) -> tuple[FloatArray, bool]:
        """Return the Cholesky factor of the covariance of all pairs."""
        *terms, of_slope, noise = variances.tolist()
        alike = kernels(self.states, self.states, self.scale, self.batches)
        weights = np.zeros((KERNELS, KERNELS))
        for (a, b), weight in zip(TERMS, terms, strict=True):
            weights[a, b] = weight
        of_other = np.tensordot(weights, alike, 1)
        covariance = of_slope * np.outer(self.contention, self.contention)
        for mine, theirs in zip(alike, of_other, strict=True):
            covariance += _between(mine, self.own) * _between(theirs, self.other)
        covariance[np.diag_indices_from(covariance)] += noise / self.precision
        half, lower = cho_factor(covariance, overwrite_a=True)
        return half, lower

    @property
    def limits(self) -> FloatArray:
        """The lowest and the highest residual of the contention model."""
        residual = self.value - self.contention
        return np.array([residual.min(), residual.max()])

    @property
    def _left(self) -> FloatArray:
        """The residuals of the mean and the contention model."""
        return self.value - self.contention - self.mean

    def fold(self, seed: int = 0) -> IntArray:
        """The fold of each pair of states; all pairs of two workloads are in one fold."""
        code = self.states[:, WORKLOAD]
        ends = np.sort(np.stack([code[self.own], code[self.other]]), axis=0)
        _, pair = np.unique(ends, axis=1, return_inverse=True)
        pair = pair.ravel()
        order = np.random.default_rng(seed).permutation(int(pair.max(initial=0)) + 1)
        return np.asarray(order[pair] % _FOLDS)

    def stacked(self, form: Hierarchy, variances: FloatArray, seed: int) -> Hierarchy:
        """Return the process with effects and factors stacked onto it.

        Their weight minimises the mean absolute error of slowdowns on folds of the pairs, each
        predicted by both from all others; it is 0 unless that lowers the error by more than one
        standard error.
        """
        named = ~np.isnan(self.states[:, WORKLOAD])
        if not named.all() or len(self.states) < _LEAST_STATES:
            return form
        fold, by_factors = self.fold(), np.full(len(self.value), np.nan)
        for k in range(_FOLDS):
            test = fold == k
            found = self._completed(~test, _TRIED_CHAINS, seed)
            by_factors[test] = found[self.own[test], self.other[test]]
        told = ~np.isnan(by_factors)
        if not told.any():
            return form
        alone = log_alone(self.states, self.exponent)[self.own[told]]
        truth = np.exp(alone + self.logarithm[told])
        steps = np.linspace(0, 1, _WEIGHTS)[:, np.newaxis]
        mixed = (1 - steps) * self.held_out(variances)[told] + steps * by_factors[told]
        error = np.abs(np.exp(alone + unwarped(mixed, self.shift)) - truth)
        best = int(error.sum(axis=1).argmin())
        gained = error[0] - error[best]
        if gained.mean() <= gained.std() / np.sqrt(len(gained)):
            return form
        weight = float(steps[best, 0])
        completed = self._completed(np.ones(len(self.value), dtype=np.bool_), _CHAINS, seed)
        completed[self.own, self.other] = np.nan
        return replace(
            form,
            stack=np.array([weight]),
            named=self.states[:, [WORKLOAD, SHARE]],
            completed=completed,
        )

    def _completed(self, rows: BoolArray, chains: int, seed: int) -> FloatArray:
        """Return the predictions of effects and factors; NaN for unmeasured states."""
        ends = np.concatenate([self.own[rows], self.other[rows]])
        used, place = np.unique(ends, return_inverse=True)
        own, other = place.reshape(2, -1)
        cells = Cells(own, other, self.value[rows], self.repeats[rows])
        found = np.full((len(self.states),) * 2, np.nan)
        found[np.ix_(used, used)] = completed(cells, self._group(used), chains=chains, seed=seed)
        return found

    def _group(self, states: IntArray) -> IntArray:
        """Return a number for the family and the share of each state.

        If no family has two workloads, families carry no information and are left out.
        """
        described = np.nan_to_num(self.states[states], nan=-1.0)
        workloads = len(np.unique(described[:, WORKLOAD]))
        columns = [SHARE] if len(np.unique(described[:, FAMILY])) == workloads else [FAMILY, SHARE]
        return np.asarray(np.unique(described[:, columns], axis=0, return_inverse=True)[1].ravel())

    def _parts(self) -> list[FloatArray]:
        alike = kernels(self.states, self.states, self.scale, self.batches)
        mine = [_between(kernel, self.own) for kernel in alike]
        theirs = [_between(kernel, self.other) for kernel in alike]
        return [mine[a] * theirs[b] for a, b in TERMS]


def _scale(states: FloatArray) -> FloatArray:
    """Return center and scale of the described columns; 0 if most states lack the column."""
    profile = states[:, DESCRIBED]
    found = np.zeros((2, len(DESCRIBED)))
    for k in np.flatnonzero(np.isnan(profile).mean(axis=0) < 0.5).tolist():
        known = profile[~np.isnan(profile[:, k]), k]
        found[:, k] = known.mean(), known.std()
    for first, second in INSTEAD:
        columns = DESCRIBED.index(first), DESCRIBED.index(second)
        known = [int((~np.isnan(profile[:, k])).sum()) for k in columns]
        found[:, columns[known[0] >= known[1]]] = 0.0
    return found


def _law(table: FloatArray, slowdown: FloatArray) -> FloatArray:
    """Return the numbers of the law, fitted to the pairs of which a job's kernels are known."""
    halves = np.hsplit(table, 2)
    known = [~np.isnan(half[:, [LAUNCHES, KERNEL]]).all(axis=1) for half in halves]
    rows = np.flatnonzero(known[0] | known[1])
    rows = rows[:: 1 + len(rows) // _LAW_ROWS]
    columns = [FEATURES.index(name) for name in LAW_FEATURES]
    asked = np.hstack([half[rows][:, columns] for half in halves])
    if not len(rows):
        return np.array([getattr(Law(), name) for name in RANGES])
    law = LawOfMps().fit(asked, slowdown[rows]).form_.law
    return np.array([getattr(law, name) for name in RANGES])


def _exponent(states: FloatArray) -> float:
    """Return the mean exponent of the solo curves, or 1 (linear scaling) if there are none."""
    capped = (states[:, SHARE] < 1) & ~np.isnan(states[:, ALONE])
    if not capped.any():
        return 1.0
    return float(np.mean(-states[capped, ALONE] / np.log(states[capped, SHARE])))


def _states_of(table: FloatArray) -> tuple[FloatArray, IntArray, IntArray]:
    rows = np.arange(len(table))
    return np.concatenate(np.split(table, 2, axis=1)), rows, rows + len(table)


def _between(kernel: FloatArray, ends: IntArray) -> FloatArray:
    return np.take(kernel[ends], ends, axis=1)


SPEC = ModelSpec(
    features=FEATURES,
    build=lambda seed: Hierarchical(random_state=seed),
    least=0,
    partial=True,
)
