"""The baseline that every model must beat."""

from __future__ import annotations

from typing import Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from dovetail.predictors.estimators.registry import ModelSpec
from dovetail.predictors.forms.constant import Constant
from dovetail.predictors.predictor import FloatArray


class Median(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """The median of the measured slowdowns, which has the least MAE of all constants.

    Attributes
    ----------
    slowdown_ : float
        The median.
    """

    def fit(self, X: FloatArray, y: FloatArray) -> Self:  # noqa: N803
        """Fit on slowdowns y, shape (rows,); X, shape (rows, columns), is only checked."""
        _, slowdown = validate_data(self, X, y, y_numeric=True, ensure_all_finite="allow-nan")
        self.slowdown_ = float(np.median(slowdown))
        return self

    def predict(self, X: FloatArray) -> FloatArray:  # noqa: N803
        """Return the median for each row of X."""
        check_is_fitted(self)
        table = validate_data(self, X, ensure_all_finite="allow-nan", reset=False)
        return np.full(len(table), self.slowdown_)

    def to_form(self) -> Constant:
        """Return the median as a form."""
        check_is_fitted(self)
        return Constant(self.slowdown_)

    def __sklearn_tags__(self) -> Tags:
        """Declare that features may be unknown and that the fit is poor."""
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.regressor_tags.poor_score = True
        return tags


SPEC = ModelSpec(features=("share",), build=lambda seed: Median())
