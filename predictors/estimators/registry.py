"""The models by name: those of the core, each in a module of its own, and those of plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, Self

from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plugins import plugins, require_package
from dovetail.predictors.forms import Form
from dovetail.predictors.predictor import FloatArray
from dovetail.predictors.rows import DirectedRows


class PairEstimator(Protocol):
    """A scikit-learn regressor on the table of ``rows.DirectedRows``."""

    def fit(self, X: FloatArray, y: FloatArray) -> Self:  # noqa: N803
        """Fit on own and co-runner's features, shape (rows, 2 * features), and slowdowns."""

    def predict(self, X: FloatArray) -> FloatArray:  # noqa: N803
        """Return slowdowns, shape (rows,)."""

    def to_form(self) -> Form:
        """Return what was fitted as arrays; it predicts the same."""


class GpuModelOption(str):
    """What an option is that names another GPU model of the data, which is not fitted for."""

    __slots__ = ()


Progress = Callable[[str, int, int], None]
"""Told the name of a step, its number and how many there are."""


class FittingTask(NamedTuple):
    """What a model is about to be fitted for.

    Attributes
    ----------
    data : DataSet
        Profiles and measurements.
    gpu_model : str
        Where the pairs were measured.
    seed : int
        Of everything random.
    progress : callable, optional
        Told of steps that take long.
    """

    data: DataSet
    gpu_model: str
    seed: int
    progress: Progress | None = None


class ModelSpec(NamedTuple):
    """How a model is made.

    Attributes
    ----------
    features : tuple of str
        The features it would like to have, see ``features.resolved``.
    build : callable
        From a seed to the estimator that is not fitted yet.
    least : int
        How many of its features a data set must have for the model to make sense.
    partial : bool
        Whether it takes all of its features, NaN where one is not known.
    fit : callable, optional
        Fits the estimator on rows, for an estimator that needs more of them than the table and the
        slowdowns: ``fit(estimator, rows)`` returns the fitted one.
    options : mapping of str to type
        The names of its own options, and the types of their values.
    prepare : callable, optional
        Carries the options out that are given: ``prepare(spec, task, options)`` returns the spec
        to use for one GPU model.
    """

    features: tuple[str, ...]
    build: Callable[[int], PairEstimator]
    least: int = 1
    partial: bool = False
    fit: Callable[[Any, DirectedRows], PairEstimator] | None = None
    options: Mapping[str, type] = MappingProxyType({})
    prepare: Callable[[ModelSpec, FittingTask, Mapping[str, Any]], ModelSpec] | None = None


MODELS: Final = ("constant", "analytic", "hierarchical")
"""The models of the core; plugins add more."""

AUTO: Final = "auto"
"""Another name of the best model, which is the default."""

_BEST: Final = "hierarchical"


def model_names() -> tuple[str, ...]:
    """Return every model that can be fitted, ``AUTO`` left out."""
    added = (name for name in plugins("predictor") if name not in (*MODELS, AUTO))
    return (*MODELS, *added)


def named(model: str) -> str:
    """Return the model's own name.

    Raises
    ------
    UnsupportedError
        When no model has this name.
    """
    known = (*model_names(), AUTO)
    if model not in known:
        raise UnsupportedError(f"model must be one of {', '.join(known)}, got {model!r}")
    return _BEST if model == AUTO else model


def spec(name: str) -> ModelSpec:
    """Return how the named model is made.

    Raises
    ------
    UnsupportedError
        When no model has this name, or what it is fitted with is not installed.
    """
    name = named(name)
    if name not in MODELS:
        return plugins("predictor")[name].load_as(ModelSpec)
    require_package("sklearn", "train", f"fitting {name}")
    found: ModelSpec = import_module(f"dovetail.predictors.estimators.{name}").SPEC
    return found
