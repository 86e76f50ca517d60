"""The law of MPS: slowdowns from solo profiles, with bounds, before any pair was measured.

**Without caps, MPS is a queue of kernels.** A kernel that fills the SMs keeps them until its blocks
run out. A co-runner launches its kernels between: each waits for one kernel of every other job
that has work. For job v with kernels of its own for ``busy_v`` of the time alone, launched at
``rate_v`` a second, next to jobs a (all alone and without a cap: kernels of ``kernel_a`` seconds on
average, a fraction ``fill_a`` of their time in kernels that fill the SMs)::

    queue_v    = busy_v + rate_v * sum over a of wait * kernel_a * fill_a * room * pending_a
    pending_a  = min(1, queue_a)
    slowdown_v = max(1, queue_v, sum of dram activities, sum of tensor activities)

- ``queue_v`` is the time that the GPU is busy with v's kernels or v waits, for a second of work. A
  job whose host is the limit (``busy_v < 1``) has time to spare: waits that fit into it cost
  nothing.
- ``pending_a`` is the fraction of time in which a has a kernel that runs or waits. Both jobs slow
  each other, so it is the least fixed point of both equations.
- ``room = min(1, sum of warps / warps) ** room_exponent``: blocks that leave room let others run
  beside them. The warps are the mean fraction of an SM's warps in use while it is active.

**With caps, no queue is left** between jobs on different SMs. What remains is what fewer SMs cost
the job alone, the other jobs' DRAM traffic, and the power limit of the GPU::

    memory_v   = exp(bandwidth * busy_v * (sum of dram_a / alone_a) ** 1.5)
    clock      = max(1, sum over all jobs of active / (alone * memory))
    slowdown_v = alone_v * memory_v * clock ** (1 - dram_v)

``clock`` is how much slower the SMs run: a GPU reaches its power limit about when all of its SMs
are active at full speed (the power of the jobs alone predicted no better on our data), and what
waits for memory does not follow the clock. ``alone_v`` is measured (the solo curve), or by a
roofline: kernels that fill the SMs take ``1/share`` times as long, unless they saturate the memory,
for which half of the SMs are enough::

    alone_v = max(1, busy_v + (active_v - sat_v) * (1/share - 1) + sat_v * max(0, 0.5/share - 1))
    sat_v   = dram_v ** 2 / active_v

**Time slices** (no MPS): jobs take turns while they have work, ``queue_v = busy_v * (1 + sum of
pending_a)``.

The form is our own, from pairs of eight workloads on an H200 (``library:h200-2026-11``). The
numbers of ``Law`` were fitted on them; ``docs/explanation/law-of-mps.md`` has the tests with
workloads left out. Unknown metrics are assumed, and the upper bound assumes the worst of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from dovetail.instances.errors import InputError
from dovetail.instances.instance import Workload
from dovetail.instances.slowdowns.entry import SharingMode
from dovetail.predictors.features import Features
from dovetail.predictors.predictor import (
    UNCAPPED,
    FloatArray,
    IntArray,
    Prediction,
)

PROFILE: Final = (
    "graphics_active",
    "gpu_util",
    "sm_active",
    "dram_active",
    "mem_util",
    "tensor_active",
    "sm_occupancy",
    "kernels_s",
    "kernel_mean_s",
    "kernel_full",
    "kernel_occupancy",
)
"""The figures of a workload alone and without a cap that the law uses, all of them optional but
one of the first three."""

ACTIVITY: Final = ("graphics_active", "gpu_util", "sm_active")

SHORT_KERNEL_S: Final = 4e-6
USUAL_KERNEL_S: Final = 25e-6
LONG_KERNEL_S: Final = 4e-4
"""Mean duration of unknown kernels: near the shortest, in the middle and near the longest of the
workloads of ``library:h200-2026-11`` (a matrix product of 1.6 ms aside)."""

_LEAST_FILL: Final = 0.5
"""About the least fraction of the SMs that are active while a kernel runs, on average over the run,
of the workloads of ``library:h200-2026-11``."""

_SATURATING_SMS: Final = 0.5
_LATENCY_EXPONENT: Final = 1.5
_ROUNDS: Final = 200
_CLOSE: Final = 1e-9
_ROWS_AT_ONCE: Final = 65_536


@dataclass(frozen=True)
class Law:
    """The numbers of the law.

    Attributes
    ----------
    wait : float
        Waits for a co-runner's kernel in durations of that kernel.
    warps : float
        The fraction of an SM's warps at which blocks leave no room for others.
    room_exponent : float
        How fast room fills up below ``warps``.
    bandwidth : float
        Logarithm of the factor by which a GPU-bound job is slowed at a cap by a co-runner that
        saturates the memory.
    """

    wait: float = 0.94
    warps: float = 0.58
    room_exponent: float = 4.2
    bandwidth: float = 0.88

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise InputError(f"must be from {least:g} to {most:g}, got {value:g}", name)


RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "wait": (0.2, 3.0),
    "warps": (0.1, 2.0),
    "room_exponent": (0.0, 12.0),
    "bandwidth": (0.0, 3.0),
}
"""The least and the largest value of each number of the law."""

UNCAPPED_ERROR: Final = 0.1
CAPPED_ERROR: Final = 0.12
ROOFLINE_ERROR: Final = 0.18
"""Standard errors of the logarithm of a slowdown without caps; at caps with a measured solo curve;
and of a roofline in place of the curve, in addition. From workloads left out, on the H200."""


class GpuDemand(NamedTuple):
    """What jobs ask of the GPU alone and without a cap, arrays of one shape.

    Attributes
    ----------
    busy : ndarray of float
        Fraction of the time in which a kernel runs.
    active : ndarray of float
        Fraction of the SMs that are active on average.
    fill : ndarray of float
        Fraction of the kernels' time in kernels that fill the SMs.
    warps : ndarray of float
        Fraction of an active SM's warps in use.
    dram, tensor : ndarray of float
        Fraction of the time in which the memory interface and the tensor cores are busy.
    rate : ndarray of float
        Kernels launched a second.
    kernel_s : ndarray of float
        Mean duration of a kernel, s.
    """

    busy: FloatArray
    active: FloatArray
    fill: FloatArray
    warps: FloatArray
    dram: FloatArray
    tensor: FloatArray
    rate: FloatArray
    kernel_s: FloatArray

    def at(self, which: IntArray) -> GpuDemand:
        """Return the demand of these jobs, in the shape of the indices."""
        return GpuDemand(*(part[which] for part in self))


class Range(NamedTuple):
    """The demand of jobs as expected, and the worst that is likely; equal if all is known."""

    likely: GpuDemand
    worst: GpuDemand


@dataclass(frozen=True)
class KernelsPredictor:
    """The law of this module; it needs no training.

    The slowdown is NaN if one job has a cap and another has none, or caps sum to more than 100;
    under ``time_sliced``, if a job has a cap.
    The bounds are for workloads like those that the errors were seen on, and were not calibrated
    on the user's GPU: they are a reason for caution, no promise.

    Parameters
    ----------
    law : Law
        The numbers of the law.
    confidence : float
        The confidence of ``upper``, in (0, 1).
    workers : mapping of str to int
        The GPUs that jobs of a workload take, if more than one: the rate of a gang is set by the
        worst of its co-runners, so its bound is higher (union bound).
    """

    law: Law = Law()
    confidence: float = 0.9
    workers: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise InputError(f"must be > 0 and < 1, got {self.confidence}", "confidence")

    def lacks(self, name: str, workload: Workload) -> tuple[str, ...]:
        """Return the missing metrics of activity, empty if the workload has one."""
        known = workload.metrics is not None and any(
            getattr(workload.metrics, metric) is not None for metric in ACTIVITY
        )
        return () if known else ("gpu_util",)

    def assumed(self, workload: Workload, mode: SharingMode = "mps") -> tuple[str, ...]:
        """Return, in words, what is assumed of a workload in place of figures that it lacks."""
        if mode == "time_sliced":
            return ()
        row = dict(zip(PROFILE, profiles({"": workload})[0].tolist(), strict=True))
        known = {name for name, value in row.items() if not np.isnan(value)}
        found = []
        if not known & {"graphics_active", "gpu_util"}:
            found.append("graphics_active by sm_active")
        if not known & {"kernels_s", "kernel_mean_s"}:
            found.append(f"kernel_mean_s by {USUAL_KERNEL_S * 1e6:g} µs")
        if "sm_active" not in known:
            found.append("sm_active by 0.7 of the busy time")
        if "dram_active" not in known:
            found.append(f"dram_active by {'mem_util' if 'mem_util' in known else '0.3 sm_active'}")
        if len(workload.throughput) < 2:
            found.append("throughput at shares by a roofline")
        return tuple(found)

    def predict(
        self,
        workloads: Mapping[str, Workload],
        pairs: IntArray,
        shares: IntArray,
        gpu_model: str | None = None,
        mode: SharingMode = "mps",
    ) -> Prediction:
        """Predict every row; see ``Predictor.predict``.

        Rows may have more than two workloads: ``pairs`` and ``shares`` are of shape (rows, k).
        Slowdowns under ``time_sliced`` have no bounds.

        Raises
        ------
        InputError
            When ``lacks`` finds something missing.
        """
        for name, workload in workloads.items():
            if missing := self.lacks(name, workload):
                raise InputError("this metric is required to predict", missing[0])
        demand = ranges(profiles(workloads))
        if mode == "time_sliced":
            turns = time_sliced(demand.likely.at(pairs))
            turns[(shares != UNCAPPED).any(axis=1)] = np.nan
            return Prediction(turns)
        caps, place = np.unique(shares, return_inverse=True)
        place, curve = place.reshape(shares.shape), solo_curves(workloads, caps)
        slowdown, upper, error = (np.empty(pairs.shape) for _ in range(3))
        missed = [(1 - self.confidence) / self.workers.get(name, 1) for name in workloads]
        far = np.array([NormalDist().inv_cdf(1 - part) for part in missed])
        for start in range(0, len(pairs), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            jobs, known = pairs[rows], curve[pairs[rows], place[rows]]
            slowdown[rows], upper[rows], error[rows] = bounded(
                self.law, demand, jobs, shares[rows], known, far[jobs]
            )
        return Prediction(slowdown, upper, None, error, estimate=True)


def profiles(workloads: Mapping[str, Workload]) -> FloatArray:
    """Return the figures of ``PROFILE``, shape (n, 11); NaN where unknown."""
    which = np.arange(len(workloads))
    return Features(PROFILE).states(workloads, which, np.full(len(workloads), UNCAPPED))


def solo_curves(workloads: Mapping[str, Workload], caps: IntArray) -> FloatArray:
    """Return the measured slowdowns alone at these caps, shape (n, caps); NaN where unknown."""
    which = np.repeat(np.arange(len(workloads)), len(caps))
    states = Features(("log_alone",)).states(workloads, which, np.tile(caps, len(workloads)))
    return np.exp(states).reshape(len(workloads), len(caps))


def ranges(profile: FloatArray) -> Range:
    """Return the demand of jobs with these profiles.

    Parameters
    ----------
    profile : ndarray of float, shape (n, 11)
        The figures of ``PROFILE``, NaN where unknown; one of ``ACTIVITY`` is known.
    """
    of = dict(zip(PROFILE, profile.T, strict=True))
    known = _first(of["graphics_active"], np.maximum(of["gpu_util"], _zero(of["sm_active"])))
    likely = _first(known, of["sm_active"])
    worst = _first(known, np.minimum(1.0, of["sm_active"] / _LEAST_FILL))
    return Range(_demand(of, likely, worst=False), _demand(of, worst, worst=True))


def _demand(of: Mapping[str, FloatArray], busy: FloatArray, worst: bool) -> GpuDemand:
    """Return the demand, with the likely or the worst value of what is unknown."""
    active = np.minimum(_first(of["sm_active"], busy * (1.0 if worst else 0.7)), 1.0)
    fill = _first(of["kernel_full"], np.minimum(1.0, active / np.maximum(busy, 1e-9)))
    warps = np.minimum(1.0, of["sm_occupancy"] / np.maximum(of["sm_active"], 1e-9))
    warps = _first(_first(warps, of["kernel_occupancy"]), np.full_like(busy, 1.0 if worst else 0.4))
    dram = _first(of["dram_active"], of["mem_util"])
    dram = _first(dram, active * (0.9 if worst else 0.3))
    tensor = _first(of["tensor_active"], active if worst else np.zeros_like(busy))
    mean = _first(of["kernel_mean_s"], busy / np.maximum(of["kernels_s"], 1e-9))
    usual = np.full_like(busy, USUAL_KERNEL_S)
    mean_of_rate = _first(mean, usual * (SHORT_KERNEL_S / USUAL_KERNEL_S) if worst else usual)
    rate = _first(of["kernels_s"], busy / np.maximum(mean_of_rate, 1e-9))
    kernel_s = _first(mean, usual * (LONG_KERNEL_S / USUAL_KERNEL_S) if worst else usual)
    return GpuDemand(busy, active, fill, warps, dram, tensor, rate, kernel_s)


def bounded(
    law: Law,
    demand: Range,
    jobs: IntArray,
    caps: IntArray,
    curve: FloatArray,
    far: FloatArray | float,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the slowdown of every job of every row, its upper bound, and the error behind that.

    Parameters
    ----------
    law : Law
        The numbers of the law.
    demand : Range
        The demand of workloads.
    jobs : ndarray of int, shape (rows, k)
        The workloads that share a GPU.
    caps, curve
        As in ``slowdowns``.
    far : float or ndarray of float, shape (rows, k)
        How many standard errors the bound is away.

    Returns
    -------
    three ndarrays of float, shape (rows, k)
        NaN as in ``slowdowns``; the error is of the logarithm.
    """
    likely = slowdowns(law, demand.likely.at(jobs), caps, curve)
    worst = slowdowns(law, demand.worst.at(jobs), caps, curve)
    error = errors(caps, curve)
    upper = np.maximum(likely, np.maximum(likely, worst) * np.exp(far * error))
    return likely, upper, error


