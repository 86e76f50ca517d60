"""The launcher, with real processes: a rank's whole life, seen from outside."""

import os

import pytest

from dovetail.executor.live.pools.cpu import CpuPool

from .local_runs import Watched, a_run, cleared, left_over, python
from .waiting import wait_until


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a pool on one directory, as services one after another do."""
    pools = []

    def new():
        for old in pools:
            old.pool.close()
        pools.append(Watched(CpuPool(tmp_path / "state")))
        return pools[-1]

    with cleared(tmp_path / "state"):
        yield new
        for old in pools:
            old.pool.close()


def test_a_rank_starts_is_ready_and_ends_with_its_status(make, tmp_path):
    pool = make()
    pool.pool.launch(a_run("echo out; echo err >&2; exit 3"))
    assert pool.wait_for("rank_ended").status == 3
    assert pool.kinds() == [("rank_started", 0), ("rank_ready", 0), ("rank_ended", 0)]
    with open(pool.pool.log_path("j1.1", 0)) as log:
        assert log.read() == "out\nerr\n"
    assert left_over(tmp_path / "state") == []


def test_a_stop_asks_and_then_kills(make, tmp_path):
    pool = make()
    polite = python(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('up', flush=True); time.sleep(600)"
    )
    pool.pool.launch(a_run(polite))
    pool.pool.launch(
        a_run("trap '' TERM; sleep 600 & echo up; while :; do sleep 1; done", name="j2.1")
    )
    for run in ("j1.1", "j2.1"):
        wait_until(lambda run=run: "up" in _log(pool, run))
    pool.pool.stop("j1.1", 30.0)
    assert pool.wait_for("rank_ended", run="j1.1").status == 7
    pool.pool.stop("j2.1", 0.2)
    assert pool.wait_for("rank_ended", run="j2.1").status == -9
    assert left_over(tmp_path / "state") == []


def _log(pool, run):
    path = pool.pool.log_path(run, 0)
    if path is None:
        return ""
    with open(path) as log:
        return log.read()


def test_a_rank_outlives_the_pool_and_is_found_again(make, tmp_path):
    run = a_run("read line < fifo; exit 5", cwd=str(tmp_path))
    os.mkfifo(tmp_path / "fifo")
    first = make()
    first.pool.launch(run)
    pid = first.wait_for("rank_started").pid
    second = make()
    assert second.pool.resume([run]) == []
    assert second.wait_for("rank_started").pid == pid
    with open(tmp_path / "fifo", "w") as fifo:
        fifo.write("go\n")
    assert second.wait_for("rank_ended").status == 5
