"""What estimators share that see who the workloads are, and not only what they are like."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dovetail.predictors.predictor import FloatArray

CODES: Final = 2
"""Columns at the end of each half that are codes: of the family and of the workload."""


class CodedRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A regressor on own and co-runner's features, of each of which the last may be codes.

    A code is NaN where the model has never met the family or the workload; nothing else may be.
    """

    coded: bool

    def _fitted_on(
        self,
        X: FloatArray,  # noqa: N803
        y: FloatArray,
        least: int,
    ) -> tuple[FloatArray, FloatArray]:
        """Return table and target, checked."""
        table, target = validate_data(
            self,
            X,
            y,
            dtype=np.float64,
            y_numeric=True,
            ensure_all_finite=self._finite,
            ensure_min_samples=least,
        )
        columns = table.shape[1]
        if columns % 2:
            rule = "X must have the same features of both jobs"
            raise ValueError(f"{rule}, got {columns} feature(s)")
        if self.coded and columns // 2 < CODES:
            rule = "X must have codes of family and workload"
            raise ValueError(f"{rule}, got {columns} feature(s)")
        return table, target

    def _asked(self, X: FloatArray) -> FloatArray:  # noqa: N803
        """Return the table of a fitted estimator's rows, checked."""
        check_is_fitted(self)
        table: FloatArray = validate_data(
            self, X, dtype=np.float64, reset=False, ensure_all_finite=self._finite
        )
        return table

    @property
    def _finite(self) -> str | bool:
        return "allow-nan" if self.coded else True

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        tags.input_tags.allow_nan = self.coded
        return tags
