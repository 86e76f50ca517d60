"""Where memory runs out: what ends is a job, and the limit of the service is its own."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from dovetail.executor.jobs.states import JobState
from dovetail.executor.pools.shim.rank import OOM_SCORE_ADJ
from dovetail.live.client import Client
from tests.api.live.services import limited, served
from tests.executor.local_runs import cleared, python
from tests.executor.waiting import wait_until

POOL = ("--pool", "cpu:devices=1,shares=none")
LIMIT_BYTES = 2**32
EATERS = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        x = bytearray(b"x") * (40 * 2**20)
        time.sleep(600)
os._exit(os.wait()[1])
"""
"""A job of many small processes, which ends with the first of them."""

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def home(short_path):
    """Return the directory of a service; processes started from it are killed at the end."""
    with cleared(short_path / "home"):
        yield short_path / "home"


@pytest.fixture
def group():
    """Return a control group of 512 MiB, below which processes can be put."""
    made = next(filter(None, map(limited_group, LIMITS)), None)
    if made is None:
        pytest.skip("no control group with a limit of memory can be made here")
    yield made
    wait_until(lambda: not (made / "cgroup.procs").read_text())
    made.rmdir()


LIMITS = "/sys/fs/cgroup/memory/{}/memory.limit_in_bytes", "/sys/fs/cgroup/{}/memory.max"


def limited_group(pattern):
    """Return a control group of 512 MiB, of version 1 or 2; None where none can be made."""
    limit = Path(pattern.format(f"dovetail-test-{os.getpid()}"))
    try:
        limit.parent.mkdir()
    except OSError:
        return None
    try:
        limit.write_text(str(512 * 2**20))
    except OSError:
        limit.parent.rmdir()
        return None
    return limit.parent


def submitted(client, command, **more):
    words = ["sh", "-c", command] if isinstance(command, str) else command
    job = {"command": words, "workload": "w", "cwd": "/", "env": {}, **more}
    (name,) = client.submit([job])
    return name


def is_in(client, job, state):
    return lambda: client.job(job).state is state


def test_jobs_go_before_the_service_and_have_no_limit_of_it(home):
    script = "cat /proc/self/oom_score_adj; ulimit -S -d; ulimit -H -d; sh -c 'ulimit -S -d'"
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limited(resource.RLIMIT_DATA, LIMIT_BYTES, hard)
    with (
        served(home, *POOL, before=limit) as (process, _),
        Client(str(home / "api.sock")) as client,
    ):
        assert resource.prlimit(process.pid, resource.RLIMIT_DATA) == (LIMIT_BYTES, hard)
        job = submitted(client, script)
        wait_until(is_in(client, job, JobState.FINISHED))
        score, *limits = b"".join(client.log(job)).decode().split()
        assert int(score) == OOM_SCORE_ADJ
        assert limits == ["unlimited" if hard == resource.RLIM_INFINITY else str(hard // 1024)] * 3
        service = Path(f"/proc/{process.pid}/oom_score_adj")
        assert int(service.read_text()) < OOM_SCORE_ADJ


@NEEDS_ROOT
def test_the_kernel_ends_the_job_that_takes_all_memory_and_not_the_service(home, group):
    """The kernel chooses among all processes of the group, of which the service is the largest."""

    def enter():
        (group / "cgroup.procs").write_text(str(os.getpid()))

    with (
        served(home, *POOL, before=enter) as (process, _),
        Client(str(home / "api.sock")) as client,
    ):
        job = submitted(client, python(EATERS))
        wait_until(is_in(client, job, JobState.FAILED))
        assert client.job(job).why == "rank 0 ended with status 9"
        later = submitted(client, "exit 3")
        wait_until(is_in(client, later, JobState.FAILED))
        assert process.poll() is None
