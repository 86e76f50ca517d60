"""A campaign with isolated pairs from end to end, on STAND-INS: no figure is one of a GPU.

Real: campaign, runner, pool, schedulers, the library that intercepts launches. Made up: NVML, MPS,
and the GPU of each worker (``stand_in_worker.py``), which an interpreter stands in for.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
from pathlib import Path

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.gpus.nvml import Nvml  # noqa: E402
from dovetail.executor.gpus.splits import Splits  # noqa: E402
from dovetail.executor.mps import processes  # noqa: E402
from dovetail.executor.mps.manager import MpsManager  # noqa: E402
from dovetail.executor.pools import gpu_health  # noqa: E402
from dovetail.instances._record import IDLE  # noqa: E402
from dovetail.instances.datasets import read_dataset  # noqa: E402
from dovetail.isolation.assemble import find_ptxas  # noqa: E402
from dovetail.isolation.schedulers import Schedulers  # noqa: E402
from dovetail.measuring.dataset import write_tables  # noqa: E402
from dovetail.measuring.gpu_device import GpuDevice  # noqa: E402
from dovetail.measuring.ledger import read_ledger  # noqa: E402
from dovetail.measuring.summary import summary  # noqa: E402
from tests.executor.gpus.gpu_machine import HASTY, gpu_machine  # noqa: E402
from tests.executor.gpus.injected_nvml import injected  # noqa: E402
from tests.executor.gpus.libcuda import standin_libcuda  # noqa: E402
from tests.isolation import made_up_gpu  # noqa: E402
from tests.isolation.tasks import task  # noqa: E402

from .programs import a_campaign, sitting  # noqa: E402
from .test_gpu_device import Alive  # noqa: E402

pytestmark = [
    pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas (extra isolation)"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]
ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("stand_in_worker.py")
NAMES = ["stand-in service", "stand-in training"]
SERVED = {"latency": NAMES[:1], "load": 0.2}
"""So few requests that, however busy the machine is, they do not queue up beyond chance."""
WINDOWS = {"settle_s": 0.1, "least_s": 0.4, "most_s": 2.0, "relative_error": 0.5}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The stand-in for libcuda that counts SMs, the one that launches, and the kernels."""
    counts, launches = (tmp_path_factory.mktemp(name) for name in ("counts", "launches"))
    tasks = launches / "tasks"
    tasks.write_bytes(pickle.dumps([task("update_in_place"), task("three_dimensions")]))
    return standin_libcuda(counts), made_up_gpu.build(launches), tasks


@pytest.fixture
def opened(folders, monkeypatch):
    """Return a way to open a sitting for stages on the made-up machine."""
    counts, launches, tasks = folders
    monkeypatch.setattr(gpu_health, "WATCH_S", 0.3)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(counts))
    monkeypatch.setenv("STAND_IN_TASKS", str(tasks))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    worker = ["env", f"LD_LIBRARY_PATH={launches}", sys.executable, str(WORKER)]
    with injected() as library, gpu_machine(library) as machine:
        mps = MpsManager(machine.place / "m", program=machine.program, patience=HASTY)
        isolation = Schedulers(machine.place / "isolation", idle_s=60.0)
        assert isolation.why_not() is None
        nvml = Nvml()
        device = GpuDevice(
            machine.place / "pool", nvml.gpus()[0], nvml, mps, Splits(), "130100", isolation
        )
        of = a_campaign(
            NAMES,
            {"measure": "solos"},
            {"measure": "solos", "workloads": NAMES[:1], **SERVED},
            {"measure": "pairs", **SERVED},
            {"measure": "pairs", "mode": "isolated", **SERVED},
            {"measure": "solos", "mode": "isolated", **SERVED},
            windows=WINDOWS,
        )
        command = [*worker, "--device", "cpu", "--size", "tiny"]
        with sitting(device, of, machine.place / "out", lambda seat: command) as now:
            library.processes = Alive(lambda: now.workers.pids)
            yield machine, now
        device.close()
        assert not schedulers(machine)


def schedulers(machine):
    """Return the schedulers of the machine that run."""
    found = processes.running("dovetail.isolation.server")
    return [one for one in found if any(str(machine.place) in a for a in one.arguments)]


def test_a_campaign_has_isolated_pairs_from_end_to_end(opened):
    machine, now = opened
    assert now.runner.run() == ()
    assert [(one.status, one.reason) for one in now.ledger.results] == [("ok", "")] * 7
    for one in now.ledger.results:
        assert set(one.families) == {"stand-in"}
        assert bool(one.launches) == (one.mode == "isolated")
    (isolated,) = [one for one in now.ledger.results if one.stage == 3]
    assert isolated.shares in ((None, IDLE), (IDLE, None))
    assert len(schedulers(machine)) == 1
    found = summary(read_ledger(machine.place / "out"))
    assert [(one.mode, one.beside) for one in found.requests] == [
        ("mps", ()), ("isolated", ()), ("mps", (NAMES[1],)), ("isolated", (NAMES[1],)),
    ]  # fmt: skip
    write_tables(machine.place / "out")
    data = read_dataset(machine.place / "out")
    assert {one.share for one in data.measurements} == {None, isolated.shares}
    assert {one.workload for one in data.profiles} == {*NAMES, f"{NAMES[0]}-load0.2"}


def test_a_scheduler_that_ends_in_a_window_spoils_it_and_is_replaced(opened, monkeypatch):
    machine, now = opened
    begins, meter = now.heard.begins, GpuDevice.meter
    stages, killed = [], []

    def begun(experiment, left):
        stages.append(experiment.stage)
        begins(experiment, left)

    def metered(device):
        # A scheduler that ends sooner may be replaced before the window.
        if stages[-1] == 4 and not killed:
            (scheduler,) = schedulers(machine)
            killed.append(scheduler.pid)
            os.kill(scheduler.pid, signal.SIGKILL)
        return meter(device)

    now.heard.begins = begun
    monkeypatch.setattr(GpuDevice, "meter", metered)
    assert now.runner.run() == ()
    last = [one for one in now.ledger.results if one.stage == 4]
    assert [one.status for one in last] == ["failed", "ok", "ok"]
    assert "has ended" in last[0].reason
