"""Measure rounds of many equal jobs: processor time and peak memory, each in a fresh process.

    python benchmarks/equal_jobs.py             every case
    python benchmarks/equal_jobs.py CASE        one, in this process

Times are of ``solve`` with reasons, on all cores, kernels compiled before; memory is that of the
process with all libraries. Limits are on processor time. Instances are made up.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

from dovetail import Instance, solve
from dovetail.formulations.budget import Budget, WallClock
from dovetail.solver.pairing import compile_kernels

LIMIT_S = 60.0


class Processor(WallClock):
    """Shows the time that this process has used processors for."""

    def now(self) -> float:
        """Return the time."""
        return time.process_time()


def equal(jobs: int, gpus: int, together: int, step: float, **fields: object) -> Instance:
    """Return a round of equal jobs, so many of which may share a GPU."""
    known: list[dict[str, Any]] = [{"pair": ["a", "a"], "slowdown": [1 + step] * 2}]
    known += [
        {"set": ["a"] * size, "slowdown": [1 + step * (size - 1)] * size}
        for size in range(3, together + 1)
    ]
    node = {"id": "n", "gpu_count": gpus, "gpu": {"model": "A40", "memory_mib": 46068}}
    return Instance.from_data(
        {
            "name": "equal",
            "cluster": {"nodes": [node], "max_jobs_per_gpu": together},
            "workloads": {"a": {"memory_mib": 2000}},
            "jobs": [{"id": f"j{k}", "workload": "a", **fields} for k in range(jobs)],
            "slowdowns": known,
        }
    )


def of_kinds(kinds: int, copies: int) -> Instance:
    """Return a round of so many kinds of so many equal jobs, up to ten of them on a GPU."""
    made = equal(1, kinds * copies // 10, 10, 0.08)
    names = [(round(1.05 + 0.004 * k, 4), 1.0 + k % 10) for k in range(kinds)]
    jobs = tuple(
        made.jobs[0].replace(id=f"j{k}", gsla=gsla, weight=weight)
        for k, (gsla, weight) in enumerate(names * copies)
    )
    return made.replace(jobs=jobs)


def assumed(jobs: int, workloads: int, together: int) -> Instance:
    """Return a round of workloads whose slowdowns are declared, up to so many jobs on a GPU."""
    draws = Random(1)
    gpu = {"model": "A100", "memory_mib": 81_920}
    return Instance.from_data(
        {
            "name": "assumed",
            "cluster": {
                "nodes": [{"id": f"n{k}", "gpu_count": 8, "gpu": gpu} for k in range(jobs // 40)],
                "max_jobs_per_gpu": together,
                "assumed": {"pair": 1.1, "sets": "product"},
            },
            "workloads": {
                f"w{k}": {"memory_mib": draws.randrange(5_000, 40_000)} for k in range(workloads)
            },
            "jobs": [{"id": f"j{k}", "workload": f"w{k % workloads}"} for k in range(jobs)],
        }
    )


CASES: dict[str, tuple[str, Callable[[], Instance]]] = {
    "80-five": ("throughput", lambda: equal(80, 16, 5, 0.05)),
    "200-kinds": ("throughput", lambda: of_kinds(200, 20)),
    "200-assumed": ("throughput", lambda: assumed(200, 30, 4)),
    "400-gangs": ("throughput", lambda: equal(400, 400, 2, 0.2, workers=2)),
    "2000-gangs": ("throughput", lambda: equal(2000, 2000, 2, 0.2, workers=2)),
    "10000-jct": ("jct", lambda: equal(10_000, 5000, 2, 0.2, remaining_s=600.0)),
    "10000-completion": ("completion", lambda: equal(10_000, 5000, 2, 0.2, remaining_s=600.0)),
}


def measured(name: str) -> str:
    """Return what a case took, in one line."""
    objective, make = CASES[name]
    instance: Any = make()
    compile_kernels()
    before = time.process_time()
    result = solve(instance, objective, time_limit=Budget.of(LIMIT_S, Processor()))
    seconds = time.process_time() - before
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    gap = "none" if result.gap is None else f"{result.gap:.2g}"
    return f"{name:18} {result.status:9} gap {gap:8} {seconds:6.1f} CPU s {mib:6} MiB"


def main() -> None:
    """Measure the cases that are named, or each in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", nargs="?", metavar="CASE", choices=CASES, help=", ".join(CASES))
    case = parser.parse_args().case
    if case:
        print(measured(case), flush=True)
        return
    for name in CASES:
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
