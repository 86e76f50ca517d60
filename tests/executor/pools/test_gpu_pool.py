"""The pool of GPUs with made-up GPUs (the real ``pynvml``, injected callbacks) and real processes.

MPS is NVIDIA's own control daemon where it is installed; no server can start without a GPU.
"""

import os
import shutil
from pathlib import Path

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.gpus.nvml import Nvml  # noqa: E402
from dovetail.executor.gpus.splits import Product, SplitEvidence, Splits  # noqa: E402
from dovetail.executor.mps.manager import MpsManager  # noqa: E402
from dovetail.executor.pools import gpu, gpu_health  # noqa: E402
from dovetail.executor.pools.gpu import EXCLUSIVE, TURNS, GpuPool  # noqa: E402
from dovetail.instances.errors import InputError  # noqa: E402
from tests.executor.gpus.injected_nvml import injected  # noqa: E402
from tests.executor.gpus.test_dcgm import DMON, program  # noqa: E402
from tests.executor.gpus.test_dcgm import FIRST as DCGM_FIRST  # noqa: E402
from tests.executor.local_runs import Watched, a_run, cleared, python  # noqa: E402
from tests.executor.waiting import wait_until  # noqa: E402

from .pool_contract import Commands, PoolContract  # noqa: E402

NEEDS_MPS = pytest.mark.skipif(
    shutil.which("nvidia-cuda-mps-control") is None, reason="needs nvidia-cuda-mps-control"
)
UUIDS = [f"GPU-0000000{k}-0000-4000-8000-00000000000{k}" for k in range(2)]
FIRST, SECOND = (uuid[:12] for uuid in UUIDS)
SHOW = "env | grep ^CUDA | sort; exec sleep 600"


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setattr(gpu_health, "WATCH_S", 0.05)
    with injected() as library:
        library.uuids = dict(enumerate(UUIDS))
        library.processes = {"compute": [], "mps": []}
        library.xids = []
        yield library


@pytest.fixture
def make(tmp_path, library, request):
    opened = []

    def new(program="nvidia-cuda-mps-control", splits=None, only=(), runs=()):
        mps = MpsManager(tmp_path / "m", program=program)
        pool = GpuPool(tmp_path / "state", Nvml(), mps, splits or Splits(), only)
        pool.resume(runs)
        opened.append(Watched(pool))
        return opened[-1]

    with cleared(tmp_path / "state"):
        yield new
        for watched in opened:
            watched.pool.close()
    for watched in opened:
        watched.pool._mps.close()


def half_is_right():
    product = Product(dtype="float16", m=16, n=1000, k=2048, error=0.5)
    return Splits(
        evidence=(
            SplitEvidence(
                gpu_model="Injected H200",
                driver="580.0 (injected)",
                cublas="130100",
                share=50,
                sms=66,
                products=(product,),
                date="2026-11-21",
            ),
        )
    )


def log_of(watched, run="j1.1"):
    path = watched.pool.log_path(run, 0)
    if path is None:
        return ""
    with open(path) as log:
        return log.read()


def events_of(watched, kind):
    watched.events += watched.pool.poll()
    return [event for event in watched.events if event.kind == kind]


def test_devices_are_named_by_their_uuid(make):
    (node,) = make().pool.cluster().nodes
    assert [(d.id, d.model, d.memory_mib, d.sms) for d in node.devices] == [
        (FIRST, "Injected H200", 2048.0, 132),
        (SECOND, "Injected H200", 2048.0, 132),
    ]


@NEEDS_MPS
def test_only_shares_that_computed_right_may_be_used(make):
    assert make().pool.cluster().shares == ()
    assert make(splits=half_is_right()).pool.cluster().shares == (50,)


def test_without_mps_jobs_take_turns_and_no_share_is_held(make):
    pool = make(program="no-such-mps-control", splits=half_is_right())
    assert pool.pool.notice == TURNS
    assert pool.pool.cluster().shares == ()
    assert pool.pool.cluster().sharing == "time_sliced"
    pool.pool.launch(a_run(SHOW, gpus=(FIRST,), env={"CUDA_MPS_PIPE_DIRECTORY": "/foreign"}))
    pool.wait_for("rank_ready")
    wait_until(lambda: "CUDA_VISIBLE" in log_of(pool))
    variables = dict(line.split("=", 1) for line in log_of(pool).splitlines())
    assert variables["CUDA_VISIBLE_DEVICES"] == UUIDS[0]
    assert not variables["CUDA_MPS_PIPE_DIRECTORY"].startswith("/foreign")
    pool.pool.launch(a_run("true", name="j2.1", gpus=(FIRST,), share=50))
    assert "no share can be enforced" in pool.wait_for("rank_refused", run="j2.1").reason


@NEEDS_MPS
def test_under_mps_a_rank_has_its_cap_and_waits_to_be_proven(make):
    pool = make(splits=half_is_right())
    pool.pool.launch(a_run(SHOW, gpus=(FIRST,), share=50, priority="latency"))
    pool.wait_for("rank_started")
    wait_until(lambda: "CUDA_VISIBLE" in log_of(pool))
    variables = dict(line.split("=", 1) for line in log_of(pool).splitlines())
    assert float(variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]) == 50
    assert "CUDA_MPS_CLIENT_PRIORITY" not in variables
    assert (
        events_of(pool, "rank_ready") == []
    )  # no server runs without a GPU, so the rank is no client
    pool.pool.stop("j1.1", 1.0)
    assert pool.wait_for("rank_ended").status != 0


