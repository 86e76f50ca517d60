"""Boosted trees on the mean and the variance of both jobs' hardware indicators.

Castor (Luo et al., 2025), section 6: a regression decision tree, built with XGBoost, predicts the
interference ratio of a pair from the indicators of table 2, measured for each job alone.

The paper leaves open: the number and the depth of the trees and the learning rate (section 6.1
only says compact and accurate); whether a pair is learned in both orders (here it is); what to do
if some indicators are missing (here they are left out); and caps on the SMs, which Castor does not
have (here ``share`` is a feature). Sub-batches change the length of an iteration, not this model:
see ``iteration_time`` for equations 1 to 3.
"""

from __future__ import annotations

from typing import Final, Self

import numpy as np

from dovetail.instances.plugins import require_package
from dovetail.papers.forms.forest import Forest
from dovetail.papers.predictors._trees import forest_of_xgboost
from dovetail.predictors.estimators.registry import ModelSpec
from dovetail.predictors.predictor import FloatArray

require_package("xgboost", "train", "fitting castor")
require_package("sklearn", "train", "fitting castor")

import xgboost
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

INDICATORS: Final = (
    "sm_active|gpu_util",
    "sm_occupancy",
    "tensor_active",
    "dram_active|mem_util",
    "fp32_active",
    "fp16_active",
    "pcie_tx_bytes_s",
    "pcie_rx_bytes_s",
    "graphics_active|gpu_util",
    "nvlink_tx_bytes_s",
    "nvlink_rx_bytes_s",
    "cpu_util",
    "net_tx_bytes_s",
    "net_rx_bytes_s",
)
"""Table 2, with the coarser figure of ``nvidia-smi`` if there is no DCGM profile."""

VARIANCES: Final = tuple(
    "|".join(f"{name}.variance" for name in names.split("|")) for names in INDICATORS
)


class CastorRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gradient-boosted trees for the slowdown of a job with another.

    The same seed and data give the same trees. The mean slowdown is subtracted before the trees
    are fitted, so that XGBoost's float32 sums lose less precision.

    Parameters
    ----------
    trees : int
        Rounds of boosting.
    depth : int
        The most conditions between root and leaf.
    learning_rate : float
        Fraction of each tree's correction that is applied.
    subsample, columns : float
        Fractions of the rows and of the columns that each tree sees, in (0, 1].
    random_state : int, RandomState or None
        Seed of these draws.
    """

    def __init__(
        self,
        trees: int = 200,
        depth: int = 6,
        learning_rate: float = 0.05,
        subsample: float = 0.8,
        columns: float = 0.8,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.trees = trees
        self.depth = depth
        self.learning_rate = learning_rate
        self.subsample = subsample
        self.columns = columns
        self.random_state = random_state

    def fit(self, X: FloatArray, y: FloatArray) -> Self:  # noqa: N803
        """Fit on own and co-runner's features, shape (rows, 2 * features), and slowdowns."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)  # noqa: N806
        self.mean_ = float(np.mean(y))
        parameters = {
            "max_depth": self.depth,
            "eta": self.learning_rate,
            "subsample": self.subsample,
            "colsample_bytree": self.columns,
            "base_score": 0.0,
            "nthread": 1,
            "seed": int(check_random_state(self.random_state).randint(2**31 - 1)),
        }
        table = xgboost.DMatrix(X, y - self.mean_)
        self.booster_ = xgboost.train(parameters, table, self.trees)
        return self

    def predict(self, X: FloatArray) -> FloatArray:  # noqa: N803
        """Return slowdowns, shape (rows,)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)  # noqa: N806
        excess: FloatArray = self.booster_.predict(xgboost.DMatrix(X)).astype(np.float64)
        return self.mean_ + excess

    def to_form(self) -> Forest:
        """Return the trees as arrays; predictions differ only by XGBoost's float32 sums."""
        check_is_fitted(self)
        return forest_of_xgboost(self.booster_, self.n_features_in_ // 2, self.mean_)


def _build(seed: int) -> CastorRegressor:
    return CastorRegressor(random_state=seed)


SPEC: Final = ModelSpec((*INDICATORS, *VARIANCES, "share"), _build, least=3)
"""At least two indicators in addition to the share."""
