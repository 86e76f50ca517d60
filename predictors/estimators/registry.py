"""The models by name, each in a module of its own that is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Final, NamedTuple, Protocol, Self

from dovetail.instances.errors import UnsupportedError
from dovetail.predictors.forms import Form
from dovetail.predictors.predictor import FloatArray, IntArray
from dovetail.predictors.rows import Rows


class PairEstimator(Protocol):
    """A scikit-learn regressor on the table of ``rows.Rows``."""

    def fit(self, X: FloatArray, y: FloatArray) -> Self:  # noqa: N803
        """Fit on own and co-runner's features, shape (rows, 2 * features), and slowdowns."""

    def predict(self, X: FloatArray) -> FloatArray:  # noqa: N803
        """Return slowdowns, shape (rows,)."""

    def to_form(self) -> Form:
        """Return what was fitted as arrays; it predicts the same."""


class HoldingBack(PairEstimator, Protocol):
    """An estimator that holds rows back while it is fitted, to tell when to stop."""

    def fit(self, X: FloatArray, y: FloatArray, pairs: IntArray | None = None) -> Self:  # noqa: N803
        """Fit, and hold back all rows of a pair or none: ``pairs`` is ``Rows.workload_pair``."""

    def transferred(
        self,
        X: FloatArray,  # noqa: N803
        y: FloatArray,
        frozen: int = 1,
        pairs: IntArray | None = None,
    ) -> PairEstimator:
        """Return the fitted estimator tuned to rows of another GPU model."""


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
    holds_back : bool
        Whether it makes a ``HoldingBack``.
    partial : bool
        Whether it takes all of its features, NaN where one is not known.
    source : Rows, optional
        Pairs of another GPU model that a ``HoldingBack`` is fitted on before it is tuned to its
        own.
    """

    features: tuple[str, ...]
    build: Callable[[int], PairEstimator]
    least: int = 1
    holds_back: bool = False
    partial: bool = False
    source: Rows | None = None


MODELS: Final = (
    "constant",
    "analytic",
    "hierarchical",
    "tensorshare",
    "castor",
    "coscheml",
    "sm_allocation",
)
"""Every model that can be fitted."""

AUTO: Final = "auto"
"""Another name of the best model, which is the default."""

_BEST: Final = "hierarchical"


def named(model: str) -> str:
    """Return the model's own name.

    Raises
    ------
    UnsupportedError
        When no model has this name.
    """
    if model not in (*MODELS, AUTO):
        raise UnsupportedError(f"model must be one of {', '.join((*MODELS, AUTO))}, got {model!r}")
    return _BEST if model == AUTO else model


def spec(name: str) -> ModelSpec:
    """Return how the named model is made.

    Raises
    ------
    UnsupportedError
        When no model has this name, or what it is fitted with is not installed.
    """
    name = named(name)
    with _needed_to_fit(name):
        module = import_module(f"dovetail.predictors.estimators.{name}")
    found: ModelSpec = module.SPEC
    return found


@contextmanager
def _needed_to_fit(name: str) -> Iterator[None]:
    """Say of an import that fails what to install, unless it is one of Dovetail's own."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dovetail"):
            raise
        what = f"fitting {name} needs {error.name}"
        raise UnsupportedError(f"{what}: pip install './dovetail[train]'") from None
