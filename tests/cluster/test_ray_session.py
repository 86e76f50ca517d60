"""What other users of a node can do in the folder of a real Ray, and what an agent says of it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dovetail.cluster.slurm.ray_parts import ray_start
from tests.executor.waiting import LIMIT_S, wait_until

NOBODY = 65534
PORT = 6411

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]

ASK = f"""
import ray
ray.init(address="127.0.0.1:{PORT}", logging_level="ERROR", log_to_driver=False)

@ray.remote(num_cpus=0)
def answer():
    import sys
    from dovetail.cluster.ray_agent import require_closed_session
    try:
        require_closed_session(sys.argv)
    except Exception as error:
        return str(error)
    return "accepted"

print(ray.get(answer.remote()))
"""


@pytest.fixture
def folder():
    # Not pytest's: the paths of Ray's sockets would be too long.
    with tempfile.TemporaryDirectory(prefix="dr", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextlib.contextmanager
def running_ray(folder):
    """Run Ray as a pilot does, and yield the folder of its session."""
    command = ray_start(
        "127.0.0.1", folder, "--head", f"--port={PORT}", "--include-dashboard=false"
    )
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as ray:
        try:
            wait_until(lambda: list(folder.glob("*/session_2*/sockets/raylet*")), "a raylet")
            yield next(folder.glob("*/session_2*"))
        finally:
            ray.terminate()


def as_nobody(command):
    return subprocess.run(
        ["sh", "-c", command], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True,
        check=False,
    ).returncode == 0  # fmt: skip


def answer():
    asked = [sys.executable, "-c", ASK]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize(("mode", "closed"), [(0o700, True), (0o711, False)])
def test_a_session_that_others_reach_is_refused(folder, mode, closed):
    with running_ray(folder) as session:
        # Whatever it was when Ray was started: Ray opens the folders that it makes to all.
        folder.chmod(mode)
        assert as_nobody(f"ln -s /etc/made-by-ray {session}/logs/raylet.9.out") is not closed
        assert as_nobody(f"mv {session}/sockets/raylet {session}/sockets/away") is not closed
        if not closed:
            as_nobody(f"mv {session}/sockets/away {session}/sockets/raylet")
            assert "must lie below a folder of mode 700 (ray start --temp-dir)" in answer()
        else:
            assert answer() == "accepted"
