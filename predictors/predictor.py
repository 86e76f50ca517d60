"""The interface of predictors: pairs of workloads at given shares in, slowdowns out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.instances._record import IDLE, AnyShare
from dovetail.instances.errors import ArgumentError
from dovetail.instances.instance import Workload
from dovetail.instances.slowdowns.entry import SharingMode

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

UNCAPPED = 0
"""The share, in an array, of a job without a cap."""

CAPS: Final = 101
"""The number of caps, from ``UNCAPPED`` to 100."""


def cap_of(share: AnyShare) -> int:
    """Return a share as predictors take it: a cap in percent, or ``UNCAPPED``.

    Raises
    ------
    ArgumentError
        For ``idle``, which no predictor has a place for.
    """
    if share == IDLE:
        raise ArgumentError("no predictor has a place for the share idle")
    return share or UNCAPPED


class Prediction(NamedTuple):
    """The predictions for each row.

    Attributes
    ----------
    slowdown : ndarray of float, shape (rows, 2)
        Slowdown of the first and of the second workload; NaN if the predictor has no answer for
        the row.
    upper : ndarray of float, shape (rows, 2), or None
        Upper confidence bounds, elementwise >= ``slowdown``; None from a predictor without bounds.
    power_w : ndarray of float, shape (rows,), or None
        Power of the GPU with both on it, in W; NaN if the predictor has no answer, None from a
        predictor without power.
    error : ndarray of float, shape (rows, 2), or None
        Standard error of the logarithm of ``slowdown`` for a single new measurement; None from a
        predictor that has none.
    measured : ndarray of bool, shape (rows,), or None
        Which rows were measured, so that ``slowdown`` is no prediction; None if none was.
    estimate : bool
        Whether nothing measured on the user's GPUs backs the numbers: ``upper``, if any, was tested
        on measurements of others.
    """

    slowdown: FloatArray
    upper: FloatArray | None = None
    power_w: FloatArray | None = None
    error: FloatArray | None = None
    measured: BoolArray | None = None
    estimate: bool = False


class Predictor(Protocol):
    """Predicts how much two workloads slow each other down on one GPU.

    Every predictor is deterministic and gives the mirrored row the mirrored answer, bit for
    bit; a workload with itself at equal shares gets two equal numbers.
    """

    def lacks(self, name: str, workload: Workload) -> tuple[str, ...]:
        """Return what the predictor needs and the workload lacks.

        Parameters
        ----------
        name : str
            The name of the workload in the instance.
        workload : Workload
            The workload with the known figures of its solo run.
        """

    def predict(
        self,
        workloads: Mapping[str, Workload],
        pairs: IntArray,
        shares: IntArray,
        gpu_model: str | None = None,
        mode: SharingMode = "mps",
    ) -> Prediction:
        """Predict every row.

        Parameters
        ----------
        workloads : mapping of str to Workload
            Workloads by name, of which ``lacks`` finds nothing missing.
        pairs : ndarray of int, shape (rows, 2)
            The two workloads of each row, as positions in ``workloads``.
        shares : ndarray of int, shape (rows, 2)
            Their caps in per cent of the SMs, ``UNCAPPED`` (0) for none.
        gpu_model : str, optional
            The GPU that they share; None: the GPU that the profiles were taken on.
        mode : {"mps", "time_sliced"}
            How they share it. Under ``time_sliced`` there are no caps. What was measured in one
            mode says nothing about the other: a predictor without an answer for a mode returns
            NaN or raises an ``InputError``.
        """


Split = tuple[int, int]
"""The caps of two jobs in per cent of the SMs, ``UNCAPPED`` for none."""
