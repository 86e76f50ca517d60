"""The law of MPS as an estimator: four numbers, each near that of the H200."""

from __future__ import annotations

from typing import Final, Self

import numpy as np
from scipy.optimize import least_squares
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from dovetail.predictors.estimators.registry import ModelSpec
from dovetail.predictors.forms.kernels import FEATURES, Kernels, law_of_states
from dovetail.predictors.kernels import RANGES, Law
from dovetail.predictors.predictor import FloatArray

_SPREAD: Final = {"wait": 0.3, "warps": 0.3, "room_exponent": 0.3, "bandwidth": 0.2}
"""Prior standard deviations of the logarithms of the numbers of the law, around the default."""

_NOISE: Final = 0.1
"""Standard deviation of the logarithm of a slowdown around the law."""

_LEAST: Final = 1e-3


class LawOfMps(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """The model of ``dovetail.predictors.kernels``, whose docstring has the law.

    The numbers of the law maximise the posterior for log-normal errors and log-normal priors, with
    the errors' influence bounded (soft L1). X has the columns of ``forms.kernels.FEATURES`` for the
    job, then for its co-runner; rows that the law has no answer for are left out.

    Attributes
    ----------
    form_ : Kernels
        The fitted form.
    """

    def fit(self, X: FloatArray, y: FloatArray) -> Self:  # noqa: N803
        """Fit the numbers of the law to slowdowns y of shape (rows,)."""
        table, slowdown = validate_data(
            self, X, y, dtype=np.float64, y_numeric=True, ensure_all_finite="allow-nan"
        )
        if table.shape[1] != 2 * len(FEATURES):
            rule = f"X must have {2 * len(FEATURES)} columns"
            raise ValueError(f"{rule}, got {table.shape[1]} feature(s)")
        states, own, other = _states_of(table)
        kept = ~np.isnan(law_of_states(Law(), states, own, other))
        logarithm = np.log(np.maximum(slowdown[kept], np.finfo(float).tiny))
        own, other = own[kept], other[kept]
        spread = np.array([_SPREAD[name] for name in RANGES])
        center = np.log([getattr(Law(), name) for name in RANGES])

        def residuals(numbers: FloatArray) -> FloatArray:
            found = law_of_states(_law(numbers), states, own, other)
            off = (np.log(found) - logarithm) / _NOISE
            return np.concatenate([off, (numbers - center) / spread])

        least, most = np.log(np.maximum(np.array(list(RANGES.values())), _LEAST)).T
        numbers = center
        if kept.any():
            numbers = least_squares(residuals, center, bounds=(least, most), loss="soft_l1").x
        self.form_ = Kernels(_law(numbers))
        return self

    def predict(self, X: FloatArray) -> FloatArray:  # noqa: N803
        """Return slowdowns, shape (rows,); NaN if the law has no answer."""
        check_is_fitted(self)
        table = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
        return self.form_.predict(*_states_of(table))

    def to_form(self) -> Kernels:
        """Return the fitted form."""
        check_is_fitted(self)
        return self.form_

    def __sklearn_tags__(self) -> Tags:
        """Declare that features may be unknown and that slowdowns are positive."""
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.positive_only = True
        tags.regressor_tags.poor_score = True
        return tags


def _law(numbers: FloatArray) -> Law:
    limited = zip(RANGES.items(), np.exp(numbers).tolist(), strict=True)
    return Law(**{name: min(max(value, least), most) for (name, (least, most)), value in limited})


def _states_of(table: FloatArray) -> tuple[FloatArray, np.ndarray, np.ndarray]:
    rows = np.arange(len(table))
    return np.concatenate(np.split(table, 2, axis=1)), rows, rows + len(table)


SPEC = ModelSpec(features=FEATURES, build=lambda seed: LawOfMps(), partial=True, modes=("mps",))
"""The law of MPS, fitted on pairs."""
