"""Runs of real processes for tests of local pools, and their cleanup."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from dovetail.executor.jobs.specs import JobSpec, Owner, Run, Seat
from dovetail.executor.pools.runs.files import home_token
from dovetail.executor.pools.runs.processes import tokens
from dovetail.executor.pools.runs.start_barrier import ForkServer

from .waiting import wait_until


def me():
    """Return the user that runs the tests."""
    user = pwd.getpwuid(os.geteuid())
    return Owner(name=user.pw_name, uid=user.pw_uid, gid=user.pw_gid)


def a_run(command, *, name="j1.1", gpus=("cpu-0",), share=None, **spec):
    """Return a run of a shell command (a text) or of a program and its arguments."""
    words = ("sh", "-c", command) if isinstance(command, str) else tuple(command)
    fields = {"owner": me(), "cwd": "/", "env": {"PATH": os.environ["PATH"]}, **spec}
    job = JobSpec(command=words, workload="w", workers=len(gpus), **fields)
    seats = tuple(Seat(gpu=gpu, share=share) for gpu in gpus)
    return Run(id=name, job=name.rpartition(".")[0], spec=job, seats=seats)


def write_shim_spec(rank, command, **more):
    """Write the start record of a rank (``RankFiles``): a shell command and further fields."""
    spec = {
        "command": ["sh", "-c", command],
        "cwd": "/",
        "env": {"PATH": os.defpath, "DOVETAIL_LAUNCH": rank.token},
        "user": None,
        "descriptors": 1024,
        "cpus": [],
        "cgroups": [],
        "log": {"most_bytes": 100, "files": 1, "mode": 0o600},
        "copies": [None],
        "lines": None,
        **more,
    }
    rank.write_spec(spec)


def python(program):
    """Return the command that runs a Python program without site packages: it starts quickly."""
    return (sys.executable, "-S", "-c", program)


@contextmanager
def fork_server(directory):
    """Yield a server that forks shims for a state directory."""
    server = ForkServer(directory)
    try:
        yield server
    finally:
        server.close()


class Watched:
    """A pool and all events that it has reported so far."""

    def __init__(self, pool):
        self.pool = pool
        self.events = []

    def kinds(self, run=None):
        """Return the events of a run (or of all), as kinds and ranks."""
        self.events += self.pool.poll()
        return [(e.kind, e.rank) for e in self.events if run in (None, e.run)]

    def wait_for(self, kind, rank=0, run=None):
        """Return the event of that kind once it has been reported."""
        wait_until(lambda: self._found(kind, rank, run), f"{kind} of rank {rank}")
        return self._found(kind, rank, run)

    def _found(self, kind, rank, run):
        self.events += self.pool.poll()
        of_ranks = (e for e in self.events if hasattr(e, "rank"))
        fits = (e for e in of_ranks if (e.kind, e.rank) == (kind, rank) and run in (None, e.run))
        return next(fits, None)


def left_over(directory):
    """Return the running processes of a state directory.

    A rank's launcher is one of them, and ends a moment after it has reported the rank's end.
    """
    home = f"{home_token(directory)}/"
    return [process for process, token in tokens() if token.startswith(home)]


@contextmanager
def cleared(directory):
    """Kill, at the end, every process of a state directory."""
    try:
        yield
    finally:
        wait_until(lambda: not _kill(left_over(directory)))


def can_mount():
    """Tell whether this process may mount a file system."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "none", folder]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            return False
        subprocess.run(["umount", folder], check=True)
        return True


def unmount(directory):
    """Unmount all file systems below a directory, so that it can be removed."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4]
        if point.startswith(f"{directory}/"):
            subprocess.run(["umount", point], check=True)


def _kill(processes):
    for process in processes:
        process.send(signal.SIGKILL)
    return processes
