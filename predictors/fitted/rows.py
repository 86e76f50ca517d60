"""From a data set to the rows that models are fitted on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dovetail.instances._record import IDLE
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import Measurement
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Workload
from dovetail.instances.slowdowns.entry import SharingMode
from dovetail.predictors.features import Features, resolved
from dovetail.predictors.predictor import BoolArray, FloatArray, IntArray, cap_of

UNPROFILED = Workload(memory_mib=0.0)
"""The profile of a workload that was measured in pairs but never alone."""


class DirectedRows(NamedTuple):
    """Directed rows: every measured pair gives two, each job's slowdown with the other.

    Attributes
    ----------
    states : ndarray of float, shape (states, features)
        The features of each state (a workload at a cap on a GPU model).
    workload : ndarray of int, shape (states,)
        The workload of each state, as a position in ``names``.
    own, other : ndarray of int, shape (rows,)
        The job's state and its co-runner's.
    pair : ndarray of int, shape (rows,)
        The measurement of each row; two rows share it.
    slowdown : ndarray of float, shape (rows,)
        Slowdown of the own job.
    names : tuple of str
        The names of the workloads.
    families : tuple of str
        The family of each workload in ``names``.
    cap : ndarray of int, shape (states,), or None
        The cap of each state in per cent of the SMs, ``UNCAPPED`` for none; None if no job had
        one.
    mode : {"mps", "time_sliced"}
        The sharing mode in which all pairs were measured.
    """

    states: FloatArray
    workload: IntArray
    own: IntArray
    other: IntArray
    pair: IntArray
    slowdown: FloatArray
    names: tuple[str, ...]
    families: tuple[str, ...]
    cap: IntArray | None = None
    mode: SharingMode = "mps"

    @property
    def split(self) -> IntArray:
        """The split of each row as a number; a split and its mirror have the same."""
        if self.cap is None:
            return np.zeros(len(self.own), dtype=np.int64)
        ends = np.sort(np.stack([self.cap[self.own], self.cap[self.other]]), axis=0)
        return np.asarray(ends[0] * 101 + ends[1])

    @property
    def table(self) -> FloatArray:
        """The matrix that estimators take, shape (rows, 2 * features): own, then other."""
        return np.hstack([self.states[self.own], self.states[self.other]])

    @property
    def own_workload(self) -> IntArray:
        """The own workload of each row, as a position in ``names``."""
        return self.workload[self.own]

    @property
    def other_workload(self) -> IntArray:
        """The co-runner's workload of each row, as a position in ``names``."""
        return self.workload[self.other]

    @property
    def workload_pair(self) -> IntArray:
        """For each row, the first measurement of the same two workloads in either order.

        Measurements of two workloads that are repeated, mirrored, at other caps or on other GPU
        models have similar errors: rows with the same number are held out together.
        """
        own, other = self.own_workload, self.other_workload
        code = np.minimum(own, other) * len(self.names) + np.maximum(own, other)
        _, first, group = np.unique(code, return_index=True, return_inverse=True)
        return self.pair[first][group]

    def take(self, rows: IntArray | BoolArray) -> DirectedRows:
        """Return some of the rows, by position or by mask; the states stay as they are."""
        return self._replace(
            own=self.own[rows],
            other=self.other[rows],
            pair=self.pair[rows],
            slowdown=self.slowdown[rows],
        )


