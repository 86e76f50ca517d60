"""The contention model as an estimator: nothing is fitted, so nothing can be overfitted."""

from __future__ import annotations

from typing import Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from dovetail.predictors.analytic import PCIE_3_X16_BYTES_S, AnalyticPredictor
from dovetail.predictors.estimators.registry import ModelSpec
from dovetail.predictors.forms.analytic import FEATURES, Analytic
from dovetail.predictors.predictor import FloatArray


class Contention(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """The model of ``dovetail.predictors.analytic``, whose docstring has its source.

    X has the columns of ``forms.analytic.FEATURES`` for the job, then for its co-runner. A fitted
    factor on the prediction above 1 made it worse on held-out workloads (lucid,
    leave-one-model-out: MAE 0.091 against 0.089), so there is none.

    Parameters
    ----------
    pcie_bytes_s, saturating_sms : float
        See ``AnalyticPredictor``.

    Attributes
    ----------
    form_ : Analytic
        The parameters, checked.
    """

    def __init__(
        self, pcie_bytes_s: float = PCIE_3_X16_BYTES_S, saturating_sms: float = 0.5
    ) -> None:
        self.pcie_bytes_s = pcie_bytes_s
        self.saturating_sms = saturating_sms

    def fit(self, X: FloatArray, y: FloatArray) -> Self:  # noqa: N803
        """Check the parameters, X of shape (rows, 2 * features), and the slowdowns y.

        Raises
        ------
        ValueError
            When X has another number of columns.
        InputError
            When a parameter is out of range.
        """
        table, _ = validate_data(
            self, X, y, dtype=np.float64, y_numeric=True, ensure_all_finite="allow-nan"
        )
        if table.shape[1] != 2 * len(FEATURES):
            raise ValueError(
                f"X must have {2 * len(FEATURES)} columns, got {table.shape[1]} feature(s)"
            )
        model = AnalyticPredictor(self.pcie_bytes_s, self.saturating_sms)
        self.form_ = Analytic(model.pcie_bytes_s, model.saturating_sms)
        return self

    def predict(self, X: FloatArray) -> FloatArray:  # noqa: N803
        """Return slowdowns, shape (rows,); NaN if the model has no answer."""
        check_is_fitted(self)
        table = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
        rows = np.arange(len(table))
        states = np.concatenate(np.split(table, 2, axis=1))
        return self.form_.predict(states, rows, rows + len(table))

    def to_form(self) -> Analytic:
        """Return the model as a form."""
        check_is_fitted(self)
        return self.form_

    def __sklearn_tags__(self) -> Tags:
        """Declare that features may be unknown and that nothing is fitted."""
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.regressor_tags.poor_score = True
        return tags


SPEC = ModelSpec(
    features=FEATURES,
    build=lambda seed: Contention(),
    least=len(FEATURES),
    modes=("mps",),
)
