"""A service with its state directory on a full disk: a real file system of 32 MiB."""

from __future__ import annotations

import signal

import pytest

from dovetail.executor.jobs.states import JobState
from dovetail.live.client import Client
from tests.api.live.services import served
from tests.executor.full_disk import Filler, needs_root, small_disk
from tests.executor.waiting import LIMIT_S, wait_until

pytestmark = needs_root

POOL = ("--pool", "cpu:devices=1,shares=none")


@pytest.fixture
def home(short_path):
    """Return a directory on that disk."""
    with small_disk(short_path) as home:
        yield home


@pytest.fixture
def filler(home):
    """Return what fills that disk."""
    return Filler(home.parent / "filler")


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
