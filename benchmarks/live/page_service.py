"""A service with a simulated pool of eight devices and fifty jobs, for looks at its page.

    python benchmarks/live/page_service.py [--port 8080] [--jobs 50] [--private]

Nothing is measured here: its devices, its jobs and their slowdowns are made up.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pwd
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.executor.jobs.journal import Journal
from dovetail.executor.jobs.specs import JobSpec, Owner
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.requests.admission import AdmissionLimits
from dovetail.executor.live.service import Service, ServiceOptions
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.instances.datasets.repository import Repository
from dovetail.instances.instance import Assumed, Instance
from dovetail.live.http.application import application
from dovetail.live.http.connections import Tokens, owner_of
from dovetail.live.http.server import Listening, serving

ME = pwd.getpwuid(os.getuid()).pw_name
TOKEN = secrets.token_hex(16)

WORKLOADS: dict[str, Any] = {
    "resnet50": {"memory_mib": 9000.0, "throughput": {"100": 8.0}, "power_w": 240.0},
    "bert-base": {"memory_mib": 12000.0, "throughput": {"100": 5.0}, "power_w": 260.0},
    "gpt2-small": {"memory_mib": 16000.0, "throughput": {"100": 3.0}, "power_w": 290.0},
    "dlrm": {"memory_mib": 7000.0, "throughput": {"100": 20.0}, "power_w": 150.0},
}
SLOWDOWNS = (1.12, 1.34, 1.62, 1.08, 1.45, 1.21, 1.5, 1.3, 1.18, 1.06)
QUICK = WatchOptions(
    warm_up_s=0.2,
    settle_s=0.2,
    profile_s=0.5,
    profile_most_s=2.0,
    window_s=1.0,
    tolerance=0.5,
    iterations=1,
)


def truth(devices: int) -> Instance:
    """Return the pool, and what is true of its workloads."""
    pairs = itertools.combinations_with_replacement(WORKLOADS, 2)
    slowdowns = [
        {"pair": [*pair], "slowdown": [one, one if pair[0] == pair[1] else 1.2]}
        for pair, one in zip(pairs, SLOWDOWNS, strict=True)
    ]
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "made up",
            "cluster": {
                "nodes": [
                    {
                        "id": "n0",
                        "gpu_count": devices,
                        "gpu": {"model": "SimGPU", "memory_mib": 40960.0},
                    }
                ]
            },
            "workloads": WORKLOADS,
            "jobs": [],
            "slowdowns": slowdowns,
        }
    )


class Shown(NamedTuple):
    """A running service, its address and the file of its socket."""

    service: Service
    url: str
    socket: Path


@contextmanager
def shown(
    devices: int = 8, jobs: int = 50, port: int = 0, private: bool = False, work_s: float = 900.0
) -> Iterator[Shown]:
    """Run the service in this process."""
    with tempfile.TemporaryDirectory(prefix="dove-") as folder:
        home = Path(folder)
        tokens = home / "tokens"
        tokens.write_text(f"{ME} {TOKEN}\n")
        tokens.chmod(0o600)
        pool = SimulatedNode(home, truth(devices))
        listening = Listening(home / "api.sock", False, ("127.0.0.1", port))
        with Journal(home) as journal:
            service = Service(
                journal,
                pool,
                Repository(home / "repository.db"),
                ServiceOptions(
                    directory=home,
                    limits=AdmissionLimits(any_user=True),
                    watching=QUICK,
                    sample_s=0.5,
                    uncapped=True,
                    assumed=Assumed(pair=1.25),
                    private=private,
                ),
            )
            answering = application(service.api, Tokens.read(str(tokens)))
            thread = threading.Thread(target=service.run)
            thread.start()
            try:
                with serving(answering, listening, service.ready) as found:
                    service.ready.wait()
                    submit(service, jobs, work_s)
                    yield Shown(service, f"http://127.0.0.1:{found}", home / "api.sock")
            finally:
                service.stop()
                thread.join()


def submit(service: Service, count: int, work_s: float) -> None:
    """Submit jobs of two users."""
    users = [owner_of(os.getuid(), os.getgid()), Owner(name="ada", uid=4242, gid=4242)]
    for k in range(count):
        workload = [*WORKLOADS][k % len(WORKLOADS)]
        owner = users[k // 4 % 2]
        spec = JobSpec(
            owner=owner,
            command=("train", f"work_s={work_s * (1 + k % 5):g}"),
            cwd="/",
            name=f"{workload} lr={k % 7}e-4",
            workload=workload,
            grace_s=0.0,
            estimate_s=None if k % 9 == 8 else work_s * (1 + k % 5),
            gsla=(None, 1.3, 1.6, 1.2)[k % 4],
            memory_mib=WORKLOADS[workload]["memory_mib"],
        )
        service.api.submit([spec], owner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--private", action="store_true")
    options = parser.parse_args()
    with shown(jobs=options.jobs, port=options.port, private=options.private) as running:
        print(f"{running.url} (token {TOKEN}); socket {running.socket}", flush=True)
        while True:
            time.sleep(60)


if __name__ == "__main__":
    main()
