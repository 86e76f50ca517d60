"""A fitted ``hierarchical`` that learns each new measurement immediately, with fixed variances.

The answers are those of ``training.update``, which refits; a new measurement costs time quadratic
in the number of measurements, not cubic (``posterior``). Bounds are unchanged until the next fit.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from dovetail.instances.datasets.dataset import DataSet
from dovetail.predictors.fitted.fits import ModelFit
from dovetail.predictors.fitted.posterior import JobsWithCoRunners, Posterior
from dovetail.predictors.fitted.rows import DirectedRows, measured_pairs, training_rows
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.predictors.fitted.training import measured_fit
from dovetail.predictors.forms.hierarchy import FEATURES, Hierarchy
from dovetail.predictors.predictor import UNCAPPED, FloatArray

_MOST_CELLS: Final = 2000
"""Pairs of states above which measurements wait for the next fit."""

_JUDGED: Final = 100
"""The last new measurements of a batch that are each compared with the prediction before it."""

RECENT: Final = 5
"""The most recent measurements of a pair that decide whether it has drifted,"""

LEAST: Final = 3
"""and the fewest that do."""

ALARM: Final = 4.0
"""Standard errors by which their mean must deviate."""


class Residual(NamedTuple):
    """The distance of a measured slowdown from its earlier prediction.

    Attributes
    ----------
    gpu_model, workload, other : str
        The GPU model, the workload with this slowdown, and its co-runner.
    shares : (int, int)
        Their caps in per cent of the SMs, ``UNCAPPED`` for none.
    value : float
        The distance in standard errors of a new measurement; positive if it was slower.
    """

    gpu_model: str
    workload: str
    other: str
    shares: tuple[int, int]
    value: float


class Drifts:
    """Detects pairs whose recent measurements deviate from the predictions, all in one direction.

    Residuals of measurements learnt one after the other are independent and standard normal as
    long as the model holds, so the sum of n of them has the standard error ``sqrt(n)``.
    """

    def __init__(self) -> None:
        self._recent: defaultdict[Residual, deque[float]] = defaultdict(
            lambda: deque(maxlen=RECENT)
        )

    def add(self, residuals: Sequence[Residual]) -> None:
        """Add the residuals of new measurements."""
        for found in residuals:
            self._recent[found._replace(value=0.0)].append(found.value)

    @property
    def texts(self) -> list[str]:
        """One line of text for each pair that drifts."""
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
        The predictor, as fitted.
    measurements : int
        Number of measurements that it was fitted on; they come first among those of its sharing
        mode in the data of ``learn``.

    Attributes
    ----------
    predictor : TrainedPredictor
        The predictor after the last ``learn``.
    learnt : int
        Number of measurements since the fit.
    """

    def __init__(self, predictor: TrainedPredictor, measurements: int) -> None:
        self.predictor = predictor
        self.learnt = 0
        self._measurements = measurements
        self._known: dict[str, _PairsOfModel] = {}

    def learn(self, data: DataSet) -> list[Residual]:
        """Learn the new measurements; return their residuals.

        Parameters
        ----------
        data : DataSet
            All measurements, new ones last; those of other sharing modes are ignored.
        """
        data = data.in_mode(self.predictor.mode)
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
        if _cells(rows) > _MOST_CELLS:
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
        self._known[gpu_model] = _PairsOfModel(table, slowdown, posterior)
        member = replace(fit.member, features=features, form=posterior.form)
        return measured_fit(fit, member, data, gpu_model, rows)


class _PairsOfModel(NamedTuple):
    table: FloatArray
    slowdown: FloatArray
    posterior: Posterior


def _cells(rows: DirectedRows) -> int:
    return len(np.unique(rows.own * len(rows.states) + rows.other))


def _residuals(
    gpu_model: str, rows: DirectedRows, start: int, distance: FloatArray
) -> list[Residual]:
    """Return the residuals of the rows from ``start`` on."""
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
