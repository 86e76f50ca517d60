"""The models by name: the core's, each in its own module, and those of plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, Self

from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plugins import plugins, require_package
from dovetail.instances.slowdowns.entry import SharingMode
from dovetail.predictors.fitted.rows import DirectedRows
from dovetail.predictors.forms import Form
from dovetail.predictors.predictor import FloatArray


class PairEstimator(Protocol):
    """A scikit-learn regressor on the table of ``rows.DirectedRows``."""

    def fit(self, X: FloatArray, y: FloatArray) -> Self:  # noqa: N803
        """Fit on own and co-runner's features, shape (rows, 2 * features), and slowdowns."""

    def predict(self, X: FloatArray) -> FloatArray:  # noqa: N803
        """Return slowdowns, shape (rows,)."""

    def to_form(self) -> Form:
        """Return the fitted model as arrays with the same predictions."""


class GpuModelOption(str):
    """Type of an option that names another GPU model of the data, for which no fit is made."""

    __slots__ = ()


Progress = Callable[[str, int, int], None]
"""A function of the name of a step, its number and the number of steps."""


class FittingTask(NamedTuple):
    """The data and the GPU model of a fit.

    Attributes
    ----------
    data : DataSet
        Profiles and measurements.
    gpu_model : str
        The GPU model of the pairs.
    seed : int
        Seed of all random draws.
    progress : callable, optional
        Called for steps that take long.
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
        The candidate features, see ``features.resolved``.
    build : callable
        Makes the unfitted estimator from a seed.
    least : int
        How many of its features a data set must have for the model to make sense.
    partial : bool
        Whether it takes all of its features, NaN if one is not known.
    fit : callable, optional
        Fits an estimator that needs more of the rows than the table and the slowdowns:
        ``fit(estimator, rows)`` returns the fitted estimator.
    options : mapping of str to type
        The names of its own options, and the types of their values.
    prepare : callable, optional
        Applies the given options: ``prepare(spec, task, options)`` returns the spec for one GPU
        model.
    modes : tuple of SharingMode
        The sharing modes that it can model; one that learns everything from the pairs models all.
    """

    features: tuple[str, ...]
    build: Callable[[int], PairEstimator]
    least: int = 1
    partial: bool = False
    fit: Callable[[Any, DirectedRows], PairEstimator] | None = None
    options: Mapping[str, type] = MappingProxyType({})
    prepare: Callable[[ModelSpec, FittingTask, Mapping[str, Any]], ModelSpec] | None = None
    modes: tuple[SharingMode, ...] = ("mps", "time_sliced")


MODELS: Final = ("constant", "analytic", "kernels", "hierarchical")
"""The models of the core; plugins add more."""

AUTO: Final = "auto"
"""Another name for the best model, which is the default."""

_BEST: Final = "hierarchical"


def model_names() -> tuple[str, ...]:
    """Return every model that can be fitted, without ``AUTO``."""
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
        When no model has this name, or the library that fits it is not installed.
    """
    name = named(name)
    if name not in MODELS:
        return plugins("predictor")[name].load_as(ModelSpec)
    require_package("sklearn", "train", f"fitting {name}")
    found: ModelSpec = import_module(f"dovetail.predictors.estimators.{name}").SPEC
    return found
