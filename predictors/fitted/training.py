"""From a data set to a predictor: the model, its held-out errors and its bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from dovetail.instances._record import listed, shown
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.plugins import OWN, plugins
from dovetail.instances.slowdowns.entry import SharingMode
from dovetail.instances.slowdowns.gathering import require_slowdowns
from dovetail.predictors.estimators.registry import (
    AUTO,
    FittingTask,
    GpuModelOption,
    ModelSpec,
    Progress,
    named,
    spec,
)
from dovetail.predictors.features import ABSENT, Features, alternatives
from dovetail.predictors.fitted.about import About, TrainingData
from dovetail.predictors.fitted.bounds import Calibration, calibrate
from dovetail.predictors.fitted.drift import BoundOutcome, Drift, drift
from dovetail.predictors.fitted.evidence import Evidence
from dovetail.predictors.fitted.fits import FittedForm, ModelFit
from dovetail.predictors.fitted.folds import (
    Fold,
    family_folds,
    fitted,
    held_out,
    random_folds,
    split_folds,
    variant_folds,
)
from dovetail.predictors.fitted.rows import (
    UNPROFILED,
    DirectedRows,
    HeldOut,
    measured_pairs,
    training_rows,
)
from dovetail.predictors.fitted.standing import OF_CO_RUNNERS, STANDINGS, standings
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.predictors.forms.hierarchy import Hierarchy
from dovetail.predictors.predictor import BoolArray, FloatArray, IntArray, Split, cap_of

_LEAST_FOLDS = 2
_NOTHING: Final = HeldOut(*np.empty((2, 0), np.int64), *np.empty((2, 0)))


class PreparedModel(NamedTuple):
    """A model that is ready to be fitted on the pairs of a data set.

    Attributes
    ----------
    name : str
        The model.
    spec : ModelSpec
        How it is made, with the features that the data have.
    features : Features
        The features that it uses.
    rows : DirectedRows
        The measurements.
    """

    name: str
    spec: ModelSpec
    features: Features
    rows: DirectedRows


def prepared(data: DataSet, model: str, gpu_models: Sequence[str] | None = None) -> PreparedModel:
    """Return a model with the features and the rows that a data set gives it.

    Parameters
    ----------
    data : DataSet
        Profiles and measurements.
    model : str
        The name of a model, or ``AUTO``.
    gpu_models : sequence of str, optional
        Take only the pairs measured on these; all by default.

    Raises
    ------
    InputError
        When no pair was measured there, or the slowdowns are speeds or percentages.
    UnsupportedError
        When no model has this name, the data have too few of its features, or the library that
        fits it is not installed.
    """
    return _prepared(data, model, spec(model), gpu_models)


def _prepared(
    data: DataSet, model: str, made: ModelSpec, gpu_models: Sequence[str] | None
) -> PreparedModel:
    features, rows = training_rows(data, made.features, gpu_models, made.partial)
    if len(features.names) < made.least:
        raise UnsupportedError(_lacking(model, spec(model), features, data.name))
    if rows.mode not in made.modes:
        rule = f"{model} models sharing under {' or '.join(made.modes)}, not {rows.mode}"
        raise UnsupportedError(rule)
    require_slowdowns(rows.slowdown, "measurements: slowdown", data.name)
    return PreparedModel(named(model), made, features, rows)


def _lacking(model: str, wanted: ModelSpec, features: Features, data: str) -> str:
    """Say which features a model needs and a data set does not have."""
    found = [name for name in features.names if name != ABSENT]
    missing = [f for f in wanted.features if not set(alternatives(f)) & set(features.names)]
    words = listed((" or ".join(alternatives(f)) for f in missing), 20)
    if wanted.least == len(wanted.features):
        return f"{model} needs of every measured workload also {words}, which {data} does not have"
    has = f"has only {listed(found, 20)}" if found else "has none of them"
    more = wanted.least - len(found)
    return f"{model} needs of every measured workload {more} more of {words}; {data} {has}"


def fit(
    data: DataSet,
    model: str = AUTO,
    gpu_models: Sequence[str] | None = None,
    confidence: float = 0.9,
    seed: int = 0,
    *,
    mode: SharingMode = "mps",
    options: Mapping[str, object] = MappingProxyType({}),
    licence: str | None = None,
    progress: Progress | None = None,
) -> TrainedPredictor:
    """Fit a model on the measured pairs of each GPU model, and bound its error.

    Parameters
    ----------
    data : DataSet
        Profiles and measurements.
    model : str
        The name of a model, or ``AUTO``.
    gpu_models : sequence of str, optional
        Fit for these; by default for all with a measured pair that no option names.
    confidence : float
        The confidence of the upper bounds, in (0, 1).
    seed : int
        Seed of all random draws.
    mode : {"mps", "time_sliced"}
        Fit on the pairs measured in this sharing mode; the model has no answer for the other.
    options : mapping of str to object
        The model's own options, as declared in its ``ModelSpec.options``.
    licence : str, optional
        The licence of the data; written into the model file.
    progress : callable, optional
        Called for every step.

    Raises
    ------
    InputError
        When nothing was measured on a GPU model, the value of an option is invalid, or the
        confidence is higher than the data support.
    UnsupportedError
        As in ``prepared``, and when the model does not have one of the options.
    """
    wanted = spec(model)
    if data.measurements and not data.in_mode(mode).measurements:
        rule = f"must have at least one measured pair of mode {mode}"
        raise InputError(rule, "measurements", data.name)
    data = data.in_mode(mode)
    _check_options(data, model, wanted, options)
    chosen = _chosen(data, wanted, gpu_models, options)
    training = TrainingData.of(data, licence)
    made = {}
    for k, name in enumerate(chosen):
        if progress:
            progress(f"{named(model)} for {name}", k, len(chosen))
        fitting = wanted
        if options and wanted.prepare:
            fitting = wanted.prepare(wanted, FittingTask(data, name, seed, progress), options)
        made[name] = _fitted(_prepared(data, model, fitting, [name]), data, name, confidence, seed)
    about = About(
        created=_now(),
        training=training,
        held_out={name: errors for one in made.values() for name, errors in one.errors.items()},
    )
    fits = {name: one.fit for name, one in made.items()}
    return TrainedPredictor(fits, confidence, about, mode=mode)


def _check_options(
    data: DataSet, model: str, wanted: ModelSpec, options: Mapping[str, object]
) -> None:
    """Refuse options that the model does not have, and values of the wrong type."""
    for name, value in options.items():
        if name not in wanted.options:
            known = ", ".join(wanted.options)
            has = f"its options are {known}" if known else "it has none"
            raise UnsupportedError(f"model {model!r} has no option {name!r}: {has}")
        kind = wanted.options[name]
        if kind is GpuModelOption:
            if value not in data.gpu_models:
                known = ", ".join(data.gpu_models) or "none"
                rule = f"must be a GPU model of the data ({known}), got {shown(value)}"
                raise InputError(rule, name)
        elif not isinstance(value, (float, int) if kind is float else kind):
            raise InputError(f"must be of type {kind.__name__}, got {shown(value)}", name)


def _chosen(
    data: DataSet,
    wanted: ModelSpec,
    gpu_models: Sequence[str] | None,
    options: Mapping[str, object],
) -> tuple[str, ...]:
    """Return the GPU models to fit for, without those that an option names as another one."""
    others = {
        options[name]: name
        for name, kind in wanted.options.items()
        if kind is GpuModelOption and name in options
    }
    chosen = tuple(gpu_models or (name for name in _measured_on(data) if name not in others))
    for other, name in others.items():
        if other in chosen or not chosen:
            rule = f"must be another GPU model than those to fit for, got {shown(other)}"
            raise InputError(rule, name)
    if not chosen:
        raise InputError("must have at least one measured pair", "measurements", data.name)
    return chosen


def process(data: DataSet, gpu_model: str, seed: int = 0) -> Hierarchy:
    """Fit ``hierarchical`` on a GPU model, without bounds.

    Raises
    ------
    InputError, UnsupportedError
        As in ``prepared``.
    """
    what = prepared(data, "hierarchical", [gpu_model])
    form = fitted(what.spec, what.rows, seed).to_form()
    assert isinstance(form, Hierarchy)
    return form


class Updated(NamedTuple):
    """An updated predictor, and how well its earlier promises held for the new measurements.

    Attributes
    ----------
    predictor : TrainedPredictor
        The predictor with new bounds and, if it is ``hierarchical``, new predictions.
    drift : mapping of str to Drift
        By GPU model: whether the earlier bounds were broken more often than promised.
    """

    predictor: TrainedPredictor
    drift: Mapping[str, Drift]


class HeldOutPredictions(NamedTuple):
    """The folds, and a model's predictions of the held-out rows."""

    folds: tuple[Fold, ...]
    held: HeldOut


