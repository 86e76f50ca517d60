"""What many short jobs leave behind: memory, descriptors, files, and the time of a restart.

    python benchmarks/live/many_jobs.py [--jobs 20000] [--rows 5]

The jobs are ``true``, each a real process on the ``cpu`` pool.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
from faults import state_directory
from load import ME
from service_process import Cores, ServiceProcess, Setup

from dovetail.executor.jobs.journal import JOURNAL
from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.live.observation.tracks import WatchOptions

_AT_ONCE = 500
_LOOK_S = 0.05


class Left(NamedTuple):
    """What there is of a service after so many jobs; memory and files in MiB."""

    jobs: int
    took_s: float
    memory_mib: float
    descriptors: int
    threads: int
    processes: int
    files: int
    journal_mib: float


def main() -> None:
    """Print a row now and then, and how long a restart takes at the end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=5)
    options = parser.parse_args()
    print(f"load average {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores")
    print(f"| {' | '.join(Left._fields)} |\n|{'---|' * len(Left._fields)}")
    with state_directory() as directory:
        for left in lefts(directory, options.jobs, options.rows):
            cells = (
                f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" for value in left
            )
            print(f"| {' | '.join(cells)} |", flush=True)
        print(f"ready again {restart_s(directory):.2f} s after its start")


def lefts(directory: Path, jobs: int, rows: int) -> Iterator[Left]:
    """Yield what there is after each of so many equal parts of the jobs."""
    service = _service(directory)
    began = time.monotonic()
    try:
        yield _left(service, directory, 0, 0.0)
        for part in range(1, rows + 1):
            for first in range((part - 1) * jobs // rows, part * jobs // rows, _AT_ONCE):
                count = min(_AT_ONCE, part * jobs // rows - first)
                service.ask("submit", [_spec()] * count, ME)
                while service.ask("jobs"):
                    time.sleep(_LOOK_S)
            yield _left(service, directory, part * jobs // rows, time.monotonic() - began)
    finally:
        service.stop()


def restart_s(directory: Path) -> float:
    """Return the seconds from the start of a service, its imports made, until it is ready."""
    began = time.monotonic()
    service = _service(directory)
    took_s = time.monotonic() - began
    service.stop()
    return took_s


def _left(service: ServiceProcess, directory: Path, jobs: int, took_s: float) -> Left:
    process = psutil.Process(service.pid)
    journal = directory / JOURNAL
    parts = (journal, journal.with_name(f"{JOURNAL}-wal"))
    return Left(
        jobs,
        took_s,
        process.memory_info().rss / 2**20,
        process.num_fds(),
        process.num_threads(),
        len(process.children(recursive=True)),
        sum(len(files) for _, _, files in os.walk(directory)),
        sum(part.stat().st_size for part in parts if part.exists()) / 2**20,
    )


def _service(directory: Path) -> ServiceProcess:
    return ServiceProcess(Setup(directory, Cores(), "fifo", watching=WatchOptions(), sample_s=1.0))


def _spec() -> JobSpec:
    env = {"PATH": "/usr/bin:/bin"}
    return JobSpec(command=("true",), workload="w", owner=ME, cwd="/", env=env, gsla=1.0)


if __name__ == "__main__":
    main()
