"""The pool of GPUs under driver 615: a control group holds the memory of each rank.

The groups are this machine's kernel's; what the driver does with them is injected into the real
``pynvml``. Jobs are real processes; MPS is a stand-in.
"""

import os
import signal
import subprocess
import sys

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.gpus.nvml import Nvml  # noqa: E402
from dovetail.executor.gpus.splits import Splits  # noqa: E402
from dovetail.executor.mps.manager import MpsManager  # noqa: E402
from dovetail.executor.pools.gpu import GpuPool  # noqa: E402
from dovetail.executor.pools.means import BY_GROUP, BY_MPS, BY_NOTHING  # noqa: E402
from dovetail.executor.pools.runs.cgroups import unified_here  # noqa: E402
from dovetail.executor.pools.runs.files import home_token  # noqa: E402
from tests.executor.gpus.injected_nvml import injected  # noqa: E402
from tests.executor.local_runs import Watched, a_run, cleared  # noqa: E402
from tests.executor.waiting import LIMIT_S, wait_until  # noqa: E402
from tests.rooms import ROOT  # noqa: E402

UUIDS = [f"GPU-0000000{k}-0000-4000-8000-00000000000{k}" for k in range(2)]
FIRST, SECOND = (uuid[:12] for uuid in UUIDS)
MIB = 2**20
TWO_PROCESSES = "sleep 600 & sleep 600"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not unified_here(), reason="needs root and cgroups of version 2"
)


@pytest.fixture
def library():
    with injected() as library:
        library.uuids = dict(enumerate(UUIDS))
        library.processes = {"compute": [], "mps": []}
        library.xids = []
        library.with_group_limits()
        yield library


@pytest.fixture
def make(tmp_path, library):
    """Return a function that opens the pool of a machine without MPS, as after a restart."""
    opened = []

    def new(runs=()):
        mps = MpsManager(tmp_path / "m", program="no-such-mps-control")
        top = unified_here()[0]
        pool = GpuPool(tmp_path / "state", Nvml(), mps, Splits(), groups_at=top)
        pool.resume(runs)
        opened.append(Watched(pool))
        return opened[-1]

    with cleared(tmp_path / "state"):
        yield new
    for watched in opened:
        watched.pool.close()
        assert not watched.pool._groups.home.exists()


def limited(run, mib=500.0):
    return run.replace(seats=tuple(seat.replace(memory_mib=mib) for seat in run.seats))


def group(watched, run, rank=0):
    return watched.pool._groups.home / f"{run}-{rank}"


def pids(path):
    return (path / "cgroup.procs").read_text().split() if path.exists() else []


def test_all_processes_of_a_rank_are_in_a_group_with_its_limit(make, library):
    watched = make()
    run = limited(a_run(TWO_PROCESSES, gpus=(FIRST, SECOND)))
    watched.pool.launch(run)
    for rank in range(2):
        inside = group(watched, run.id, rank)
        wait_until(lambda inside=inside: len(pids(inside)) >= 2)
        assert library.group_limits[rank + 1, str(inside)] == 500 * MIB
    # The limit of a rank is one of its own GPU.
    assert (2, str(group(watched, run.id, 0))) not in library.group_limits
    watched.pool.stop(run.id, 0.0)
    watched.wait_for("rank_ended", rank=0)
    watched.wait_for("rank_ended", rank=1)
    watched.pool.release(run.id)
    wait_until(lambda: not group(watched, run.id).exists())
    assert watched.pool._groups.names() == []


def test_a_restarted_service_finds_its_groups_and_removes_others(make):
    first, run = make(), limited(a_run(TWO_PROCESSES, gpus=(FIRST,)))
    first.pool.launch(run)
    first.wait_for("rank_ready")
    (first.pool._groups.home / "j9.1-0").mkdir()
    first.pool._supervisors.clear()
    second = make([run])
    assert second.pool._groups.names() == [f"{run.id}-0"]
    second.pool.stop(run.id, 0.0)
    second.wait_for("rank_ended")
    second.pool.release(run.id)


