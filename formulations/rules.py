"""The rule book: which jobs may share a GPU, and how fast a job runs alone under a share.

Whatever plans, simulates or starts jobs asks here, so that a rule has one meaning:

- the jobs on a GPU need its memory at most, less what the cluster reserves; equal but for
  ``MEMORY_TOLERANCE_MIB`` counts as fitting;
- there are at most ``max_jobs_per_gpu`` of them, or ``max_jobs`` of the GPU if that is less, and
  their shares sum to ``share_sum`` at most;
- what a job's gSLA is held against, its *bound*, is at most the gSLA; equal but for the factor
  ``1 + GSLA_TOLERANCE`` counts as kept. The bound of a latency-critical job is the growth of its
  p99 where that is known; of all others the upper bound of the slowdown. It holds until the job
  ends, so it is the largest of those among all that share the GPU, among any of them of which it
  is known what they do to each other, and alone: a job keeps its cap when co-runners end.

The checker (``dovetail.instances.checker``) holds decisions against the same rules with code of its
own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import numpy as np

from dovetail.formulations.arrays import Floats
from dovetail.instances._record import IDLE
from dovetail.instances.instance import Cluster, Workload

MEMORY_TOLERANCE_MIB: Final = 1e-6
GSLA_TOLERANCE: Final = 1e-9

Figures = TypeVar("Figures", float, Floats)


def room_mib(memory_mib: Figures) -> Figures:
    """Return the most that jobs may need together, in MiB, where so much memory is free."""
    return memory_mib + MEMORY_TOLERANCE_MIB


def largest_gang(cluster: Cluster, need_mib: float) -> int:
    """Return how many workers of a job fit on the GPUs of one model, at most, one on each.

    ``need_mib`` is what one of them needs without the cluster's ``per_process_mib``.
    """
    need_mib += cluster.per_process_mib
    fitting = Counter(
        gpu.model
        for node in cluster.nodes
        for gpu in node.devices
        if need_mib <= room_mib(gpu.memory_mib - cluster.reserve_mib)
    )
    return max(fitting.values(), default=0)


def most_bound(gsla: Figures) -> Figures:
    """Return the largest bound that keeps a gSLA."""
    return gsla * (1 + GSLA_TOLERANCE)


def share_total(shares: Iterable[int | None]) -> int:
    """Return what the caps on a GPU sum to, in percent; no cap and ``idle`` count as 0."""
    return sum(share for share in shares if share is not None and share != IDLE)


def share_of(number: int) -> int | None:
    """Return the share that an array holds as a number: 0 for none."""
    return IDLE if number == IDLE else number or None


def seat_refusal(
    cluster: Cluster, taken: Sequence[int | None], share: int | None, most_jobs: int
) -> str:
    """Return why a job may not join a GPU at a share; empty if number and shares of jobs allow it.

    Parameters
    ----------
    cluster : Cluster
        Its ``shares`` and ``share_sum`` are limits.
    taken : sequence of (int or None)
        The shares of the jobs that are on the GPU.
    share : int or None
        The share of the job that is to join them.
    most_jobs : int
        How many jobs may be on the GPU.
    """
    if len(taken) >= most_jobs:
        return f"{len(taken) + 1} jobs, at most {most_jobs} may share a GPU"
    if share is not None and share not in cluster.shares:
        return f"a share of {share}, none of the cluster's shares"
    total = share_total([*taken, share])
    return "" if total <= cluster.share_sum else f"shares sum to {total} > {cluster.share_sum}"


def tail_bounds(upper: Floats, p99: Floats) -> Floats:
    """Return the bounds of latency-critical jobs: ``p99``, or ``upper`` where that is NaN."""
    return np.where(np.isnan(p99), upper, p99)


def slowdown_at_last(workload: Workload, share: int | None) -> float:
    """Return the slowdown of a job after its co-runners have ended: it keeps its cap.

    Where it was not measured, that is 1: at a cap that it has, a job alone is not known to be
    slower than with co-runners.
    """
    alone = slowdown_alone(workload, share)
    return 1.0 if alone is None else alone


def slowdown_alone(workload: Workload, share: int | None) -> float | None:
    """Return the slowdown of a job that has a GPU to itself; None where it was not measured.

    Only jobs that were made ready for it (``isolation``) may have the share ``idle``.
    """
    if share is None:
        return 1.0
    if share == IDLE:
        return None if workload.isolation is None else 1.0
    whole, capped = workload.throughput.get(100), workload.throughput.get(share)
    return None if whole is None or capped is None else whole / capped
