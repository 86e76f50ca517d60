"""What runs take of the disk is limited: real jobs, on a file system of 100 MiB of their own."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from dovetail.executor.jobs.specs import Owner
from dovetail.executor.live.rounds.deciding import require_space
from dovetail.executor.pools.local import LocalPool
from dovetail.executor.pools.runs.room import RunRoom
from tests.executor.local_runs import Watched, a_run, cleared
from tests.executor.waiting import wait_until

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other users, a file system")
MIB = 2**20
NOBODY = Owner(uid=65534, gid=65534, name="nobody")
OTHER = Owner(uid=12345, gid=12345, name="other")
FLOOD = "while :; do head -c 1000000 /dev/zero | tr '\\0' '\\n'; done"


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=100m,mode=711", "none", str(path)]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    for above in path.parents:
        if above != above.parent and not above.stat().st_mode & 0o1:
            above.chmod(above.stat().st_mode | 0o11)
    with cleared(path / "state"):
        yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def pool(small):
    found = Watched(LocalPool(small / "state"))
    yield found
    found.pool.close()


@pytest.fixture
def tended(pool):
    """Have the pool look after its disk as a service does, only more often."""
    ending = threading.Event()

    def tend():
        while not ending.wait(0.1):
            pool.pool.prune(1e9)

    thread = threading.Thread(target=tend)
    thread.start()
    yield pool
    ending.set()
    thread.join()


def used(path):
    disk = os.statvfs(path)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def run_dirs(small):
    return {path.name for path in (small / "state/runs").iterdir()}


def ended_with_log(pool, name, mib, owner=NOBODY):
    pool.pool.launch(a_run(f"head -c {mib * MIB} /dev/zero", name=name, owner=owner))
    pool.wait_for("rank_ended", run=name)
    pool.pool.release(name)


@AS_ROOT
class TestJobs:
    @pytest.mark.parametrize(
        "attack",
        [
            "cat /dev/zero > $DOVETAIL_PROGRESS",
            "cat /dev/zero >> $DOVETAIL_PROGRESS",
            "cat /dev/zero >> LOG",
            "ln LOG LINK; cat /dev/zero >> LINK",
        ],
    )
    def test_files_of_its_own_run_do_not_grow(self, small, pool, attack):
        rank = small / "state/runs/j1.1/rank0"
        attack = attack.replace("LOG", str(rank / "log")).replace("LINK", str(small / "link"))
        pool.pool.launch(a_run(f"({attack}) 2> /dev/null; exit 0", owner=NOBODY))
        assert pool.wait_for("rank_ended").status == 0
        assert used(small) < MIB
        # Nor afterwards, by others of its user.
        for path in (rank / "log", rank / "progress"):
            if path.exists():
                assert path.stat().st_uid == 0

    def test_output_leaves_room_for_others_to_start(self, small, pool):
        for name in ("j1.1", "j2.1", "j3.1"):
            pool.pool.launch(a_run(FLOOD, name=name, owner=NOBODY))
        wait_until(lambda: 100 * MIB - used(small) < 25 * MIB)
        time.sleep(1.0)
        require_space(str(small / "state"))
        ended_with_log(pool, "j4.1", 0, owner=OTHER)

    def test_floods_of_one_user_leave_the_runs_of_another(self, small, tended):
        ended_with_log(tended, "quiet.1", 1, owner=OTHER)
        for number in range(1, 4):
            tended.pool.launch(a_run(FLOOD, name=f"j{number}.1", owner=NOBODY))
        wait_until(lambda: used(small) > 40 * MIB)
        for number in range(1, 4):
            tended.pool.stop(f"j{number}.1", 0.0)
            tended.wait_for("rank_ended", run=f"j{number}.1")
            tended.pool.release(f"j{number}.1")
        # Their room comes back as they end.
        wait_until(lambda: used(small) < 15 * MIB)
        assert "quiet.1" in run_dirs(small)

    def test_the_oldest_of_the_user_with_most_go_first(self, small, pool):
        for number in range(1, 6):
            ended_with_log(pool, f"j{number}.1", 4)
            for path in (
                small / f"state/runs/j{number}.1",
                small / f"state/runs/j{number}.1/rank0",
            ):
                os.utime(path, (number * 1000, number * 1000))
        ended_with_log(pool, "other.1", 2, owner=OTHER)
        pool.pool.prune(1e12)
        assert run_dirs(small) == {"j4.1", "j5.1", "other.1"}

    def test_output_of_a_running_job_costs_no_other_user_a_run(self, small, pool):
        ended_with_log(pool, "quiet.1", 1, owner=OTHER)
        command = f"head -c {55 * MIB} /dev/zero; sleep 600"
        pool.pool.launch(a_run(command, name="j1.1", owner=NOBODY))
        wait_until(lambda: used(small) > 55 * MIB)
        pool.pool.prune(1e12)
        assert run_dirs(small) == {"j1.1", "quiet.1"}
        pool.pool.stop("j1.1", 0.0)
        pool.wait_for("rank_ended", run="j1.1")

    def test_room_comes_back_from_logs_that_are_open(self, small, pool):
        ended_with_log(pool, "j1.1", 30)
        with (small / "state/runs/j1.1/rank0/log").open("rb") as reader:
            pool.pool.prune(1e12)
            assert run_dirs(small) == set()
            assert used(small) < MIB
            assert reader.read(1) == b""


def test_the_number_of_runs_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.executor.pools.runs.room.MOST_RUNS", 3)
    for number in range(6):
        (tmp_path / f"j{number}").mkdir()
        os.utime(tmp_path / f"j{number}", (number, number))
    RunRoom(tmp_path).make(1e12, lambda run: run == "j0")
    assert {path.name for path in tmp_path.iterdir()} == {"j0", "j3", "j4", "j5"}


def test_what_has_not_ended_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.executor.pools.runs.room.MOST_OF_A_USER", 0.0)
    rank = tmp_path / "j1.1/rank0"
    rank.mkdir(parents=True)
    for name in ("log", "log.1", "log.2", "started.json"):
        (rank / name).write_bytes(b"x" * 10_000)
    RunRoom(tmp_path).make(0.0, lambda run: True)
    assert {Path(path).name for path in rank.iterdir()} == {"log", "started.json"}
