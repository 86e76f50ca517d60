"""From the kernels that a GPU ran in a window to the metrics that describe them.

A profiler reports each kernel with its duration, its grid and block, the registers of a thread and
the shared memory of a block. How many blocks fit on an SM follows from the limits that the CUDA C++
Programming Guide documents for each compute capability (table "Technical Specifications per Compute
Capability") and from the units in which CUDA's own calculator (``cuda_occupancy.h``) allocates
registers and shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_WARP: Final = 32
_REGISTER_UNIT: Final = 256

_Numbers = NDArray[np.float64]


class SmLimits(NamedTuple):
    """What fits on an SM at once.

    Attributes
    ----------
    warps, blocks : int
        The most warps, and the most blocks.
    registers : int
        Its registers of 32 bits.
    shared_bytes : int
        Its shared memory.
    reserved_bytes : int
        Shared memory that CUDA itself uses for each block.
    shared_unit_bytes : int
        The unit in which shared memory is allocated.
    partitions : int
        The parts in which registers are allocated.
    """

    warps: int
    blocks: int
    registers: int
    shared_bytes: int
    reserved_bytes: int = 1024
    shared_unit_bytes: int = 128
    partitions: int = 4


def _before_ampere(warps: int, blocks: int, shared_kib: int, partitions: int = 4) -> SmLimits:
    return SmLimits(warps, blocks, 65536, shared_kib * 1024, 0, 256, partitions)


def _since_ampere(warps: int, blocks: int, shared_kib: int) -> SmLimits:
    return SmLimits(warps, blocks, 65536, shared_kib * 1024)


LIMITS: Final[Mapping[str, SmLimits]] = MappingProxyType(
    {
        "3.7": SmLimits(64, 16, 131072, 112 * 1024, 0, 256),
        "5.0": _before_ampere(64, 32, 64),
        "5.2": _before_ampere(64, 32, 96),
        "6.0": _before_ampere(64, 32, 64, partitions=2),
        "6.1": _before_ampere(64, 32, 96),
        "7.0": _before_ampere(64, 32, 96),
        "7.5": _before_ampere(32, 16, 64),
        "8.0": _since_ampere(64, 32, 164),
        "8.6": _since_ampere(48, 16, 100),
        "8.7": _since_ampere(48, 16, 164),
        "8.9": _since_ampere(48, 24, 100),
        "9.0": _since_ampere(64, 32, 228),
        "10.0": _since_ampere(64, 32, 228),
        "10.3": _since_ampere(64, 32, 228),
        "12.0": _since_ampere(48, 24, 100),
        "12.1": _since_ampere(48, 24, 100),
    }
)
"""The limits of an SM by compute capability."""


class KernelGpu(NamedTuple):
    """The GPU that ran the kernels: its SMs, and its compute capability, a key of `LIMITS`."""

    sms: int
    capability: str


class KernelRecords(NamedTuple):
    """The kernels of a window: arrays with one number for each kernel, in any order.

    Attributes
    ----------
    start_s, duration_s : array of float
        When it began, on any clock, and how long it took.
    blocks, block_threads : array of float
        Blocks of its grid, and threads of a block.
    thread_registers, block_shared_bytes : array of float
        Registers of a thread, and shared memory of a block, static and dynamic.
    """

    start_s: _Numbers
    duration_s: _Numbers
    blocks: _Numbers
    block_threads: _Numbers
    thread_registers: _Numbers
    block_shared_bytes: _Numbers

    @property
    def span_s(self) -> float:
        """Seconds from the start of the first kernel to the end of the last one."""
        return float((self.start_s + self.duration_s).max() - self.start_s.min())


def kernel_metrics(
    kernels: KernelRecords, kernels_s: float, gpu: KernelGpu | None = None
) -> dict[str, float]:
    """Return the metrics that describe kernels, by the names of `Metrics`.

    Let kernel k take d_k seconds, and let w_k = d_k / sum(d). Then

    - ``kernel_mean_s`` = mean(d), ``kernel_weighted_s`` = sum(w_k d_k),
    - ``block_threads``, ``block_shared_bytes`` and ``thread_registers`` = sum(w_k x_k),
    - ``kernel_occupancy`` = sum(w_k r_k), where r_k is the fraction of the SM's warps that the
      blocks which fit on it have,
    - ``kernel_full`` = sum of w_k over the kernels with at least as many blocks as fit on all SMs.

    Parameters
    ----------
    kernels : KernelRecords
        The kernels, at least one.
    kernels_s : float
        Kernels a second when no profiler slows the program down.
    gpu : KernelGpu, optional
        The GPU; without it, the last two are left out.
    """
    total_s = float(kernels.duration_s.sum())
    uniform = np.full(len(kernels.duration_s), 1 / len(kernels.duration_s))
    weight = kernels.duration_s / total_s if total_s > 0 else uniform
    found = {
        "kernels_s": kernels_s,
        "kernel_mean_s": float(kernels.duration_s.mean()),
        "kernel_weighted_s": float(weight @ kernels.duration_s),
        "block_threads": float(weight @ kernels.block_threads),
        "block_shared_bytes": float(weight @ kernels.block_shared_bytes),
        "thread_registers": float(weight @ kernels.thread_registers),
    }
    if gpu is not None:
        limits = LIMITS[gpu.capability]
        fit = blocks_that_fit(kernels, limits)
        warps = fit * np.ceil(kernels.block_threads / _WARP)
        full = kernels.blocks >= gpu.sms * fit
        found["kernel_occupancy"] = min(1.0, float(weight @ warps) / limits.warps)
        found["kernel_full"] = min(1.0, float(weight @ full))
    return found


def blocks_that_fit(kernels: KernelRecords, limits: SmLimits) -> _Numbers:
    """Return how many blocks of each kernel fit on an SM at once.

    The least of what its blocks, warps, registers and shared memory allow, and at least one, as the
    kernel ran. Registers are allocated to warps in units of 256, within each part of the SM.
    """
    warps = np.ceil(kernels.block_threads / _WARP)
    per_warp = np.ceil(kernels.thread_registers * _WARP / _REGISTER_UNIT) * _REGISTER_UNIT
    per_part = np.floor(limits.registers / limits.partitions / np.maximum(per_warp, 1))
    unit = limits.shared_unit_bytes
    shared = np.ceil((kernels.block_shared_bytes + limits.reserved_bytes) / unit) * unit
    fit: _Numbers = np.minimum.reduce(
        (
            np.full(len(warps), float(limits.blocks)),
            np.floor(limits.warps / warps),
            np.floor(per_part * limits.partitions / warps),
            np.floor(limits.shared_bytes / np.maximum(shared, 1)),
        )
    )
    return np.maximum(fit, 1.0)