def test_a_refused_limit_lets_the_job_wait(make, library):
    watched = make()
    library.fails["nvmlDeviceSetMemoryLimits_v1"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    watched.pool.launch(limited(a_run("true", gpus=(FIRST,))))
    refused = watched.wait_for("rank_refused")
    assert "its memory cannot be limited: NVML: Not Supported" in refused.reason


def test_a_job_without_a_limit_has_no_group(make):
    watched = make()
    run = a_run("sleep 600", gpus=(FIRST,))
    run = run.replace(seats=tuple(seat.replace(memory_mib=None) for seat in run.seats))
    watched.pool.launch(run)
    watched.wait_for("rank_ready")
    assert watched.pool._groups.names() == []
    watched.pool.stop(run.id, 0.0)
    watched.wait_for("rank_ended")
    watched.pool.release(run.id)


def test_what_holds_a_limit_is_said_and_what_does_not_count_is_not_called_a_holder(make, library):
    watched = make()
    assert watched.pool.usage()[FIRST].memory_held_by == BY_GROUP
    run = limited(a_run("sleep 600", gpus=(FIRST,)))
    watched.pool.launch(run)
    watched.wait_for("rank_ready")
    (pid, *_) = pids(group(watched, run.id))
    library.processes["compute"] = [(int(pid), 300 * MIB)]
    library.group_used = 300 * MIB
    assert watched.pool.usage()[FIRST].memory_held_by == BY_GROUP
    library.group_used = 0
    held = f"{BY_NOTHING} (its control group counts nothing)"
    assert watched.pool.usage()[FIRST].memory_held_by == held
    assert watched.pool.usage()[SECOND].memory_held_by == BY_GROUP
    watched.pool.stop(run.id, 0.0)
    watched.wait_for("rank_ended")
    watched.pool.release(run.id)


def test_mps_is_the_second_holder(tmp_path, library):
    from tests.executor.mps import standin

    mps = MpsManager(tmp_path / "m", program=standin.install(tmp_path, "615"))
    pool = GpuPool(tmp_path / "state", Nvml(), mps, Splits(), groups_at=unified_here()[0])
    try:
        assert pool.usage()[FIRST].memory_held_by == f"{BY_GROUP}, and {BY_MPS}"
    finally:
        pool.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from dovetail.executor.gpus.nvml import Nvml
from dovetail.executor.gpus.splits import Splits
from dovetail.executor.mps.manager import MpsManager
from dovetail.executor.pools.gpu import GpuPool
from tests.executor.gpus.injected_nvml import injected
from tests.executor.local_runs import a_run
from tests.executor.pools.test_gpu_memory import FIRST, UUIDS, limited

place, top = map(Path, sys.argv[1:3])
reserve = MpsManager.partition

def killed(*arguments):
    reserve(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

MpsManager.partition = killed
with injected() as library:
    library.uuids, library.xids = dict(enumerate(UUIDS)), []
    library.processes = {"compute": [], "mps": []}
    library.with_group_limits()
    mps = MpsManager(place / "m", program=sys.argv[3], static=True)
    pool = GpuPool(place / "state", Nvml(), mps, Splits(), groups_at=top)
    pool.resume([])
    pool.launch(limited(a_run("true", gpus=(FIRST,))))
    signal.pause()
"""


def test_nothing_stays_of_a_start_in_which_the_service_was_killed(tmp_path, library):
    """It had made the job's group, set the limit and reserved SMs; the journal names no run."""
    from tests.executor.mps import standin

    program, top = standin.install(tmp_path, "615"), unified_here()[0]
    command = [sys.executable, "-c", KILLED, tmp_path, top, program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == -signal.SIGKILL, done.stderr
    mps = MpsManager(tmp_path / "m", program=program, static=True)
    (control,) = mps._controls(UUIDS[0])
    assert len(control.partitions().partitions) == 1
    home = top / f"dovetail-{home_token(tmp_path / 'state')}"
    assert [path.name for path in home.iterdir() if path.is_dir()] == ["j1.1-0"]
    with cleared(tmp_path / "state"):
        pool = GpuPool(tmp_path / "state", Nvml(), mps, Splits(), groups_at=top)
        try:
            assert pool.resume([]) == []
            assert pool._groups.names() == []
            mps.sweep(UUIDS[0])
            assert control.partitions().partitions == ()
        finally:
            pool.close()
    assert not home.exists()