def tried(what: PreparedModel, folds: Iterable[Fold], seed: int) -> HeldOutPredictions:
    """Fit a model on each fold and predict its held-out rows; none if there is only one fold."""
    folds = tuple(fold for fold in folds if fold.train.any() and fold.test.any())
    if len(folds) < _LEAST_FOLDS:
        return HeldOutPredictions(folds, _NOTHING)
    return HeldOutPredictions(folds, held_out(what.spec, what.rows, folds, seed))


def update(predictor: TrainedPredictor, data: DataSet, seed: int = 0) -> Updated:
    """Learn the measurements since a predictor was fitted, without a complete fit.

    ``hierarchical`` and the bounds use the new measurements immediately; other models stay as they
    are until the next ``fit``.

    Parameters
    ----------
    predictor : TrainedPredictor
        The predictor, as it was last fitted or updated.
    data : DataSet
        Its training data, followed by the new measurements, as in a growing repository.
    seed : int
        Seed of all random draws.

    Raises
    ------
    InputError
        When the data do not begin with the predictor's training data.
    """
    data = data.in_mode(predictor.mode)
    begun = _measured_before(predictor, data)
    later = data.replace(measurements=data.measurements[begun:])
    learnt = {name: _learnt(predictor, name, data, later, seed) for name in predictor.fits}
    about = predictor.about.replace(
        created=_now(), training=TrainingData.of(data, _licence(predictor))
    )
    fits = {name: one.fit for name, one in learnt.items()}
    return Updated(
        replace(predictor, fits=fits, about=about),
        {name: one.drift for name, one in learnt.items()},
    )


