"""The ways to run a workload: at its full batch, or at a smaller one (Castor, 2025)."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.instances.instance import Batch, Workload


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
        Memory of one worker, including the per-process overhead.
    slowdown_factor : float
        t(k) / t(0) of Castor's eq. 3.
    """

    sub_batch: int | None
    memory_mib: float
    slowdown_factor: float


def modes(workload: Workload, overhead_mib: float) -> tuple[Mode, ...]:
    """Return the ways to run a workload, its full batch first, then each half of the one before."""
    batch = workload.batch
    full = Mode(None if batch is None else batch.size, workload.memory_mib + overhead_mib, 1)
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
