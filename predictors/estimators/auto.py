"""The model that is best on held-out workloads, or a blend where that is truly better."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, eye_array, hstack, vstack
from sklearn.base import clone

from dovetail.predictors.estimators._coded import CODES, CodedRegressor
from dovetail.predictors.estimators.coscheml import CoScheML
from dovetail.predictors.estimators.kernel import KernelRegressor
from dovetail.predictors.estimators.registry import PairEstimator
from dovetail.predictors.fits import MEASURED, NEW
from dovetail.predictors.folds import Fold, HeldOut, group_folds
from dovetail.predictors.predictor import BoolArray, FloatArray, IntArray

_RANDOM_FOLDS = 5
_MOST_FAMILIES = 25
_KEPT = 0.02
"""Weights below this are dropped: a member costs time in every prediction."""


class Candidate(NamedTuple):
    """A model that may be chosen: its name, the estimator, and the features that it sees.

    ``columns`` are positions in a half of the table; None: all that describe the workload.
    """

    name: str
    estimator: PairEstimator
    columns: tuple[int, ...] | None = None


class Auto(CodedRegressor):
    """Choose among models by what they do to workloads that they have not seen.

    Every candidate predicts pairs held out in two ways: with all pairs of a family of
    workloads (left-out families stand for workloads that are new), and at random (pairs that
    are missing between workloads measured in others). For each of the two the candidates are
    blended with weights >= 0 that sum to 1 and have the least mean absolute error, a linear
    program (stacked regressions with non-negative weights: L. Breiman, *Machine Learning* 24,
    1996). The blend is itself tried on folds that its weights have not seen, and is
    taken only if it beats the best single candidate there; both are found without the fold.

    Parameters
    ----------
    candidates : sequence of Candidate, optional
        What to choose from; a random forest and the Gaussian process by default.
    coded : bool
        Whether the last two columns of each half are codes of family and workload. Without
        them each distinct state is a workload and a family of its own.
    random_state : int
        Seed of the random folds.
    on_fit : callable, optional
        Called after every fit on a fold with the fits done and the fits in all.

    Attributes
    ----------
    weights_ : ndarray of float, shape (2, candidates)
        For pairs with a new workload (row ``fits.NEW``), and for pairs of measured ones (row
        ``fits.MEASURED``); so are the other attributes.
    errors_ : ndarray of float, shape (2, candidates)
        Mean absolute errors of the candidates on held-out rows; NaN for one that had no answer
        for some of them, which then has no weight.
    folds_ : tuple of tuple of Fold
        What was held out in the two settings.
    held_out_ : tuple of HeldOut
        What ``auto`` predicts for the held-out rows, each fold with the weights that the other
        folds give.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        candidates: Sequence[Candidate] | None = None,
        coded: bool = False,
        random_state: int = 0,
        on_fit: Callable[[int, int], None] | None = None,
    ) -> None:
        self.candidates = candidates
        self.coded = coded
        self.random_state = random_state
        self.on_fit = on_fit

    def fit(self, X: FloatArray, y: FloatArray) -> Self:  # noqa: N803
        """Try the candidates on held-out rows, weigh them, and fit those that have a weight."""
        X, y = self._fitted_on(X, y, least=4)  # noqa: N806
        self.candidates_ = self._chosen()
        trial = _Trial(self.candidates_, X, y, self.coded, self.random_state, self.on_fit)
        settings = [trial.held_out(folds) for folds in (trial.family_folds, trial.random_folds)]
        choices = [_choose_answering(tested, y) for tested in settings]
        self.weights_ = np.array([choice.weights for choice in choices])
        self.errors_ = np.array([_errors(tested, y) for tested in settings])
        self.folds_ = trial.family_folds, trial.random_folds
        self.held_out_ = tuple(choice.held_out for choice in choices)
        self.fitted_ = {
            k: trial.fitted(k, np.ones(len(y), dtype=np.bool_))
            for k in np.flatnonzero(self.weights_.any(axis=0)).tolist()
        }
        return self

    def predict(self, X: FloatArray) -> FloatArray:  # noqa: N803
        """Return the slowdown of each row."""
        X = self._asked(X)  # noqa: N806
        measured = _measured(X, self.coded)
        found = np.zeros(len(X))
        for k, member in self.fitted_.items():
            weight = np.where(measured, self.weights_[MEASURED, k], self.weights_[NEW, k])
            rows = np.flatnonzero(weight)
            if len(rows):
                part = _part(X, self.candidates_[k], self.coded)[rows]
                found[rows] += weight[rows] * member.predict(part)
        return found

    def _chosen(self) -> tuple[Candidate, ...]:
        if self.candidates is not None:
            return tuple(self.candidates)
        forest = Candidate("coscheml", CoScheML(random_state=self.random_state))
        process = KernelRegressor(self.coded, random_state=self.random_state)
        every = None if not self.coded else tuple(range(self.n_features_in_ // 2))
        return forest, Candidate("kernel", process, every)


class _Tested(NamedTuple):
    """Held-out predictions of all candidates, shape (tested, candidates)."""

    row: IntArray
    fold: IntArray
    slowdown: FloatArray


class _Choice(NamedTuple):
    weights: FloatArray
    held_out: HeldOut


class _Trial:
    """The candidates, fitted and tested on parts of the rows."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        X: FloatArray,  # noqa: N803
        y: FloatArray,
        coded: bool,
        seed: int,
        on_fit: Callable[[int, int], None] | None,
    ) -> None:
        self._tables = [_part(X, candidate, coded) for candidate in candidates]
        self._candidates = candidates
        self._slowdown = y
        self._on_fit = on_fit
        halves = np.vstack(np.hsplit(X, 2))
        _, state = np.unique(halves, axis=0, return_inverse=True, equal_nan=True)
        family, workload = halves[:, -CODES:].T.astype(np.int64) if coded else (state, state)
        self.family_folds = tuple(_family_folds(family[: len(X)], family[len(X) :]))
        self.random_folds = tuple(_random_folds(workload[: len(X)], workload[len(X) :], seed))
        self._done = 0

    def held_out(self, folds: Sequence[Fold]) -> _Tested:
        row, fold, found = [], [], []
        for k, (train, test) in enumerate(folds):
            tested = np.flatnonzero(test)
            members = [self._told(self.fitted(c, train)) for c in range(len(self._candidates))]
            tables = [table[test] for table in self._tables]
            found.append([m.predict(t) for m, t in zip(members, tables, strict=True)])
            row.append(tested)
            fold.append(np.full(len(tested), k))
        slowdown = np.concatenate([np.array(part).T for part in found])
        return _Tested(np.concatenate(row), np.concatenate(fold), slowdown)

    def fitted(self, candidate: int, train: BoolArray) -> PairEstimator:
        estimator: PairEstimator = clone(self._candidates[candidate].estimator)
        return estimator.fit(self._tables[candidate][train], self._slowdown[train])

    def _told(self, fitted: PairEstimator) -> PairEstimator:
        self._done += 1
        if self._on_fit:
            folds = len(self.family_folds) + len(self.random_folds)
            self._on_fit(self._done, folds * len(self._candidates))
        return fitted


def _choose_answering(tested: _Tested, y: FloatArray) -> _Choice:
    """Choose among the candidates that answered for every row: a blend asks all of them."""
    answering = np.asarray(~np.isnan(tested.slowdown).any(axis=0))
    chosen = _choose(tested._replace(slowdown=tested.slowdown[:, answering]), y)
    weights = np.zeros(len(answering))
    weights[answering] = chosen.weights
    return chosen._replace(weights=weights)


def _choose(tested: _Tested, y: FloatArray) -> _Choice:
    """Return the weights, and what they would have been worth on rows they had not seen."""
    truth = y[tested.row]
    blended, single = (np.empty(len(truth)) for _ in range(2))
    for k in np.unique(tested.fold):
        here = tested.fold == k
        rest = ~np.isin(tested.row, tested.row[here])
        if not rest.any():
            rest = here
        weights = _weights(tested.slowdown[rest], truth[rest])
        best = np.abs(tested.slowdown[rest] - truth[rest, np.newaxis]).mean(axis=0).argmin()
        blended[here] = tested.slowdown[here] @ weights
        single[here] = tested.slowdown[here, best]
    errors = np.abs(tested.slowdown - truth[:, np.newaxis]).mean(axis=0)
    if np.abs(blended - truth).mean() < np.abs(single - truth).mean():
        weights, found = _weights(tested.slowdown, truth), blended
    else:
        weights, found = np.eye(len(errors))[errors.argmin()], single
    return _Choice(weights, HeldOut(tested.row, tested.fold, found))


def _errors(tested: _Tested, y: FloatArray) -> FloatArray:
    return np.asarray(np.abs(tested.slowdown - y[tested.row, np.newaxis]).mean(axis=0))


def _weights(predicted: FloatArray, truth: FloatArray) -> FloatArray:
    """Return the weights >= 0 of sum 1 with the least mean absolute error.

    Variables are the weights, then the error of each row; the rows of the program say that
    the error is at least the difference, and at least its negative.
    """
    rows, members = predicted.shape
    values, error = csr_array(predicted), eye_array(rows)
    program = linprog(
        np.concatenate([np.zeros(members), np.full(rows, 1 / rows)]),
        A_ub=vstack([hstack([values, -error]), hstack([-values, -error])], format="csr"),
        b_ub=np.concatenate([truth, -truth]),
        A_eq=np.concatenate([np.ones(members), np.zeros(rows)])[np.newaxis],
        b_eq=[1.0],
        method="highs",
    )
    found = np.asarray(program.x)[:members]
    weights = np.where(found < _KEPT, 0.0, found)
    return np.asarray(weights / weights.sum())


def _family_folds(own: IntArray, other: IntArray) -> Iterator[Fold]:
    """Return a fold for each family, or for each of a few groups of many families."""
    families = np.unique(np.concatenate([own, other]))
    group = np.arange(len(families)) % _MOST_FAMILIES
    mine, theirs = (group[np.searchsorted(families, ends)] for ends in (own, other))
    return group_folds(mine, theirs)


def _random_folds(own: IntArray, other: IntArray, seed: int) -> Iterator[Fold]:
    """Yield folds that part unordered pairs of workloads at random."""
    ends = np.sort(np.stack([own, other], axis=1), axis=1)
    _, pair = np.unique(ends, axis=0, return_inverse=True)
    pairs = pair.max() + 1
    part = np.random.default_rng(seed).permutation(pairs) % _RANDOM_FOLDS
    for k in range(min(_RANDOM_FOLDS, pairs)):
        test = part[pair] == k
        yield Fold(~test, test)


def _part(X: FloatArray, candidate: Candidate, coded: bool) -> FloatArray:  # noqa: N803
    """Return the columns that a candidate sees, of both halves."""
    half = X.shape[1] // 2
    described = range(half - CODES if coded else half)
    columns = np.array(described if candidate.columns is None else candidate.columns)
    return X[:, np.concatenate([columns, columns + half])]


def _measured(X: FloatArray, coded: bool) -> BoolArray:  # noqa: N803
    """Tell the rows of which both workloads are known; all, where there are no codes."""
    if not coded:
        return np.ones(len(X), dtype=np.bool_)
    half = X.shape[1] // 2
    return np.asarray(~np.isnan(X[:, [half - 1, -1]]).any(axis=1))
