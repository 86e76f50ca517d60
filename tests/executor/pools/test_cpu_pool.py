"""The pool of CPU cores: the contract, and shares enforced by the kernel."""

import os
import select
import subprocess
import time
from pathlib import Path

import pytest

from dovetail.executor.pools.cpu import CpuPool
from dovetail.executor.pools.names import cpu_options
from dovetail.executor.pools.pool import NodePool
from dovetail.executor.pools.runs.processes import runs
from dovetail.executor.pools.shim.kernel import stat_of
from dovetail.instances.errors import InputError
from tests.executor.local_runs import Watched, a_run, cleared, python
from tests.executor.waiting import LIMIT_S, wait_until

from .pool_contract import Commands, PoolContract

CORES = sorted(os.sched_getaffinity(0))
TWO_CORES = pytest.mark.skipif(len(CORES) < 2, reason="needs two processor cores")
BUSY = python("while True: pass")


@TWO_CORES
class TestContract(PoolContract):
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

    def make(self, directory: Path) -> NodePool:
        return CpuPool(directory)


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a pool; processes left at the end are killed."""
    pools = []

    def new(options=""):
        for old in pools:
            old.pool.close()
        pools.append(Watched(CpuPool(tmp_path / "state", *cpu_options(options)[:3])))
        return pools[-1]

    with cleared(tmp_path / "state"):
        yield new
    for old in pools:
        for run in old.pool.kept():
            old.pool.release(run.id)
        old.pool.close()


def with_quota(make, options=""):
    try:
        return make(f"shares=quota,{options}")
    except InputError as error:
        pytest.skip(str(error))


class TestDevices:
    def test_each_core_is_one_device_by_default(self, make):
        [node] = make().pool.cluster().nodes
        assert [gpu.id for gpu in node.devices] == [f"cpu-{k}" for k in range(len(CORES))]
        assert {gpu.model for gpu in node.devices} == {"cpu-1-core"}

    @TWO_CORES
    def test_several_cores_may_be_one(self, make):
        [node] = make("cores_per_device=2,devices=1").pool.cluster().nodes
        assert [(gpu.id, gpu.model) for gpu in node.devices] == [("cpu-0", "cpu-2-core")]

    def test_they_are_never_called_gpus(self, make):
        pool = make().pool
        assert pool.name == "cpu"
        assert pool.notice.startswith("processor cores stand in for GPUs: no figure")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("devices=0", "--pool: devices must be a whole number >= 1, got '0'"),
            ("devices=x", "--pool: devices must be a whole number >= 1, got 'x'"),
            (
                "cores=2",
                "--pool: must be one of cores_per_device, devices, shares, gate, got 'cores'",
            ),
            ("shares=some", "--pool: shares must be quota, affinity or none, got 'some'"),
            ("shares=affinity", "--pool: shares must not be affinity if a device is one core"),
            ("gate=real", "--pool: gate must be made-up, got 'real'"),
            (
                "devices=4000",
                f"--pool: must take at most the {len(CORES)} cores that may be used, "
                "got 4000 devices of 1",
            ),
        ],
    )
    def test_options_that_cannot_be(self, make, options, message):
        with pytest.raises(InputError) as caught:
            make(options)
        assert str(caught.value) == message


class TestShares:
    def test_a_quota_is_kept(self, make):
        pool = with_quota(make)
        assert pool.pool.cluster().shares == (10, 20, 30, 40, 50, 60, 70, 80, 90)
        pool.pool.launch(a_run(BUSY, share=20))
        pool.wait_for("rank_ready")
        pool.pool.usage()
        wait_until(lambda: pool.pool.usage()["cpu-0"].metrics["sm_active"] > 0)
        begun = pool.pool.usage()["cpu-0"]
        time.sleep(1.5)
        usage = pool.pool.usage()["cpu-0"]
        wall_s = usage.at_s - begun.at_s
        # A fifth, and one period of 0.1 s in hand; never the whole core.
        assert usage.metrics["sm_active"] * wall_s <= 0.2 * wall_s + 0.1

    def test_it_is_kept_after_a_restart_too(self, make):
        run = a_run(BUSY, share=30)
        first = with_quota(make)
        first.pool.launch(run)
        first.wait_for("rank_ready")
        second = with_quota(make)
        second.pool.resume([run])
        second.wait_for("rank_ready")

    def test_a_group_is_gone_with_its_run(self, make):
        pool = with_quota(make)
        pool.pool.launch(a_run("true", share=50))
        pool.wait_for("rank_ended")
        assert pool.pool._groups.names() == ["j1.1-0"]
        pool.pool.release("j1.1")
        assert pool.pool._groups.names() == []

    def test_a_process_that_leaves_its_launcher_is_found_in_its_group(self, make, tmp_path):
        pool = with_quota(make)
        # Without its environment, in a session of its own, and with another parent.
        hidden = "env -i setsid sh -c 'echo $$ > hidden; exec sleep 600' & sleep 600"
        pool.pool.launch(a_run(hidden, cwd=str(tmp_path)))
        wait_until(lambda: (tmp_path / "hidden").exists() and (tmp_path / "hidden").read_text())
        shim = pool.pool.files("j1.1").rank(0).started().shim
        os.kill(shim.pid, 9)
        assert pool.wait_for("rank_gone").reason == "its launcher was killed"
        left = stat_of(int((tmp_path / "hidden").read_text()))
        assert left is None or not runs(left)

    @TWO_CORES
    def test_with_affinity_two_runs_get_cores_of_their_own(self, make):
        pool = make("cores_per_device=2,devices=1,shares=affinity")
        assert pool.pool.cluster().shares == (50,)
        cores = {}
        for name in ("j1.1", "j2.1"):
            pool.pool.launch(a_run(BUSY, name=name, share=50))
            pid = (
                pool.wait_for("rank_ready", run=name)
                and pool.wait_for("rank_started", run=name).pid
            )
            cores[name] = os.sched_getaffinity(pid)
        assert sorted(map(sorted, cores.values())) == [[core] for core in CORES[:2]]
        pool.pool.stop("j1.1", 0.0)
        pool.wait_for("rank_ended", run="j1.1")
        pool.pool.release("j1.1")
        # The core that became free, also for a service that has just started.
        again = make("cores_per_device=2,devices=1,shares=affinity")
        again.pool.resume([a_run(BUSY, name="j2.1", share=50)])
        again.pool.launch(a_run(BUSY, name="j3.1", share=50))
        pid = again.wait_for("rank_started", run="j3.1").pid
        assert os.sched_getaffinity(pid) == cores["j1.1"]

    def test_where_none_can_be_kept_none_is_offered(self, make):
        pool = make("shares=none")
        assert pool.pool.cluster().shares == ()
        assert pool.pool.notice.endswith("; no shares, as requested")
        pool.pool.launch(a_run("true", share=50))
        assert pool.wait_for("rank_refused").reason == "a share of 50 % cannot be enforced here"

    def test_a_device_that_there_is_not(self, make):
        pool = make()
        pool.pool.launch(a_run("true", gpus=("gpu-0",)))
        assert pool.wait_for("rank_refused").reason == "no device 'gpu-0'"


class TestUsage:
    def test_an_idle_device(self, make):
        pool = make()
        pool.pool.usage()
        usage = pool.pool.usage()["cpu-0"]
        assert usage.metrics["sm_active"] == 0
        assert (usage.memory_mib, dict(usage.memory_by_run)) == (0, {})
        assert "stand-in" in usage.source

    def test_time_and_memory_of_a_run_and_its_children(self, make):
        pool = make()
        hold = "b = bytearray(64 * 2**20)\nwhile True: pass"
        pool.pool.launch(a_run(f"{' '.join(python('')[:2])} -c '{hold}'; true"))
        pool.wait_for("rank_ready")
        wait_until(lambda: pool.pool.usage()["cpu-0"].memory_mib > 64)
        usage = pool.pool.usage()["cpu-0"]
        assert usage.memory_by_run["j1.1"] >= 64
        wait_until(lambda: pool.pool.usage()["cpu-0"].metrics["sm_active"] > 0.2)

    def test_time_waiting_for_a_busy_core_counts_as_demand(self, make):
        pool = make("devices=1")
        (core,) = pool.pool._cores["cpu-0"]
        pool.pool.launch(a_run(BUSY))
        pool.wait_for("rank_ready")
        wait_until(lambda: pool.pool.usage()["cpu-0"].metrics["sm_active"] > 0)
        others = [subprocess.Popen(["taskset", "-c", str(core), *python("while True: pass")])
                  for _ in range(3)]  # fmt: skip
        try:
            pool.pool.usage()
            time.sleep(2)
            # It has a quarter of the core, at most a half with some luck.
            assert pool.pool.usage()["cpu-0"].metrics["sm_active"] > 0.8
        finally:
            for other in others:
                other.kill()
                other.wait()


def test_a_job_keeps_nothing_open_of_the_service(make):
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    watched = make()
    watched.pool.launch(a_run("sleep 600"))
    watched.wait_for("rank_ready")
    os.close(writer)
    ended, _, _ = select.select([reader], [], [], LIMIT_S)
    os.close(reader)
    assert ended