def training_rows(
    data: DataSet,
    candidates: Sequence[str],
    gpu_models: Sequence[str] | None = None,
    partial: bool = False,
) -> tuple[Features, DirectedRows]:
    """Return the features that the data set allows, and its measured pairs as rows.

    Sets of three or more and measurements that failed have no rows.

    Parameters
    ----------
    data : DataSet
        Profiles and measurements.
    candidates : sequence of str
        Names of features, see ``resolved``; those not known of every measured workload are
        left out.
    gpu_models : sequence of str, optional
        Take these GPU models only; all by default.
    partial : bool
        Take every candidate, NaN if it is not known.

    Raises
    ------
    InputError
        When no pair was measured on these GPU models, or the pairs are of two sharing modes
        (``DataSet.in_mode`` takes those of one).
    """
    found = measured_pairs(data, gpu_models)
    if not found:
        where = f" on {', '.join(gpu_models)}" if gpu_models else ""
        raise InputError(f"must have at least one measured pair{where}", "measurements", data.name)
    if len(modes := {measurement.mode for measurement in found}) > 1:
        rule = f"must be of one sharing mode, got {' and '.join(sorted(modes))}"
        raise InputError(rule, "measurements", data.name)
    names = tuple(dict.fromkeys(name for m in found for name in m.workloads))
    profiles = {model: data.workloads(model) for model in data.gpu_models}
    keys = [_states(measurement) for measurement in found]
    position = {key: k for k, key in enumerate(dict.fromkeys(key for pair in keys for key in pair))}
    families = tuple(data.families[name] for name in names)
    seen = {str(key): _profile(key, profiles) for key in position}
    features = Features(resolved(candidates, seen, partial), names, families)
    ends = np.array([[position[key] for key in pair] for pair in keys], dtype=np.int64)
    slowdown = np.array([m.slowdown for m in found], dtype=np.float64)
    return features, DirectedRows(
        states=np.vstack([_row(features, key, profiles) for key in position]),
        workload=np.array([names.index(key.workload) for key in position], dtype=np.int64),
        own=ends.T.ravel(),
        other=ends[:, ::-1].T.ravel(),
        pair=np.tile(np.arange(len(found)), 2),
        slowdown=slowdown.T.ravel(),
        names=names,
        families=families,
        cap=np.array([key.cap for key in position], dtype=np.int64),
        mode=found[0].mode,
    )


def measured_pairs(data: DataSet, gpu_models: Sequence[str] | None = None) -> list[Measurement]:
    """Return the measurements that ``training_rows`` turns into rows, in the same order."""
    return [m for m in data.measurements if _usable(m, gpu_models)]


class _WorkloadAtCap(NamedTuple):
    gpu_model: str
    workload: str
    cap: int


_Profiles = Mapping[str, Mapping[str, Workload]]


def _usable(measurement: Measurement, gpu_models: Sequence[str] | None) -> bool:
    wanted = gpu_models is None or measurement.gpu_model in gpu_models
    isolated = IDLE in measurement.shares  # not of this model: see ``fitted.isolated``
    return wanted and len(measurement.workloads) == 2 and not (measurement.failed or isolated)


def _states(measurement: Measurement) -> list[_WorkloadAtCap]:
    return [
        _WorkloadAtCap(measurement.gpu_model, name, cap_of(share))
        for name, share in zip(measurement.workloads, measurement.shares, strict=True)
    ]


def _row(features: Features, state: _WorkloadAtCap, profiles: _Profiles) -> FloatArray:
    one = {state.workload: _profile(state, profiles)}
    return features.states(one, np.array([0]), np.array([state.cap]))


def _profile(state: _WorkloadAtCap, profiles: _Profiles) -> Workload:
    return profiles[state.gpu_model].get(state.workload, UNPROFILED)


class HeldOut(NamedTuple):
    """Predictions for rows that the model had not seen.

    Attributes
    ----------
    row : ndarray of int, shape (tested,)
        The predicted row; a row tested by two folds appears twice.
    fold : ndarray of int, shape (tested,)
        The fold that tested it.
    slowdown : ndarray of float, shape (tested,)
        The prediction.
    error : ndarray of float, shape (tested,)
        Standard error of its logarithm; NaN from a model that has none.
    """

    row: IntArray
    fold: IntArray
    slowdown: FloatArray
    error: FloatArray

    def joined(self, other: HeldOut) -> HeldOut:
        """Return the predictions of these folds, then those of others."""
        later = other.fold + self.fold.max(initial=-1) + 1
        return HeldOut(
            np.concatenate([self.row, other.row]),
            np.concatenate([self.fold, later]),
            np.concatenate([self.slowdown, other.slowdown]),
            np.concatenate([self.error, other.error]),
        )

    def take(self, tests: IntArray | BoolArray | slice) -> HeldOut:
        """Return some of the predictions, by position, mask or range."""
        ends = self.row[tests], self.fold[tests]
        return HeldOut(*ends, self.slowdown[tests], self.error[tests])
