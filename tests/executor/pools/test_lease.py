"""Leases with real processes: a rank without renewal ends in time, and not before."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail.executor.pools.local import LocalPool
from dovetail.executor.pools.runs.lease import NodeLease
from dovetail.executor.pools.shim.lease import LAPSED, LeaseRecord, lease_line, read_lease
from dovetail.executor.system.clock import boot_id, boot_s
from tests.executor.local_runs import Watched, a_run, cleared, left_over
from tests.executor.waiting import wait_until

SLACK_S = 20.0
"""For what a loaded machine takes to run what is due."""

READ_S = 0.7
"""Seconds in which a shim reads a lease file at least once, shortly before the lease's end."""

READ_OFTEN_S = 1.5
"""A lease so short that it is always read so often."""

# Takes no notice of SIGTERM, nor does its child in another session, nor its child's child, which
# has lost its parent besides. Each says that it is up.
DEAF = """
trap '' TERM
export DEAF='trap "" TERM; echo up; while :; do sleep 0.2; done'
setsid sh -c '(setsid sh -c "$DEAF" &); eval "$DEAF"' &
eval "$DEAF"
"""
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class TestFile:
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "lease"

    def test_what_is_written_is_read(self, path):
        lease, until_s = NodeLease(path), boot_s() + 10
        lease.renew_until(until_s)
        found = read_lease(str(path), boot_id())
        assert found.deadline_s == pytest.approx(until_s, abs=1e-6)
        assert (lease.deadline_s, lease.lapsed) == (until_s, False)

    def test_it_is_never_shortened(self, path):
        lease, now_s = NodeLease(path), boot_s()
        for ahead_s in (10, 5, 20):
            lease.renew_until(now_s + ahead_s)
        assert lease.deadline_s == now_s + 20
        size = path.stat().st_size
        NodeLease(path).renew_until(now_s + 15)
        assert read_lease(str(path), boot_id()).deadline_s == pytest.approx(now_s + 20, abs=1e-6)
        assert path.stat().st_size == size == 88

    def test_a_node_that_comes_back_in_time_goes_on_with_it(self, path):
        NodeLease(path).renew_until(boot_s() + 10)
        since_s = read_lease(str(path), boot_id()).since_s
        NodeLease(path).renew_until(boot_s() + 20)
        assert read_lease(str(path), boot_id()).since_s == since_s

    def test_after_a_lapse_it_is_another(self, path):
        lease = NodeLease(path)
        lease.renew_until(boot_s() + 0.01)
        since_s = read_lease(str(path), boot_id()).since_s
        wait_until(lambda: lease.lapsed)
        lease.renew_until(boot_s() + 10)
        assert read_lease(str(path), boot_id()).since_s > since_s

    def test_that_of_another_boot_is_none(self, path):
        path.write_bytes(lease_line(LeaseRecord(1.0, boot_s() + 1000), "another"))
        assert NodeLease(path).lapsed
        assert read_lease(str(path), boot_id()) is None

    @pytest.mark.parametrize("cut", [0, 30, 87])
    def test_a_mixture_of_two_lines_is_none(self, path, cut):
        one = lease_line(LeaseRecord(1.0, 99.9), boot_id())
        other = lease_line(LeaseRecord(2.0, 100.1), boot_id())
        path.write_bytes(one[:cut] + other[cut + 1 :])
        assert read_lease(str(path), boot_id()) is None

    @AS_ROOT
    def test_a_full_disk_takes_renewals(self, tmp_path):
        small = tmp_path / "small"
        small.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)]
        if subprocess.run(mount, check=False).returncode:
            pytest.skip("no file system can be mounted here")
        try:
            lease = NodeLease(small / "lease")
            lease.renew_until(boot_s() + 10)
            with contextlib.suppress(OSError), open(small / "filler", "wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 512)
            until_s = boot_s() + 20
            lease.renew_until(until_s)
            found = read_lease(str(small / "lease"), boot_id())
            assert found.deadline_s == pytest.approx(until_s, abs=1e-6)
        finally:
            subprocess.run(["umount", str(small)], check=True)


@pytest.fixture
def state(tmp_path):
    """Return a state directory whose processes are killed at the end."""
    with cleared(tmp_path / "state"):
        yield tmp_path / "state"


@pytest.fixture
def lease(tmp_path):
    return NodeLease(tmp_path / "lease", kill_s=0.5)


@pytest.fixture
def pool(state, lease):
    """Return a pool whose ranks run under the lease."""
    watched = Watched(LocalPool(state))
    watched.pool.join("127.0.0.1", lease)
    yield watched
    watched.pool.close()


def renewed(lease, for_s):
    """Renew a lease by that much, and return until when it holds."""
    lease.renew_until(boot_s() + for_s)
    return lease.deadline_s


def started(pool, lease, command, for_s=4.0):
    """Launch a run of one rank; once all its processes are up, return when its lease ends."""
    renewed(lease, for_s)
    pool.pool.launch(a_run(command))

    def is_up():
        renewed(lease, for_s)
        return log(pool).count("up") == (3 if command is DEAF else 1)

    wait_until(is_up)
    return lease.deadline_s


def log(pool):
    path = pool.pool.log_path("j1.1", 0)
    return Path(path).read_text() if path else ""


def record(state):
    return json.loads((state / "runs/j1.1/rank0/started.json").read_text())


def exit_record(state):
    return json.loads((state / "runs/j1.1/rank0/exit.json").read_text())


def all_there_until(state, due_s):
    """Look until ``due_s``; a process missed by an earlier look has ended too early."""
    while True:
        # The shim, the rank and its two others, each with the sleep that it waits for.
        seen = left_over(state)
        if boot_s() >= due_s:
            return
        assert len(seen) >= 4, due_s - boot_s()
        time.sleep(min(0.2, max(0.0, due_s - boot_s())))


def all_gone_s(state):
    """Return when the last process of a state directory was gone."""
    wait_until(lambda: not left_over(state))
    return boot_s()


class TestLapse:
    POLITE = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.1; done"

    def test_nothing_is_left_by_the_kill_and_all_is_there_before_the_lapse(
        self, pool, state, lease
    ):
        until_s = started(pool, lease, DEAF)
        all_there_until(state, until_s + lease.kill_s)
        gone_s = all_gone_s(state)
        assert until_s + lease.kill_s <= gone_s < until_s + lease.kill_s + SLACK_S
        assert pool.wait_for("rank_gone").reason == LAPSED
        assert exit_record(state) == {"status": -9, "refused": "", "lapsed": True}

    def test_a_responsive_job_is_asked_at_the_lapse(self, pool, state, lease):
        until_s = started(pool, lease, self.POLITE)
        gone_s = all_gone_s(state)
        assert until_s <= gone_s < until_s + SLACK_S
        # It was asked to end, so that it ended well says nothing.
        assert pool.wait_for("rank_gone").reason == LAPSED
        assert exit_record(state)["status"] == 0
        assert "asked" in log(pool)

    def test_it_runs_for_as_long_as_it_is_renewed(self, pool, state, lease):
        until_s = started(pool, lease, DEAF)
        while boot_s() < until_s + lease.kill_s + 0.5:
            time.sleep(0.3)
            renewed(lease, 10.0)
        assert len(left_over(state)) >= 4
        assert pool.kinds() == [("rank_started", 0), ("rank_ready", 0)]

    def test_what_ended_before_is_reported_as_ended(self, pool, lease):
        renewed(lease, 600.0)
        pool.pool.launch(a_run("exit 3"))
        assert pool.wait_for("rank_ended").status == 3

    def test_the_process_that_renews_may_be_killed(self, state, lease):
        program = (
            "import sys, time\n"
            "from pathlib import Path\n"
            "from dovetail.executor.system.clock import boot_s\n"
            "from dovetail.executor.jobs.specs import Run\n"
            "from dovetail.executor.pools.runs.lease import NodeLease\n"
            "from dovetail.executor.pools.local import LocalPool\n"
            "lease = NodeLease(Path(sys.argv[2]), 0.5)\n"
            "lease.renew_until(boot_s() + 5)\n"
            "pool = LocalPool(Path(sys.argv[1]))\n"
            "pool.join('127.0.0.1', lease)\n"
            "pool.launch(Run.model_validate_json(sys.argv[3]))\n"
            "while True:\n"
            "    time.sleep(0.2)\n"
            "    lease.renew_until(boot_s() + 5)\n"
        )
        words = [str(state), str(lease.path), a_run(DEAF).model_dump_json()]
        agent = subprocess.Popen([sys.executable, "-c", program, *words])
        with agent:
            wait_until(lambda: (state / "runs/j1.1/rank0/log").exists())
            wait_until(lambda: (state / "runs/j1.1/rank0/log").read_text().count("up") == 3)
            time.sleep(2.5)
            assert len(left_over(state)) >= 4
            agent.kill()
        until_s = read_lease(str(lease.path), boot_id()).deadline_s
        gone_s = all_gone_s(state)
        assert until_s + 0.5 <= gone_s < until_s + 0.5 + SLACK_S
        assert exit_record(state)["lapsed"]


class TestWhatIsInTheWay:
    def test_a_shim_that_stood_still_kills_at_once_when_it_goes_on(self, pool, state, lease):
        until_s = started(pool, lease, DEAF)
        pool.pool.close()
        shim = record(state)["shim"]
        os.kill(shim, signal.SIGSTOP)
        while boot_s() < until_s + lease.kill_s + 0.5:
            time.sleep(0.1)
        assert len(left_over(state)) >= 4
        os.kill(shim, signal.SIGCONT)
        on_s = boot_s()
        assert all_gone_s(state) < on_s + SLACK_S
        assert exit_record(state)["lapsed"]

    def test_one_that_stood_still_while_it_was_renewed_goes_on(self, pool, state, lease):
        until_s = started(pool, lease, DEAF)
        shim = record(state)["shim"]
        os.kill(shim, signal.SIGSTOP)
        while boot_s() < until_s + lease.kill_s + 0.5:
            renewed(lease, 10.0)
            time.sleep(0.1)
        os.kill(shim, signal.SIGCONT)
        time.sleep(1.0)
        assert len(left_over(state)) >= 4
        assert not (state / "runs/j1.1/rank0/exit.json").exists()

    def test_one_that_stood_still_through_a_lapse_does_not(self, pool, state, lease):
        until_s = started(pool, lease, DEAF)
        pool.pool.close()
        shim = record(state)["shim"]
        os.kill(shim, signal.SIGSTOP)
        while boot_s() < until_s:
            time.sleep(0.05)
        # The controller has given the rank to another node; the node is in use again.
        renewed(lease, 60.0)
        os.kill(shim, signal.SIGCONT)
        assert all_gone_s(state) < until_s + lease.kill_s + SLACK_S
        assert exit_record(state)["lapsed"]

    def test_the_keeper_of_a_rank_kills_for_a_stopped_shim(self, pool, state, lease, monkeypatch):
        monkeypatch.setattr("dovetail.executor.pools.runs.supervisor._OVERDUE_S", 0.3)
        until_s = started(pool, lease, DEAF)
        os.kill(record(state)["shim"], signal.SIGSTOP)
        gone_s = all_gone_s(state)
        assert until_s + lease.kill_s + 0.3 <= gone_s < until_s + lease.kill_s + 0.3 + SLACK_S
        assert pool.wait_for("rank_gone").reason == "its launcher was killed"

    def test_and_does_so_when_a_new_lease_has_begun(self, pool, state, lease, monkeypatch):
        monkeypatch.setattr("dovetail.executor.pools.runs.supervisor._OVERDUE_S", 0.3)
        until_s = started(pool, lease, DEAF)
        os.kill(record(state)["shim"], signal.SIGSTOP)
        wait_until(lambda: lease.lapsed)
        renewed(lease, 60.0)
        gone_s = all_gone_s(state)
        assert until_s + lease.kill_s + 0.3 <= gone_s < until_s + lease.kill_s + 0.3 + SLACK_S

    def test_a_stalled_job_is_ended(self, pool, state, lease):
        until_s = started(pool, lease, TestLapse.POLITE)
        os.kill(pool.wait_for("rank_started").pid, signal.SIGSTOP)
        assert all_gone_s(state) < until_s + SLACK_S
        assert exit_record(state)["status"] == 0

    def test_a_file_that_is_away_when_it_would_be_due_ends_nothing(self, pool, state, lease):
        until_s = started(pool, lease, DEAF, for_s=READ_OFTEN_S)
        renewed(lease, 4.0)
        time.sleep(READ_S)
        content = lease.path.read_bytes()
        lease.path.unlink()
        while boot_s() < until_s + lease.kill_s:
            time.sleep(0.05)
        lease.path.write_bytes(content[:-1])
        time.sleep(0.3)
        assert len(left_over(state)) >= 4
        # In time for what was read before.
        until_s = lease.deadline_s
        renewed(lease, 6.0)
        while boot_s() < until_s + lease.kill_s + 0.2:
            time.sleep(0.05)
        assert len(left_over(state)) >= 4

    def test_one_that_stays_away_is_a_lapse_when_the_last_one_read_ends(self, pool, state, lease):
        until_s = started(pool, lease, DEAF, for_s=READ_OFTEN_S)
        time.sleep(READ_S)
        lease.path.unlink()
        all_there_until(state, until_s + lease.kill_s)
        gone_s = all_gone_s(state)
        assert until_s + lease.kill_s <= gone_s < until_s + lease.kill_s + SLACK_S

    def test_a_file_that_cannot_be_read_to_its_end_holds_up_no_lapse(self, pool, state, lease):
        until_s = started(pool, lease, DEAF, for_s=READ_OFTEN_S)
        pool.pool.close()
        time.sleep(READ_S)
        # Opening a pipe without a writer blocks for ever, as on a disk that hangs.
        lease.path.unlink()
        os.mkfifo(lease.path)
        gone_s = all_gone_s(state)
        assert until_s + lease.kill_s <= gone_s < until_s + lease.kill_s + SLACK_S

    def test_nor_does_a_log_that_takes_nothing(self, pool, state, lease):
        log = state / "runs/j1.1/rank0/log"
        log.parent.mkdir(parents=True)
        os.mkfifo(log)
        reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
        until_s = renewed(lease, 5.0)
        pool.pool.launch(a_run(f"yes & {DEAF}"))
        pool.wait_for("rank_ready")
        pool.pool.close()
        while left_over(state) and boot_s() < until_s + lease.kill_s + SLACK_S:
            rank = record(state)
            if not [p for p in left_over(state) if p.pid != rank["shim"]]:
                break
            time.sleep(0.2)
        assert until_s + lease.kill_s <= boot_s() < until_s + lease.kill_s + SLACK_S
        # Its guard waits for its log still, and has nothing left to guard.
        assert [p.pid for p in left_over(state)] == [rank["shim"]]
        os.close(reader)
        all_gone_s(state)


class TestStart:
    def test_nothing_starts_without_a_lease(self, pool, state):
        pool.pool.launch(a_run("echo up"))
        refused = pool.wait_for("rank_refused")
        assert (refused.reason, refused.later) == (LAPSED, True)
        assert not (state / "runs/j1.1").exists()

    def test_nor_once_it_has_lapsed(self, pool, state, lease):
        until_s = renewed(lease, 0.5)
        wait_until(lambda: boot_s() > until_s)
        pool.pool.launch(a_run("echo up"))
        assert pool.wait_for("rank_refused").later