def slowdowns(law: Law, jobs: GpuDemand, caps: IntArray, curve: FloatArray) -> FloatArray:
    """Return the slowdown of every job of every row.

    Parameters
    ----------
    law : Law
        The numbers of the law.
    jobs : GpuDemand
        Arrays of shape (rows, k): k jobs share a GPU.
    caps : ndarray of int, shape (rows, k)
        Their caps in per cent of the SMs, ``UNCAPPED`` for none.
    curve : ndarray of float, shape (rows, k)
        The measured slowdown of each job alone at its cap; NaN where unknown.

    Returns
    -------
    ndarray of float, shape (rows, k)
        NaN if some jobs of a row have caps and others have none, or caps sum to more than 100.
    """
    free = (caps == UNCAPPED).all(axis=1)
    divided = (caps != UNCAPPED).all(axis=1) & (caps.sum(axis=1) <= 100)
    found = np.full(caps.shape, np.nan)
    found[free] = queued(law, jobs.at(np.flatnonzero(free)))
    alone = np.where(np.isnan(curve), roofline(jobs, caps), curve)[divided]
    found[divided] = capped(law, jobs.at(np.flatnonzero(divided)), alone)
    return found


def queued(law: Law, jobs: GpuDemand) -> FloatArray:
    """Return slowdowns without caps under MPS, shape (rows, k); see the module."""
    room = np.minimum(1.0, _of_all(jobs.warps) / law.warps) ** law.room_exponent
    held = law.wait * jobs.kernel_s * jobs.fill * room
    queue = _in_turn(jobs.busy, jobs.rate, held)
    demand = np.maximum(_of_all(jobs.dram), _of_all(jobs.tensor))
    return np.asarray(np.maximum(1.0, np.maximum(queue, demand)))


