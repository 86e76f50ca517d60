"""A service with its state directory on a full disk: a real file system of 32 MiB."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from dovetail.executor.jobs.states import JobState
from dovetail.executor.nodes.fence import raise_epoch
from dovetail.executor.nodes.lease import GrantedLease
from dovetail.live.client import Client
from tests.api.live.services import served
from tests.executor.local_runs import cleared
from tests.executor.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

POOL = ("--pool", "cpu:devices=1,shares=none")


@pytest.fixture
def home(short_path):
    """Return a directory on that disk; processes started from it are killed at the end."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(short_path)], check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    with cleared(short_path / "home"):
        yield short_path / "home"
    subprocess.run(["umount", str(short_path)], check=True)


@pytest.fixture
def filler(home):
    """Return a file whose ``fill`` takes all free space of the disk."""

    class Filler:
        path = home.parent / "filler"

        def fill(self, left_bytes=0):
            with open(self.path, "ab", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 4096)
                except OSError:
                    file.truncate(file.tell() - left_bytes)

        def empty(self):
            self.path.unlink()

    return Filler()


def submitted(client, command):
    spec = {"command": ["sh", "-c", command], "workload": "w", "cwd": "/", "env": {}}
    (name,) = client.submit([spec])
    return name


def is_in(client, job, state):
    return lambda: client.job(job).state is state


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_service_is_started_again_and_its_jobs_run_on(home, filler, ending):
    with served(home, *POOL) as (process, _), Client(str(home / "api.sock")) as client:
        runs = submitted(client, "sleep 600")
        waits = submitted(client, "exit 3")
        wait_until(is_in(client, runs, JobState.PROFILING))
        (pid,) = client.job(runs).pids
        filler.fill()
        process.send_signal(ending)
        process.wait(timeout=LIMIT_S)
        filler.fill()
    with served(home, *POOL) as (process, greeting), Client(str(home / "api.sock")) as client:
        assert greeting.startswith("serving the cpu pool")
        # The journal has reserved room for a while, but nothing is started without room.
        later = submitted(client, "true")
        wait_until(lambda: "nothing is started" in client.service().trouble)
        assert client.job(later).state is JobState.SUBMITTED
        filler.empty()
        wait_until(lambda: not client.service().trouble)
        assert client.job(runs).pids == (pid,)
        client.cancel(runs)
        wait_until(is_in(client, waits, JobState.FAILED))
        assert client.job(waits).why == "rank 0 ended with status 3"


def test_a_job_that_waits_is_started_when_there_is_room(home, filler):
    with served(home, *POOL), Client(str(home / "api.sock")) as client:
        runs = submitted(client, f"while [ ! -e {home.parent}/end ]; do sleep 0.1; done")
        waits = submitted(client, "exit 3")
        wait_until(is_in(client, runs, JobState.PROFILING))
        # There is room for the journal to say that it has ended, and for little more.
        filler.fill(left_bytes=4 * 2**20)
        (home.parent / "end").touch()
        wait_until(is_in(client, runs, JobState.FINISHED))
        wait_until(lambda: "nothing is started" in client.service().trouble)
        assert client.job(waits).state is JobState.SUBMITTED
        full = "room on the disk of the service, which is full"
        assert client.job(waits).waiting_for == full
        assert f"no job starts: each waits for {full}" in client.explain(waits)
        filler.empty()
        wait_until(is_in(client, waits, JobState.FAILED))
        assert client.job(waits).why == "rank 0 ended with status 3"
        assert client.job(waits).runs == 1


def test_the_files_of_a_controller_of_nodes(home, filler):
    home.mkdir()
    first = raise_epoch(home / "controller.json")
    GrantedLease(home / "lease.json", 15.0, 0.0)
    filler.fill()
    assert raise_epoch(home / "controller.json") == first.replace(epoch=2)
    GrantedLease(home / "lease.json", 60.0, 0.0)
    assert GrantedLease(home / "lease.json", 15.0, 0.0).longest_s == 60.0