def measured_fit(
    fit: ModelFit, member: FittedForm, data: DataSet, gpu_model: str, rows: DirectedRows
) -> ModelFit:
    """Return a fit with another member and all measurements.

    Parameters
    ----------
    fit : ModelFit
        The earlier fit.
    member : FittedForm
        The model.
    data : DataSet
        The measurements.
    gpu_model : str
        The GPU model of the measurements.
    rows : DirectedRows
        Its pairs.
    """
    return replace(
        fit,
        member=member,
        measured=rows.names,
        families=rows.families,
        splits=_splits(data, gpu_model),
        limits=(float(rows.slowdown.min()), float(rows.slowdown.max())),
        pairs=_pairs(rows),
        evidence=Evidence.of(data, gpu_model),
    )


class _Fitted(NamedTuple):
    fit: ModelFit
    errors: dict[str, dict[str, float]]


def _fitted(
    what: PreparedModel,
    data: DataSet,
    gpu_model: str,
    confidence: float,
    seed: int,
) -> _Fitted:
    rows = what.rows
    known = tried(what, random_folds(rows, seed=seed), seed).held
    family = tried(what, family_folds(rows), seed).held
    variant = tried(what, variant_folds(rows), seed).held
    bound = calibrate(rows, known, family.joined(variant), seed=seed)
    if what.spec.partial:
        bound = replace(bound, splits=_split_quantiles(what, seed))
    _require_support(bound, confidence, gpu_model)
    fit = ModelFit(
        member=FittedForm(what.name, what.features, fitted(what.spec, rows, seed).to_form()),
        measured=rows.names,
        families=rows.families,
        splits=_splits(data, gpu_model),
        limits=(float(rows.slowdown.min()), float(rows.slowdown.max())),
        bound=bound,
        power=_power(data, gpu_model, seed),
        pairs=_pairs(rows),
        evidence=Evidence.of(data, gpu_model),
    )
    errors = {f"{gpu_model}: random": known, f"{gpu_model}: family": family}
    return _Fitted(fit, {name: _error(rows, held) for name, held in errors.items()})