def time_sliced(jobs: GpuDemand) -> FloatArray:
    """Return slowdowns of jobs that take turns without MPS, shape (rows, k)."""
    return np.maximum(1.0, _in_turn(jobs.busy, jobs.busy, np.ones_like(jobs.busy)))


def _in_turn(busy: FloatArray, rate: FloatArray, held: FloatArray) -> FloatArray:
    """Return the least ``queue_v = busy_v + rate_v * sum over others of held_a * min(1, queue_a)``.

    The right side only rises with the queues, so repetition from ``busy`` converges from below.
    """
    queue = busy
    for _ in range(_ROUNDS):
        pending = held * np.minimum(1.0, queue)
        following = busy + rate * _of_others(pending)
        if not len(queue) or np.max(following - queue) <= _CLOSE:
            return following
        queue = following
    return queue


def _of_all(values: FloatArray) -> FloatArray:
    """Return the sum of each row, shape (rows, 1), the same in any order of the jobs."""
    return np.asarray(np.sort(values, axis=1).sum(axis=1, keepdims=True))


def _of_others(values: FloatArray) -> FloatArray:
    """Return for each job of a row the sum over the others, the same in any order of the jobs."""
    count = values.shape[1]
    if count == 2:
        return values[:, ::-1]
    rest = (_of_all(np.delete(values, k, axis=1)) for k in range(count))
    return np.concatenate(list(rest), axis=1)


