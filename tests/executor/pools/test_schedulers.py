"""Schedulers of thread blocks as real processes, without a GPU and without a pool."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from dovetail.executor.isolation.assemble import find_ptxas
from dovetail.executor.mps import processes
from dovetail.executor.pools.schedulers import IsolationError, Schedulers
from tests.executor.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas (extra isolation)"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]
UUID = "GPU-12345678-0000-4000-8000-000000000000"
ME = os.geteuid()
OTHER = 54321


@pytest.fixture
def schedulers():
    with tempfile.TemporaryDirectory(prefix="dv-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        found = Schedulers(Path(folder, "isolation"), idle_s=600.0)
        assert found.why_not() is None
        yield found
        for uid in (ME, OTHER):
            process = found.process(UUID, uid)
            if process is not None:
                processes.kill(process, 10)


def test_one_serves_all_runs_of_a_user_on_a_gpu(schedulers):
    latency = schedulers.environment(UUID, ME, True, {"LD_PRELOAD": "own.so"})
    process = schedulers.process(UUID, ME)
    other = schedulers.environment(UUID, ME, False, {})
    assert schedulers.process(UUID, ME) == process
    assert latency["DOVETAIL_ISOLATION_SOCKET"] == other["DOVETAIL_ISOLATION_SOCKET"]
    assert latency["LD_PRELOAD"].endswith(".so own.so")
    names = [each["DOVETAIL_ISOLATION_PRIORITY"] for each in (latency, other)]
    assert names == ["latency", "best-effort"]
    assert Path(other["TRITON_PTXAS_PATH"]).exists()


def test_one_that_nothing_needs_ends(schedulers):
    short = Schedulers(schedulers.directory, idle_s=0.5)
    short.ensure(UUID, ME)
    wait_until(lambda: short.process(UUID, ME) is None)
    assert short.status(UUID, ME) is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_is_dead_or_hangs_is_replaced(schedulers, number):
    schedulers.ensure(UUID, ME)
    before = schedulers.process(UUID, ME)
    os.kill(before.pid, number)
    schedulers.ensure(UUID, ME)
    assert schedulers.process(UUID, ME).pid != before.pid
    assert schedulers.status(UUID, ME).clients == ()


def test_a_folder_that_others_may_enter_is_refused(schedulers):
    place = schedulers.directory / f"12345678-{ME}"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(IsolationError, match="closed to others"):
        schedulers.ensure(UUID, ME)


def test_a_path_that_is_too_long_for_a_socket_is_a_reason(tmp_path):
    assert "too long for a socket" in Schedulers(tmp_path / ("x" * 90)).why_not()


@pytest.mark.skipif(ME != 0, reason="only root runs jobs of others")
def test_each_user_has_one_that_runs_as_the_user(schedulers):
    try:
        schedulers.ensure(UUID, OTHER)
    except IsolationError as error:
        pytest.skip(f"other users may not run this Python: {error}")
    assert schedulers.process(UUID, OTHER).uid == OTHER
    assert schedulers.process(UUID, ME) is None
    assert (schedulers.directory / f"12345678-{OTHER}" / "socket").stat().st_uid == OTHER
    assert schedulers.status(UUID, OTHER).clients == ()