def _split_quantiles(what: PreparedModel, seed: int) -> FloatArray:
    """Return quantiles of measured over predicted slowdowns at splits hidden in turn."""
    rows, held = what.rows, tried(what, split_folds(what.rows), seed).held
    ratio = rows.slowdown[held.row] / held.slowdown
    found = [
        np.quantile(ratio[held.fold == k], np.arange(1, 101) / 100) for k in np.unique(held.fold)
    ]
    return np.array(found).reshape(-1, 100)


def _require_support(bound: Calibration, confidence: float, gpu_model: str) -> None:
    """Refuse a confidence at which no pair of any kind would have a bound."""
    try:
        bound.level(max(range(len(STANDINGS)), key=bound.largest_confidence), confidence)
    except InputError as error:
        raise InputError(f"{error.rule} on {gpu_model}", error.path) from None


def _measured_on(data: DataSet) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found.gpu_model for found in measured_pairs(data)))


def _splits(data: DataSet, gpu_model: str) -> tuple[Split, ...]:
    caps = (tuple(cap_of(share) for share in m.shares) for m in measured_pairs(data, [gpu_model]))
    return tuple(dict.fromkeys((a, b) for a, b in caps))


def _pairs(rows: DirectedRows) -> tuple[tuple[int, int], ...]:
    """Return the pairs of workloads that were measured together, each once."""
    ends = np.sort(np.stack([rows.own_workload, rows.other_workload], axis=1), axis=1)
    return tuple((a, b) for a, b in np.unique(ends, axis=0).tolist())


def _power(data: DataSet, gpu_model: str, seed: int) -> FittedForm | None:
    """Return a model of the power of pairs, if some was measured and a plugin can fit one.

    A plugin of another package takes precedence over Dovetail's own.
    """
    if all(found.power_w is None for found in measured_pairs(data, [gpu_model])):
        return None
    added = plugins("power").values()
    chosen = max(added, key=lambda each: each.package != OWN, default=None)
    made: FittedForm | None = chosen and chosen.load_function()(data, gpu_model, seed)
    return made


def _error(rows: DirectedRows, found: HeldOut) -> dict[str, float]:
    """Return the errors of the rows that have an answer."""
    error = np.abs(found.slowdown - rows.slowdown[found.row])
    answered = error[~np.isnan(error)]
    return {"mae": float(answered.mean())} if len(answered) else {}


class _Learnt(NamedTuple):
    fit: ModelFit
    drift: Drift


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _licence(predictor: TrainedPredictor) -> str | None:
    return predictor.about.training.licence if predictor.about.training else None


def _measured_before(predictor: TrainedPredictor, data: DataSet) -> int:
    """Return how many of the measurements the predictor was fitted on."""
    training = predictor.about.training
    if training is None:
        raise InputError("the model does not say what it was fitted on", "training")
    known = data.replace(
        profiles=data.profiles[: training.profiles],
        measurements=data.measurements[: training.measurements],
    )
    if known.fingerprint != training.sha256:
        counts = f"{training.profiles} profiles and {training.measurements} measurements"
        rule = f"must begin with the {counts} that the model was fitted on ({training.name})"
        raise InputError(rule, "measurements", data.name)
    return training.measurements