def roofline(jobs: GpuDemand, caps: IntArray) -> FloatArray:
    """Return the modelled slowdown of jobs alone at their caps; see the module."""
    share = np.where(caps == UNCAPPED, 1.0, caps / 100)
    saturated = np.minimum(jobs.active, jobs.dram**2 / np.maximum(jobs.active, 1e-9))
    stretched = (jobs.active - saturated) * (1 / share - 1)
    stretched += saturated * np.maximum(0.0, _SATURATING_SMS / share - 1)
    return np.maximum(1.0, jobs.busy + stretched)


def capped(law: Law, jobs: GpuDemand, alone: FloatArray) -> FloatArray:
    """Return slowdowns at caps that fit together, shape (rows, k); ``alone`` has this shape."""
    slower = np.maximum(alone, 1.0)
    traffic = np.minimum(1.0, _of_others(jobs.dram / slower))
    memory = np.exp(law.bandwidth * jobs.busy * traffic**_LATENCY_EXPONENT)
    drawn = _of_all(jobs.active / (slower * memory))
    return np.asarray(alone * memory * np.maximum(1.0, drawn) ** (1 - jobs.dram))


def errors(caps: IntArray, curve: FloatArray) -> FloatArray:
    """Return standard errors of the logarithms of slowdowns, shapes as in ``slowdowns``."""
    at_caps = np.where(np.isnan(curve), np.hypot(CAPPED_ERROR, ROOFLINE_ERROR), CAPPED_ERROR)
    return np.where(caps == UNCAPPED, UNCAPPED_ERROR, at_caps)


def _first(values: FloatArray, otherwise: FloatArray) -> FloatArray:
    return np.where(np.isnan(values), otherwise, values)


def _zero(values: FloatArray) -> FloatArray:
    return np.nan_to_num(values, nan=0.0)
