"""The effect of sets and of energy under ``dovetail``: ``python benchmarks/sets_energy.py``.

Simulated: the synthetic contention model of ``instances.generate`` gives slowdowns and power of
pairs, ``instances.slowdowns.sets`` those of three and more. 300 jobs of 5 to 100
minutes on 16 GPUs, a third of them gangs of 2 and 4; ``busy``: all arrive within 5.6 hours, so
that most wait; ``calm``: within 56 hours, so that GPUs are idle. ``sjf`` is the baseline without
sharing. Each row is the mean of the ratios to the first row of the same seed, its standard error
in brackets, then means of the row itself; as the jobs are the same, the ratio of the energy is also
the ratio of the energy per job, and the inverse of the ratio of the throughput per watt.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

import numpy as np

from dovetail.executor.simulation import simulate
from dovetail.executor.simulation.metrics import summary
from dovetail.instances.generate import generate
from dovetail.instances.instance import Instance
from dovetail.instances.traces import Trace, TraceJob
from dovetail.solver.policies import policy_named

SPAN_S = {"busy": 2e4, "calm": 2e5}
COLUMNS = ("jct_mean_s", "makespan_s", "gpu_time_h", "energy_kwh")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=300)
    asked = parser.parse_args(arguments)
    print("Simulated. Ratios; broken gSLAs in per cent.")
    absolute = "broken gSLAs", "kWh a job", "JCT, h"
    print(f"{'':24}", *(f"{name:>14}" for name in (*COLUMNS, *absolute)))
    for load in SPAN_S:
        for most in (2, 3, 4):
            show(f"{load}, {most} on a GPU", (load, most, "dovetail"), asked)
        for price in (3600, 14400, 57600):
            policy = f"dovetail:energy_price={price}"
            show(f"{load}, {price} s a kWh", (load, 2, policy), asked)
        show(f"{load}, objective=energy", (load, 2, "dovetail:objective=energy"), asked)
        show(f"{load}, sjf", (load, 2, "sjf"), asked)


def show(name: str, row: tuple[str, int, str], asked: argparse.Namespace) -> None:
    """Print a row of ratios to pairs under ``dovetail``, seed by seed."""
    found = [ran(*row, seed, asked.jobs) for seed in range(asked.seeds)]
    first = [ran(row[0], 2, "dovetail", seed, asked.jobs) for seed in range(asked.seeds)]
    cells = []
    for column in COLUMNS:
        ratio = np.array([a[column] / b[column] for a, b in zip(found, first, strict=True)])
        error = ratio.std(ddof=1) / np.sqrt(len(ratio)) if len(ratio) > 1 else np.nan
        cells.append(f"{ratio.mean():.3f} ({error:.3f})")
    names = "violation_rate", "energy_per_job_kwh", "jct_mean_s"
    broken, kwh, jct_s = (np.mean([run[name] for run in found]) for name in names)
    cells += [f"{100 * broken:.2f}", f"{kwh:.3f}", f"{jct_s / 3600:.2f}"]
    print(f"{name:24}", *(f"{cell:>14}" for cell in cells), flush=True)


_DONE: dict[tuple[str, int, str, int, int], dict[str, float]] = {}


def ran(load: str, most: int, policy: str, seed: int, count: int) -> dict[str, float]:
    """Return the metrics of a run, simulated once."""
    key = load, most, policy, seed, count
    if key not in _DONE:
        world = world_of(most, seed)
        trace = trace_of(world, SPAN_S[load] * count / 300, seed, count)
        _DONE[key] = summary(simulate(trace, world, policy_named(policy)), trace)
    return _DONE[key]


def world_of(most: int, seed: int) -> Instance:
    world = generate(1, seed=seed, gpus=16, workloads=12, shares=(), gang_sharing="partial")
    return world.replace(cluster=world.cluster.replace(max_jobs_per_gpu=most))


def trace_of(world: Instance, span_s: float, seed: int, count: int) -> Trace:
    draw = random.Random(seed)
    names = list(world.workloads)
    jobs = [
        TraceJob(
            id=f"j{k}",
            arrival_s=draw.uniform(0, span_s),
            workers=draw.choice([1, 1, 1, 1, 2, 4]),
            duration_s=draw.uniform(300, 6000),
            workload=draw.choice(names),
            gsla=draw.choice([None, 1.5, 2.0, 3.0]),
        )
        for k in range(count)
    ]
    return Trace.of("drawn", jobs)


if __name__ == "__main__":
    main()
