"""How well models predict pairs that they have not seen, and the consequences of their errors.

A row is one job of a measured pair. If a test leaves families out, a pair of two families is
tested twice; each of its two tests then has weight one half, in every measure, so that each
measured pair counts once. The two predictions are not averaged first: an average would have a
smaller error than a user's prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from dovetail.instances._record import Record
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.errors import UnsupportedError
from dovetail.predictors.estimators.registry import ModelSpec, Progress, spec
from dovetail.predictors.features import Features
from dovetail.predictors.fitted.bounds import calibrate
from dovetail.predictors.fitted.folds import (
    Fold,
    family_folds,
    fitted,
    random_folds,
    variant_folds,
    workload_folds,
)
from dovetail.predictors.fitted.rows import DirectedRows, HeldOut, measured_pairs
from dovetail.predictors.fitted.standing import novelty, standings
from dovetail.predictors.fitted.training import HeldOutPredictions, PreparedModel, prepared, tried
from dovetail.predictors.predictor import BoolArray, FloatArray, IntArray

Setting = Literal["random", "workload", "family", "two_families", "gpu_model"]
SETTINGS: Final[tuple[Setting, ...]] = get_args(Setting)

GSLAS: Final = (1.2, 1.5, 2.0)
"""The gSLAs at which pairs are accepted or refused."""

LEVELS: Final = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""The confidences at which promises are compared with measurements."""

UNDER: Final = 0.1
"""A slowdown that exceeds its prediction by more than this is under-predicted."""


class Accuracy(Record):
    """The errors of predictions.

    Attributes
    ----------
    rows : int
        Measured rows that were predicted.
    unanswered : int
        Measured rows for which the model had no answer; no measure below includes them.
    smape : float
        Symmetric mean absolute percentage error, 0 to 200 %.
    mae, rmse, r2 : float
        Mean absolute error, root of the mean squared error, coefficient of determination (None if
        all measured values are equal).
    bias : float
        Mean of predicted - measured: below 0, jobs are slower than predicted.
    under : float
        Fraction of the rows that were under-predicted by more than ``UNDER``.
    """

    rows: int
    unanswered: int
    smape: float
    mae: float
    rmse: float
    r2: float | None
    bias: float
    under: float


class Decisions(Record):
    """Pairs that predictions accept or refuse, compared with measurements.

    A pair is acceptable if the slowdowns of both jobs are at most ``gsla``. Counts are sums of the
    weights of pairs, so a pair that only one of two tests got wrong counts one half.
    """

    gsla: float
    pairs: float
    acceptable: float
    wrongly_accepted: float
    wrongly_refused: float

    @property
    def accepted_rate(self) -> float:
        """Wrongly accepted pairs as a fraction of all pairs."""
        return self.wrongly_accepted / self.pairs

    @property
    def refused_rate(self) -> float:
        """Wrongly refused pairs as a fraction of all pairs."""
        return self.wrongly_refused / self.pairs


class Coverage(Record):
    """How often an upper bound held.

    ``job`` is the fraction of rows with a bound whose measured slowdown is at most the bound,
    ``pair`` the fraction of pairs with two bounds that both hold, None without such pairs;
    ``width`` is the mean of bound - prediction. ``bounded`` is the fraction of rows that have a
    bound: the data may be too few for one.
    """

    confidence: float
    job: float
    pair: float | None
    width: float
    bounded: float


class Evaluation(Record):
    """One model in one setting: errors, decisions by prediction and by bound, coverage."""

    model: str
    setting: Setting
    features: tuple[str, ...]
    folds: int
    accuracy: Accuracy
    by_prediction: tuple[Decisions, ...]
    by_bound: tuple[Decisions, ...]
    coverage: Coverage | None


class NotApplicable(Record):
    """A model that could not be tested in a setting, and why."""

    model: str
    setting: Setting
    reason: str


