"""Kernels are profiled after the window of a workload alone, by workers on a processor core."""

from __future__ import annotations

import json

import pytest

from dovetail.instances.datasets import read_dataset
from dovetail.measuring.commands import _line
from dovetail.measuring.dataset import write_tables
from dovetail.measuring.stand_ins import CpuDevice
from tests.instances.profiler_files import chrome_trace

from .programs import BRIEF, REQUESTS, STEADY, TORCH, a_campaign, sitting, worker_command, write


@pytest.fixture
def device(tmp_path):
    device = CpuDevice(tmp_path / "pool")
    yield device
    device.close()


@pytest.fixture
def torch(tmp_path):
    """Write a stand-in of PyTorch next to the workloads; return the file with its trace."""
    folder = tmp_path / "torch"
    folder.mkdir()
    for name, text in TORCH.items():
        write(folder, **{name.removesuffix(".py"): text})
    trace = folder / "trace.json"
    trace.write_text(json.dumps(chrome_trace()))
    return trace


def measured(device, tmp_path, of, **options):
    with sitting(device, of, tmp_path / "out", worker_command(of), **options) as now:
        assert now.runner.run() == ()
        return now.ledger.results


@pytest.mark.usefixtures("torch")
def test_each_workload_is_profiled_once_and_its_profiles_say_so(device, tmp_path):
    workloads = write(tmp_path, steady=STEADY, requests=REQUESTS)
    of = a_campaign(workloads, {"measure": "solos", "repeats": 2}, {"measure": "pairs"})
    results = measured(device, tmp_path, of, kernels=True)
    assert [one.status for one in results] == ["ok"] * 7
    with_kernels = [one for one in results if one.kernels]
    assert sorted(one.workloads for one in with_kernels) == [("requests",), ("steady",)]
    assert {one.repeat for one in with_kernels} == {0}
    for one in with_kernels:
        kernels = one.kernels
        assert kernels.profiler == "torch.profiler"
        assert kernels.launches == pytest.approx(2 / kernels.iterations)
        assert kernels.metrics["kernel_full"] == pytest.approx(0.75)
        assert kernels.cost_s > 0
        assert f"{kernels.launches:.4g} kernels an iteration (profiled in " in _line(one)
    write_tables(tmp_path / "out")
    profiles = read_dataset(tmp_path / "out").profiles
    assert len(profiles) == 4
    launches = {one.workloads[0]: one.kernels.launches for one in with_kernels}
    for one in profiles:
        assert one.metrics.kernels_s == pytest.approx(launches[one.workload] * one.throughput)
        assert one.source.endswith("kernels: torch.profiler")


def test_a_worker_that_was_profiled_is_ended(device, tmp_path, torch):
    of = a_campaign(write(tmp_path, steady=STEADY), {"measure": "solos"})
    with sitting(device, of, tmp_path / "out", worker_command(of), kernels=True) as now:
        now.runner.run()
        assert now.ledger.results[0].kernels
        assert now.workers.pids == ()


def test_a_trace_that_cannot_be_read_is_said(device, tmp_path, torch):
    torch.write_text('{"traceEvents": []}')
    of = a_campaign(write(tmp_path, steady=STEADY), {"measure": "solos", "repeats": 2})
    first, second = measured(device, tmp_path, of, kernels=True)
    assert first.kernels is None
    assert first.kernels_lack == "must have kernels of the GPU; has none"
    assert _line(first).endswith("kernels: must have kernels of the GPU; has none")
    assert (second.kernels, second.kernels_lack) == (None, "")  # once is enough


@pytest.mark.parametrize(
    ("old", "new", "lack"),
    [
        ("shutil.copy", "raise ValueError('no space')  # ", "ValueError: no space"),
        ("assert activities", "raise SystemExit(3)  # ", "exited with status"),
    ],
)
def test_a_profiler_that_fails_costs_no_result(device, tmp_path, torch, old, new, lack):
    program = torch.with_name("profiler.py")
    program.write_text(program.read_text().replace(old, new))
    of = a_campaign(write(tmp_path, steady=STEADY), {"measure": "solos"})
    (one,) = measured(device, tmp_path, of, kernels=True)
    assert one.status == "ok"
    assert lack in one.kernels_lack or "SystemExit" in one.kernels_lack


def test_nothing_is_profiled_unless_asked_or_without_time(device, tmp_path, torch):
    of = a_campaign(write(tmp_path, steady=STEADY), {"measure": "solos"})
    (one,) = measured(device, tmp_path, of)
    assert (one.kernels, one.kernels_lack) == (None, "")


@pytest.mark.usefixtures("torch")
def test_no_time_is_left_for_it(device, tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.measuring.runner.PROFILE_USUAL_S", 1e9)
    of = a_campaign(write(tmp_path, steady=STEADY), {"measure": "solos"}, windows=BRIEF)
    with sitting(
        device, of, tmp_path / "out", worker_command(of), until_s=1e9, kernels=True
    ) as now:
        now.runner.run()
        (one,) = now.ledger.results
    assert (one.kernels, one.kernels_lack) == (None, "")
