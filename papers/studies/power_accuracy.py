"""Accuracy of the predicted power of shared GPUs: the measures of SM allocation, section 5.1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from dovetail.instances._record import Record
from dovetail.instances.datasets.dataset import DataSet
from dovetail.predictors.fitted.folds import family_folds, random_folds
from dovetail.predictors.fitted.rows import measured_pairs, training_rows

_LEAST: Final = 2
"""The fewest pairs of a fit and of a test."""


class PowerAccuracy(Record):
    """Errors of the predicted power of held-out pairs.

    Attributes
    ----------
    setting : str
        What is new: ``random`` pairs of known workloads, or one ``family`` of the two.
    pairs : int
        Number of pairs with a measured power.
    mape : float
        Mean absolute percentage error: the mean of 100 |m - p| / m, in %.
    r2 : float or None
        Coefficient of determination; None if all measured powers are equal.
    """

    setting: Literal["random", "family"]
    pairs: int
    mape: float
    r2: float | None


def power_accuracy(
    data: DataSet, gpu_models: Sequence[str] | None = None, seed: int = 0
) -> tuple[PowerAccuracy, ...]:
    """Test the power predictor of ``fit`` on held-out pairs.

    Parameters
    ----------
    data : DataSet
        Profiles and measurements.
    gpu_models : sequence of str, optional
        Take these GPU models only.
    seed : int
        Seed of folds and fits.

    Returns
    -------
    tuple of PowerAccuracy
        One for each setting with enough pairs to fit and test; none if no power was measured.

    Raises
    ------
    InputError
        When no pair was measured.
    UnsupportedError
        When scikit-learn is not installed.
    """
    if all(found.power_w is None for found in measured_pairs(data, gpu_models)):
        return ()
    from sklearn.metrics import mean_absolute_percentage_error, r2_score

    from dovetail.papers.predictors.sm_allocation import POWER_FEATURES, total_rows, totals

    _, rows = training_rows(data, POWER_FEATURES, gpu_models)
    pairs = total_rows(data, POWER_FEATURES, gpu_models)[1]
    table, power_w = pairs.table, pairs.power_w
    known = ~np.isnan(power_w)
    found = []
    for setting, folds in (
        ("random", random_folds(rows, seed=seed)),
        ("family", family_folds(rows)),
    ):
        measured, predicted = [], []
        for fold in folds:
            # The first rows are the measured pairs, in their order.
            train, test = (mask[: len(known)] & known for mask in fold)
            if train.sum() >= _LEAST and test.any():
                model = totals(seed).fit(table[train], power_w[train])
                measured.append(power_w[test])
                predicted.append(model.predict(table[test]))
        if sum(map(len, measured)) >= _LEAST:
            m, p = np.concatenate(measured), np.concatenate(predicted)
            found.append(
                PowerAccuracy(
                    setting=setting,
                    pairs=int(known.sum()),
                    mape=100 * float(mean_absolute_percentage_error(m, p)),
                    r2=float(r2_score(m, p)) if m.std() > 0 else None,
                )
            )
    return tuple(found)
