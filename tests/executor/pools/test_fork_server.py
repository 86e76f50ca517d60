"""The spare shim that waits for its rank: killed, stopped, orphaned, and for other users."""

import os
import signal
import subprocess
import sys

import pytest

from dovetail.executor.jobs.specs import Owner
from dovetail.executor.pools.local import LocalPool
from dovetail.executor.pools.runs import start_barrier as barriers
from dovetail.executor.pools.runs.files import RunFiles, whole
from dovetail.executor.pools.runs.processes import holders
from dovetail.executor.pools.runs.start_barrier import StartBarrier
from dovetail.executor.pools.shim.kernel import descendants, stat_of
from dovetail.executor.system.clock import boot_s
from tests.executor.local_runs import (
    Watched,
    a_run,
    cleared,
    fork_server,
    left_over,
    write_shim_spec,
)
from tests.executor.waiting import LIMIT_S, wait_until


@pytest.fixture
def state(tmp_path):
    with cleared(tmp_path / "state"):
        yield tmp_path / "state"


@pytest.fixture
def pool(state):
    """Return a pool whose spare shim is there."""
    pool = Watched(LocalPool(state))
    pool.pool.resume([])
    wait_until(lambda: spare(pool))
    yield pool
    pool.pool.close()


def server(pool):
    """Return the pid of a pool's fork server."""
    return pool.pool.fork_server._pid


def spare(pool):
    """Return the pid of the shim that waits for a rank; None where there is none."""
    return next((stat.pid for stat in descendants(server(pool)) if stat.state == "S"), None)


def runs(pool, name):
    """Start a run and let it end."""
    pool.pool.launch(a_run("echo $DOVETAIL_RUN", name=name))
    assert pool.wait_for("rank_ended", run=name).status == 0
    with open(pool.pool.log_path(name, 0)) as log:
        assert log.read() == f"{name}\n"


def test_the_spare_becomes_the_shim_and_another_takes_its_place(pool):
    first = spare(pool)
    pool.pool.launch(a_run("exec sleep 600"))
    pool.wait_for("rank_ready")
    assert pool.pool.files("j1.1").rank(0).started().shim.pid == first
    wait_until(lambda: len([s for s in descendants(server(pool)) if s.parent == server(pool)]) == 2)
    pool.pool.stop("j1.1", 10.0)
    pool.wait_for("rank_ended")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_spare_that_is_killed_is_replaced(pool, number):
    first = spare(pool)
    os.kill(first, number)
    wait_until(lambda: spare(pool) not in (None, first))
    runs(pool, "j1.1")


def test_a_spare_whose_child_is_killed_is_replaced(pool):
    first = spare(pool)
    wait_until(lambda: descendants(first))
    (child,) = descendants(first)
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: spare(pool) not in (None, first))
    runs(pool, "j1.1")


def test_a_fork_server_that_is_killed_is_replaced_and_its_shims_go_on(pool):
    pool.pool.launch(a_run("exec sleep 600"))
    pool.wait_for("rank_ready")
    first = server(pool)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: stat_of(first).state == "Z")
    # The spare that it has left serves one more; then there is a new server.
    for k in (2, 3, 4):
        runs(pool, f"j{k}.1")
    assert server(pool) != first
    pool.pool.stop("j1.1", 10.0)
    assert pool.wait_for("rank_ended", run="j1.1").status == -15


def test_a_stopped_fork_server_is_replaced_and_nothing_of_the_rank_is_left(state, monkeypatch):
    monkeypatch.setattr(barriers, "_DISMISS_S", 0.5)
    files = RunFiles(state, "j1.1")
    files.make(whole(a_run("true")))
    write_shim_spec(files.rank(0), "exec sleep 600")
    with fork_server(state) as forking:
        forking.start()
        first = forking._pid
        os.kill(first, signal.SIGSTOP)
        wait_until(lambda: stat_of(first).state == "T")
        barrier = StartBarrier(forking, files.rank(0))
        barrier.open()
        assert barrier.answer(boot_s() + 0.5) == ""
        barrier.dismiss()
        assert files.rank(0).started() is None
        assert holders(files.rank(0).token, os.geteuid()) == []
        barrier = StartBarrier(forking, files.rank(0))
        assert barrier.answer(boot_s() + LIMIT_S) == "prepared"
        assert forking._pid != first
        barrier.dismiss()


SERVICE = """
import sys, time
from pathlib import Path
from dovetail.executor.pools.local import LocalPool
pool = LocalPool(Path(sys.argv[1]))
pool.resume([])
print(pool.fork_server._pid, flush=True)
time.sleep(600)
"""


def test_a_service_that_is_killed_leaves_no_spare(tmp_path):
    command = [sys.executable, "-c", SERVICE, str(tmp_path / "state")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        forking = int(service.stdout.readline())
        wait_until(lambda: len(descendants(forking)) == 2)
        waits = [each.pid for each in descendants(forking)]
        service.kill()
    for pid in (forking, *waits):
        wait_until(lambda pid=pid: stat_of(pid) is None or stat_of(pid).state == "Z")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to run as another user")
def test_a_spare_has_no_owner_until_its_rank_comes(pool):
    others = Owner(name="nobody", uid=65534, gid=65534)
    for name, owner, uid in (("j1.1", others, "65534"), ("j2.1", a_run("").spec.owner, "0")):
        assert os.stat(f"/proc/{spare(pool)}").st_uid == os.geteuid()
        pool.pool.launch(a_run("id -u; id -G", name=name, owner=owner))
        assert pool.wait_for("rank_ended", run=name).status == 0
        with open(pool.pool.log_path(name, 0)) as log:
            assert {line.split()[0] for line in log} == {uid}
        wait_until(lambda: spare(pool))


def test_processes_of_a_rank_are_found_by_their_token_and_spares_are_not(pool, state):
    pool.pool.launch(a_run("exec sleep 600"))
    pool.wait_for("rank_ready")
    started = pool.pool.files("j1.1").rank(0).started()
    assert {p.pid for p in left_over(state)} == {started.shim.pid, started.rank.pid}
    with open(f"/proc/{started.shim.pid}/comm") as name:
        assert name.read() == "shim j1.1/0\n"
    pool.pool.stop("j1.1", 10.0)
    pool.wait_for("rank_ended")
