"""Private directories with short names, stand-ins for MPS, and clients; none outlives a test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from dovetail.executor.mps import processes
from dovetail.executor.mps.control import Control
from dovetail.executor.mps.processes import PIPE_DIRECTORY, PROGRAM

from ..local_runs import unmount
from . import standin

CLIENT = Path(__file__).with_name("client.py")


def programs(place):
    """Return the programs under contract: the real one where there is one, and the stand-ins."""
    return {
        "real": shutil.which(PROGRAM),
        "standin-535": standin.install(place, "535"),
        "standin-555": standin.install(place, "555"),
        "standin-580": standin.install(place, "580"),
    }


@pytest.fixture
def place():
    """A directory with a short name (sockets are in it) that every user may pass."""
    found = Path(tempfile.mkdtemp(prefix="mps", dir="/tmp"))
    found.chmod(0o711)
    yield found
    for process in processes.every():
        given = process.environment.get(PIPE_DIRECTORY, "")
        if given.startswith(f"{found}/"):
            processes.kill(process, 10)
    unmount(found)
    shutil.rmtree(found)


@pytest.fixture
def gpu():
    """A UUID that no other test has: daemons of others are looked for by it."""
    return f"GPU-{uuid.uuid4()}"


@pytest.fixture
def program(request, place):
    """The program named by the parameter; skips where the real one is absent."""
    found = programs(place)[request.param]
    if found is None:
        pytest.skip(f"{PROGRAM} is not installed (Debian: nvidia-cuda-mps, non-free)")
    return found


@pytest.fixture
def control(program, place, gpu):
    """A daemon of this user that does not run yet."""
    pipes = place / "pipes"
    pipes.mkdir(mode=0o700)
    return Control(pipes, gpu, os.geteuid(), program)


class Client:
    """A process with a given environment, and its output so far."""

    def __init__(self, environment, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-IS", str(CLIENT), *arguments],
            env={"PATH": os.environ["PATH"], **environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def learns(self):
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def start_client():
    """Start clients; they end with the test."""
    clients = []

    def start(environment, *arguments):
        clients.append(Client(environment, *arguments))
        return clients[-1]

    yield start
    for client in clients:
        client.end()
