"""The doctor with NVIDIA's real control daemon, which runs without a GPU."""

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from dovetail.executor.doctor import mps
from dovetail.executor.doctor.finding import Severity
from dovetail.executor.mps.processes import PROGRAM, every_mps
from tests.executor.waiting import wait_until

NEEDS_MPS = pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"needs {PROGRAM}")


@pytest.fixture
def base():
    """Return a folder with a name short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="dove-") as folder:
        yield Path(folder)


@contextmanager
def running(place):
    """Run a daemon at a place, and end it."""
    place.mkdir(parents=True, exist_ok=True)
    variables = {
        "CUDA_MPS_PIPE_DIRECTORY": str(place),
        "CUDA_MPS_LOG_DIRECTORY": str(place),
        "CUDA_VISIBLE_DEVICES": "GPU-12345678-0000-0000-0000-000000000000",
    }
    environment = {**os.environ, **variables}
    subprocess.run([PROGRAM, "-d"], env=environment, check=True)
    try:
        yield next(one.pid for one in every_mps() if one.pipe_directory == str(place))
    finally:
        subprocess.run([PROGRAM], input="quit\n", text=True, env=environment, check=False)
        wait_until(lambda: all(one.pipe_directory != str(place) for one in every_mps()))


@NEEDS_MPS
def test_the_version_is_known_without_a_daemon(base):
    control = mps.control("")
    version = control.text.rpartition("version ")[2]
    assert version.count(".") in (1, 2)
    assert mps.control(version).level is Severity.GOOD
    other = mps.control("580.159.03")
    assert other.level is Severity.NOTE
    assert other.text.endswith("; the driver is 580.159.03")
    assert not list(base.iterdir())


def test_no_mps_is_reported(base, monkeypatch):
    monkeypatch.setenv("PATH", str(base))
    assert mps.control("").text == f"{PROGRAM} is not installed"


@NEEDS_MPS
def test_daemons_of_others_are_reported_with_the_command_that_ends_them(base):
    with running(base / "theirs") as pid:
        others = mps.others(base / "ours", tuple(every_mps()))
        findings = [one for one in others if f" {pid} " in one.text]
    assert [one.level for one in findings] == [Severity.LACKING]
    assert findings[0].text.endswith(f"of uid {os.geteuid()}, pipe directory {base}/theirs")
    assert findings[0].remedy.endswith(
        f"echo quit | env CUDA_MPS_PIPE_DIRECTORY={base}/theirs {PROGRAM}"
    )


@NEEDS_MPS
def test_our_daemons_are_stale_only_without_a_service(base):
    with running(base / "12345678-0") as pid:
        every = tuple(every_mps())
        (stale,) = mps.ours(base, every, serving=False)
        (used,) = mps.ours(base, every, serving=True)
    assert stale.level is Severity.NOTE
    assert f"{PROGRAM} {pid} of uid" in stale.text
    assert used.level is Severity.GOOD


def test_a_path_too_long_for_sockets_is_reported(base):
    finding = mps.directory(base / ("x" * 60) / "mps")
    assert finding.level is Severity.LACKING
    assert "longer than 87 bytes" in finding.text
