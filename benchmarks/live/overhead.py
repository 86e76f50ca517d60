"""The overhead of live mode on top of the jobs, and of HyperQueue in the same run.

    python benchmarks/live/overhead.py [--hq PYTHON] [--jobs 40] [--waiting 1000] [--seconds 20]
        [--realtime]

With ``--realtime`` (for root), all processes have real-time priority, so that other programs of a
busy machine hardly matter; they still share its caches and its disk.

Jobs are real processes on one core, on the ``cpu`` pool; ``bash`` writes the time as it starts and
as it ends. HyperQueue is measured if the interpreter that ``--hq`` names has it (``pip install
hyperqueue`` into a virtual environment of its own).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from faults import state_directory
from hyperqueue_figures import FIGURES, STAMP
from load import ME
from service_process import Cores, ServiceProcess, Setup

from dovetail import VERSION
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.live.client import Client

_LOOK_S = 0.05
_HQ = Path(__file__).with_name("hyperqueue_figures.py")


class Figures(NamedTuple):
    """What was measured of one scheduler; times in seconds."""

    name: str
    launches: Sequence[float]
    gaps: Sequence[float]
    submissions_s: float
    idle: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hq", metavar="PYTHON", help="an interpreter that has hyperqueue")
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--realtime", action="store_true")
    options = parser.parse_args()
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    print(
        f"load average {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores, "
        f"Dovetail {VERSION}, Python {platform.python_version()}, Linux {platform.release()}"
    )
    print(f"| | launch | end to next start | {options.waiting:,} submissions | CPU while idle |")
    print("|---|---|---|---|---|")
    if options.hq:
        _tell(hyperqueue(options.hq, options.jobs, options.waiting, options.seconds))
    for policy in ("fifo", "dovetail"):
        _tell(dovetail(policy, options.jobs, options.waiting, options.seconds))
    if not options.hq:
        print("HyperQueue was not measured: --hq names no interpreter that has it")


def _tell(figures: Figures) -> None:
    columns = [figures.name, *map(_spread, (figures.launches, figures.gaps))]
    columns += [f"{figures.submissions_s:.2f} s", f"{figures.idle:.2%} of a core"]
    print(f"| {' | '.join(columns)} |", flush=True)


def _spread(seconds: Sequence[float]) -> str:
    low, middle, high = (1000 * f(seconds) for f in (min, statistics.median, max))
    return f"{middle:.1f} ms ({low:.1f} to {high:.1f})"


def hyperqueue(python: str, jobs: int, waiting: int, seconds: float) -> Figures:
    """Return the figures of HyperQueue."""
    with state_directory() as folder:
        command = [python, str(_HQ), str(folder), str(jobs), str(waiting), str(seconds)]
        subprocess.run(command, check=True, capture_output=True)
        found = json.loads((folder / FIGURES).read_text())
    return Figures(
        f"HyperQueue {found['version']}",
        _launches(found["submitted"], found["launch"]),
        _gaps(found["gaps"]),
        found["submissions_s"],
        found["idle"],
    )


def dovetail(policy: str, jobs: int, waiting: int, seconds: float) -> Figures:
    """Return the figures of live mode under a policy."""
    with state_directory() as folder:
        sock = folder / "api.sock"
        setup = Setup(folder, Cores(1), policy, watching=WatchOptions(), sample_s=1.0, socket=sock)
        service = ServiceProcess(setup)
        try:
            with Client(str(sock)) as client:
                launches = _launch_alone(client, folder / "launch", jobs)
                gaps = _launch_queued(client, folder / "gaps", jobs)
                client.submit([_job(("sleep", "600"))])
                began = time.perf_counter()
                for _ in range(waiting):
                    client.submit([_job(("true",))])
                took = time.perf_counter() - began
                idle = _idle_use(service.pid, seconds)
                _end_all(service)
        finally:
            service.stop()
    return Figures(f"Dovetail, `{policy}`", launches, gaps, took, idle)


def _launch_alone(client: Client, times: Path, jobs: int) -> list[float]:
    submitted = []
    for _ in range(jobs):
        submitted.append(time.time())
        (job,) = client.submit([_stamped(times)])
        client.wait(job)
    return _launches(submitted, times.read_text().split())


def _launch_queued(client: Client, times: Path, jobs: int) -> list[float]:
    queued = client.submit([_stamped(times)] * jobs)
    for job in queued:
        client.wait(job)
    return _gaps(times.read_text().split())


def _launches(submitted: Sequence[float], times: Sequence[str]) -> list[float]:
    return [float(at) - asked for asked, at in zip(submitted, times[::2], strict=True)]


def _gaps(times: Sequence[str]) -> list[float]:
    return [float(b) - float(a) for a, b in itertools.pairwise(times)][1::2]


def _idle_use(pid: int, seconds: float) -> float:
    """Return the CPU time in a second of the service, its server and its fork server."""
    time.sleep(2.0)
    before = _cpu_s(pid)
    time.sleep(seconds)
    return (_cpu_s(pid) - before) / seconds


def _cpu_s(pid: int) -> float:
    service = psutil.Process(pid)
    times = [each.cpu_times() for each in (service, *service.children())]
    return sum(each.user + each.system for each in times)


def _stamped(times: Path) -> dict[str, Any]:
    return _job(("bash", "-c", STAMP, "bash", str(times)))


def _job(command: tuple[str, ...]) -> dict[str, Any]:
    # With a gSLA of 1 it has its device alone.
    env = {"PATH": "/usr/bin:/bin"}
    return {"command": command, "workload": "w", "cwd": "/", "env": env, "gsla": 1.0}


def _end_all(service: ServiceProcess) -> None:
    """Cancel whatever there is; those that wait first, so that none of them starts."""
    service.ask("drain", [], True, ME)
    for view in reversed(service.ask("jobs")):
        service.ask("cancel", view.id, ME, 0.0)
    while service.ask("jobs"):
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main()
