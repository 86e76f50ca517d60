"""Records from readings, by hand."""

from __future__ import annotations

import math

import pytest

from dovetail.executor.jobs.specs import JobSpec, Run, Seat
from dovetail.executor.live.observation.records import (
    Period,
    Rate,
    Slowed,
    measurement,
    moment,
    power_w,
    solo_profile,
    with_kernels_of,
)
from dovetail.executor.pools.pool import Usage
from dovetail.instances.datasets import SoloProfile
from dovetail.instances.metrics import FRACTIONS, KERNEL_METRICS, METRICS
from tests.executor.live.telling import ANN

STEADY = Rate(4.0, 0.012, 0.0, 240.0, 60.0)
NO_READINGS = Period("M", [[]], 0.0)


def run_on(*gpus, share=None):
    spec = JobSpec(command=("a",), workload="w", owner=ANN, cwd="/", workers=len(gpus))
    return Run(id="j1.1", job="j1", spec=spec, seats=[Seat(gpu=gpu, share=share) for gpu in gpus])


def test_a_profile_has_means_over_all_devices_and_the_variance_of_one_reading():
    devices = [
        [
            Usage(0.0, energy_j=0.0, metrics={"sm_active": 0.4}, source="NVML GPM"),
            Usage(10.0, energy_j=2000.0, metrics={"sm_active": 0.6}, source="NVML GPM"),
        ],
        [
            Usage(0.0, energy_j=500.0, metrics={"sm_active": 0.8}, source="NVML GPM"),
            Usage(10.0, energy_j=1500.0, metrics={"ipc": 1.5}, source="NVML GPM"),
        ],
    ]
    found = solo_profile(run_on("g0", "g1"), "ann/w", STEADY, 900.0, Period("H200", devices, 0.0))
    assert found.metrics.sm_active == pytest.approx(0.6)  # of 0.4, 0.6, 0.8
    assert found.metrics_variance["sm_active"] == pytest.approx(0.08 / 3)
    assert found.metrics.ipc == 1.5
    assert found.power_w == pytest.approx(150.0)  # of 200 W and 100 W
    assert (found.throughput, found.memory_mib, found.workers) == (4.0, 900.0, 2)
    assert found.source == "live; rate ±1.2% over 60 s; NVML GPM"
    assert found.date == "1970-01-01T00:00:00+00:00"
    assert found.share is None


def test_a_capped_run_s_profile_says_so():
    assert solo_profile(run_on("g", share=40), "w", STEADY, 1.0, NO_READINGS).share == 40


def test_readings_outside_of_what_can_be_are_cut_and_strange_ones_left_out():
    metrics = {"sm_active": 1.0004, "dram_active": -1e-6, "fp64_active": math.nan, "odd": 3.0}
    device = [Usage(0.0, metrics={**metrics, "pcie_rx_bytes_s": 2e9})]
    found = solo_profile(run_on("g"), "w", STEADY, 1.0, Period("M", [device], 0.0)).metrics
    assert found.to_data() == {"sm_active": 1.0, "dram_active": 0.0, "pcie_rx_bytes_s": 2e9}


def test_without_readings_there_are_no_metrics_and_no_power():
    found = solo_profile(run_on("g"), "w", STEADY, 1.0, NO_READINGS)
    assert (found.metrics, found.power_w) == (None, None)
    assert found.source == "live; rate ±1.2% over 60 s"


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([], None),
        ([Usage(0.0, energy_j=5.0)], None),
        ([Usage(0.0, energy_j=5.0), Usage(0.0, energy_j=6.0)], None),
        ([Usage(0.0, energy_j=5.0), Usage(2.0), Usage(4.0, energy_j=9.0)], 1.0),
        ([Usage(0.0, energy_j=5.0), Usage(4.0, energy_j=1.0)], None),
    ],
)
def test_power_is_energy_over_time(readings, expected):
    assert power_w(readings) == expected


def test_a_measurement_has_the_worse_noise_and_the_shorter_time():
    slowed = [Slowed(1.25, STEADY), Slowed(1e-6, Rate(1.0, math.inf, math.inf, 9.0, 55.0))]
    found = measurement(["ann/w", "bob/v"], [50, None], slowed, Period("M", [[]], 1e9))
    assert found.workloads == ("ann/w", "bob/v")
    assert found.share == (50, None)
    assert found.slowdown == (1.25, 1e-3)
    assert found.p99 is None
    assert found.source == "live; rate noise unknown over 55 s"
    assert found.date == moment(1e9) == "2001-09-09T01:46:40+00:00"


def test_a_measurement_has_the_growth_of_the_tails_that_are_known():
    slowed = [Slowed(1.1, STEADY, 2.5), Slowed(1.2, STEADY)]
    found = measurement(["ann/w", "bob/v"], [None, None], slowed, NO_READINGS)
    assert found.p99 == (2.5, None)


def test_runs_of_which_one_stood_still_failed_to_run_together():
    found = measurement(["a", "b"], [None, None], None, NO_READINGS)
    assert found.failed
    assert found.source == "live; stood still"


def test_the_variance_of_a_rate_of_bytes_is_kept():
    rates = (1e7, 3e8)
    readings = [[Usage(k, metrics={"pcie_rx_bytes_s": rate})] for k, rate in enumerate(rates)]
    found = solo_profile(run_on("g0"), "ann/w", STEADY, 900.0, Period("H200", readings, 0.0))
    assert found.metrics_variance["pcie_rx_bytes_s"] == pytest.approx(1.45e8**2)


def test_only_fractions_end_at_one():
    assert {"sm_active", "gpu_util", "cpu_util", "kernel_full", "kernel_occupancy"} <= FRACTIONS
    assert set(METRICS) - FRACTIONS >= set(KERNEL_METRICS) - {"kernel_full", "kernel_occupancy"}
    most = dict.fromkeys(METRICS, 2.0)
    readings = [[Usage(0.0, metrics=most)]]
    found = solo_profile(run_on("g0"), "w", STEADY, 1.0, Period("M", readings, 0.0)).metrics
    assert found.to_data() == {name: 1.0 if name in FRACTIONS else 2.0 for name in METRICS}


def profile(throughput, **metrics):
    return SoloProfile(workload="w", gpu_model="M", throughput=throughput, metrics=metrics)


def test_a_new_profile_keeps_what_is_known_of_the_kernels():
    known = profile(10.0, sm_active=0.9, kernels_s=300.0, kernel_full=0.5)
    found = with_kernels_of(profile(5.0, sm_active=0.4), known)
    assert found.metrics.to_data() == {"sm_active": 0.4, "kernels_s": 150.0, "kernel_full": 0.5}
    counted = with_kernels_of(profile(5.0, kernels_s=140.0), known)
    assert counted.metrics.to_data() == {"kernels_s": 140.0, "kernel_full": 0.5}
    unrated = profile(None, kernels_s=300.0)
    assert with_kernels_of(profile(5.0), unrated).metrics.kernels_s == 300.0
    for nothing in (None, profile(10.0, sm_active=0.9)):
        assert with_kernels_of(profile(5.0, sm_active=0.4), nothing) == profile(5.0, sm_active=0.4)
