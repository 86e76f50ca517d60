"""TensorShare's delta predictor: a dense network on the solo profiles of both jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, Final, NamedTuple, Self

import numpy as np

from dovetail.instances.errors import InputError
from dovetail.instances.plugins import require_package
from dovetail.papers.forms.network import Layer, Layers, Network, Ranges, Reals
from dovetail.predictors.estimators.registry import FittingTask, GpuModelOption, ModelSpec
from dovetail.predictors.fitted.rows import DirectedRows, training_rows
from dovetail.predictors.predictor import FloatArray, IntArray

require_package("sklearn", "train", "fitting tensorshare")

from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.neural_network import MLPRegressor
from sklearn.utils.validation import check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

TABLE_4: Final = (256, 32, 32, 32, 32, 32, 32, 1024, 64, 16)
"""Outputs of MLP_1 to MLP_10 in Table 4 of the paper."""

_FEWEST_CHECKED = 2
_FEWEST_ROWS = 2


def _always() -> bool:
    return True


class TensorShareRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """The delta predictor of TensorShare (section 3.2, Table 4), with one output.

    A network of dense layers with ReLU, trained by Adam (or SGD) on min-max scaled features and
    target. Pairs are split at random; one part only decides when to stop, and the weights with the
    smallest error on it are kept. The paper splits 6:2:2 into training, validation and test: an
    evaluation holds out the test part, and the rest is split 3:1.

    Differences from the paper:

    - The paper's network has two outputs, the slowdown of either job, and learns the two orders of
      a pair as unrelated inputs. Here the only output is the own job's slowdown and the network is
      called for both orders, so mirrored pairs get mirrored answers and a pair with itself two
      equal ones. Table 4 with its eight inputs adds up to 116,274 parameters (the text says about
      110K); with one output it is 116,257. Two outputs have larger errors, see the evidence on
      predictors.
    - The paper names its measure (SMAPE) and no loss. Here it is the squared error, the common
      loss for regression, which has no poles.
    - No prediction is below the lowest training slowdown, and features far outside their training
      range are clipped, see ``forms.network.Network``.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int
        Outputs of each layer except the last.
    batch_size : int
        Rows of a step.
    learning_rate_init : float
        Size of a step.
    solver : str
        ``adam``, or ``sgd`` with Nesterov's momentum.
    alpha : float
        Weight of the L2 penalty; the paper has none.
    max_iter : int
        The most passes over the training rows; the paper gives no limit. 100 passes over Lucid's
        2,776 rows take about six seconds on one core; 200 lower the mean error on pairs of known
        workloads from 0.078 to 0.073.
    n_iter_no_change : int
        Stop after this number of consecutive passes without a smaller error on the validation
        rows.
    validation_fraction : float
        Fraction of the pairs for deciding when to stop. If it is less than two rows, the training
        rows are used.
    random_state : int
        Seed of the split, the first weights and the order of the rows.
    """

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] = TABLE_4,
        *,
        batch_size: int = 128,
        learning_rate_init: float = 0.001,
        solver: str = "adam",
        alpha: float = 0.0,
        max_iter: int = 100,
        n_iter_no_change: int = 50,
        validation_fraction: float = 0.25,
        random_state: int = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.solver = solver
        self.alpha = alpha
        self.max_iter = max_iter
        self.n_iter_no_change = n_iter_no_change
        self.validation_fraction = validation_fraction
        self.random_state = random_state

    def fit(self, X: FloatArray, y: FloatArray, pairs: IntArray | None = None) -> Self:  # noqa: N803
        """Fit on own and co-runner's features, shape (rows, 2 * features), and slowdowns.

        Rows with the same number in ``pairs``, shape (rows,), are split together; without it each
        row is a separate pair.
        """
        return self.fit_while(X, y, _always, pairs)

    def fit_while(
        self,
        X: FloatArray,  # noqa: N803
        y: FloatArray,
        going_on: Callable[[], bool],
        pairs: IntArray | None = None,
    ) -> Self:
        """Fit like ``fit``, and stop when ``going_on``, called after every pass, returns false."""
        X, y = validate_data(  # noqa: N806
            self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2
        )
        ranges = Ranges(X.min(axis=0), X.max(axis=0))
        self.unit_ = Unit(float(y.min()), float(np.ptp(y)) or 1.0)
        target = self.unit_.scaled(y)
        layers, self.n_iter_ = _trained(self, ranges.scaled(X), target, pairs, going_on=going_on)
        self.network_ = Network(ranges, self.unit_.folded(layers), self.unit_.low)
        return self

    def transferred(
        self,
        X: FloatArray,  # noqa: N803
        y: FloatArray,
        frozen: int = 1,
        pairs: IntArray | None = None,
    ) -> TensorShareRegressor:
        """Return the predictor tuned to another GPU on a few rows that were measured there.

        The first layers and the scaling of the features are unchanged, bit for bit; the other
        layers are trained further (section 4.4, Table 5: all but MLP_1). The frozen layers are a
        fixed map of the features, so the training uses their outputs. If no pass improves the
        error on the validation rows, the weights are kept.

        Parameters
        ----------
        X : ndarray of float, shape (rows, 2 * features)
            The same features on the new GPU.
        y : ndarray of float, shape (rows,)
            Slowdowns on the new GPU.
        frozen : int
            Number of frozen layers, at most all but the output layer.
        pairs : ndarray of int, shape (rows,), optional
            As in ``fit``.

        Raises
        ------
        InputError
            When ``frozen`` is out of range.
        """
        check_is_fitted(self)
        before: Network = self.network_
        most = len(before.layers) - 1
        if not 1 <= frozen <= most:
            raise InputError(f"must be between 1 and {most}, got {frozen}", "frozen")
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, reset=False)  # noqa: N806
        tuned = deepcopy(self)
        layers, tuned.n_iter_ = _trained(
            self,
            before.hidden(X, frozen),
            self.unit_.scaled(y),
            pairs,
            start=self.unit_.unfolded(before.layers[frozen:]),
        )
        tuned.network_ = Network(
            before.ranges,
            before.layers[:frozen] + self.unit_.folded(layers),
            min(before.floor, float(y.min())),
        )
        return tuned

    def predict(self, X: FloatArray) -> FloatArray:  # noqa: N803
        """Return slowdowns, shape (rows,)."""
        check_is_fitted(self)
        table = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(self.network_.of_table(table))

    def to_form(self) -> Network:
        """Return the fitted network.

        Raises
        ------
        InputError
            When the number of columns is odd.
        """
        check_is_fitted(self)
        if self.n_features_in_ % 2:
            raise InputError(f"must have as many columns for both jobs, got {self.n_features_in_}")
        network: Network = self.network_
        return network


class Unit(NamedTuple):
    """The scale on which a network learns: ``low`` is 0 and ``low + width`` is 1."""

    low: float
    width: float

    def scaled(self, target: FloatArray) -> FloatArray:
        """Return the target on this scale."""
        return np.asarray((target - self.low) / self.width)

    def folded(self, layers: Layers) -> Layers:
        """Return the layers with a last one that outputs the target itself."""
        weights, bias = layers[-1]
        return (*layers[:-1], Layer(weights * self.width, bias * self.width + self.low))

    def unfolded(self, layers: Layers) -> Layers:
        """Return the layers with a last one that outputs the target on this scale."""
        weights, bias = layers[-1]
        return (*layers[:-1], Layer(weights / self.width, (bias - self.low) / self.width))


class _RowsWithTarget(NamedTuple):
    inputs: Reals
    target: Reals

    def error(self, network: MLPRegressor) -> float:
        return float(np.mean((network.predict(self.inputs) - self.target) ** 2))


# The matrix products of a batch are small: threads cost more than they gain, and with a single one
# the weights do not depend on the number of cores.
@threadpool_limits.wrap(limits=1, user_api="blas")  # type: ignore[untyped-decorator]
def _trained(
    settings: TensorShareRegressor,
    inputs: FloatArray,
    target: FloatArray,
    pairs: IntArray | None,
    start: Layers = (),
    going_on: Callable[[], bool] = _always,
) -> tuple[Layers, int]:
    """Return the layers with the smallest validation error, and the number of passes."""
    random = np.random.RandomState(settings.random_state)
    sample = _RowsWithTarget(inputs.astype(np.float32), target.astype(np.float32))
    learned, checked = _split(sample, pairs, settings.validation_fraction, random)
    network = _network(settings, start, learned, random)
    kept, least = start, checked.error(network) if start else np.inf
    passes = idle = 0
    while passes < settings.max_iter and idle < settings.n_iter_no_change:
        network.partial_fit(*learned)
        error = checked.error(network)
        passes, idle = passes + 1, idle + 1
        if error < least or not kept:
            kept, least, idle = _layers(network), error, 0
        if not going_on():
            break
    return kept, passes


def _split(
    sample: _RowsWithTarget, pairs: IntArray | None, fraction: float, random: np.random.RandomState
) -> tuple[_RowsWithTarget, _RowsWithTarget]:
    """Return the training rows and the rows for deciding when to stop."""
    names = np.arange(len(sample.target)) if pairs is None else pairs
    order = random.permutation(np.unique(names))
    checked = np.isin(names, order[: int(fraction * len(order))])
    if checked.sum() < _FEWEST_CHECKED:
        return sample, sample
    return _RowsWithTarget(*(v[~checked] for v in sample)), _RowsWithTarget(
        *(v[checked] for v in sample)
    )


def _network(
    settings: TensorShareRegressor,
    start: Layers,
    learned: _RowsWithTarget,
    random: np.random.RandomState,
) -> MLPRegressor:
    """Return a network to train: with the layers ``start``, or a new one."""
    sizes = tuple(len(layer.bias) for layer in start[:-1]) if start else None
    network = MLPRegressor(
        hidden_layer_sizes=settings.hidden_layer_sizes if sizes is None else sizes,
        batch_size=min(settings.batch_size, len(learned.target)),
        learning_rate_init=settings.learning_rate_init,
        solver=settings.solver,
        alpha=settings.alpha,
        random_state=random,
    )
    if start:
        # Its arrays exist only after a first pass, which then only affects the running means of
        # the steps.
        network.partial_fit(*learned)
    for k, (weights, bias) in enumerate(start):
        network.coefs_[k][...] = weights
        network.intercepts_[k][...] = bias
    return network


def _layers(network: MLPRegressor) -> Layers:
    """Return the weights, copied as training changes them in place."""
    parts = zip(network.coefs_, network.intercepts_, strict=True)
    return tuple(Layer(weights.astype(float), bias.astype(float)) for weights, bias in parts)


def _build(seed: int) -> TensorShareRegressor:
    return TensorShareRegressor(random_state=seed)


def _fit(
    made: TensorShareRegressor, rows: DirectedRows, source: DirectedRows | None = None
) -> TensorShareRegressor:
    """Fit on rows; with a source, fit on its pairs first and then tune to the rows.

    Only source pairs of workloads that the rows have are used, so that a workload hidden by a fold
    is hidden on both GPU models.
    """
    if source is not None:
        seen = {rows.names[k] for k in np.unique(rows.own_workload).tolist()}
        named = np.array([name in seen for name in source.names])
        known = named[source.own_workload] & named[source.other_workload]
        if known.sum() >= _FEWEST_ROWS:
            begun = source.take(known)
            made.fit(begun.table, begun.slowdown, begun.workload_pair)
            return made.transferred(rows.table, rows.slowdown, pairs=rows.workload_pair)
    return made.fit(rows.table, rows.slowdown, rows.workload_pair)


def _prepare(spec: ModelSpec, task: FittingTask, options: Mapping[str, Any]) -> ModelSpec:
    if "from" in options:
        spec = _tuned(spec, task, options["from"])
    if "search" in options:
        spec = _searched(spec, task, options["search"])
    return spec


def _tuned(spec: ModelSpec, task: FittingTask, source: str) -> ModelSpec:
    """Return a spec that starts from the pairs of another GPU model.

    Both use the same features: those known for every workload on both.
    """
    both, _ = training_rows(task.data, spec.features, [source, task.gpu_model])
    _, start = training_rows(task.data, both.names, [source])
    return spec._replace(features=both.names, fit=partial(_fit, source=start))


def _searched(spec: ModelSpec, task: FittingTask, seconds: float) -> ModelSpec:
    """Return a spec with the best structure found in the time."""
    from dovetail.papers.predictors.tensorshare_search import search

    _, rows = training_rows(task.data, spec.features, [task.gpu_model])
    families = np.array(rows.families)

    def report(tried: int, _: float) -> None:
        if task.progress:
            task.progress("structures tried", tried, tried)

    found = search(
        rows.table,
        rows.slowdown,
        np.stack([families[rows.own_workload], families[rows.other_workload]], axis=1),
        seconds=seconds,
        seed=task.seed,
        pairs=rows.workload_pair,
        progress=report,
    )
    return spec._replace(build=lambda _: found.best)


SPEC: Final = ModelSpec(
    features=(
        "sm_active|gpu_util",
        "sm_occupancy",
        "dram_active|mem_util",
        "pcie_rx_bytes_s",
        "share",
    ),
    build=_build,
    least=3,
    fit=_fit,
    options={"search": float, "from": GpuModelOption},
    prepare=_prepare,
)
"""Its options: ``search`` is the seconds of a search for a better structure, ``from`` is a GPU
model whose pairs it is fitted to first, before it is tuned to the others (transfer learning)."""
