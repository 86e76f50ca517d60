"""The cost of making an instance of many pairs from columns, and from nested dictionaries.

    python benchmarks/building.py [WORKLOADS]

5,000 jobs on 1,000 GPUs, and every pair of the workloads (950 unless named otherwise: 450,775
pairs) with made-up slowdowns. Each way runs in a process of its own; the program prints its
processor time and the growth of its peak memory.
"""

from __future__ import annotations

import subprocess
import sys
import time
from math import comb
from pathlib import Path

import numpy as np

from dovetail import Instance, InstanceBuilder
from dovetail.formulations.arrays import Floats, Ints

JOBS, NODES, GPUS = 5000, 125, 8


def main() -> None:
    """Measure both ways, or one if it is named, and print a line for each."""
    workloads = int(sys.argv[1]) if len(sys.argv) > 1 else 950
    if len(sys.argv) > 2:
        seconds, mib = measured(sys.argv[2], workloads)
        print(f"{sys.argv[2]} {seconds:.2f} s {mib:.0f} MiB")
        return
    for way in WAYS:
        subprocess.run([sys.executable, __file__, str(workloads), way], check=True)


def measured(way: str, workloads: int) -> tuple[float, float]:
    """Return the processor time of one way in seconds, and the growth of the peak in MiB."""
    names = [f"w{k}" for k in range(workloads)]
    first, second = np.triu_indices(workloads, 1)
    slowdown = 1 + np.random.default_rng(0).random((len(first), 2))
    InstanceBuilder("imported before")
    before, started = peak_mib(), time.process_time()
    instance = WAYS[way](names, first, second, slowdown)
    seconds = time.process_time() - started
    assert len(instance.slowdowns) == comb(workloads, 2)
    return seconds, peak_mib() - before


def from_columns(names: list[str], first: Ints, second: Ints, slowdown: Floats) -> Instance:
    """Return the instance by calls of the builder."""
    made = Instance.build("columns")
    for k in range(NODES):
        made.add_node(f"n{k}", GPUS, "A100", 40960)
    for name in names:
        made.add_workload(name, 1000)
    for k in range(JOBS):
        made.add_job(f"j{k}", names[k % len(names)])
    made.add_slowdowns(first, second, slowdown)
    return made.instance()


def from_dictionaries(names: list[str], first: Ints, second: Ints, slowdown: Floats) -> Instance:
    """Return the instance from nested dictionaries."""
    gpu = {"model": "A100", "memory_mib": 40960}
    data = {
        "name": "dictionaries",
        "cluster": {
            "nodes": [{"id": f"n{k}", "gpu_count": GPUS, "gpu": gpu} for k in range(NODES)]
        },
        "workloads": {name: {"memory_mib": 1000} for name in names},
        "jobs": [{"id": f"j{k}", "workload": names[k % len(names)]} for k in range(JOBS)],
        "slowdowns": [
            {"pair": [names[a], names[b]], "slowdown": both}
            for a, b, both in zip(first.tolist(), second.tolist(), slowdown.tolist(), strict=True)
        ],
    }
    return Instance.from_data(data)


WAYS = {"columns": from_columns, "dictionaries": from_dictionaries}


def peak_mib() -> float:
    """Return the peak of this process; that of ``getrusage`` begins with its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()
