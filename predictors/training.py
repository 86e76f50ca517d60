"""From a data set to a predictor: the model, its errors on what it had not seen, the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np

from dovetail.instances._record import listed
from dovetail.instances.datasets import DataSet
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.predictors.about import About, TrainingData
from dovetail.predictors.bounds import calibrate
from dovetail.predictors.estimators.registry import MODELS, ModelSpec, PairEstimator, spec
from dovetail.predictors.features import CODES, Features
from dovetail.predictors.fits import Member, ModelFit, Split
from dovetail.predictors.folds import HeldOut, family_folds, held_out, random_folds
from dovetail.predictors.predictor import UNCAPPED
from dovetail.predictors.rows import Rows, measured_pairs, training_rows
from dovetail.predictors.trained import TrainedPredictor

AUTO: Final = "auto"
NAMES: Final = (*MODELS, AUTO)
"""Every model that ``fit`` knows."""

CANDIDATES: Final = tuple(name for name in MODELS if name != "tensorshare")
"""What ``auto`` chooses from; fitting the network for every family takes too long."""

Progress = Callable[[str, int, int], None]
"""Told the name of a step, its number and how many there are."""


class Prepared(NamedTuple):
    """A model that is ready to be fitted on the pairs of a data set.

    Attributes
    ----------
    name : str
        The model.
    spec : ModelSpec
        How it is made; its features are those that the data have.
    features : Features
        What it sees.
    rows : Rows
        What was measured.
    """

    name: str
    spec: ModelSpec
    features: Features
    rows: Rows


def prepared(data: DataSet, model: str, gpu_models: Sequence[str] | None = None) -> Prepared:
    """Return a model with the features and the rows that a data set gives it.

    Parameters
    ----------
    data : DataSet
        Profiles and measurements.
    model : str
        One of ``NAMES``.
    gpu_models : sequence of str, optional
        Take the pairs measured on these only; all by default.

    Raises
    ------
    InputError
        When no pair was measured there.
    UnsupportedError
        When no model has this name, the data have too few of its features, or what it is
        fitted with is not installed.
    """
    if model == AUTO:
        return _prepared_auto(data, gpu_models)
    if model not in MODELS:
        raise UnsupportedError(f"model must be one of {', '.join(NAMES)}, got {model!r}")
    wanted = spec(model)
    features, rows = training_rows(data, wanted.features, gpu_models)
    if len(features.names) < wanted.least:
        has = listed(features.names) or "none"
        rule = f"{model} needs {wanted.least} of its features, and {data.name} has {has}"
        raise UnsupportedError(f"{rule} of {listed(wanted.features, 20)} for every workload")
    return Prepared(model, wanted, features, rows)


def fit(
    data: DataSet,
    model: str = AUTO,
    gpu_models: Sequence[str] | None = None,
    confidence: float = 0.9,
    seed: int = 0,
    *,
    search_s: float | None = None,
    licence: str | None = None,
    progress: Progress | None = None,
) -> TrainedPredictor:
    """Fit a model on the measured pairs of each GPU model, and bound its error.

    Parameters
    ----------
    data : DataSet
        Profiles and measurements.
    model : str
        One of ``NAMES``.
    gpu_models : sequence of str, optional
        Fit for these; by default for all of which a pair was measured.
    confidence : float
        Of the upper bounds, in (0, 1).
    seed : int
        Of everything random.
    search_s : float, optional
        Seconds to search for the structure of ``tensorshare``.
    licence : str, optional
        What the data allow; written into the model file.
    progress : callable, optional
        Told of every step.

    Raises
    ------
    InputError
        When nothing was measured on a GPU model, or the confidence is more than the data
        support.
    UnsupportedError
        As in ``prepared``.
    """
    if search_s is not None and model != "tensorshare":
        raise UnsupportedError(f"only tensorshare searches for a structure, got {model!r}")
    chosen = tuple(gpu_models) if gpu_models else _measured_on(data)
    if not chosen:
        raise InputError("must have at least one measured pair", "measurements", data.name)
    fitted = {
        name: _fitted(prepared(data, model, [name]), data, name, seed, search_s, progress)
        for name in chosen
    }
    about = About(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        training=TrainingData.of(data, licence),
        held_out={name: errors for one in fitted.values() for name, errors in one.errors.items()},
    )
    return TrainedPredictor({name: one.fit for name, one in fitted.items()}, confidence, about)


class _Fitted(NamedTuple):
    fit: ModelFit
    errors: dict[str, dict[str, float]]


class _HeldOut(NamedTuple):
    """Held-out predictions of pairs of measured workloads, and of pairs with a new one."""

    known: HeldOut
    new: HeldOut


def _prepared_auto(data: DataSet, gpu_models: Sequence[str] | None) -> Prepared:
    from dovetail.predictors.estimators.auto import Auto, Candidate

    found = {}
    for name in CANDIDATES:
        try:
            found[name] = prepared(data, name, gpu_models)
        except UnsupportedError:
            continue
    described = (f for one in found.values() for f in one.features.names if f not in CODES)
    names = (*dict.fromkeys(described), *reversed(CODES))
    features, rows = training_rows(data, names, gpu_models)

    def build(seed: int) -> PairEstimator:
        candidates = [
            Candidate(name, one.spec.build(seed), tuple(map(names.index, one.features.names)))
            for name, one in found.items()
        ]
        return Auto(candidates, coded=True, random_state=seed)

    return Prepared(AUTO, ModelSpec(names, build), features, rows)


def _fitted(
    what: Prepared,
    data: DataSet,
    gpu_model: str,
    seed: int,
    search_s: float | None,
    progress: Progress | None,
) -> _Fitted:
    if search_s is not None:
        what = _searched(what, search_s, seed, progress)
    estimator = what.spec.build(seed)
    if what.name == AUTO:
        estimator.on_fit = _named(progress, gpu_model)  # type: ignore[attr-defined]
    estimator.fit(what.rows.table, what.rows.slowdown)
    unseen = _unseen(what, estimator, seed, progress)
    rows = what.rows
    fit = ModelFit(
        members=tuple(_members(what, estimator)),
        measured=rows.names,
        splits=_splits(data, gpu_model),
        limits=(float(rows.slowdown.min()), float(rows.slowdown.max())),
        bound=calibrate(rows, unseen.known, unseen.new, seed=seed),
        power=_power(data, gpu_model, seed),
    )
    errors = {f"{gpu_model}: random": unseen.known, f"{gpu_model}: workload": unseen.new}
    return _Fitted(fit, {name: _error(rows, one) for name, one in errors.items()})


def _searched(what: Prepared, search_s: float, seed: int, progress: Progress | None) -> Prepared:
    """Return the network with the best structure that was found in the time."""
    from dovetail.predictors.estimators.tensorshare_search import search

    families = np.array(what.rows.families)
    sides = np.stack([families[what.rows.own_workload], families[what.rows.other_workload]], axis=1)

    def told(tried: int, _: float) -> None:
        if progress:
            progress("structures tried", tried, tried)

    found = search(
        what.rows.table, what.rows.slowdown, sides, seconds=search_s, seed=seed, progress=told
    )
    return what._replace(spec=what.spec._replace(build=lambda _: found.best))


def _named(progress: Progress | None, step: str) -> Callable[[int, int], None] | None:
    return (lambda done, total: progress(step, done, total)) if progress else None


def _unseen(
    what: Prepared, estimator: PairEstimator, seed: int, progress: Progress | None
) -> _HeldOut:
    """Return what the model says of rows it was not fitted on."""
    if what.name == AUTO:
        new, known = estimator.held_out_  # type: ignore[attr-defined]
        return _HeldOut(known, new)
    if progress:
        progress("held-out pairs", 1, 2)
    known = held_out(what.spec, what.rows, random_folds(what.rows, seed=seed), seed)
    if progress:
        progress("held-out workloads", 2, 2)
    return _HeldOut(known, held_out(what.spec, what.rows, family_folds(what.rows), seed))


def _members(what: Prepared, estimator: PairEstimator) -> Iterator[Member]:
    if what.name != AUTO:
        yield Member(what.name, what.features, estimator.to_form())
        return
    for k, fitted in estimator.fitted_.items():  # type: ignore[attr-defined]
        candidate = estimator.candidates_[k]  # type: ignore[attr-defined]
        names = tuple(what.features.names[column] for column in candidate.columns)
        features = Features(names, what.features.known, what.features.families)
        new, measured = estimator.weights_[:, k].tolist()  # type: ignore[attr-defined]
        yield Member(candidate.name, features, fitted.to_form(), (new, measured))


def _measured_on(data: DataSet) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found.gpu_model for found in measured_pairs(data)))


def _splits(data: DataSet, gpu_model: str) -> tuple[Split, ...]:
    caps = (
        tuple(share or UNCAPPED for share in m.shares) for m in measured_pairs(data, [gpu_model])
    )
    return tuple(dict.fromkeys((a, b) for a, b in caps))


def _power(data: DataSet, gpu_model: str, seed: int) -> Member | None:
    """Return a model of the power of pairs, where some was measured."""
    if all(found.power_w is None for found in measured_pairs(data, [gpu_model])):
        return None
    from dovetail.predictors.estimators.sm_allocation import POWER_FEATURES, total_rows, totals

    features, rows = total_rows(data, POWER_FEATURES, [gpu_model])
    known = ~np.isnan(rows.power_w)
    fitted = totals(seed).fit(rows.table[known], rows.power_w[known])
    return Member("sm_allocation", features, fitted.to_form())


def _error(rows: Rows, found: HeldOut) -> dict[str, float]:
    """Return the errors of the rows that have an answer."""
    error = np.abs(found.slowdown - rows.slowdown[found.row])
    answered = error[~np.isnan(error)]
    return {"mae": float(answered.mean())} if len(answered) else {}