@dataclass(frozen=True)
class Trial:
    """Held-out predictions of a model.

    Attributes
    ----------
    model : str
        Name of the model.
    spec : ModelSpec
        The model's specification.
    setting : str
        The setting, which says what was left out.
    features : Features
        The features of the model.
    rows : DirectedRows
        All measured rows.
    folds : tuple of Fold
        The folds.
    held : HeldOut
        The predictions; a test is a position in it.
    confidences : tuple of float
        The confidences of ``uppers``.
    uppers : ndarray of float, shape (confidences, tests)
        Bounds, see ``cross_calibrated``.
    """

    model: str
    spec: ModelSpec
    setting: Setting
    features: Features
    rows: DirectedRows
    folds: tuple[Fold, ...]
    held: HeldOut
    confidences: tuple[float, ...]
    uppers: FloatArray

    @property
    def measured(self) -> FloatArray:
        """The measured slowdown of each test."""
        return self.rows.slowdown[self.held.row]

    @property
    def predicted(self) -> FloatArray:
        """The predicted slowdown of each test."""
        return self.held.slowdown

    @property
    def weight(self) -> FloatArray:
        """The weight of each test; the weights of a row sum to 1."""
        times = np.bincount(self.held.row)[self.held.row]
        return np.asarray(1.0 / times, dtype=np.float64)

    @property
    def pair(self) -> IntArray:
        """The measured pair of each test."""
        return self.rows.pair[self.held.row]

    def upper(self, confidence: float) -> FloatArray:
        """Return the bound of each test at one of ``confidences``."""
        return np.asarray(self.uppers[self.confidences.index(confidence)])


def evaluate(
    data: DataSet,
    models: Sequence[str],
    settings: Sequence[Setting] = ("random", "family", "gpu_model"),
    gpu_models: Sequence[str] | None = None,
    confidence: float = 0.9,
    seed: int = 0,
    progress: Progress | None = None,
    rounds: int = 8,
) -> Iterator[Trial | NotApplicable]:
    """Test every model in every setting.

    Parameters
    ----------
    data : DataSet
        Profiles and measurements.
    models : sequence of str
        Names of models, as for ``training.fit``.
    settings : sequence of str
        ``random``: five folds of pairs between workloads that are known from other pairs.
        ``workload``: one workload is new, not its family; one fit for every workload.
        ``family``: one family of workloads is new. ``two_families``: both workloads of a pair
        are new; one fit for every two families. ``gpu_model``: a GPU model is new.
    gpu_models : sequence of str, optional
        Take these GPU models only.
    confidence : float
        Of the bounds.
    seed : int
        Same seed, same folds, fits and bounds.
    progress : callable, optional
        Called before each test.
    rounds : int
        Rounds drawn for every calibration of bounds, see ``calibrate``; each fold has its own.

    Raises
    ------
    InputError
        When no pair was measured.
    UnsupportedError
        When a model has an unknown name or the library that fits it is not installed.
    """
    for name in models:
        spec(name)
    for k, name in enumerate(models):
        report = _reporter(progress, k * len(settings), len(models) * len(settings))
        yield from _tested(
            _Subject(name, data, gpu_models, seed, rounds), settings, confidence, report
        )


SETTING_NAMES: Final[dict[Setting, str]] = {
    "random": "new pairs",
    "workload": "new workload",
    "family": "new family",
    "two_families": "two new families",
    "gpu_model": "new GPU model",
}
"""What each setting tests."""


class _Subject(NamedTuple):
    """The model and the data of a test."""

    name: str
    data: DataSet
    gpu_models: Sequence[str] | None
    seed: int
    rounds: int


def _reporter(progress: Progress | None, done: int, total: int) -> Callable[[str, int], None]:
    def report(what: str, more: int) -> None:
        if progress is not None:
            progress(what, done + more, total)

    return report


