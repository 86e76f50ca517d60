"""Measure how `dovetail.solve` keeps a time limit, including reasons and the check.

    python benchmarks/limits.py                             the whole grid
    python benchmarks/limits.py --jobs 300 --limits 1       a part of it
    python benchmarks/limits.py --cpu                       on a busy machine

Rounds of 300, 1,000 and 3,000 jobs on clusters of four kinds: one GPU a job, gangs that share as
wholes, gangs that share in part, and the latter on GPUs of two models. A tenth of the jobs run.
Pairs are known at nine splits. Under every objective, each run in a forked process of its
own, kernels compiled and loaded before. The rule is: no more than 1.1 times the limit and 0.2 s.
On a busy machine, other programs lengthen wall times. With ``--cpu``, limit and rule refer to the
processor time of all threads of the process; only HiGHS, CBC and GLOP still use the wall clock.
Instances are synthetic (`dovetail generate`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dovetail import Instance, solve
from dovetail.instances.generate import generate
from dovetail.instances.objectives import OBJECTIVES, ObjectiveName
from dovetail.solver import match_pairs
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


def measured(instance: Instance, objective: ObjectiveName, limit: float) -> dict[str, Any]:
    """Solve a round in this process and return what it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = solve(instance, objective, time_limit=limit)
    return {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "gap": result.gap,
        "stopped": result.stopped,
    }


def _load_kernels() -> None:
    """Load the machine code, which small rounds go without; no threads are started yet."""
    compile_kernels()
    jobs = 200
    for one in (np.ones((jobs, jobs)), csr_array(np.eye(jobs, k=1) + np.eye(jobs, k=-1))):
        match_pairs(one, np.ones(jobs), gpus=jobs // 4)
        match_pairs(one, np.ones(jobs), gpus=jobs // 4, size=np.arange(jobs) % 2 + 1)


def cells(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure the grid, each cell in a process of its own."""
    # What a service has done before: imports, and machine code in memory.
    _load_kernels()
    for kind in options.kinds:
        for objective in options.objectives:
            solve(instance_of(kind, 80), objective, time_limit=1.0)
    for jobs, kind in product(options.jobs, options.kinds):
        instance = instance_of(kind, jobs)
        for limit, objective in product(options.limits, options.objectives):
            with get_context("fork").Pool(1) as pool:
                cell = pool.apply(measured, (instance, objective, limit))
            yield {**cell, "limit": limit, "jobs": jobs, "kind": kind, "objective": objective}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limits", type=float, nargs="+", default=[1.0, 5.0])
    parser.add_argument("--jobs", type=int, nargs="+", default=[300, 1000, 3000])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=OBJECTIVES)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    if options.cpu:
        time.monotonic = time.process_time
    print("| limit | jobs | cluster | objective | wall s | CPU s | gap | stopped | kept |")
    print("|--:|--:|---|---|--:|--:|--:|---|---|")
    for cell in cells(options):
        gap = "" if cell["gap"] is None else f"{cell['gap']:.1e}"
        took = cell["cpu_s" if options.cpu else "wall_s"]
        kept = took <= SLOWER * cell["limit"] + SPARE_S
        print(
            f"| {cell['limit']:g} | {cell['jobs']} | {cell['kind']} | {cell['objective']} "
            f"| {cell['wall_s']:.2f} | {cell['cpu_s']:.2f} | {gap} | {cell['stopped']} "
            f"| {'yes' if kept else 'no'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
