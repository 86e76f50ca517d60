"""A campaign on a made-up GPU: real runner, workers and processes, real ``pynvml``.

Made up: what NVML says (``injected_nvml``), MPS (``mps/standin.py``), and the workers
(``pretender.py``), which attach to MPS as CUDA would and compute nothing.
"""

import itertools
import os
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.gpus.nvml import Nvml  # noqa: E402
from dovetail.executor.gpus.splits import Splits  # noqa: E402
from dovetail.executor.mps import processes  # noqa: E402
from dovetail.executor.mps.manager import MpsManager  # noqa: E402
from dovetail.executor.mps.processes import PIPE_DIRECTORY  # noqa: E402
from dovetail.executor.pools import gpu_health  # noqa: E402
from dovetail.instances.datasets import read_dataset  # noqa: E402
from dovetail.instances.errors import DovetailError, UnsupportedError  # noqa: E402
from dovetail.measuring import device as device_module  # noqa: E402
from dovetail.measuring.campaign import WorkerSeat  # noqa: E402
from dovetail.measuring.dataset import write_tables  # noqa: E402
from dovetail.measuring.device import DeviceLostError  # noqa: E402
from dovetail.measuring.gpu_device import GpuDevice  # noqa: E402
from tests.executor.gpus.gpu_machine import HASTY, gpu_machine, half_is_right  # noqa: E402
from tests.executor.gpus.injected_nvml import injected  # noqa: E402
from tests.executor.gpus.libcuda import standin_libcuda  # noqa: E402
from tests.instances.profiler_files import trace  # noqa: E402

from .programs import a_campaign, sitting  # noqa: E402

PRETENDER = Path(__file__).with_name("pretender.py")
PAIRS = {"measure": "pairs", "workloads": ["conv"]}


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory):
    return standin_libcuda(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def machine(libcuda, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libcuda))
    with injected() as library, gpu_machine(library) as machine:
        yield machine


class Alive(dict):
    """The processes on the made-up GPU: the workers that live, as MPS clients, and others."""

    def __init__(self, pids):
        super().__init__(compute=[])
        self.pids = pids

    def __getitem__(self, kind):
        return [(pid, 300 << 20) for pid in self.pids()] if kind == "mps" else super().get(kind)


def opened(machine, splits=None, cublas="130100", isolation="there is no ptxas"):
    mps = MpsManager(machine.place / "m", program=machine.program, patience=HASTY)
    nvml = Nvml()
    splits = splits or Splits()
    return GpuDevice(machine.place / "pool", nvml.gpus()[0], nvml, mps, splits, cublas, isolation)


def command(*options):
    return lambda seat: [sys.executable, "-IS", str(PRETENDER), *options]


@pytest.fixture
def campaign_on(machine):
    """Open a device and a sitting for stages; all is closed with the test."""
    opening = []

    def start(*stages, options=(), splits=None, kernels=False, **fields):
        device = opened(machine, splits)
        of = a_campaign(["conv", "lstm"], *stages, **fields)
        out = machine.place / "out"
        entered = sitting(device, of, out, command(*options), kernels=kernels)
        now = entered.__enter__()
        opening.append((entered, device))
        machine.library.processes = Alive(lambda: now.workers.pids)
        return now

    yield start
    for entered, device in opening:
        entered.__exit__(None, None, None)
        device.close()


def test_alone_and_in_pairs_under_mps(machine, campaign_on):
    began_s = time.monotonic()
    machine.library.energy_mj = lambda: int(250_000 * (time.monotonic() - began_s))
    halves = {**PAIRS, "shares": [50, 50], "first": ["conv"]}
    now = campaign_on({"measure": "solos"}, halves, splits=half_is_right())
    assert now.runner.run() == ()
    results = now.ledger.results
    assert [one.status for one in results] == ["ok"] * 4
    pair = results[-1]
    # 50 % of 132 SMs are 66.
    assert [pace.sms for pace in pair.paces] == [66, 66]
    assert [pace.memory_mib for pace in pair.paces] == [300, 300]
    # The made-up GPU draws 250 W; the machine may be busy between a reading and its time.
    assert pair.power_w == pytest.approx(250, rel=0.5)
    assert pair.energy_j == pytest.approx(250 * pair.window_s, rel=0.5)
    assert pair.metrics_source == "NVML GPM"
    assert pair.metrics["sm_active"] == pytest.approx(0.8)
    assert pair.clock_mhz == 1980
    assert pair.temperature_c == 61
    assert pair.throttled == ("hardware thermal", "power cap")
    assert pair.disturbed_by == ()
    assert pair.families == ("pretended", "pretended")


