"""Extremely randomised trees over splits of the SMs, and the split of highest throughput per watt.

*Energy-efficient GPU SM allocation* (Han et al.), sections 3 and 4. The paper predicts two totals
of a pair at a split, the throughput sum and the power of the GPU, with Extra Trees on the pair's
features (``PairTotals``), and chooses the split with the largest ratio of the two
(``best_split``). A plan needs the slowdown of each job, so ``SPEC`` has the same trees on the same
metrics of the two jobs side by side.

The paper leaves open the number of trees, when they stop growing, and whether the shares are
features. Here the pair's features are summed, once unweighted and once weighted by the shares,
which shows which job has more SMs. The paper averages percentages and scales every column to [0,
1]; neither changes a tree, as thresholds are drawn between the smallest and the largest value and
scale along, so both are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.instance import Workload
from dovetail.instances.plugins import require_package
from dovetail.papers.forms.forest import Forest
from dovetail.papers.forms.totals import Totals, pair_table
from dovetail.papers.predictors._trees import forest_of_sklearn
from dovetail.predictors.estimators.registry import ModelSpec
from dovetail.predictors.features import Features
from dovetail.predictors.fitted.fits import FittedForm
from dovetail.predictors.fitted.rows import measured_pairs, training_rows
from dovetail.predictors.predictor import FloatArray, IntArray

require_package("sklearn", "train", "fitting sm_allocation")

from sklearn.ensemble import ExtraTreesRegressor

ACTIVITY: Final = (
    "sm_active|gpu_util",
    "sm_occupancy",
    "fp32_active",
    "dram_active|mem_util",
    "mem_util",
    "pcie_tx_bytes_s",
    "pcie_rx_bytes_s",
)
"""The metrics of section 3.1 for predicting the power of a pair."""

POWER_FEATURES: Final = (*ACTIVITY, "rate", "power_w", "share")
"""The paper's features, the solo power of each, and the rate at the cap, as metrics are those of
the whole GPU if none were measured at the cap."""

THROUGHPUT_FEATURES: Final = (*ACTIVITY, "sensitivity", "throughput", "rate", "share")
"""The paper's features, with absolute and relative throughput at the cap."""


class SmAllocation(ExtraTreesRegressor):  # type: ignore[misc]
    """scikit-learn's Extra Trees on own and co-runner's features, for the own slowdown."""

    def to_form(self) -> Forest:
        """Return the trees as arrays; they predict the same."""
        return forest_of_sklearn(self)


class PairTotals(ExtraTreesRegressor):  # type: ignore[misc]
    """scikit-learn's Extra Trees on ``pair_table``, for a total of the pair.

    Fitted on ``TotalRows.table`` and ``rate``, ``throughput`` or ``power_w``, without rows in
    which the target is NaN.
    """

    def to_form(self) -> Totals:
        """Return the trees as arrays, which predict totals from the states of a pair."""
        return Totals(forest_of_sklearn(self))


class TotalRows(NamedTuple):
    """Measured pairs with their totals.

    Attributes
    ----------
    states : ndarray of float, shape (states, features)
        The features of each state; the share comes last.
    first, second : ndarray of int, shape (pairs,)
        The states of each pair.
    rate : ndarray of float, shape (pairs,)
        Sum of 1 / slowdown: the throughput relative to each job alone on the whole GPU.
    throughput : ndarray of float, shape (pairs,)
        Sum of throughputs in the unit of the profiles; NaN if one is unknown.
    power_w : ndarray of float, shape (pairs,)
        Power of the GPU, NaN if not measured.
    """

    states: FloatArray
    first: IntArray
    second: IntArray
    rate: FloatArray
    throughput: FloatArray
    power_w: FloatArray

    @property
    def table(self) -> FloatArray:
        """The matrix that ``PairTotals`` takes."""
        return pair_table(self.states, self.first, self.second)


def total_rows(
    data: DataSet, candidates: Sequence[str], gpu_models: Sequence[str] | None = None
) -> tuple[Features, TotalRows]:
    """Return the features that the data set allows, and its measured pairs with totals.

    Parameters
    ----------
    data : DataSet
        Profiles and measurements.
    candidates : sequence of str
        Names of features with ``share`` last: ``POWER_FEATURES`` or ``THROUGHPUT_FEATURES``.
    gpu_models : sequence of str, optional
        Take these GPU models only; all by default.

    Raises
    ------
    InputError
        When no pair was measured on these GPU models.
    """
    features, rows = training_rows(data, candidates, gpu_models)
    measured = measured_pairs(data, gpu_models)
    known = {model: data.workloads(model) for model in data.gpu_models}
    rates = [[1 / slowdown for slowdown in m.slowdown or ()] for m in measured]
    whole = [[_throughput(known[m.gpu_model], name) for name in m.workloads] for m in measured]
    return features, TotalRows(
        states=rows.states,
        first=rows.own[: len(measured)],
        second=rows.other[: len(measured)],
        rate=np.sum(rates, axis=1),
        throughput=np.sum(np.multiply(rates, whole), axis=1),
        power_w=np.array([np.nan if m.power_w is None else m.power_w for m in measured]),
    )


def best_split(throughput: FloatArray, power_w: FloatArray) -> IntArray:
    """Return for each pair the split of highest throughput per watt (section 3.3).

    Parameters
    ----------
    throughput, power_w : ndarray of float, shape (pairs, splits)
        Throughput sum and power at each split.

    Returns
    -------
    ndarray of int, shape (pairs,)
        Position of the split, the first in a tie.
    """
    return np.asarray(np.argmax(throughput / power_w, axis=1))


def totals(seed: int) -> PairTotals:
    """Return unfitted trees for a total of a pair."""
    return PairTotals(n_estimators=100, max_leaf_nodes=256, random_state=seed)


def power_of_pairs(data: DataSet, gpu_model: str, seed: int) -> FittedForm:
    """Return a fitted model of the power of pairs on a GPU model with some measured powers."""
    features, rows = total_rows(data, POWER_FEATURES, [gpu_model])
    known = ~np.isnan(rows.power_w)
    power = totals(seed).fit(rows.table[known], rows.power_w[known])
    return FittedForm("sm_allocation", features, power.to_form())


def _throughput(workloads: Mapping[str, Workload], name: str) -> float:
    found = workloads.get(name)
    return found.throughput.get(100, np.nan) if found else np.nan


def _build(seed: int) -> SmAllocation:
    return SmAllocation(n_estimators=100, max_leaf_nodes=256, random_state=seed)


SPEC: Final = ModelSpec(
    (*ACTIVITY, "sensitivity", "log_throughput", "share", "alone"), _build, least=4
)
"""At least two features in addition to the share and the slowdown alone, which are always known."""
