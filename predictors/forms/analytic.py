"""The contention model that needs no training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Self

import numpy as np

from dovetail.predictors.analytic import Demand, States, alone, contended
from dovetail.predictors.forms._checks import finite, require
from dovetail.predictors.forms.form import Arrays
from dovetail.predictors.predictor import UNCAPPED, FloatArray, IntArray

FEATURES: Final = (
    "sm_active|gpu_util",
    "dram_active|mem_util",
    "pcie_rx_bytes_s|absent",
    "alone",
    "share",
)
"""The features of a state, in order.

``gpu_util`` and ``mem_util`` of nvidia-smi are stand-ins: the fraction of time in which some
kernel ran, or memory was accessed, is an upper bound of the fraction of the SMs or of the
bandwidth in use. If PCIe rates are unknown the bus is left out.
"""


@dataclass(frozen=True)
class Analytic:
    """The model of ``dovetail.predictors.analytic`` on the states of ``FEATURES``.

    It predicts the same as ``AnalyticPredictor`` for the same metrics. A state at a cap uses the
    metrics at that cap if they were measured, the predictor those without a cap.

    Attributes
    ----------
    pcie_bytes_s, saturating_sms : float
        See ``AnalyticPredictor``.
    """

    kind: ClassVar[str] = "analytic"

    pcie_bytes_s: float
    saturating_sms: float

    def predict(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the slowdown of the own state with the other; see ``Form.predict``."""
        active, dram, received, measured, share = states.T
        cap = np.where(share == 1.0, UNCAPPED, np.rint(100 * share)).astype(np.int64)
        demand = Demand.of(active, dram, received, self.pcie_bytes_s)
        lone = alone(demand, cap, measured, self.saturating_sms)
        return contended(States(demand, lone, cap), own, other)

    def arrays(self) -> Arrays:
        """Return the two parameters, each of shape (1,)."""
        return {
            "pcie_bytes_s": np.array([self.pcie_bytes_s]),
            "saturating_sms": np.array([self.saturating_sms]),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays, features: int) -> Self:
        """Rebuild the form; see ``Form.from_arrays``."""
        require(features == len(FEATURES), "features", f"must be {len(FEATURES)}, got {features}")
        pcie_bytes_s = finite(arrays, "pcie_bytes_s", (1,))[0]
        saturating_sms = finite(arrays, "saturating_sms", (1,))[0]
        require(pcie_bytes_s > 0, "pcie_bytes_s", "must be > 0")
        require(0 < saturating_sms <= 1, "saturating_sms", "must be in (0, 1]")
        return cls(float(pcie_bytes_s), float(saturating_sms))