def _learnt(
    predictor: TrainedPredictor, gpu_model: str, data: DataSet, later: DataSet, seed: int
) -> _Learnt:
    fit = predictor.fits[gpu_model]
    if not measured_pairs(later, [gpu_model]):
        return _Learnt(fit, drift([]))
    _, rows = training_rows(later, (), [gpu_model])
    said = _said(predictor, gpu_model, data, later)
    bound = fit.bound
    if isinstance(bound, Calibration):
        # Errors on the training pairs do not show how good its predictions are.
        unseen = np.where(_measured_again(rows, data, later, gpu_model), np.nan, said.slowdown)
        bound = bound.updated(
            unseen, rows.slowdown, said.standing, _groups(rows, said), error=said.error
        )
    _, everything = training_rows(data, (), [gpu_model])
    member = _relearnt(fit.member, data, gpu_model, seed)
    learnt = measured_fit(replace(fit, bound=bound), member, data, gpu_model, everything)
    return _Learnt(learnt, drift(_outcomes(rows, said, predictor.confidence)))


def _measured_again(rows: DirectedRows, data: DataSet, later: DataSet, gpu_model: str) -> BoolArray:
    """Return which rows are of two workloads that had been measured together before."""
    begun = len(data.measurements) - len(later.measurements)
    earlier = data.replace(measurements=data.measurements[:begun])
    known = {frozenset(m.workloads) for m in measured_pairs(earlier, [gpu_model])}
    ends = zip(rows.own_workload.tolist(), rows.other_workload.tolist(), strict=True)
    return np.array([frozenset((rows.names[a], rows.names[b])) in known for a, b in ends])


class _Said(NamedTuple):
    """A predictor's predictions for directed rows; each of shape (rows,)."""

    slowdown: FloatArray
    upper: FloatArray
    error: FloatArray | None
    standing: IntArray


def _said(predictor: TrainedPredictor, gpu_model: str, data: DataSet, later: DataSet) -> _Said:
    """Return the predictions for new measurements, in the order of their directed rows."""
    found = measured_pairs(later, [gpu_model])
    names = list(dict.fromkeys(name for m in found for name in m.workloads))
    profiled = data.workloads(gpu_model)
    workloads = {name: profiled.get(name, UNPROFILED) for name in names}
    pairs = np.array([[names.index(name) for name in m.workloads] for m in found], dtype=np.int64)
    shares = np.array([[cap_of(share) for share in m.shares] for m in found], dtype=np.int64)
    prediction = predictor.predict(workloads, pairs, shares, gpu_model, predictor.mode)
    upper = np.full_like(prediction.slowdown, np.nan)
    new = predictor.fits[gpu_model].novelty(workloads)[pairs]
    return _Said(
        prediction.slowdown.T.ravel(),
        (upper if prediction.upper is None else prediction.upper).T.ravel(),
        None if prediction.error is None else prediction.error.T.ravel(),
        standings(new.T.ravel(), new[:, ::-1].T.ravel()),
    )


def _groups(rows: DirectedRows, said: _Said) -> list[str]:
    """Return the family of each row: see ``Calibration.updated``."""
    of_other = np.isin(said.standing, OF_CO_RUNNERS)
    side = np.where(of_other, rows.other_workload, rows.own_workload)
    return [rows.families[k] for k in side.tolist()]


def _outcomes(rows: DirectedRows, said: _Said, confidence: float) -> list[BoundOutcome]:
    return [
        BoundOutcome(rows.names[workload], upper, measured, confidence)
        for workload, upper, measured in zip(
            rows.own_workload.tolist(), said.upper.tolist(), rows.slowdown.tolist(), strict=True
        )
        if not np.isnan(upper)
    ]


def _relearnt(member: FittedForm, data: DataSet, gpu_model: str, seed: int) -> FittedForm:
    """Solve the Gaussian process again with its variances unchanged; keep other models."""
    if not isinstance(member.form, Hierarchy):
        return member
    what = prepared(data, member.model, [gpu_model])
    estimator = what.spec.build(seed)
    estimator.set_params(like=member.form)  # type: ignore[attr-defined]
    form = estimator.fit(what.rows.table, what.rows.slowdown).to_form()
    return replace(member, features=what.features, form=form)
