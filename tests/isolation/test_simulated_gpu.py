"""The simulated GPU: cases by hand, what is conserved, and the order of the ways of sharing."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.isolation.simulated.arrivals import bursts, poisson, regular
from benchmarks.isolation.simulated.costs import COSTS
from benchmarks.isolation.simulated.gpu import SimulatedGpu
from benchmarks.isolation.simulated.kernels import KernelKind, Stream, Work
from benchmarks.isolation.simulated.ways import WAYS

SMS = 10
EVEN = replace(COSTS, contention=0.0, noise=0.0)
FREE = replace(
    EVEN,
    **{name: 0.0 for name in vars(COSTS) if name.endswith("_s")},
    worker_slowed=0.0,
)
FREE = replace(FREE, launch_s=(0.0, 0.0), seen_s=1e-9, seen_99_s=2e-9, quantum_s=2e-3)
FREE = replace(FREE, wait_s=1e-6, sleep_s=1e-6, flag_again_s=1e-6)
REQUEST = Stream((KernelKind(20, 256, 1e-3, 1),))
LONG = Stream((KernelKind(1000, 256, 1e-3, 1),))
SHORT = Stream(tuple(KernelKind(20, 256, 5e-6, 1) for _ in range(20)))
OFTEN = np.arange(0.005, 2.0, 0.012)


def _run(way, stream=LONG, *, arrivals=OFTEN, costs=EVEN, end_s=2.0, **options):
    gpu = SimulatedGpu(SMS, way, costs=costs, **options)
    return gpu.run(REQUEST, arrivals, [Work(stream)], end_s)


def _drawn(kernels=30, median_s=60e-6, sigma=1.1, block_s=40e-6):
    return Stream.drawn(
        1, count=kernels, median_s=median_s, sigma=sigma, block_median_s=block_s, sms=SMS
    )


def test_alone():
    found = _run("alone")
    # Two waves of ten blocks, after the launch.
    assert found.latencies_s == pytest.approx(2e-3 + 7.5e-6, abs=2.6e-6)
    assert len(found.latencies_s) == len(OFTEN)
    assert found.passes == ()


def test_requests_wait_for_earlier_ones():
    """They arrive at once; the second is served after the first, and its wait is latency."""
    found = _run("alone", arrivals=np.array([0.1, 0.1, 0.1]))
    assert found.latencies_s == pytest.approx([2e-3, 4e-3, 6e-3], rel=0.02)
    assert found.services_s == pytest.approx(2e-3, rel=0.01)


def test_kernels_are_waited_for_under_mps():
    # 100 waves of the other are dispatched before; with priority, only the wave in flight.
    assert np.max(_run("mps").services_s) > 50e-3
    assert np.max(_run("mps-priority").services_s) < 4e-3


def test_a_cap_leaves_places():
    found = _run("mps-cap")
    # Four waves of five blocks, on the half that the other cannot take.
    assert found.services_s == pytest.approx(4e-3, rel=0.01)


@pytest.mark.parametrize("waves", [1, 3, 9])
def test_turns_end_with_the_kernel_that_runs(waves):
    """The longer the other's kernels, the later the turn changes."""
    stream = Stream((KernelKind(10 * waves, 256, 1e-3, 1),))
    # Far enough apart for the other's turn to have lasted.
    arrivals = np.cumsum(np.random.default_rng(1).uniform(0.02, 0.06, 480))
    found = _run("time-slicing", stream, costs=FREE, arrivals=arrivals, end_s=20.0)
    # A request waits for the kernel that runs, then takes 2 ms.
    waited = found.services_s - 2e-3
    assert 0.9 * waves * 1e-3 < waited.max() <= waves * 1e-3 + 1e-6
    assert waited.mean() == pytest.approx(waves * 0.5e-3, rel=0.15)


def test_time_slicing_shares_the_time_by_turns():
    gpu = SimulatedGpu(SMS, "time-slicing", costs=FREE)
    one = Stream((KernelKind(10, 256, 1e-3, 1),))
    found = gpu.run(REQUEST, [], [Work(one), Work(one)], 2.0)
    assert found.passes == pytest.approx((1000, 1000), abs=3)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "alone"])
