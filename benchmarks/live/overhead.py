"""What the live service costs: from a job's end to the next one's start, and CPU time of its own.

    python benchmarks/live/overhead.py [--jobs 20] [--waiting 1000] [--seconds 20]

Jobs are real processes on the ``cpu`` pool; each writes the time as it starts and as it ends.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from faults import state_directory
from load import ME
from service_process import Cores, ServiceProcess, Setup

from dovetail.executor.live.jobs import JobSpec
from dovetail.executor.live.watch import WatchOptions

_STAMP = 'date +%s.%N >> "$1"; sleep "$2"; date +%s.%N >> "$1"'
_SLEEP_S = 0.2
_LOOK_S = 0.2


def main() -> None:
    """Print both figures for each policy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    print(
        f"load average when this began: {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores"
    )
    for policy in ("fifo", "dovetail"):
        for waiting in (0, options.waiting):
            gaps = gaps_s(policy, options.jobs, waiting)
            print(
                f"{policy}, {waiting} more waiting: from an end to the next start "
                f"{1000 * statistics.median(gaps):.0f} ms (median of {len(gaps)}, "
                f"{1000 * min(gaps):.0f} to {1000 * max(gaps):.0f})",
                flush=True,
            )
        used = idle_use(policy, options.waiting, options.seconds)
        print(f"{policy}, {options.waiting} waiting, all devices busy: {used:.2%} of a core")


def gaps_s(policy: str, jobs: int, waiting: int) -> list[float]:
    """Return the seconds from each end to the start that follows it on one device."""
    with state_directory() as directory:
        times = directory / "times"
        service = _service(directory, policy)
        try:
            # Two ranks, so that nobody has a device beside it.
            stamped = _spec(("sh", "-c", _STAMP, "sh", str(times), str(_SLEEP_S)), "stamped")
            service.ask("submit", [stamped] * jobs, ME)
            service.ask("submit", [_spec(("sleep", "600"), "waits")] * waiting, ME)
            while not times.exists() or len(times.read_text().split()) < 4 * jobs:
                time.sleep(_LOOK_S)
            _end_all(service)
        finally:
            service.stop()
        return _gaps(sorted(map(float, times.read_text().split())))


def _gaps(times: Sequence[float]) -> list[float]:
    """Return the gaps between jobs whose two ranks each wrote two times."""
    jobs = [times[k : k + 4] for k in range(0, len(times), 4)]
    return [after[0] - before[-1] for before, after in itertools.pairwise(jobs)]


def idle_use(policy: str, waiting: int, seconds: float) -> float:
    """Return the CPU time that the service takes in a second while nothing happens."""
    with state_directory() as directory:
        service = _service(directory, policy)
        try:
            service.ask("submit", [_spec(("sleep", "600"), "runs")], ME)
            service.ask("submit", [_spec(("sleep", "600"), "waits")] * waiting, ME)
            time.sleep(5.0)
            process = psutil.Process(service.pid)
            before = process.cpu_times()
            time.sleep(seconds)
            after = process.cpu_times()
            _end_all(service)
        finally:
            service.stop()
        return (after.user + after.system - before.user - before.system) / seconds


def _service(directory: Path, policy: str) -> ServiceProcess:
    return ServiceProcess(Setup(directory, Cores(), policy, watching=WatchOptions(), sample_s=1.0))


def _spec(command: tuple[str, ...], workload: str) -> JobSpec:
    env = {"PATH": "/usr/bin:/bin"}
    return JobSpec(
        command=command, workload=workload, owner=ME, cwd="/", env=env, workers=2, grace_s=0.0
    )


def _end_all(service: ServiceProcess) -> None:
    """Cancel whatever there is; those that wait first, so that none of them starts."""
    service.ask("drain", [], True, ME)
    for view in service.ask("jobs"):
        service.ask("cancel", view.id, ME)
    while service.ask("jobs"):
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main()