def test_kernels_are_profiled_alone_and_the_campaign_goes_on(machine, campaign_on):
    options = ("trace", str(trace(machine.place)))
    halves = {**PAIRS, "shares": [50, 50]}
    stages = ({"measure": "solos"}, {"measure": "solos", "shares": [50]}, PAIRS, halves)
    now = campaign_on(*stages, options=options, splits=half_is_right(), kernels=True)
    assert now.runner.run() == ()
    assert {one.status for one in now.ledger.results} == {"ok"}
    profiled = [one for one in now.ledger.results if one.kernels]
    assert sorted(one.key for one in profiled) == ["0:mps:conv#0", "0:mps:lstm#0"]
    for one in profiled:
        assert (one.kernels.launches, one.kernels.cost_s) == (0.5, 1.5)
        assert one.kernels.metrics["kernel_full"] == pytest.approx(0.75)
    write_tables(machine.place / "out")
    for one in read_dataset(machine.place / "out").profiles:
        if one.share is None:
            assert one.metrics.kernels_s == pytest.approx(0.5 * one.throughput)
            assert one.source.endswith("metrics: NVML GPM; kernels: torch.profiler")
        else:
            assert one.metrics.kernels_s is None


def test_metrics_have_means_and_variances_of_readings(machine, campaign_on, monkeypatch):
    monkeypatch.setattr(device_module, "READING_S", 0.2)
    turns = itertools.cycle([60.0, 80.0])
    sampled = machine.library.gpm_values

    class Turning(dict):
        def get(self, number, default=None):
            return next(turns) if number == 2 else sampled.get(number, default)

    machine.library.gpm_values = Turning(sampled)
    now = campaign_on({"measure": "solos"}, windows={"settle_s": 0.1, "least_s": 2, "most_s": 3})
    assert now.runner.run() == ()
    for one in now.ledger.results:
        # 0.6 and 0.8 by turns; how long each reading took is left to the machine.
        assert 0.6 < one.metrics["sm_active"] < 0.8
        assert 0 < one.metrics_variance["sm_active"] <= 0.01 + 1e-9
        assert one.metrics_variance["dram_active"] == pytest.approx(0)
        assert one.metrics["mem_util"] == pytest.approx(0.3)


def test_what_the_gate_does_not_let_through_is_refused(machine, campaign_on):
    quarter = {"measure": "solos", "shares": [25]}
    now = campaign_on(quarter, splits=half_is_right())
    now.runner.run()
    reasons = {one.reason for one in now.ledger.results}
    assert reasons == {
        f"{name}: 25 % was not measured here: dovetail doctor --splits first"
        for name in ("conv", "lstm")
    }
    assert {one.status for one in now.ledger.results} == {"refused"}
    assert machine.daemons() == []


def test_what_is_known_of_another_cublas_does_not_count(machine):
    device = opened(machine, half_is_right("120400"))
    assert "was not measured here" in device.why_not(WorkerSeat("conv", "mps", 50))
    assert device.why_not(WorkerSeat("conv", "mps", 100)) is None
    device.close()
    device = opened(machine, half_is_right(), cublas=None)
    assert "whose version is unknown" in device.why_not(WorkerSeat("conv", "mps", 50))
    device.close()


def test_time_slicing_needs_the_default_compute_mode_and_no_mps(machine, campaign_on):
    now = campaign_on({"measure": "solos"}, {**PAIRS, "mode": "time-sliced"})
    pids = []
    now.heard.ends = lambda result: pids.append(machine.daemons())
    now.runner.run()
    assert [one.status for one in now.ledger.results] == ["ok"] * 4
    # Under MPS there is a daemon; without, it has been ended first.
    assert [len(found) for found in pids] == [1, 1, 0, 0]
    machine.library.compute_modes = {0: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS}
    machine.library.processes = {"compute": [], "mps": []}
    device = opened(machine)
    assert "exclusive_process" in device.why_not(WorkerSeat("conv", "time-sliced"))
    device.close()