@NEEDS_MPS
def test_a_rank_on_the_gpu_but_outside_mps_is_stopped(make, library, monkeypatch):
    monkeypatch.setattr(gpu, "OUTSIDE_S", 0.1)
    pool = make(splits=half_is_right())
    pool.pool.launch(a_run(SHOW, gpus=(FIRST,), share=50))
    pid = pool.wait_for("rank_started").pid
    library.processes["compute"] = [(pid, 1 << 30)]
    wait_until(lambda: events_of(pool, "stop_decided"))
    (stop,) = events_of(pool, "stop_decided")
    assert (stop.run, stop.then) == ("j1.1", "fail")
    assert "not under MPS" in stop.reason
    pool.pool.stop("j1.1", 0.1)
    pool.wait_for("rank_ended")


def test_which_jobs_may_share(make, library):
    assert make(program="no-such-mps-control").pool.sharing(same_user=True) == EXCLUSIVE
    library.compute_modes[1] = pynvml.NVML_COMPUTEMODE_DEFAULT
    assert make(program="no-such-mps-control").pool.sharing(same_user=False) is None
    if shutil.which("nvidia-cuda-mps-control"):
        under_mps = make().pool
        other = under_mps.sharing(same_user=False)
        assert other == "an MPS server serves one user at a time"
        assert under_mps.sharing(same_user=True) is None


def test_critical_errors_make_a_gpu_sick_unless_a_program_caused_them(make, library):
    pool = make(program="no-such-mps-control")
    library.xids += [(0, 31), (1, 79)]
    wait_until(lambda: events_of(pool, "device_sick"))
    assert [(event.gpu, event.reason) for event in events_of(pool, "device_sick")] == [
        (SECOND, "the driver reported Xid 79: see dmesg")
    ]


def test_memory_and_energy_are_read_for_every_run(make, library):
    pool = make(program="no-such-mps-control")
    pool.pool.launch(a_run("exec sleep 600", gpus=(FIRST,)))
    pid = pool.wait_for("rank_ready").run and pool.wait_for("rank_started").pid
    library.processes["mps"] = [(pid, 500 << 20)]
    usage = pool.pool.usage()[FIRST]
    assert usage.memory_by_run == {"j1.1": 500.0}
    assert (usage.memory_mib, usage.energy_j) == (100.0, 123.456)


def test_without_gpm_dcgm_is_asked_and_named(make, library, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    path = program(tmp_path / "bin", DMON)
    Path(path).write_text(Path(path).read_text().replace(DCGM_FIRST, UUIDS[0]))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    library.gpm_supported = False
    pool = make(program="no-such-mps-control").pool
    found = []
    wait_until(lambda: found.append(pool.usage()[FIRST]) or found[-1].source.startswith("DCGM"))
    assert found[-1].metrics["sm_active"] == 0.5
    assert pool.usage()[SECOND].source == "NVML utilisation"


def test_a_gpu_that_is_lost_is_sick_and_the_other_is_read(make, library):
    pool = make(program="no-such-mps-control")
    library.lost = {0}
    assert list(pool.pool.usage()) == [SECOND]
    assert [event.gpu for event in events_of(pool, "device_sick")] == [FIRST]


@pytest.mark.parametrize("only", [("GPU-7",), (FIRST, "x")])
def test_no_such_gpu(make, only):
    with pytest.raises(InputError, match="must name usable GPUs"):
        make(only=only)


def test_some_of_the_gpus(make):
    (node,) = make(program="no-such-mps-control", only=(SECOND,)).pool.cluster().nodes
    assert [device.id for device in node.devices] == [SECOND]


def test_gpus_that_cannot_be_shared_are_left_out(make, library):
    library.compute_modes = dict.fromkeys(range(2), pynvml.NVML_COMPUTEMODE_PROHIBITED)
    with pytest.raises(InputError, match="there is no usable GPU"):
        make()


class TestContract(PoolContract):
    """Without MPS, where a rank is ready as soon as it runs."""

    commands = Commands(
        brief=("sh", "-c", "echo started; sleep 0.3"),
        failing=("sh", "-c", "echo started; sleep 0.3; exit 3"),
        awaiting=("sh", "-c", "echo started; until [ -e end ]; do sleep 0.1; done"),
        endless=("sh", "-c", "echo started; exec sleep 600"),
        deaf=python(
            "import signal, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "print('started', flush=True)\n"
            "time.sleep(600)"
        ),
    )

    @pytest.fixture(autouse=True)
    def _made_up(self, library):
        self.library = library

    def make(self, directory):
        mps = MpsManager(directory / "m", program="no-such-mps-control")
        return GpuPool(directory, Nvml(), mps, Splits())


def test_a_run_on_a_gpu_that_has_left_the_pool_is_kept_and_can_be_stopped(make):
    run = a_run("exec sleep 600", gpus=(FIRST,))
    first = make(program="no-such-mps-control")
    first.pool.launch(run)
    first.wait_for("rank_ready")
    first.pool.close()
    later = make(program="no-such-mps-control", only=(SECOND,), runs=[run])
    later.wait_for("rank_ready")
    assert list(later.pool.usage()) == [SECOND]
    later.pool.stop(run.id, 0.0)
    later.wait_for("rank_ended")
