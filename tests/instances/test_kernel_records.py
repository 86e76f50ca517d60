"""Kernels of a window become metrics; occupancies are those of CUDA's calculator."""

import numpy as np
import pytest

from dovetail.instances.kernel_records import (
    LIMITS,
    KernelGpu,
    KernelRecords,
    blocks_that_fit,
    kernel_metrics,
)
from dovetail.instances.metrics import Metrics

H200 = KernelGpu(sms=132, capability="9.0")


def kernels(*rows: tuple[float, ...]) -> KernelRecords:
    """Rows of start, duration, blocks, threads, registers and shared memory."""
    return KernelRecords(*np.array(rows, dtype=float).T)


def one(threads: int, registers: int, shared: int = 0) -> KernelRecords:
    return kernels((0.0, 1e-6, 1, threads, registers, shared))


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks"),
    [
        # Worked out by the rules of the CUDA Occupancy Calculator.
        ("9.0", 256, 32, 0, 8),  # 64 warps / 8
        ("9.0", 32, 16, 0, 32),  # the most blocks
        ("9.0", 128, 255, 0, 2),  # 16384 registers of a part / 8192: 8 warps, 4 a block
        ("9.0", 128, 168, 0, 3),  # 5376 a warp: 3 in a part, 12 warps
        ("9.0", 384, 168, 230_400, 1),  # wgmma: 225 KiB and 1 KiB reserved of 228
        ("9.0", 128, 32, 32 * 1024, 6),  # 33 KiB with the reserved one
        ("8.0", 1024, 64, 0, 1),
        ("8.6", 64, 32, 0, 16),
        ("8.6", 256, 32, 0, 6),  # 48 warps / 8
        ("7.0", 256, 32, 32 * 1024, 3),  # nothing is reserved
        ("7.5", 1024, 32, 0, 1),
        ("6.0", 96, 72, 0, 9),  # 2304 a warp: 14 in each of two parts, 28 warps, 3 a block
        ("3.7", 256, 64, 0, 8),
    ],
)
def test_blocks_that_fit_are_those_of_cudas_calculator(
    capability: str, threads: int, registers: int, shared: int, blocks: int
) -> None:
    fit = blocks_that_fit(one(threads, registers, shared), LIMITS[capability])
    assert fit.tolist() == [blocks]


def test_a_kernel_that_ran_fits_at_least_once() -> None:
    fit = blocks_that_fit(one(2048, 255, 10**6), LIMITS["9.0"])
    assert fit.tolist() == [1]


def test_means_are_weighted_by_duration() -> None:
    found = kernel_metrics(
        kernels(
            (0.000, 0.003, 132 * 8, 256, 32, 0),  # fills the SMs: 8 blocks of 8 warps
            (0.004, 0.001, 132 * 8 - 1, 256, 32, 0),  # a block less
            (0.005, 0.001, 10, 1024, 128, 0),  # 65,536 registers: one block, half of the warps
        ),
        500.0,
        H200,
    )
    assert found == pytest.approx(
        {
            "kernels_s": 500.0,
            "kernel_mean_s": 0.005 / 3,
            "kernel_weighted_s": (9 + 1 + 1) * 1e-6 / 0.005,
            "block_threads": 0.8 * 256 + 0.2 * 1024,
            "block_shared_bytes": 0.0,
            "thread_registers": 0.8 * 32 + 0.2 * 128,
            "kernel_occupancy": 0.8 * 1.0 + 0.2 * 0.5,
            "kernel_full": 0.6,
        }
    )
    Metrics(**found)


def test_without_a_gpu_nothing_is_said_about_its_sms() -> None:
    found = kernel_metrics(one(128, 32), 10.0)
    assert "kernel_full" not in found
    assert "kernel_occupancy" not in found


def test_kernels_too_short_for_the_clock_count_alike() -> None:
    found = kernel_metrics(kernels((0, 0, 1, 32, 16, 0), (1, 0, 1, 96, 16, 0)), 2.0, H200)
    assert found["block_threads"] == 64
    assert found["kernel_mean_s"] == found["kernel_weighted_s"] == 0


def test_the_span_is_from_the_first_start_to_the_last_end() -> None:
    assert kernels((5, 1, 1, 1, 1, 0), (2, 9, 1, 1, 1, 0), (3, 1, 1, 1, 1, 0)).span_s == 9