def _tested(
    subject: _Subject,
    settings: Sequence[Setting],
    confidence: float,
    report: Callable[[str, int], None],
) -> Iterator[Trial | NotApplicable]:
    name, data, gpu_models, seed, rounds = subject
    try:
        what = prepared(data, name, gpu_models)
    except UnsupportedError as error:
        yield from (NotApplicable(model=name, setting=s, reason=str(error)) for s in settings)
        return
    rows = what.rows
    tries: dict[Setting, HeldOutPredictions] = {}
    # Bounds are calibrated on the errors in these two settings and of variants, in all tests.
    for setting in dict.fromkeys((*_CALIBRATING, *settings)):
        report(f"{name}: {SETTING_NAMES[setting]}", len(set(tries) & set(settings)))
        tries[setting] = _try(setting, what, data, gpu_models, seed)
    known, family = (tries[setting].held for setting in _CALIBRATING)
    unseen = family.joined(tried(what, variant_folds(rows), seed).held)
    confidences = tuple(sorted({*LEVELS, confidence}))
    for k, setting in enumerate(settings):
        report(f"{name}: bounds, {SETTING_NAMES[setting]}", k)
        folds, held = tries[setting]
        if np.isnan(held.slowdown).all():
            reason = "has no answer for what is new" if len(held.row) else _TOO_FEW[setting]
            yield NotApplicable(model=name, setting=setting, reason=reason)
            continue
        uppers = cross_calibrated(rows, folds, held, known, unseen, confidences, rounds, seed)
        yield Trial(name, what.spec, setting, what.features, rows, folds, held, confidences, uppers)


_CALIBRATING: Final[tuple[Setting, Setting]] = ("random", "family")

_TOO_FEW: Final[dict[Setting, str]] = {
    "random": "needs at least two measured pairs",
    "workload": "needs at least two workloads, each with pairs that lack it",
    "family": "needs at least two families, each with pairs that lack it",
    "two_families": "needs at least three families",
    "gpu_model": "needs pairs measured on at least two GPU models",
}


def _try(
    setting: Setting,
    what: PreparedModel,
    data: DataSet,
    gpu_models: Sequence[str] | None,
    seed: int,
) -> HeldOutPredictions:
    rows = what.rows
    if setting == "random":
        return tried(what, random_folds(rows, seed=seed), seed)
    if setting == "gpu_model":
        of_pairs = [found.gpu_model for found in measured_pairs(data, gpu_models)]
        return tried(what, gpu_model_folds(rows, of_pairs), seed)
    folds = {"workload": workload_folds, "family": family_folds, "two_families": two_family_folds}
    return tried(what, folds[setting](rows), seed)


def gpu_model_folds(rows: DirectedRows, gpu_model: Sequence[str]) -> Iterator[Fold]:
    """Yield a fold for each GPU model: tested on its pairs, fitted on those of all other models.

    Parameters
    ----------
    rows : DirectedRows
        The measured rows.
    gpu_model : sequence of str
        The GPU model of each measured pair.
    """
    of_row = np.array(gpu_model)[rows.pair]
    for name in dict.fromkeys(gpu_model):
        test = np.asarray(of_row == name)
        if not test.all():
            yield Fold(~test, test)


def two_family_folds(rows: DirectedRows) -> Iterator[Fold]:
    """Yield a fold for every two families: tested on their pairs, fitted on those without both.

    Every row is tested once. A family with itself is a fold as well.
    """
    family = np.unique(np.array(rows.families), return_inverse=True)[1]
    own, other = family[rows.own_workload], family[rows.other_workload]
    for a, b in combinations_with_replacement(range(family.max() + 1), 2):
        test = ((own == a) & (other == b)) | ((own == b) & (other == a))
        if test.any():
            hidden = np.isin(own, (a, b)) | np.isin(other, (a, b))
            fold = Fold(np.asarray(~hidden), np.asarray(test))
            if fold.train.any():
                yield fold


