"""Campaigns on a simulated GPU find exactly the figures of the instance."""

import pytest

from dovetail.instances.instance import Instance
from dovetail.measuring.campaign import WorkerSeat
from dovetail.measuring.dataset import measured_data
from dovetail.measuring.ledger import read_ledger
from dovetail.measuring.stand_ins import SimulatedDevice

from .programs import a_campaign, sitting

TRUTH = {
    "format": "dovetail-instance/1",
    "name": "known",
    "cluster": {
        "shares": [30, 70],
        "nodes": [{"id": "n0", "gpu_count": 1, "gpu": {"model": "V100", "memory_mib": 16000}}],
    },
    "workloads": {
        "a": {"memory_mib": 4000, "throughput": {"100": 50}, "power_w": 100},
        "b": {"memory_mib": 9000, "throughput": {"100": 20}, "power_w": 150, "family": "bs"},
    },
    "jobs": [],
    "slowdowns": [
        {"pair": ["a", "a"], "slowdown": [1.5, 1.5]},
        {"pair": ["a", "b"], "slowdown": [2.0, 1.1]},
        {"pair": ["a", "a"], "share": [30, 70], "slowdown": [2.5, 1.25]},
    ],
}
WINDOWS = {"settle_s": 0.1, "least_s": 1.2, "most_s": 1.5}


@pytest.fixture
def device(tmp_path):
    device = SimulatedDevice(tmp_path / "pool", Instance.from_data(TRUTH))
    yield device
    device.close()


def measured(device, folder, *stages, names=("a", "b")):
    of = a_campaign(list(names), *stages, windows=WINDOWS)
    with sitting(device, of, folder, lambda seat: ()) as now:
        assert now.runner.run() == ()
        return now.ledger.results


def test_what_is_found_is_what_the_instance_says(device, tmp_path):
    stages = {"measure": "solos"}, {"measure": "pairs"}
    results = measured(device, tmp_path / "out", *stages)
    found = measured_data(read_ledger(tmp_path / "out"), "found").data
    alone = {one.workload: one for one in found.profiles}
    assert alone["a"].throughput == pytest.approx(50, rel=0.01)
    assert alone["b"].throughput == pytest.approx(20, rel=0.01)
    assert alone["b"].family == "bs"
    assert alone["b"].memory_mib == 9000
    pairs = {tuple(sorted(one.workloads)): one for one in found.measurements}
    assert pairs["a", "a"].slowdown == pytest.approx((1.5, 1.5), rel=0.01)
    together = dict(zip(pairs["a", "b"].workloads, pairs["a", "b"].slowdown, strict=True))
    assert together == pytest.approx({"a": 2.0, "b": 1.1}, rel=0.01)
    # Two of the larger one do not fit.
    assert pairs["b", "b"].failed
    assert [one.status for one in results].count("out-of-memory") == 1


def test_shares_are_those_of_the_instance(device, tmp_path):
    stages = {"measure": "solos"}, {"measure": "pairs", "shares": [30, 70]}
    results = measured(device, tmp_path, *stages, names=("a",))
    assert [one.status for one in results] == ["ok", "ok"]
    found = measured_data(read_ledger(tmp_path), "found").data.measurements[0]
    slowdowns = dict(zip(found.shares, found.slowdown, strict=True))
    assert slowdowns == pytest.approx({30: 2.5, 70: 1.25}, rel=0.01)
    assert device.why_not(WorkerSeat("a", "mps", 50)) == "the instance allows no share of 50 %"
    assert device.why_not(WorkerSeat("a", "time-sliced")) is not None
