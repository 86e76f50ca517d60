"""A service on pilots of a Slurm, as a process of its own, and the files of its jobs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from dovetail.executor.jobs.journal import read_events
from dovetail.live.client import Client
from tests.executor.waiting import LIMIT_S, wait_until

from .slurm_cluster import SlurmCluster, why_none

POOL = "pool=cpu:devices=1,shares=none"
PATIENT_POOL = f"lease=600,{POOL}"
"""A lease within which even a busy machine restarts a service."""
PILOT = f"slurm:nodes=3,exclusive=,gres=gpu:2,time=60,scratch={{scratch}},{POOL}"

_SERVE = """
from dovetail.cli.main import program
from dovetail.cluster import options
from dovetail.cluster.slurm import finder as slurm_finder
options.MOST_LEASE_S = 600
slurm_finder._SETTLE_S = 1
program()
"""
"""Allows longer leases than the product, for tests that do not wait for the end of a pilot.

Idle pilots are cancelled sooner.
"""


class Bench(NamedTuple):
    """Starts a service on pilots of a Slurm, and submits jobs that write files in its folder."""

    slurm: SlurmCluster
    home: Path

    def start(self, pool=PILOT, *options):
        """Start a service and wait until it serves, with all nodes that are certain to join."""
        path = self.home / f"service-{time.monotonic_ns()}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _SERVE, "serve"),
                    *("--pool", pool.format(scratch=self.home / "scratch")),
                    *("--directory", str(self.home)),
                    *options,
                ],
                # Ray's files are in this folder, and are removed with it.
                env={**self.slurm.env, "TMPDIR": str(self.home)},
                stdout=log,
                stderr=log,
            )
        wait_until(
            lambda: "serving the slurm pool" in path.read_text() or process.poll() is not None
        )
        assert process.poll() is None, path.read_text()
        if not re.search(r"pilots=|hold=|SLURMD_NODENAME", pool):
            wait_until(lambda: not self.awaited(), "all nodes")
        return process

    def awaited(self):
        """Return whether any node has not answered yet."""
        with self.client() as client:
            return "awaited" in client.service().notice

    @contextmanager
    def serving(self, pool=PILOT, *options):
        process = self.start(pool, *options)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(LIMIT_S)

    def client(self):
        return Client(str(self.home / "api.sock"))

    def submit(self, code, workers=1, count=1, **fields):
        """Submit shell jobs that count their starts."""
        command = f"echo x >> {self.home}/starts-$DOVETAIL_JOB-$DOVETAIL_RANK; {code}"
        return self.submit_program(("sh", "-c", command), workers, count, **fields)

    def submit_program(self, command, workers=1, count=1, **fields):
        """Submit jobs, and return their ids."""
        job = {
            "command": [*command],
            "workload": "w",
            "cwd": str(self.home),
            "env": {"PATH": os.environ["PATH"]},
            "workers": workers,
            "memory_mib": 10.0,
            "grace_s": 1.0,
            "retries": 3,
            **fields,
        }
        with self.client() as client:
            return client.submit([job] * count)

    def states(self):
        with self.client() as client:
            return {job.id: job.state for job in client.jobs(over=True)}

    def job(self, name):
        with self.client() as client:
            return client.job(name)

    def wait_for(self, names, state):
        wait_until(
            lambda: {self.states().get(name) for name in names} <= {state},
            f"{names} {state}",
        )

    def wait_for_up(self, name):
        """Wait until all ranks of a job have started."""
        job = self.job(name)
        wait_until(lambda: len([*self.home.glob(f"starts-{name}-*")]) == job.workers, name)

    def starts(self):
        return {
            path.name.removeprefix("starts-"): path.read_text().count("x")
            for path in self.home.glob("starts-*")
        }

    def show(self):
        """Print events and logs, for a test that fails."""
        for entry in read_events(self.home):
            print(str(entry.event)[:200])
        for log in [
            *self.home.glob("*.log"),
            *self.home.glob("slurm/*.log"),
            *self.home.glob("slurm/[0-9]*/*.log"),
        ]:
            print(log.name, log.read_text())

    def pilot(self):
        """Return the newest pilot."""
        return max(self.slurm.ask("squeue", "-h", "-o", "%i").split(), key=int)


def end_what_is_left(folder):
    """Kill the processes that a test has left, and return them."""
    left = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if folder in " ".join(process.cmdline()) or folder in str(process.environ()):
                process.kill()
                left.append(process)
    return left


@pytest.fixture(scope="module")
def running_slurm():
    """Start a Slurm, and end all of its processes afterwards."""
    if why_none():
        pytest.skip(why_none())
    home = Path(tempfile.mkdtemp(prefix="sl-"))
    slurm = SlurmCluster(home)
    try:
        try:
            slurm.start()
        except AssertionError as error:
            pytest.skip(f"Slurm cannot be started here: {error} (see {home})")
        yield slurm
    finally:
        slurm.stop()
        shutil.rmtree(home)


@pytest.fixture
def slurm(running_slurm):
    """Return a Slurm of three idle nodes."""
    yield running_slurm
    running_slurm.clear()


@pytest.fixture
def bench(slurm):
    """Return a bench; the processes that it leaves are ended."""
    with tempfile.TemporaryDirectory(prefix="dove-") as folder:
        made = Bench(slurm, Path(folder))
        yield made
        made.show()
        end_what_is_left(folder)
        slurm.clear()
        wait_until(lambda: not end_what_is_left(folder))


def report(what, begun_s):
    """Print a duration for ``docs/evidence/nodes.md``."""
    print(f"{what} after {time.monotonic() - begun_s:.1f} s")