def evaluation(tested: Trial, confidence: float) -> Evaluation:
    """Return the measures of a test."""
    upper = tested.upper(confidence)
    return Evaluation(
        model=tested.model,
        setting=tested.setting,
        features=tested.features.names,
        folds=len(tested.folds),
        accuracy=accuracy(tested.measured, tested.predicted, tested.weight),
        by_prediction=tuple(decisions(tested, tested.predicted, gsla) for gsla in GSLAS),
        by_bound=tuple(decisions(tested, upper, gsla) for gsla in GSLAS),
        coverage=coverage(tested, confidence),
    )


def accuracy(measured: FloatArray, predicted: FloatArray, weight: FloatArray) -> Accuracy:
    """Return all measures of error; arrays of shape (tests,), with NaN for unanswered predictions.

    The SMAPE is the mean of 200 |m - p| / (m + p): the definition of Hyndman and Koehler (2006),
    which TensorShare cites for its figures (section 3.2). Other sources halve it.
    """
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    known = ~np.isnan(predicted)
    m, p, w = measured[known], predicted[known], weight[known]
    varies = len(m) > 1 and m.std() > 1e-9
    return Accuracy(
        rows=round(float(w.sum())),
        unanswered=round(float(weight[~known].sum())),
        smape=_mean(200 * np.abs(m - p) / (m + p), w),
        mae=float(mean_absolute_error(m, p, sample_weight=w)),
        rmse=float(root_mean_squared_error(m, p, sample_weight=w)),
        r2=float(r2_score(m, p, sample_weight=w)) if varies else None,
        bias=_mean(p - m, w),
        under=_mean((m - p > UNDER).astype(np.float64), w),
    )


def _mean(values: FloatArray, weight: FloatArray) -> float:
    return float(np.average(values, weights=weight))


def decisions(tested: Trial, value: FloatArray, gsla: float) -> Decisions:
    """Return how many pairs are decided wrongly by values (predictions or bounds, shape (tests,)).

    A pair is accepted if both jobs' values are at most ``gsla``; without a value it is refused.
    """
    pairs = _pairs(tested)
    true, accepted = pairs.both(tested.measured <= gsla), pairs.both(value <= gsla)
    weight = pairs.weight
    return Decisions(
        gsla=gsla,
        pairs=float(weight.sum()),
        acceptable=float(weight[true].sum()),
        wrongly_accepted=float(weight[accepted & ~true].sum()),
        wrongly_refused=float(weight[~accepted & true].sum()),
    )


def coverage(tested: Trial, confidence: float, among: BoolArray | None = None) -> Coverage | None:
    """Return how often the bound held, for all tests or for the pairs ``among`` them.

    None if no test has a bound.

    Parameters
    ----------
    tested : Trial
        Predictions and bounds.
    confidence : float
        One of ``tested.confidences``.
    among : ndarray of bool, shape (tests,), optional
        The tests to use; both tests of a pair or none.
    """
    upper = tested.upper(confidence)
    among = np.ones(len(upper), dtype=np.bool_) if among is None else among
    taken = np.isfinite(upper) & among
    if not taken.any():
        return None
    held, pairs = tested.measured <= upper, _pairs(tested)
    both = pairs.both(taken)
    return Coverage(
        confidence=confidence,
        job=_mean(held[taken].astype(np.float64), tested.weight[taken]),
        pair=_mean(pairs.both(held)[both].astype(np.float64), pairs.weight[both])
        if both.any()
        else None,
        bounded=float(tested.weight[taken].sum() / tested.weight[among].sum()),
        width=_mean((upper - tested.predicted)[taken], tested.weight[taken]),
    )


class _TestedPairs(NamedTuple):
    """The tested pairs: both rows of a pair are in the same fold."""

    of_test: IntArray
    weight: FloatArray

    def both(self, holds: BoolArray) -> BoolArray:
        """Return which pairs satisfy it for both jobs."""
        return np.asarray(np.bincount(self.of_test, ~holds) == 0)


def _pairs(tested: Trial) -> _TestedPairs:
    keys = tested.pair * len(tested.folds) + tested.held.fold
    _, first, of_test = np.unique(keys, return_index=True, return_inverse=True)
    return _TestedPairs(of_test, tested.weight[first])


