"""The rule book: how a job may run, which may share a GPU, and how fast one runs alone.

All code that plans, simulates or starts jobs uses these rules, so that a rule has one meaning:

- the jobs on a GPU need at most its memory less the cluster's reserve; they fit up to
  ``MEMORY_TOLERANCE_MIB`` more. Memory in per cent is of the same: two jobs of 50 fit;
- there are at most ``max_jobs_per_gpu`` of them, or ``max_jobs`` of the GPU if that is less, and
  their shares sum to at most ``share_sum``;
- the *bound* of a job's slowdown is at most its gSLA times ``1 + GSLA_TOLERANCE``. For a
  latency-critical job it is the growth of its p99 if that is known, for all others the upper bound
  of the slowdown. It holds until the job ends, so it is the largest bound among all jobs that share
  the GPU, among any known combination of some of them, and alone: a job keeps its cap when
  co-runners end.

The checker (``dovetail.instances.checking``) checks decisions against the same rules with separate
code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np

from dovetail.formulations.arrays import Floats
from dovetail.instances._record import IDLE, AnyShare
from dovetail.instances.instance import Batch, Cluster, Workload
from dovetail.instances.slowdowns.shares import share_total

MEMORY_TOLERANCE_MIB: Final = 1e-6
GSLA_TOLERANCE: Final = 1e-9

Figures = TypeVar("Figures", float, Floats)


def room_mib(memory_mib: Figures) -> Figures:
    """Return the memory that jobs may need together, in MiB, if ``memory_mib`` is free."""
    return memory_mib + MEMORY_TOLERANCE_MIB


def largest_gang(cluster: Cluster, way: Mode, together: int = 1, one_each: bool = False) -> int:
    """Return how many workers of a job fit on the GPUs of one model at most, one per GPU.

    Parameters
    ----------
    cluster : Cluster
        The cluster.
    way : Mode
        How its workers run.
    together : int
        How many workers must be on a node together.
    one_each : bool
        Whether a node may have only one such group of workers.
    """
    fitting: Counter[str] = Counter()
    for node in cluster.nodes:
        gpus = Counter(
            gpu.model
            for gpu in node.devices
            if fit_together([way], gpu.memory_mib - cluster.reserve_mib)
        )
        for model, number in gpus.items():
            groups = number // together
            fitting[model] += together * (min(groups, 1) if one_each else groups)
    return max(fitting.values(), default=0)


def most_bound(gsla: Figures) -> Figures:
    """Return the largest bound that keeps a gSLA."""
    return gsla * (1 + GSLA_TOLERANCE)


def seat_refusal(
    cluster: Cluster, taken: Sequence[AnyShare], share: AnyShare, most_jobs: int
) -> str:
    """Return why a job may not join a GPU at a share; empty if it may.

    Parameters
    ----------
    cluster : Cluster
        The cluster, with the limits ``shares`` and ``share_sum``.
    taken : sequence of (int or None)
        The shares of the jobs on the GPU.
    share : int or None
        The share of the joining job.
    most_jobs : int
        How many jobs may be on the GPU.
    """
    if len(taken) >= most_jobs:
        return f"{len(taken) + 1} jobs, at most {most_jobs} may share a GPU"
    if share is not None and share not in cluster.shares:
        return f"a share of {share}, not one of the cluster's shares"
    total = share_total([*taken, share])
    return "" if total <= cluster.share_sum else f"shares sum to {total} > {cluster.share_sum}"


def tail_bounds(upper: Floats, p99: Floats) -> Floats:
    """Return the bounds of latency-critical jobs: ``p99``, or ``upper`` where it is NaN."""
    return np.where(np.isnan(p99), upper, p99)


def slowdown_at_last(workload: Workload, share: AnyShare) -> float:
    """Return the slowdown of a job after its co-runners have ended: it keeps its cap.

    If it was not measured, it is 1: a job alone at its cap is not known to be slower than with
    co-runners.
    """
    alone = slowdown_alone(workload, share)
    return 1.0 if alone is None else alone


def slowdown_alone(workload: Workload, share: AnyShare) -> float | None:
    """Return the slowdown of a job that has a GPU to itself; None if it was not measured.

    Only jobs with ``isolation`` may have the share ``idle``.
    """
    if share is None:
        return 1.0
    if share == IDLE:
        return None if workload.isolation is None else 1.0
    return workload.slowdown_alone(share)


def iteration_time(batch: Batch, sub_batch: int) -> float:
    """Return the seconds of one iteration at a sub-batch: Castor (2025), eq. 1-3.

    With s = size / sub_batch accumulation steps, only the last of which overlaps with the gradient
    exchange: (s - 1) t_comp(b) + (t_comp(b)^d + t_comm^d)^(1/d).
    """
    compute = batch.step_s.fixed + batch.step_s.per_sample * sub_batch
    longer, shorter = max(compute, batch.comm_s), min(compute, batch.comm_s)
    # Factored by the longer of the two, so that a large overlap exponent cannot overflow.
    last: float = longer * (1 + (shorter / longer) ** batch.overlap) ** (1 / batch.overlap)
    return (batch.size // sub_batch - 1) * compute + last


class Mode(NamedTuple):
    """A way to run a workload: at its full batch, or at a smaller one with accumulation.

    Attributes
    ----------
    sub_batch : int or None
        Samples per accumulation step; None if the workload has no batch model.
    memory_mib : float
        Memory of one worker, including the per-process overhead; 0 if it is a part of the GPU's.
    memory_part : float
        The part of the memory that a GPU offers to jobs, per-process overhead included.
    slowdown_factor : float
        t(k) / t(0) of Castor's eq. 3.
    """

    sub_batch: int | None
    memory_mib: float
    slowdown_factor: float
    memory_part: float = 0.0

    def need_mib(self, offered_mib: float) -> float:
        """Return the memory of one worker on a GPU that offers this much to jobs, in MiB."""
        return self.memory_mib + self.memory_part * max(0.0, offered_mib)


def fit_together(ways: Iterable[Mode], offered_mib: float) -> bool:
    """Return whether workers in these modes fit on a GPU that offers this much memory to jobs."""
    return sum([way.need_mib(offered_mib) for way in ways]) <= room_mib(offered_mib)


def modes(workload: Workload, overhead_mib: float) -> tuple[Mode, ...]:
    """Return the ways to run a workload, its full batch first, then each half of the one before."""
    if workload.memory_percent is not None:
        return (Mode(None, 0.0, 1, workload.memory_percent / 100),)
    batch, own_mib = workload.batch, workload.memory_mib or 0.0
    full = Mode(None if batch is None else batch.size, own_mib + overhead_mib, 1)
    if batch is None:
        return (full,)
    return (full, *(_at_sub_batch(batch, size, overhead_mib) for size in _sub_batches(batch)))


def _sub_batches(batch: Batch) -> list[int]:
    sizes = []
    size = batch.size
    while size % 2 == 0 and size // 2 >= batch.min:
        size //= 2
        sizes.append(size)
    return sizes


def _at_sub_batch(batch: Batch, sub_batch: int, overhead_mib: float) -> Mode:
    memory = batch.fixed_mib + batch.mib_per_sample * sub_batch + overhead_mib
    slowdown_factor = iteration_time(batch, sub_batch) / iteration_time(batch, batch.size)
    return Mode(sub_batch, memory, slowdown_factor)