def test_where_mps_serves_no_client_the_rest_goes_on(machine, campaign_on, monkeypatch):
    monkeypatch.setenv("STANDIN_FAIL", "1")
    without = {"measure": "solos", "mode": "time-sliced"}
    now = campaign_on({"measure": "solos"}, without)
    assert now.runner.run() == ()
    found = [(one.mode, one.status) for one in now.ledger.results]
    assert sorted(found) == [*[("mps", "refused")] * 2, *[("time-sliced", "ok")] * 2]
    reasons = {one.reason.partition(": ")[2] for one in now.ledger.results if one.mode == "mps"}
    assert len(reasons) == 1
    assert reasons.pop().startswith("MPS serves no client here: ")
    assert machine.daemons() == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("STANDIN_NO_MPS", "did not reach MPS"),
        ("STANDIN_FAIL", "cuInit failed with CUDA error 100"),
    ],
)
def test_the_trial_of_mps_asks_cuda(machine, monkeypatch, name, message):
    for _ in range(2):
        device = opened(machine)
        with closing(device):
            if name not in os.environ:
                device.open("mps")
                assert device.why_not(WorkerSeat("conv", "mps")) is None
                monkeypatch.setenv(name, "1")
                continue
            with pytest.raises(DovetailError, match=message):
                device.open("mps")
            assert message in device.why_not(WorkerSeat("conv", "mps"))


def test_uncapped_workers_must_see_what_the_gate_saw_at_100(machine, campaign_on):
    (half,) = half_is_right().evidence
    splits = Splits(evidence=(half.replace(share=100, sms=130),))
    now = campaign_on({"measure": "solos", "workloads": ["conv"]}, splits=splits)
    now.runner.run()
    assert {one.reason for one in now.ledger.results} == {
        "conv: sees 132 SMs at 100 %, must see 130"
    }