def cross_calibrated(
    rows: DirectedRows,
    folds: Sequence[Fold],
    held: HeldOut,
    known: HeldOut,
    unseen: HeldOut,
    confidences: Sequence[float],
    rounds: int = 8,
    seed: int = 0,
) -> FloatArray:
    """Return upper bounds of held-out predictions, shape (confidences, tests).

    The bounds of a fold are calibrated like those of a model fitted on the fold's training rows:
    on the held-out errors in these rows, without errors of the fold's test rows. The fits behind
    these errors have seen the fold's test rows, as fits for every fold within every fold would
    take days (cross-conformal prediction; Vovk, 2015).

    Parameters
    ----------
    rows : DirectedRows
        What was measured.
    folds, held
        The folds, and the predictions of their test rows.
    known, unseen : HeldOut
        Predictions of pairs left out at random and with a workload, as for ``calibrate``.
    confidences : sequence of float
        The confidences; the bound is NaN if the rows cannot support one.
    rounds, seed : int
        As for ``calibrate``.
    """
    uppers = np.full((len(confidences), len(held.row)), np.nan)
    family = np.unique(np.array(rows.families), return_inverse=True)[1]
    for k, fold in enumerate(folds):
        of_fold = held.fold == k
        inside = _among(fold.train, rows)
        calibration = calibrate(
            inside.rows, inside.of(known), inside.of(unseen), rounds=rounds, seed=seed
        )
        seen = np.zeros(len(rows.names), dtype=np.bool_)
        seen[rows.own_workload[fold.train]] = True
        row = held.row[of_fold]
        new = novelty(seen, family)
        kinds = standings(new[rows.own_workload[row]], new[rows.other_workload[row]])
        for j, confidence in enumerate(confidences):
            uppers[j, of_fold] = calibration.upper(
                held.slowdown[of_fold], kinds, confidence, error=held.error[of_fold]
            )
    return uppers


class _Inside(NamedTuple):
    """Some of the rows, as if they were the only measurements."""

    rows: DirectedRows
    taken: BoolArray

    def of(self, held: HeldOut) -> HeldOut:
        """Return the predictions of these rows, by folds that leave out only some of them."""
        inside = np.flatnonzero(self.taken[held.row])
        inside = inside[np.bincount(held.fold[inside])[held.fold[inside]] < self.taken.sum()]
        row = np.cumsum(self.taken) - 1
        found = held.take(inside)
        return found._replace(row=row[found.row])


def _among(taken: BoolArray, rows: DirectedRows) -> _Inside:
    some = rows.take(taken)
    present = np.unique(some.own_workload)
    position = np.full(len(rows.names), -1)
    position[present] = np.arange(len(present))
    named = some._replace(
        workload=position[rows.workload],
        names=tuple(rows.names[k] for k in present),
        families=tuple(rows.families[k] for k in present),
    )
    return _Inside(named, taken)


def importance(tested: Trial, seed: int = 0, repeats: int = 3) -> dict[tuple[str, str], float]:
    """Return how much the held-out error grows if a feature is shuffled among the tested rows.

    Keys are ``own`` or ``other`` and the feature; values are the growth of the MAE, weighted like
    all measures. Redundant features can replace each other and then look unimportant (permutation
    importance; Breiman, 2001).
    """
    from sklearn.inspection import permutation_importance

    table, slowdown, weight = tested.rows.table, tested.rows.slowdown, tested.weight
    total = np.zeros(table.shape[1])
    for k, (train, test) in enumerate(tested.folds):
        found = permutation_importance(
            fitted(tested.spec, tested.rows.take(train), seed),
            table[test],
            slowdown[test],
            scoring="neg_mean_absolute_error",
            n_repeats=repeats,
            random_state=seed,
        )
        total += found.importances_mean * weight[tested.held.fold == k].sum()
    names = [(side, name) for side in ("own", "other") for name in tested.features.names]
    return dict(zip(names, (total / weight.sum()).tolist(), strict=True))
