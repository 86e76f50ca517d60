"""The training data kept with a model: measured pairs are looked up, not predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from dovetail.instances._record import IDLE
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.instance import Workload
from dovetail.predictors.fitted.repeats import repeats_of
from dovetail.predictors.predictor import CAPS, FloatArray, IntArray, cap_of

MOST_RECORDS: Final = 50_000
"""The most profiles and measurements kept with a model; if there are more, none are kept."""

_Cell = tuple[str, int, str, int]
"""A workload at its cap, with a co-runner at its cap."""

_CURVE: Final = 2
"""The fewest shares of solo runs that make a solo curve."""


class MeasuredCells(NamedTuple):
    """The measured slowdowns among some workloads.

    Attributes
    ----------
    code : ndarray of int, shape (cells,)
        ``codes`` of the own workload, its cap, the co-runner and its cap, ascending.
    slowdown, upper : ndarray of float, shape (cells,)
        The mean of the measurements and an upper bound of the next one; NaN if the two failed to
        run together.
    """

    code: IntArray
    slowdown: FloatArray
    upper: FloatArray

    def found(self, code: IntArray) -> tuple[IntArray, IntArray]:
        """Return the positions of the codes, of any shape, that were measured, and their cells."""
        if not len(self.code):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        flat = code.ravel()
        at = np.minimum(np.searchsorted(self.code, flat), len(self.code) - 1)
        rows = np.flatnonzero(self.code[at] == flat)
        return rows, at[rows]


def codes(
    own: ArrayLike, cap: ArrayLike, other: ArrayLike, its_cap: ArrayLike, count: int
) -> IntArray:
    """Return a number for two of ``count`` workloads (positions) at caps, broadcast."""
    mine = np.asarray(own, np.int64) * CAPS + np.asarray(cap, np.int64)
    theirs = np.asarray(other, np.int64) * CAPS + np.asarray(its_cap, np.int64)
    return np.asarray(mine * count * CAPS + theirs)


@dataclass(frozen=True)
class Evidence:
    """The profiles and measurements of one GPU model.

    Parameters
    ----------
    data : DataSet
        Its profiles and measurements, and none of other GPU models.
    """

    data: DataSet

    @classmethod
    def of(cls, data: DataSet, gpu_model: str) -> Self | None:
        """Return the part of a data set for a GPU model, or None if it is too large to keep."""
        profiles = tuple(p for p in data.profiles if p.gpu_model == gpu_model)
        measured = tuple(m for m in data.measurements if m.gpu_model == gpu_model)
        if len(profiles) + len(measured) > MOST_RECORDS:
            return None
        return cls(DataSet(name=data.name, profiles=profiles, measurements=measured))

    @cached_property
    def profiles(self) -> Mapping[str, Workload]:
        """The profile of each workload that ran alone."""
        gpu_models = self.data.gpu_models
        return self.data.workloads(gpu_models[0]) if gpu_models else {}

    def described(self, name: str, workload: Workload) -> Workload:
        """Return a workload, with missing figures taken from its profile.

        A workload with a name from the data is that workload. A curve of one share is no curve.
        """
        profile = self.profiles.get(name)
        if profile is None:
            return workload
        lacking: dict[str, object] = {
            field: getattr(profile, field)
            for field in _DESCRIBING
            if not getattr(workload, field) and getattr(profile, field)
        }
        if len(workload.throughput) < _CURVE <= len(profile.throughput):
            lacking["throughput"] = profile.throughput
        return workload.replace(**lacking) if lacking else workload

    def cells(
        self, workloads: Sequence[str], workers: Mapping[str, int], confidence: float
    ) -> MeasuredCells:
        """Return the measurements of every two of these workloads.

        Parameters
        ----------
        workloads : sequence of str
            Names; codes use their positions.
        workers : mapping of str to int
            The GPUs that jobs of a workload take, if more than one: that number of measurements
            must stay below the bound.
        confidence : float
            The probability that they do.
        """
        place = {name: k for k, name in enumerate(workloads)}
        found = [
            (
                int(codes(place[own], cap, place[other], its_cap, len(workloads))),
                *repeats_of(values, 1 - (1 - confidence) / workers.get(own, 1))[:2],
            )
            for (own, cap, other, its_cap), values in self._measured.items()
            if own in place and other in place
        ]
        columns = np.array(sorted(found), dtype=np.float64).reshape(-1, 3).T
        return MeasuredCells(columns[0].astype(np.int64), columns[1], columns[2])

    @cached_property
    def _measured(self) -> Mapping[_Cell, Sequence[float]]:
        """The measured slowdowns of each job with its co-runner; NaN if they failed to run."""
        found: dict[_Cell, list[float]] = {}
        for one in self.data.measurements:
            if len(one.workloads) != 2 or IDLE in one.shares:
                continue
            a, b = ((n, cap_of(s)) for n, s in zip(one.workloads, one.shares, strict=True))
            for cell, value in zip(
                ((*a, *b), (*b, *a)), one.slowdown or (np.nan,) * 2, strict=True
            ):
                found.setdefault(cell, []).append(value)
        return found


_DESCRIBING: Final = (
    *("metrics", "metrics_variance", "metrics_by_share", "throughput", "power_w"),
    *("family", "batch_size", "memory_mean_mib", "duration_s"),
)
"""The fields of a workload that its profile fills in."""
