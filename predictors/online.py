"""A fitted ``hierarchical`` that takes in each measurement at once, with its variances as they are.

The answers are those of ``training.update``, which refits; a measurement costs time quadratic in
what was measured, not cubic (``posterior``). Bounds stay as they were until the next fit.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from dovetail.instances.datasets.dataset import DataSet
from dovetail.predictors.fits import ModelFit
from dovetail.predictors.forms.hierarchy import FEATURES, Hierarchy
from dovetail.predictors.posterior import JobsWithCoRunners, Posterior
from dovetail.predictors.predictor import UNCAPPED, FloatArray
from dovetail.predictors.rows import DirectedRows, measured_pairs, training_rows
from dovetail.predictors.trained import TrainedPredictor
from dovetail.predictors.training import measured_fit

_MOST_CELLS: Final = 2000
"""Pairs of states from which on measurements wait for the next fit."""

_JUDGED: Final = 100
"""Of as many new measurements at once each is compared with what was believed before it."""

RECENT: Final = 5
"""As many measurements of a pair tell whether it has drifted,"""

LEAST: Final = 3
"""and no fewer than these."""

ALARM: Final = 4.0
"""Standard errors by which their mean must lie off."""


class Residual(NamedTuple):
    """How far a slowdown was from what was believed before it was measured.

    Attributes
    ----------
    gpu_model, workload, other : str
        Whose slowdown it is, with which co-runner.
    shares : (int, int)
        In per cent of the SMs, ``UNCAPPED`` for none.
    value : float
        In standard errors of a new measurement; positive where it was slower.
    """

    gpu_model: str
    workload: str
    other: str
    shares: tuple[int, int]
    value: float


class Drifts:
    """Notices pairs whose recent measurements lie off what was believed, all to one side.

    Residuals of measurements taken in one after the other are independent and standard normal
    while the model holds, so the sum of n of them has the standard error ``sqrt(n)``.
    """

    def __init__(self) -> None:
        self._recent: defaultdict[Residual, deque[float]] = defaultdict(
            lambda: deque(maxlen=RECENT)
        )

    def add(self, residuals: Sequence[Residual]) -> None:
        """Take in the residuals of what was measured."""
        for found in residuals:
            self._recent[found._replace(value=0.0)].append(found.value)

    @property
    def texts(self) -> list[str]:
        """One line for each pair that drifts."""
        return [
            f"{pair.workload} with {pair.other} on {pair.gpu_model}{_at(pair.shares)} drifts: its "
            f"last {len(values)} slowdowns are {abs(distance):.1f} standard errors "
            f"{'above' if distance > 0 else 'below'} what is believed"
            for pair, values in self._recent.items()
            if len(values) >= LEAST and abs(distance := sum(values) / len(values) ** 0.5) >= ALARM
        ]


class Online:
    """A predictor that learns.

    Parameters
    ----------
    predictor : TrainedPredictor
        As it was fitted.
    measurements : int
        How many of the data it was fitted on, which come first in the data of ``learn``.

    Attributes
    ----------
    predictor : TrainedPredictor
        After the last ``learn``.
    learnt : int
        How many measurements came after those that it was fitted on.
    """

    def __init__(self, predictor: TrainedPredictor, measurements: int) -> None:
        self.predictor = predictor
        self.learnt = 0
        self._measurements = measurements
        self._known: dict[str, _KnownPairs] = {}

    def learn(self, data: DataSet) -> list[Residual]:
        """Take in what is new; return how far it was from what was believed.

        Parameters
        ----------
        data : DataSet
            Everything that was measured, what is new last.
        """
        residuals: list[Residual] = []
        fits: dict[str, ModelFit] = dict(self.predictor.fits)
        for gpu_model, fit in self.predictor.fits.items():
            if isinstance(fit.member.form, Hierarchy):
                fits[gpu_model] = self._learnt(gpu_model, fit, fit.member.form, data, residuals)
        self.learnt = max(0, len(data.measurements) - self._measurements)
        self.predictor = replace(self.predictor, fits=fits)
        return residuals

    def _learnt(
        self,
        gpu_model: str,
        fit: ModelFit,
        form: Hierarchy,
        data: DataSet,
        residuals: list[Residual],
    ) -> ModelFit:
        before = self._known.get(gpu_model)
        begun = data.replace(measurements=data.measurements[: self._measurements])
        count = len(before.slowdown) if before else 2 * len(measured_pairs(begun, [gpu_model]))
        if 2 * len(measured_pairs(data, [gpu_model])) <= count:
            return fit
        features, rows = training_rows(data, FEATURES, [gpu_model], partial=True)
        # Both slowdowns of a measurement, then those of the next.
        rows = rows.take(np.argsort(rows.pair, kind="stable"))
        table, slowdown = rows.table, rows.slowdown
        # Where another metric is known of more workloads than before, the scales are of the old.
        if features.names != fit.member.features.names or _cells(rows) > _MOST_CELLS:
            return fit
        if before and np.array_equal(before.table, table[:count], equal_nan=True):
            posterior = before.posterior
        else:  # a profile is newer, or nothing was learnt yet
            posterior = Posterior.of(form, JobsWithCoRunners.of(table[:count]), slowdown[:count])
        single = max(count, len(slowdown) - 2 * _JUDGED)
        if single > count:
            posterior = posterior.updated(
                JobsWithCoRunners.of(table[count:single]), slowdown[count:single]
            )
        for start in range(single, len(slowdown), 2):
            new = slice(start, start + 2)
            pairs = JobsWithCoRunners.of(table[new])
            distance = posterior.residuals(pairs, slowdown[new])
            residuals += _residuals(gpu_model, rows, start, distance)
            posterior = posterior.updated(pairs, slowdown[new])
        self._known[gpu_model] = _KnownPairs(table, slowdown, posterior)
        member = replace(fit.member, features=features, form=posterior.form)
        return measured_fit(fit, member, data, gpu_model, rows)


class _KnownPairs(NamedTuple):
    table: FloatArray
    slowdown: FloatArray
    posterior: Posterior


def _cells(rows: DirectedRows) -> int:
    return len(np.unique(rows.own * len(rows.states) + rows.other))


def _residuals(
    gpu_model: str, rows: DirectedRows, start: int, distance: FloatArray
) -> list[Residual]:
    """Return the residuals of the rows from one on."""
    assert rows.cap is not None
    found = []
    for row, value in enumerate(distance.tolist(), start):
        own, other = int(rows.own[row]), int(rows.other[row])
        names = rows.names[rows.workload[own]], rows.names[rows.workload[other]]
        shares = int(rows.cap[own]), int(rows.cap[other])
        found.append(Residual(gpu_model, *names, shares, value))
    return found


def _at(shares: tuple[int, int]) -> str:
    if shares == (UNCAPPED, UNCAPPED):
        return ""
    return " at " + "/".join(str(share or "-") for share in shares)
