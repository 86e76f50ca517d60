"""Schedulers of thread blocks as real processes, without a GPU and without a pool."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from dovetail.executor.mps import processes
from dovetail.executor.pools.isolation import IsolationError
from dovetail.isolation.assemble import find_ptxas
from dovetail.isolation.schedulers import Schedulers
from tests.executor.local_runs import can_mount, unmount
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
        unmount(folder)


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


def test_one_that_is_ended_is_gone(schedulers):
    schedulers.ensure(UUID, ME)
    for _ in range(2):
        schedulers.end(UUID, ME)
        assert schedulers.process(UUID, ME) is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_is_dead_or_hangs_is_replaced(schedulers, number):
    schedulers.ensure(UUID, ME)
    before = schedulers.process(UUID, ME)
    os.kill(before.pid, number)
    schedulers.ensure(UUID, ME)
    assert schedulers.process(UUID, ME).pid != before.pid
    assert schedulers.status(UUID, ME).pids == frozenset()


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
    assert schedulers.status(UUID, OTHER).pids == frozenset()
    if can_mount():
        disk = os.statvfs(schedulers.directory / f"12345678-{OTHER}")
        assert disk.f_blocks * disk.f_frsize == 256 * 2**20


@contextlib.contextmanager
def _replaced_by(schedulers, answer):
    """Have a process of the user answer in place of the scheduler."""
    place = schedulers.directory / f"12345678-{ME}"
    place.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place / "socket"))
        listening.listen()

        def serve():
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(8)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"x" * (1 << 24),
        b"[" * 100_000,
        b'{"launches": {"whole": -1}}',
        b'{"launches": {"whole": 1' + b"0" * 3000 + b"}}",
        b'{"clients": [{"pid": 0, "priority": "latency"}]}',
        b"\xff",
    ],
)
def test_a_replaced_scheduler_that_answers_nonsense_is_none(schedulers, answer):
    with _replaced_by(schedulers, answer):
        assert schedulers.status(UUID, ME) is None


def test_texts_of_a_replaced_scheduler_are_short_and_printable(schedulers):
    texts = {f"{number}\x1b[2J\n" + "x" * 300: "\u202ewhy" for number in range(200)}
    answer = {"escapes": texts, "launches": {"whole": 2, "\x1b": 1}}
    with _replaced_by(schedulers, json.dumps(answer).encode()):
        found = schedulers.status(UUID, ME)
    assert found.launches == {"whole": 2}
    assert len(found.escapes) == 64
    for text in (*found.escapes, *found.escapes.values()):
        assert len(text) <= 200
        assert text.isprintable()


@pytest.mark.parametrize(
    ("launches", "kernels"),
    [
        ({"isolated": 3, "whole": 4, "captured": 9, "late": 2, "preempted": 8}, 7),
        ({"announced": 5, "not announced": 1}, 6),
        ({"announced": 5, "graph": 1}, None),
        ({}, 0),
    ],
)
def test_kernels_are_counted_unless_there_are_graphs(schedulers, launches, kernels):
    with _replaced_by(schedulers, json.dumps({"launches": launches}).encode()):
        assert schedulers.status(UUID, ME).kernels == kernels


def test_a_link_to_the_socket_of_another_is_not_followed(schedulers, tmp_path):
    with (
        tempfile.TemporaryDirectory(prefix="dv-") as folder,
        socket.socket(socket.AF_UNIX) as other,
    ):
        other.bind(f"{folder}/private")
        other.listen()
        other.setblocking(False)
        place = schedulers.directory / f"12345678-{ME}"
        place.mkdir(mode=0o700)
        (place / "socket").symlink_to(f"{folder}/private")
        assert schedulers.status(UUID, ME) is None
        with pytest.raises(BlockingIOError):
            other.accept()


def test_a_process_of_any_number_may_join(schedulers):
    answer = {"clients": [{"pid": 4_194_303, "priority": "latency"}]}
    with _replaced_by(schedulers, json.dumps(answer).encode()):
        assert schedulers.status(UUID, ME).pids == {4_194_303}


def test_an_installation_that_only_pythonpath_leads_to(tmp_path):
    """As with ``pip install --target``: schedulers get what our modules are found by."""
    module = tmp_path / "only_there.py"
    module.write_text("print('found')")
    found = subprocess.run(
        [sys.executable, "-c", _STARTS], env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True, cwd="/",
    )  # fmt: skip
    assert found.stdout.strip() == "found"


_STARTS = """
import subprocess
from dovetail.instances._children import module_command, module_environment
subprocess.run([*module_command("only_there")], env=module_environment(), check=True)
"""
