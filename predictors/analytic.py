"""A contention model that needs no training: solo profiles in, slowdowns out.

A job alone spends its iteration (length 1) on three shared resources and elsewhere:

- ``dram = dram_active``: the memory interface is the limit;
- ``compute = max(0, sm_active - dram_active)``: an SM with a warp that waits for memory
  counts as active (DCGM, profiling metrics), so the memory time lies within the active time;
- ``pcie = min(1, pcie_rx_bytes_s / pcie_bytes_s)``: the bus towards the GPU is the limit.

Two jobs are then the two customers of a closed queueing network whose stations are these
resources, served by processor sharing. Exact mean-value analysis (*Mean-value analysis of
closed multichain queuing networks*, J. ACM 27(2), 1980, arrival theorem) gives for job i
with job j::

    slowdown_i = alone_i + min(1, sum over shared resources r of demand_ir * busy_jr)
    busy_jr    = min(1, demand_jr / alone_j)

``alone`` is the slowdown by the job's own cap, 1 without a cap. ``busy_jr`` is the fraction of its
time for which j, alone, keeps r busy: a job slowed by its cap asks less of the memory. Portions
that overlap in time can add up to more than an iteration; ``min(1, ...)`` then applies: a
co-runner never costs more than the two taking turns. Uncapped jobs share all three resources. Caps
that fit together give each job its own SMs, so compute drops out of the sum.

At a cap p (a fraction of the SMs) ``alone`` is ``throughput[100] / throughput[p]`` if both are
given, and otherwise::

    1 + compute * (max(1, sm_active / p) - 1)
      + dram * (max(1, saturating_sms / p) - 1)

since a job computes on ``sm_active`` of the SMs on average, and a part of the SMs is enough to
saturate the memory.

Without MPS (``time_sliced``) there is one resource: a GPU that runs kernels of one job at a time.
A job with work waits whenever the other has some, ::

    slowdown_i = 1 + busy_j, or 1 if job i uses no GPU

where ``busy_j`` is the fraction of its time for which j, alone, has a kernel running:
``gpu_util``, else ``graphics_active``. If only ``sm_active`` is known, j is taken to be always
busy: much of a GPU may be idle while a kernel runs. This is an estimate without a bound, and there
are no caps.

Metrics that a monitoring system does not record are assumed. ``gpu_util`` or ``graphics_active``,
the fraction of time in which any kernel runs, replaces ``sm_active``, which is never above it. An
unknown ``dram_active`` is replaced by ``mem_util``, or else by all of the active time, which then
counts as compute, too. With an unknown PCIe rate, the bus is taken to be busy as long as the SMs
are, but no longer than the rest of the iteration. ``assumed`` names the assumptions for a
workload.

The resources are those whose metrics correlate with the slowdown in TensorShare, section 3.2
(which then drops PCIe transmission) and in Castor, section 6.3. ``sm_occupancy`` is not used: a
matrix product can fill an SM at an eighth of its warps, so few warps do not mean room.
``docs/internals/predictor-analytic.md`` has the limits and the measured errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np

from dovetail.instances.errors import InputError
from dovetail.instances.hosts import Hosts, host_slowdown
from dovetail.instances.instance import Node, Workload
from dovetail.instances.metrics import Metrics
from dovetail.instances.slowdowns.entry import SharingMode
from dovetail.predictors.predictor import (
    UNCAPPED,
    FloatArray,
    IntArray,
    Prediction,
)

PCIE_3_X16_BYTES_S: Final = 8e9 * 16 * (128 / 130) / 8
"""PCIe 3.0, 16 lanes: 8 GT/s a lane, 128 of 130 bits are data; PCIe 4.0 carries twice that."""

_EVERY_CAP: Final = np.arange(101)

ACTIVITY: Final = ("sm_active", "gpu_util", "graphics_active")
"""Metrics of how busy the SMs are, the best first; the others are never below it."""

_MEMORY: Final = ("dram_active", "mem_util")

_BUSY: Final = ("gpu_util", "graphics_active")
"""Metrics of the time for which a kernel runs."""


@dataclass(frozen=True)
class AnalyticPredictor:
    """The contention model of this module.

    The slowdown is NaN if one job has a cap and the other has none, or if two caps sum to more
    than 100, as SMs are then neither shared by all nor divided; under ``time_sliced``, if a job has
    a cap. There are no upper bounds.

    Parameters
    ----------
    pcie_bytes_s : float
        Bandwidth of the bus towards the GPU, in bytes/s; PCIe 3.0 x16 by default.
    saturating_sms : float
        Fraction of the SMs, in (0, 1], that together saturate the GPU's memory.

    Raises
    ------
    InputError
        When a parameter is out of range.
    """

    pcie_bytes_s: float = PCIE_3_X16_BYTES_S
    saturating_sms: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.pcie_bytes_s < np.inf:
            raise InputError(f"must be > 0 and finite, got {self.pcie_bytes_s}", "pcie_bytes_s")
        if not 0 < self.saturating_sms <= 1:
            raise InputError(f"must be in (0, 1], got {self.saturating_sms}", "saturating_sms")

    def lacks(self, name: str, workload: Workload) -> tuple[str, ...]:
        """Return the missing metrics of SM activity, empty if the workload has one."""
        return () if activity(workload) is not None else (" or ".join(ACTIVITY[:2]),)

    def assumed(self, workload: Workload, mode: SharingMode = "mps") -> tuple[str, ...]:
        """Return, in words, the assumptions for a workload in place of metrics that it lacks."""
        metrics = workload.metrics or Metrics()
        if mode == "time_sliced":
            return () if _first(metrics, _BUSY) is not None else ("gpu_util by 1",)
        found = []
        for name, *stand_ins in (ACTIVITY, _MEMORY, ("pcie_rx_bytes_s",)):
            if getattr(metrics, name) is None:
                known = (other for other in stand_ins if getattr(metrics, other) is not None)
                found.append(f"{name} by {next(known, 'sm_active')}")
        return tuple(found)

    def predict(
        self,
        workloads: Mapping[str, Workload],
        pairs: IntArray,
        shares: IntArray,
        gpu_model: str | None = None,
        mode: SharingMode = "mps",
    ) -> Prediction:
        """Predict every row; see ``Predictor.predict`` for the shapes.

        The answer is the same for every GPU model.

        Raises
        ------
        InputError
            When ``lacks`` finds something missing.
        """
        profiled = list(workloads.values())
        if mode == "time_sliced":
            return Prediction(_by_turns(profiled, pairs, shares))
        demand = self._demand(profiled)
        alone = self.alone(profiled, _EVERY_CAP)
        own = pairs * len(_EVERY_CAP) + shares
        states = States(
            Demand(*(np.repeat(part, len(_EVERY_CAP)) for part in demand)),
            alone.ravel(),
            np.tile(_EVERY_CAP, len(profiled)),
        )
        both = (contended(states, own[:, k], own[:, 1 - k]) for k in range(2))
        return Prediction(np.stack(list(both), axis=1))

    def alone(self, workloads: Sequence[Workload], caps: IntArray) -> FloatArray:
        """Return the slowdown of each workload that runs alone at each cap.

        Parameters
        ----------
        workloads : sequence of Workload
            Workloads with the needed metrics.
        caps : ndarray of int, shape (k,)
            Caps in per cent of the SMs, ``UNCAPPED`` for none.

        Returns
        -------
        ndarray of float, shape (n, k)
            The measured value if the workload's throughput is given at the cap and at 100,
            otherwise the model's.
        """
        demand = self._demand(workloads)
        each = Demand(*(part[:, np.newaxis] for part in demand))
        return alone(each, caps, _measured(workloads, caps), self.saturating_sms)

    def on_node(
        self, node: Node, workloads: Sequence[Workload], workers: Sequence[int]
    ) -> FloatArray:
        """Return how much jobs on one node slow each other through its host, without a common GPU.

        It multiplies their slowdowns on shared GPUs. For the model, see
        ``dovetail.instances.hosts``; unknown figures of the node or a workload slow no job.

        Parameters
        ----------
        node : Node
            The node with the resources of its host.
        workloads : sequence of Workload
            The workload of each of the k jobs; no metrics are needed.
        workers : sequence of int
            How many workers each job has, all of them on the node.

        Returns
        -------
        ndarray of float, shape (k,)
            Slowdowns, at least 1.
        """
        held = np.array(workers, dtype=np.int64)
        part = Hosts([node], workloads).part(0, np.arange(len(workloads)), held)
        return host_slowdown(part, held @ part)

    def _demand(self, workloads: Sequence[Workload]) -> Demand:
        active, dram, received = _profiles(workloads)
        known = Demand.of(active, np.nan_to_num(dram), received, self.pcie_bytes_s)
        return known._replace(
            dram=np.where(np.isnan(dram), active, dram),
            pcie=np.where(np.isnan(received), np.minimum(active, 1 - active), known.pcie),
        )


class Demand(NamedTuple):
    """SMs in use on average, and the portions of the solo iteration, all of one shape."""

    active: FloatArray
    compute: FloatArray
    dram: FloatArray
    pcie: FloatArray

    @classmethod
    def of(
        cls, active: FloatArray, dram: FloatArray, received: FloatArray, pcie_bytes_s: float
    ) -> Self:
        """Return the demand of jobs with these metrics, which were measured without a cap."""
        compute = np.maximum(0.0, active - dram)
        return cls(active, compute, dram, np.minimum(1.0, received / pcie_bytes_s))


class States(NamedTuple):
    """Workloads at caps, arrays of shape (states,): demand, slowdown alone, and the cap."""

    demand: Demand
    alone: FloatArray
    cap: IntArray


def alone(
    demand: Demand, caps: IntArray, measured: FloatArray, saturating_sms: float
) -> FloatArray:
    """Return the slowdown at a cap of jobs that run alone, measured or else modelled.

    Parameters
    ----------
    demand : Demand
        Their demand.
    caps : ndarray of int
        Their caps, ``UNCAPPED`` for none, of a shape that broadcasts with the demand.
    measured : ndarray of float
        ``throughput[100] / throughput[cap]``, NaN where unknown.
    saturating_sms : float
        See ``AnalyticPredictor``.
    """
    sms = np.where(caps == UNCAPPED, 1.0, caps / 100)
    modelled = (
        1.0
        + demand.compute * (np.maximum(1.0, demand.active / sms) - 1.0)
        + demand.dram * (np.maximum(1.0, saturating_sms / sms) - 1.0)
    )
    return np.where(np.isnan(measured), modelled, measured)


def contended(states: States, own: IntArray, other: IntArray) -> FloatArray:
    """Return the slowdown of the own state with the other, for each row.

    NaN if one of them has a cap and the other has none, or two caps sum to more than 100.
    """
    demand, lone, cap = states
    uncapped = (cap[own] == UNCAPPED) & (cap[other] == UNCAPPED)
    divided = (cap[own] != UNCAPPED) & (cap[other] != UNCAPPED) & (cap[own] + cap[other] <= 100)
    wait = _wait(demand.compute, lone, own, other) * uncapped
    wait += _wait(demand.dram, lone, own, other)
    wait += _wait(demand.pcie, lone, own, other)
    return np.where(uncapped | divided, lone[own] + np.minimum(1.0, wait), np.nan)


def _wait(portion: FloatArray, lone: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
    """Return how much longer each own job waits for one shared resource."""
    busy = np.minimum(1.0, portion / lone)
    return np.asarray(portion[own] * busy[other])


def _by_turns(workloads: Sequence[Workload], pairs: IntArray, shares: IntArray) -> FloatArray:
    """Return the slowdowns of jobs that take turns on the GPU; NaN for caps."""
    busy = np.array([_busy(workload) for workload in workloads])[pairs]
    slowdown = 1.0 + np.where(busy > 0, busy[:, ::-1], 0.0)
    slowdown[(shares != UNCAPPED).any(axis=1)] = np.nan
    return slowdown


def _busy(workload: Workload) -> float:
    """Return the fraction of its time for which a kernel of a workload alone runs."""
    active, busy = activity(workload), _first(workload.metrics or Metrics(), _BUSY)
    if active is None:
        raise InputError("this metric is required to predict", ACTIVITY[0])
    return (1.0 if active > 0 else 0.0) if busy is None else busy


def activity(workload: Workload) -> float | None:
    """Return the fraction of the SMs that a workload alone keeps active, or an upper bound of it.

    None if no metric gives it.
    """
    return _first(workload.metrics or Metrics(), ACTIVITY)


def _first(metrics: Metrics, names: Sequence[str]) -> float | None:
    values: Iterator[float | None] = (getattr(metrics, name) for name in names)
    return next((value for value in values if value is not None), None)


def _profiles(workloads: Sequence[Workload]) -> FloatArray:
    """Return activity, use of the memory and PCIe rate, one row each; NaN where unknown."""
    rows = [_profile(workload) for workload in workloads]
    return np.array(rows, dtype=np.float64).reshape(len(rows), 3).T


def _profile(workload: Workload) -> tuple[float | None, ...]:
    metrics = workload.metrics or Metrics()
    active = activity(workload)
    if active is None:
        raise InputError("this metric is required to predict", ACTIVITY[0])
    return active, _first(metrics, _MEMORY), metrics.pcie_rx_bytes_s


def _measured(workloads: Sequence[Workload], caps: IntArray) -> FloatArray:
    """Return throughput[100] / throughput[cap], NaN where unknown or without a cap."""
    kept = caps.tolist()
    rows = [
        [np.nan if (found := w.slowdown_alone(cap)) is None else found for cap in kept]
        for w in workloads
    ]
    return np.array(rows, dtype=np.float64).reshape(len(workloads), len(caps))