def test_work_is_conserved(way):
    """Without costs and contention, the SMs were busy for what was executed, and no longer."""
    gpu = SimulatedGpu(SMS, way, costs=FREE)
    stream = _drawn(block_s=20e-6)
    found = gpu.run(REQUEST, poisson(3, 250.0, 2.0), [Work(stream)], 2.0)
    of_pass = sum(kind.blocks * kind.block_s / kind.residency for kind in stream.kinds) / SMS
    made = len(found.latencies_s) * 2e-3 + found.passes[0] * of_pass
    unfinished = 2e-3 + max(kind.alone_s(SMS) for kind in stream.kinds)
    assert made == pytest.approx(found.busy_s, abs=unfinished)
    assert found.busy_s <= 2.0 + unfinished
    if way in ("mps", "mps-priority", "gate"):
        # Something can run at any time.
        assert found.busy_s > 1.9


def test_contention_slows_both():
    small = Stream((KernelKind(5, 256, 1e-3, 1),))
    apart = _run("mps", small).services_s.mean()
    together = _run("mps", small, costs=replace(EVEN, contention=1.0)).services_s.mean()
    assert together > 1.1 * apart


class TestGate:
    def test_whole_kernels_are_waited_for(self):
        found = _run("gate")
        assert found.turnarounds_s.max() > 50e-3
        assert not found.bounded.any()

    def test_short_kernels_cost_little_while_no_request_comes(self):
        """Kernels of 10 us share waits; one at a time, each is waited for by the host."""
        alone_s = SHORT.alone_s(SMS)
        for way, least, most in (("gate-due", 0.93, 1.0), ("blocking", 0.0, 0.2)):
            found = _run(way, SHORT, arrivals=[], end_s=0.1)
            assert least < found.passes[0] * alone_s / 0.1 <= most

    def test_what_is_in_flight_is_bounded_by_time(self):
        found = _run("gate", SHORT, arrivals=poisson(1, 200.0, 2.0))
        assert len(found.turnarounds_s) > 100
        assert found.bounded.all()
        assert found.turnarounds_s.max() <= 31.6e-6

    @pytest.mark.parametrize("way", ["gate-slices", "gate-workers"])
    def test_the_bound_is_kept_by_kernels_that_can_keep_it(self, way):
        stream = Stream(tuple(KernelKind(4000, 256, block_s, 8) for block_s in (3e-6, 9e-6, 20e-6)))
        found = _run(way, stream, arrivals=poisson(2, 200.0, 2.0))
        assert found.bounded.sum() > 50
        kept = found.turnarounds_s[found.bounded]
        # Workers see the flag later than they would see a closed gate.
        late_s = COSTS.wake_s + COSTS.flag_s if way == "gate-workers" else COSTS.close_s
        assert np.percentile(kept, 99) <= 31.6e-6 + late_s + 8 * COSTS.gap_s

    def test_slices_give_way_sooner_than_whole_kernels(self):
        stream = _drawn()
        whole, sliced = (
            _run(way, stream, arrivals=poisson(1, 200.0, 2.0)) for way in ("gate", "gate-slices")
        )
        assert sliced.turnarounds_s.mean() < whole.turnarounds_s.mean()
        assert np.percentile(sliced.services_s, 99) < np.percentile(whole.services_s, 99)
        assert sliced.passes[0] < whole.passes[0]

    def test_no_long_kernel_begins_when_a_request_is_due(self):
        """Requests at regular distances are foreseen; the end of a kernel is not waited for."""
        stream = Stream((KernelKind(40, 256, 1e-3, 1),))
        arrivals = regular(1, 100.0, 4.0)
        gate, due = (
            _run(way, stream, arrivals=arrivals, end_s=4.0) for way in ("gate", "gate-due")
        )
        assert np.mean(gate.services_s > 2.1e-3) > 0.3
        assert np.mean(due.services_s[20:] > 2.1e-3) < 0.05
        assert due.passes[0] > 0.1 * gate.passes[0]

    def test_times_are_measured_meanwhile_if_they_are_not_known(self):
        gpu = SimulatedGpu(SMS, "gate-slices", costs=EVEN)
        found = gpu.run(REQUEST, OFTEN, [Work(_drawn())], 2.0, measured=False)
        known = _run("gate-slices", _drawn())
        assert 0.3 * known.passes[0] < found.passes[0]
        assert found.turnarounds_s.max() > known.turnarounds_s.max()