class Clock:
    """A clock that stands still except while someone sleeps."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def test_power_is_taken_between_steps_of_the_energy_counter(machine, monkeypatch):
    clock = Clock()
    device = opened(machine)
    monkeypatch.setattr(device_module, "time", clock)
    # 250 W, reported in steps of 25 J: a tenth of a second.
    machine.library.energy_mj = lambda: int(clock.now_s * 10 + 1e-9) * 25_000
    for offset_s in (0.0, 0.03, 0.07):
        clock.now_s = round(clock.now_s + 1) + offset_s
        meter = device.meter()
        clock.sleep(0.35)
        found, _ = meter.read()
        # Between readings passes a hundredth of a step and a half.
        assert found["power_w"] == pytest.approx(250, rel=0.01)
        assert found["energy_j"] == 100
    device.close()


def test_a_cap_that_is_not_kept_measures_nothing(machine, campaign_on):
    stage = {"measure": "solos", "shares": [50], "workloads": ["conv"]}
    now = campaign_on(stage, splits=half_is_right(), options=["uncapped"])
    now.runner.run()
    reasons = [one.reason for one in now.ledger.results]
    assert reasons == ["conv: sees 132 SMs at 50 %, must see 66"] * 2


def test_others_on_the_gpu_disturb_a_window(machine, campaign_on):
    now = campaign_on({"measure": "solos", "workloads": ["conv"]})
    machine.library.processes["compute"] = [(os.getpid(), 1 << 20)]
    now.runner.run()
    # It is tried a second time, as nothing that was disturbed counts.
    assert [one.disturbed_by for one in now.ledger.results] == [(os.getpid(),)] * 2


def test_the_server_of_this_campaign_disturbs_no_job(machine, campaign_on):
    now = campaign_on({"measure": "solos", "workloads": ["conv"]})

    def with_server():
        now.heard.begun.append(None)
        servers = processes.running("nvidia-cuda-mps-server")
        mine = [one.pid for one in servers if machine._mine(one)]
        return (*now.workers.pids, *mine)

    machine.library.processes = Alive(with_server)
    now.runner.run()
    assert [one.disturbed_by for one in now.ledger.results] == [()]


def test_a_fault_of_mps_spoils_one_experiment_and_the_campaign_goes_on(
    machine, campaign_on, monkeypatch
):
    windows = {"settle_s": 0.5, "least_s": 0.5, "most_s": 1.0, "relative_error": 0.5}
    now = campaign_on({"measure": "solos"}, windows=windows)
    meter, windows_begun = GpuDevice.meter, itertools.count()

    def fault_at_first(device):
        if next(windows_begun) == 0:
            machine.tell_standin("fault")
        return meter(device)

    monkeypatch.setattr(GpuDevice, "meter", fault_at_first)
    monkeypatch.setattr(gpu_health, "FAULT_S", 0.5)
    assert now.runner.run() == ()
    assert [one.status for one in now.ledger.results] == ["failed", "ok", "ok"]
    assert "CUDA error fault" in now.ledger.results[0].reason or "FAULT" in (
        now.ledger.results[0].reason.upper()
    )


def xid_at_first(machine, now, code):
    begins = now.heard.begins

    def begun(*args):
        begins(*args)
        if len(now.heard.begun) == 1:
            machine.library.xids.append((0, code))

    now.heard.begins = begun


def test_an_error_of_a_program_in_a_window_spoils_it(machine, campaign_on, monkeypatch):
    monkeypatch.setattr(gpu_health, "FAULT_S", 2.0)
    now = campaign_on({"measure": "solos", "workloads": ["conv"]})
    xid_at_first(machine, now, 31)
    now.runner.run()
    found = [(one.status, one.reason) for one in now.ledger.results]
    assert found == [("failed", "a program's fault was seen on it"), ("ok", "")]


def test_an_error_of_the_gpu_ends_the_campaign_until_the_machine_is_booted(machine, campaign_on):
    now = campaign_on({"measure": "solos"})
    xid_at_first(machine, now, 79)
    with pytest.raises(DeviceLostError, match="the driver reported Xid 79"):
        now.runner.run()
    assert [one.status for one in now.ledger.results] == ["failed"]


def test_a_gpu_that_is_lost_ends_the_campaign_in_one_line(machine, campaign_on):
    now = campaign_on({"measure": "solos"})
    now.heard.ends = lambda result: machine.library.lost.add(0)
    with pytest.raises(DeviceLostError, match="GPU is lost"):
        now.runner.run()
    assert [one.status for one in now.ledger.results] == ["ok", "failed"]
    machine.library.lost.clear()


def test_a_worker_that_does_not_obey_is_terminated_before_it_is_killed(machine, campaign_on):
    now = campaign_on({"measure": "solos", "workloads": ["conv"]}, options=["deaf"])
    now.runner.run()
    (pid,) = now.workers.pids
    now.workers.close()
    logs = list((machine.place / "pool" / "runs").glob("*/rank0/log"))
    # It had heard of its end (810, as CUDA has it), so that it was no busy client when killed.
    assert processes.look(pid) is None
    assert len(logs) == 1
    assert "CUDA_MPS_CLIENT_PRIORITY" in logs[0].read_text()


def test_inherited_variables_lead_no_worker_astray(machine, campaign_on, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    now = campaign_on({"measure": "solos", "workloads": ["conv"]})
    now.runner.run()
    assert [one.paces[0].sms for one in now.ledger.results] == [132]


def test_a_gpu_in_use_is_refused(machine):
    machine.library.processes = {"compute": [(os.getpid(), 1 << 20)], "mps": []}
    with pytest.raises(UnsupportedError, match=rf"is in use \(pid {os.getpid()}\)"):
        opened(machine)


def test_a_gpu_on_which_no_process_may_compute_is_refused(machine):
    machine.library.compute_modes = {0: pynvml.NVML_COMPUTEMODE_PROHIBITED}
    with pytest.raises(UnsupportedError, match="compute mode prohibited"):
        opened(machine)


def test_mps_of_others_is_refused(machine):
    other = MpsManager(machine.place / "other", program=machine.program)
    other.environment(machine.uuids[0], os.geteuid(), None, None)
    with pytest.raises(UnsupportedError, match="MPS of others may be on it"):
        opened(machine)
    other.close()


def test_nothing_is_left_behind(machine, campaign_on):
    now = campaign_on({"measure": "solos"})
    now.runner.run()
    device = now.runner._device
    pids = now.workers.pids
    now.workers.close()
    device.close()
    assert machine.daemons() == []
    assert not (machine.place / "m").exists()
    assert not any(processes.look(pid) for pid in pids)
    held = [one for one in processes.every() if PIPE_DIRECTORY in one.environment]
    assert not any(machine._mine(one) for one in held)
