"""The solo profile of a workload."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from dovetail.instances._record import Fraction, NonNegative, Record, listed, rule_broken


class Metrics(Record):
    """Solo profile of a workload: the activity fractions of DCGM and byte rates.

    ``gpu_util`` and ``mem_util`` are the coarser figures of ``nvidia-smi``, as fractions;
    ``warp_efficiency``, ``ipc`` and the global loads and stores (``gld``, ``gst``) are those of
    kernel profilers. ``cpu_util`` is the fraction of all cores of the node. ``kernels_s`` and the
    fields below describe the kernels that the workload launches alone, without a cap: kernels a
    second, the mean of their durations and the mean weighted by duration (sum of squares by sum),
    the fraction of their time in kernels whose blocks fill every SM, and, weighted by duration,
    the warps that fit (as a fraction of the most), threads and shared memory of a block, and
    registers of a thread.
    """

    sm_active: Fraction | None = None
    sm_occupancy: Fraction | None = None
    dram_active: Fraction | None = None
    tensor_active: Fraction | None = None
    fp64_active: Fraction | None = None
    fp32_active: Fraction | None = None
    fp16_active: Fraction | None = None
    pcie_rx_bytes_s: NonNegative | None = None
    pcie_tx_bytes_s: NonNegative | None = None
    gpu_util: Fraction | None = None
    mem_util: Fraction | None = None
    graphics_active: Fraction | None = None
    warp_efficiency: Fraction | None = None
    ipc: NonNegative | None = None
    gld_bytes_s: NonNegative | None = None
    gst_bytes_s: NonNegative | None = None
    nvlink_rx_bytes_s: NonNegative | None = None
    nvlink_tx_bytes_s: NonNegative | None = None
    net_rx_bytes_s: NonNegative | None = None
    net_tx_bytes_s: NonNegative | None = None
    cpu_util: Fraction | None = None
    kernels_s: NonNegative | None = None
    kernel_mean_s: NonNegative | None = None
    kernel_weighted_s: NonNegative | None = None
    kernel_full: Fraction | None = None
    kernel_occupancy: Fraction | None = None
    block_threads: NonNegative | None = None
    block_shared_bytes: NonNegative | None = None
    thread_registers: NonNegative | None = None


METRICS: Final = tuple(Metrics.model_fields)
"""The names of all metrics."""

FRACTIONS: Final = frozenset(
    name for name, field in Metrics.model_fields.items() if field.annotation == Fraction | None
)
"""The metrics that are fractions; the others have no upper limit."""

KERNEL_METRICS: Final = (
    *("kernels_s", "kernel_mean_s", "kernel_weighted_s", "kernel_full", "kernel_occupancy"),
    *("block_threads", "block_shared_bytes", "thread_registers"),
)
"""The metrics that describe a workload's kernels."""


def _metric(name: str) -> str:
    if name not in METRICS:
        raise rule_broken("", f"must be one of {listed(METRICS, len(METRICS))}, got {name!r}")
    return name


MetricName = Annotated[str, Field(strict=True), AfterValidator(_metric)]