class TestTgs:
    def test_a_kernel_that_does_not_slow_requests_is_not_limited(self):
        found = _run("tgs", SHORT)
        free = _run("mps-priority", SHORT)
        assert found.passes[0] == pytest.approx(free.passes[0], rel=0.02)

    def test_one_that_takes_their_rate_is(self):
        """At a load of 90 %, waits for blocks leave less than all requests served."""
        arrivals, other = poisson(1, 450.0, 4.0), Stream((KernelKind(10, 256, 1e-3, 1),))
        tgs, free = (
            _run(way, other, arrivals=arrivals, end_s=4.0) for way in ("tgs", "mps-priority")
        )
        assert len(free.latencies_s) < 0.9 * len(arrivals)
        assert len(tgs.latencies_s) > len(free.latencies_s)
        assert tgs.passes[0] < 0.9 * free.passes[0]


def test_the_order_of_the_ways():
    """As theory has it: the less a request of many kernels waits for, the shorter its tail."""
    request = Stream(tuple(KernelKind(10, 256, 1e-4, 1) for _ in range(20)))
    stream, arrivals = _drawn(), poisson(5, 250.0, 2.0)
    tails, made = {}, {}
    for way in WAYS:
        found = SimulatedGpu(SMS, way).run(request, arrivals, [Work(stream)], 2.0)
        tails[way] = np.percentile(found.services_s, 99)
        made[way] = sum(found.passes)
    order = ["alone", "gate-slices", "gate", "mps-priority", "mps"]
    assert [tails[way] for way in order] == sorted(tails[way] for way in order)
    assert made["mps"] > made["gate"] > made["gate-slices"] > made["blocking"] > 0


def test_several_best_effort_clients_share_what_is_left():
    gpu = SimulatedGpu(SMS, "gate-slices", costs=EVEN)
    small = Stream((KernelKind(5, 256, 20e-6, 1),))
    works = [Work(small, poisson(k, 1000.0, 2.0)) for k in range(4)]
    found = gpu.run(REQUEST, OFTEN, works, 2.0)
    for work, passes in zip(works, found.passes, strict=True):
        assert passes == pytest.approx(len(work.arrivals_s), rel=0.02)
    assert np.percentile(found.services_s, 99) < 2.1e-3


class TestArrivals:
    @pytest.mark.parametrize("drawn", [poisson, bursts, regular])
    def test_as_many_as_asked(self, drawn):
        found = drawn(1, 200.0, 50.0)
        assert len(found) == pytest.approx(10_000, rel=0.03)
        assert np.all(np.diff(found) >= 0)
        assert found[0] >= 0
        assert found[-1] <= 50.0
        assert np.array_equal(found, drawn(1, 200.0, 50.0))

    def test_bursts_vary_more(self):
        counts = {
            drawn: np.histogram(drawn(1, 200.0, 50.0), bins=500)[0].var()
            for drawn in (poisson, bursts, regular)
        }
        assert counts[bursts] > 5 * counts[poisson] > 25 * counts[regular]


def test_streams_are_drawn_as_asked():
    asked = {"count": 400, "median_s": 1e-4, "sigma": 1.0, "block_median_s": 5e-5, "sms": SMS}
    stream = Stream.drawn(1, **asked, total_s=0.1)
    assert sum(kind.alone_s(SMS) for kind in stream.kinds) == pytest.approx(0.1)
    assert Stream.drawn(1, **asked, total_s=0.1) == stream


@pytest.mark.parametrize("way", WAYS)
def test_the_same_seed_gives_the_same_figures(way):
    runs = [_run(way, _drawn(), costs=COSTS, seed=3, end_s=0.5) for _ in "ab"]
    assert np.array_equal(runs[0].latencies_s, runs[1].latencies_s)
    assert runs[0].passes == runs[1].passes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "printed"),
    [("tally.py", "those that should keep 31.6"), ("isolated_pairs.py", "isolated by gate-due")],
)
def test_benchmarks_print_their_tables(script, printed):
    short = ("--seconds", "0.1", "--seeds", "2", "--kernels", "3")
    path = Path(__file__).parents[2] / "benchmarks" / "isolation" / script
    ran = subprocess.run([sys.executable, path, *short], capture_output=True, text=True, check=True)
    assert printed in ran.stdout
