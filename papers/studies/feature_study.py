"""Correlations of solo features with the slowdown: TensorShare, section 3.2 and Fig. 7."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import numpy as np
from pydantic import Field
from scipy.stats import rankdata

from dovetail.instances._record import Count, Name, NonNegative, Number, Record
from dovetail.instances.datasets.dataset import DataSet
from dovetail.predictors.fitted.rows import training_rows
from dovetail.predictors.predictor import FloatArray

LEAST_CORRELATION: Final = 0.4
"""The paper leaves out features whose Pearson correlation with the slowdown is smaller."""

MOST_SIMILARITY: Final = 0.99
"""The paper leaves out one of two features with a larger cosine similarity."""

BALANCED_GINI: Final = 0.3
"""Slowdowns with a smaller Gini coefficient are considered well balanced (paper)."""

CANDIDATES: Final = (
    "sm_active",
    "sm_occupancy",
    "fp16_active",
    "fp32_active",
    "fp64_active",
    "tensor_active",
    "dram_active",
    "pcie_tx_bytes_s",
    "pcie_rx_bytes_s",
    "power_w",
    "gpu_util",
    "mem_util",
    "log_throughput",
    "log_memory_mib",
    "share",
)
"""The metrics of the paper's Table 2, and their replacements in public data sets."""

Correlation = Annotated[float, Field(strict=True, ge=-1, le=1)] | None
"""None if it is not defined because one of the two is constant."""


class FeatureCorrelation(Record):
    """The correlation of one feature with the own job's slowdown.

    ``own`` is the feature of the job itself and ``other`` that of its co-runner; ``pearson`` is
    for linear and ``spearman`` for monotonic relations. ``dropped`` says why the paper's rule
    leaves the feature out, and is empty if it is kept.
    """

    name: Name
    pearson_own: Correlation
    pearson_other: Correlation
    spearman_own: Correlation
    spearman_other: Correlation
    dropped: str = ""


class FeatureStudy(Record):
    """The features of a data set and its slowdowns.

    ``similarity`` is the cosine similarity of every two features, in the order of ``features``, as
    in the paper: features that are never negative are all somewhat similar. ``centred`` is the
    similarity of their deviations from the mean, 0 for unrelated features. ``gini`` measures the
    inequality of the slowdowns, 0 if all are equal.
    """

    data: Name
    rows: Count
    features: tuple[FeatureCorrelation, ...]
    similarity: tuple[tuple[Correlation, ...], ...]
    centred: tuple[tuple[Correlation, ...], ...]
    slowdown_mean: Number
    slowdown_deviation: NonNegative
    gini: NonNegative

    @property
    def kept(self) -> tuple[str, ...]:
        """The features that the paper's rule keeps."""
        return tuple(feature.name for feature in self.features if not feature.dropped)

    @property
    def balanced(self) -> bool:
        """Whether the slowdowns are well balanced by the paper's rule."""
        return self.gini < BALANCED_GINI


def feature_study(
    data: DataSet,
    candidates: Sequence[str] = CANDIDATES,
    gpu_models: Sequence[str] | None = None,
) -> FeatureStudy:
    """Return the correlations of a data set's features with its slowdowns and with each other.

    The paper's rule (section 3.2): features with a weak correlation with the slowdown are left
    out; then the less correlated one of every two that are nearly the same. The correlation is
    that of the job's own feature, as in the paper.

    Parameters
    ----------
    data : DataSet
        Profiles and measured pairs.
    candidates : sequence of str
        Features to study, see ``features.resolved``; features that are not known for every
        measured workload are left out.
    gpu_models : sequence of str, optional
        Take these GPU models only; all by default.

    Raises
    ------
    InputError
        When no pair was measured on these GPU models.
    """
    features, rows = training_rows(data, candidates, gpu_models)
    own, other = rows.states[rows.own], rows.states[rows.other]
    slowdown = rows.slowdown
    pearson = _correlations(own, slowdown)
    similarity = _cosines(own)
    dropped = _dropped(features.names, pearson, similarity)
    columns = zip(
        features.names,
        _told(pearson),
        _told(_correlations(other, slowdown)),
        _told(_correlations(_ranks(own), _ranks(slowdown))),
        _told(_correlations(_ranks(other), _ranks(slowdown))),
        strict=True,
    )
    return FeatureStudy(
        data=data.name,
        rows=len(slowdown),
        features=tuple(
            FeatureCorrelation(
                name=name,
                pearson_own=pearson_own,
                pearson_other=pearson_other,
                spearman_own=spearman_own,
                spearman_other=spearman_other,
                dropped=dropped.get(name, ""),
            )
            for name, pearson_own, pearson_other, spearman_own, spearman_other in columns
        ),
        similarity=tuple(map(_told, similarity)),
        centred=tuple(map(_told, _cosines(_deviations(own)))),
        slowdown_mean=float(slowdown.mean()),
        slowdown_deviation=float(slowdown.std()),
        gini=gini(slowdown),
    )


def gini(values: FloatArray) -> float:
    """Return the Gini coefficient of positive values.

    With the n values in ascending order::

        sum over i of (2 i - n - 1) x_i / (n * sum over i of x_i)

    This is half the mean absolute difference of two of them, relative to their mean.
    """
    ordered = np.sort(values)
    n = len(ordered)
    weights = 2 * np.arange(1, n + 1) - n - 1
    return float(max(0.0, weights @ ordered / (n * ordered.sum())))


def _dropped(names: Sequence[str], pearson: FloatArray, similarity: FloatArray) -> dict[str, str]:
    """Return the reasons for leaving out features, strongest correlation first."""
    strength = np.abs(pearson)
    why: dict[str, str] = {}
    kept: list[int] = []
    for k in np.argsort(-strength, kind="stable").tolist():
        alike = [j for j in kept if similarity[k, j] > MOST_SIMILARITY]
        if np.isnan(strength[k]):
            why[names[k]] = "never varies"
        elif strength[k] < LEAST_CORRELATION:
            why[names[k]] = f"correlation below {LEAST_CORRELATION:g}"
        elif alike:
            why[names[k]] = f"similar to {names[alike[0]]}"
        else:
            kept.append(k)
    return why


def _correlations(columns: FloatArray, target: FloatArray) -> FloatArray:
    """Return Pearson's correlation of each column with the target; NaN if one is constant."""
    cosines = _cosines(_deviations(np.column_stack([columns, target])))
    return np.asarray(cosines[-1, :-1])


def _deviations(columns: FloatArray) -> FloatArray:
    """Return the deviations from each column's mean, exactly 0 for a constant column."""
    varies = np.ptp(columns, axis=0) > 0
    return np.asarray((columns - columns.mean(axis=0)) * varies)


def _ranks(values: FloatArray) -> FloatArray:
    return np.asarray(rankdata(values, axis=0))


def _cosines(columns: FloatArray) -> FloatArray:
    """Return the cosine of the angle between every two columns; NaN if one is all 0."""
    # Scaled first, as squares of byte rates are huge.
    largest = np.abs(columns).max(axis=0)
    scaled = columns / np.where(largest > 0, largest, np.nan)
    unit = scaled / np.linalg.norm(scaled, axis=0)
    return np.asarray(np.clip(unit.T @ unit, -1, 1))


def _told(values: FloatArray) -> tuple[float | None, ...]:
    return tuple(None if np.isnan(value) else value for value in values.tolist())
