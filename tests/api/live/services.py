"""Real services for tests of the interfaces: in this process, or started by ``dovetail serve``."""

from __future__ import annotations

import os
import pwd
import resource
import secrets
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import Any, NamedTuple

from dovetail.executor.jobs.journal import Journal
from dovetail.executor.live.requests.admission import AdmissionLimits
from dovetail.executor.live.service import Service, ServiceOptions
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.instances.datasets import Repository
from dovetail.instances.instance import Instance
from dovetail.live.client import Client
from dovetail.live.http.application import application
from dovetail.live.http.connections import Tokens
from dovetail.live.http.server import Listening, serving
from tests.executor.waiting import LIMIT_S

ME = pwd.getpwuid(os.getuid()).pw_name
OTHER = "nobody" if ME != "nobody" else "daemon"
TOKENS = {ME: secrets.token_hex(16), OTHER: secrets.token_hex(16)}

TRUTH: dict[str, Any] = {
    "format": "dovetail-instance/1",
    "name": "two devices",
    "cluster": {
        "nodes": [{"id": "n0", "gpu_count": 2, "gpu": {"model": "SimGPU", "memory_mib": 16000.0}}]
    },
    "workloads": {
        "resnet": {"memory_mib": 5000.0, "throughput": {"100": 10.0}, "power_w": 200.0},
        "bert": {"memory_mib": 8000.0, "throughput": {"100": 4.0}, "power_w": 250.0},
    },
    "jobs": [],
    "slowdowns": [{"pair": ["resnet", "bert"], "slowdown": [1.25, 1.6]}],
}


class Running(NamedTuple):
    """A service in this process, and clients of it: by its socket, and of two users over TCP."""

    service: Service
    url: str
    socket: str
    client: Client
    mine: Client
    other: Client
    answering: Any = None


@contextmanager
def service_here(directory, socket, everybody=False, private=False):
    """Run a service with a simulated pool in a thread; jobs may have any owner, since none runs."""
    tokens = directory / "tokens"
    tokens.write_text("".join(f"{user} {token}\n" for user, token in TOKENS.items()))
    tokens.chmod(0o600)
    pool = SimulatedNode(directory, Instance.from_data(TRUTH))
    listening = Listening(socket, everybody, ("127.0.0.1", 0))
    with Journal(directory) as journal:
        repository = Repository(directory / "repository.db")
        service = Service(
            journal,
            pool,
            repository,
            ServiceOptions(
                directory=directory, limits=AdmissionLimits(any_user=True), private=private
            ),
        )
        answering = application(service.api, Tokens.read(str(tokens)))
        thread = threading.Thread(target=service.run)
        thread.start()
        try:
            with (
                serving(answering, listening, service.ready) as port,
                Client(str(socket)) as client,
                Client(f"http://127.0.0.1:{port}", TOKENS[ME]) as mine,
                Client(f"http://127.0.0.1:{port}", TOKENS[OTHER]) as other,
            ):
                url = f"http://127.0.0.1:{port}"
                yield Running(service, url, str(socket), client, mine, other, answering)
        finally:
            service.stop()
            thread.join()


def job(**changes):
    """Return a job as a client submits it: a simulated one of a minute."""
    usual = {"command": ["train", "work_s=60"], "workload": "resnet", "cwd": "/", "grace_s": 0.0}
    return {**usual, **changes}


def limited(kind, *limits):
    """Return what gives a process a limit, soft and hard, as ``preexec_fn`` of ``subprocess``."""
    return lambda: resource.setrlimit(kind, limits)


@contextmanager
def served(home, *options, before=None):
    """Start ``dovetail serve`` as a separate process; yield it and its first line of output.

    ``before`` is called in that process first.
    """

    with subprocess.Popen(
        [sys.executable, "-m", "dovetail", "serve", *map(str, options)],
        env={**os.environ, "DOVETAIL_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
    ) as process:
        try:
            yield process, process.stdout.readline()
        finally:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
