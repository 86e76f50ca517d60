"""Measure how `dovetail.solve` keeps a time limit: reasons and check included.

    python benchmarks/limits.py                             the whole grid
    python benchmarks/limits.py --jobs 300 --limits 1       a part of it

Rounds of 300, 1,000 and 3,000 jobs on clusters of four kinds: one GPU a job, gangs that share as
wholes, gangs that share in part, and the last on GPUs of two models. A tenth of the jobs run.
Pairs are known at nine splits. Under every objective, each run in a process of its
own, kernels compiled before. The rule is: no more than 1.1 times the limit and 0.2 s. A busy
machine lengthens the wall time by what others do, so a cell has kept the rule if its wall time
or its processor time (CPU) has. Instances are synthetic (`dovetail generate`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, cast

from dovetail import Instance, solve
from dovetail.instances.generate import generate
from dovetail.instances.plan import OBJECTIVES, ObjectiveName
from dovetail.solver.pairing import compile_kernels

KINDS = ("single", "whole", "partial", "mixed")
RUNNING = 0.1
SLOWER, SPARE_S = 1.1, 0.2


def instance_of(kind: str, jobs: int) -> Instance:
    """Return a round of a kind."""
    made = generate(
        jobs,
        seed=1,
        gangs=kind != "single",
        gang_sharing="whole" if kind == "whole" else "partial",
        running=RUNNING,
    )
    return _of_two_models(made) if kind == "mixed" else made


def _of_two_models(instance: Instance) -> Instance:
    """Make the GPUs of every second node another model, where no job runs."""
    data = instance.to_data()
    held = {gpu for job in data["jobs"] for gpu in job.get("gpus") or ()}
    for number, node in enumerate(data["cluster"]["nodes"]):
        names = [f"{node['id']}-{k}" for k in range(node.get("gpu_count", 0))]
        if number % 2 and held.isdisjoint(names) and "gpu" in node:
            node["gpu"] = {**node["gpu"], "model": "A100", "memory_mib": 40960}
    return Instance.from_data(data)


def measured(kind: str, jobs: int, objective: ObjectiveName, limit: float) -> dict[str, Any]:
    """Solve a round in this process and return what it took."""
    instance = instance_of(kind, jobs)
    # What a service has done before: imports, and machine code in memory.
    solve(instance_of(kind, 120), objective, time_limit=limit)
    wall, cpu = time.perf_counter(), time.process_time()
    result = solve(instance, objective, time_limit=limit)
    return {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "gap": result.gap,
        "stopped": result.stopped,
    }


def cells(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure the grid, each cell in a process of its own."""
    for limit in options.limits:
        for jobs in options.jobs:
            for kind in options.kinds:
                for objective in options.objectives:
                    asked = ["--cell", kind, str(jobs), objective, str(limit)]
                    done = subprocess.run(
                        [sys.executable, __file__, *asked], capture_output=True, check=True
                    )
                    cell = json.loads(done.stdout)
                    cell.update(limit=limit, jobs=jobs, kind=kind, objective=objective)
                    yield cell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limits", type=float, nargs="+", default=[1.0, 5.0])
    parser.add_argument("--jobs", type=int, nargs="+", default=[300, 1000, 3000])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=OBJECTIVES)
    parser.add_argument("--cell", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        kind, jobs, objective, limit = options.cell
        print(json.dumps(measured(kind, int(jobs), cast(ObjectiveName, objective), float(limit))))
        return
    compile_kernels()
    print("| limit | jobs | cluster | objective | wall s | CPU s | gap | stopped | kept |")
    print("|--:|--:|---|---|--:|--:|--:|---|---|")
    for cell in cells(options):
        gap = "" if cell["gap"] is None else f"{cell['gap']:.1e}"
        kept = min(cell["wall_s"], cell["cpu_s"]) <= SLOWER * cell["limit"] + SPARE_S
        print(
            f"| {cell['limit']:g} | {cell['jobs']} | {cell['kind']} | {cell['objective']} "
            f"| {cell['wall_s']:.2f} | {cell['cpu_s']:.2f} | {gap} | {cell['stopped']} "
            f"| {'yes' if kept else 'no'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
