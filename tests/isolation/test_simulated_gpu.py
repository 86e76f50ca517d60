"""The simulated GPU: cases by hand, and the ranking of the ways of sharing."""

import numpy as np
import pytest

from benchmarks.isolation.simulated_gpu import (
    KernelKind,
    SimulatedGpu,
    Stream,
    time_sliced,
)

SMS = 10
REQUEST = Stream((KernelKind(20, 256, 1e-3, 1),))
LONG = Stream((KernelKind(1000, 256, 1e-3, 1),))


def _run(sharing, others=(LONG,), **options):
    gpu = SimulatedGpu(SMS, sharing, noise=0.0, **{"contention": 0.0, **options})
    return gpu.run(REQUEST, [10e-3], others, 2.0)


def test_alone():
    found = _run("alone")
    # Two waves of ten blocks.
    assert found.latencies_s == pytest.approx(2e-3, rel=0.01)
    assert len(found.latencies_s) == pytest.approx(2.0 / 12e-3, rel=0.02)
    assert found.passes == ()


def test_kernels_are_waited_for_under_mps():
    # 100 waves of the other are dispatched before; with priority, only the wave in flight.
    assert np.max(_run("mps").latencies_s) > 50e-3
    assert np.max(_run("mps-priority").latencies_s) < 4e-3


def test_kernel_level_scheduling_waits_for_the_kernel():
    found = _run("kernels")
    assert np.max(found.latencies_s) > 50e-3 or np.max(found.turnarounds_s) > 0.5e-3


def test_block_level_scheduling_waits_for_a_block():
    found = _run("tally", worker_overhead=0.25)
    assert np.percentile(found.latencies_s, 99) < 2e-3 + 1.3e-3
    assert np.max(found.turnarounds_s) < 1.3e-3
    assert 0.5 < found.passes[0] / (2.0 / 0.1) < 1


def test_work_is_conserved():
    """With all forms, the executed work equals the time of an idle GPU."""
    for sharing in ("mps", "mps-priority", "tally"):
        found = _run(sharing, worker_overhead=0.0)
        busy_s = len(found.latencies_s) * 2e-3 + found.passes[0] * 100e-3
        assert 1.5 < busy_s < 2.1


def test_contention_slows_both():
    small = Stream((KernelKind(5, 256, 1e-3, 1),))
    apart = _run("mps", others=(small,)).latencies_s.mean()
    together = _run("mps", others=(small,), contention=1.0).latencies_s.mean()
    assert together > 1.1 * apart


def test_the_bound_is_kept_by_kernels_that_can_keep_it():
    stream = Stream(tuple(KernelKind(4000, 256, block_s, 8) for block_s in (3e-6, 9e-6, 20e-6)))
    gpu = SimulatedGpu(SMS, "tally", bound_s=31.6e-6, contention=0.0)
    found = gpu.run(REQUEST, [1e-3, 2e-3, 5e-3], [stream], 4.0)
    kept = found.turnarounds_s[found.bounded]
    assert len(kept) > 100
    # Half a wave more than the block that runs: the signal itself takes 1.5 us.
    assert kept.max() <= 31.6e-6 + 1.5e-6


def test_time_slicing_by_hand():
    # A request of 2 ms waits for the rest of the other's turn of 2 ms.
    latencies, passes = time_sliced(REQUEST, [3e-3], LONG, 1.0, sms=SMS, quantum_s=2e-3)
    assert latencies == pytest.approx(1e-3 + REQUEST.alone_s(SMS) + 2e-3, abs=2e-3)
    assert passes > 0


def test_streams_are_drawn_as_asked():
    stream = Stream.drawn(
        1, count=400, median_s=1e-4, sigma=1.0, block_median_s=5e-5, sms=SMS, total_s=0.1
    )
    assert sum(kind.alone_s(SMS) for kind in stream.kinds) == pytest.approx(0.1)
    again = Stream.drawn(
        1, count=400, median_s=1e-4, sigma=1.0, block_median_s=5e-5, sms=SMS, total_s=0.1
    )
    assert again == stream


def test_the_same_seed_gives_the_same_figures():
    stream = Stream.drawn(1, count=30, median_s=1e-4, sigma=1.0, block_median_s=5e-5, sms=SMS)
    runs = [SimulatedGpu(SMS, "tally", seed=3).run(REQUEST, [5e-3], [stream], 0.5) for _ in "ab"]
    assert np.array_equal(runs[0].latencies_s, runs[1].latencies_s)
    assert runs[0].passes == runs[1].passes
