"""Services alongside training jobs under several policies: ``python benchmarks/services.py``.

Simulated, on a synthetic world (``instances.generate``): 16 GPUs, 200 best-effort jobs of 5 to 100
minutes, a third of them gangs of 2 and 4, and 8 services (``priority: latency``, gSLA 1.1) of eight
hours on one GPU each. All arrive within four hours, so that most jobs wait. ``failures``: nodes
fail every 24 hours on average. Means over seeds.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

import numpy as np

from dovetail.executor.simulation import Options, simulate
from dovetail.executor.simulation.metrics import summary
from dovetail.instances.generate import generate
from dovetail.instances.instance import Instance
from dovetail.instances.traces import Trace, TraceJob
from dovetail.solver.policies import policy_named

POLICIES = (
    "fifo",
    "sjf",
    "tiresias",
    "gavel",
    "muri",
    "tesserae",
    "tensorshare",
    "castor",
    "dovetail",
)
SPAN_S = 4 * 3600.0
COLUMNS = {
    "wait, min": ("service_wait_mean_s", 60),
    "longest, min": ("service_wait_max_s", 60),
    "off, min": ("service_off_mean_s", 60),
    "stopped": ("service_interruptions", 1),
    "broken gSLAs, %": ("violation_rate", 0.01),
    "best-effort JCT, h": ("best_effort_jct_mean_s", 3600),
}
"""Metric of each column, and how many of its unit are one."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args(arguments)
    print("Simulated.")
    for mtbf_h in (np.inf, 24.0):
        print(f"{'failures' if np.isfinite(mtbf_h) else 'no failures':12}", *COLUMNS, sep=" | ")
        for policy in POLICIES:
            show(policy, mtbf_h, asked.seeds)


def show(policy: str, mtbf_h: float, seeds: int) -> None:
    runs = []
    for seed in range(seeds):
        world = world_of(seed)
        trace = trace_of(world, seed)
        options = Options(node_mtbf_s=mtbf_h * 3600, checkpoint_s=600.0, seed=seed)
        runs.append(summary(simulate(trace, world, policy_named(policy), options), trace))
    cells = [np.mean([run[metric] for run in runs]) / unit for metric, unit in COLUMNS.values()]
    print(f"{policy:12}", *(f"{cell:.2f}" for cell in cells), sep=" | ", flush=True)


def world_of(seed: int) -> Instance:
    """Return the world; of its workloads the first is that of the services."""
    return generate(1, seed=seed, gpus=16, workloads=12, shares=(), gang_sharing="partial")


def trace_of(world: Instance, seed: int) -> Trace:
    draw = random.Random(seed)
    first, *names = world.workloads
    jobs = [
        TraceJob(
            id=f"j{k}",
            arrival_s=draw.uniform(0, SPAN_S),
            workers=draw.choice([1, 1, 1, 1, 2, 4]),
            duration_s=draw.uniform(300, 6000),
            workload=draw.choice(names),
            gsla=draw.choice([None, 1.5, 2.0, 3.0]),
        )
        for k in range(200)
    ]
    services = [
        TraceJob(f"s{k}", draw.uniform(0, SPAN_S), 1, 8 * 3600.0, first, 1.1, priority="latency")
        for k in range(8)
    ]
    return Trace.of("services", [*jobs, *services])


if __name__ == "__main__":
    main()
