"""Events a second and peak memory of the simulator, compared with other simulators in the same run.

    python benchmarks/simulate.py PHILLY.csv.gz                 the whole table
    python benchmarks/simulate.py PHILLY.csv.gz --jobs 2000 --busiest 100      a short form

Every cell runs in a process of its own, from a trace in memory (a file for AccaSim, which reads
as it goes) to the end times of all jobs; memory is the peak of that process, interpreter and
imports included. An event is an arrival or an end.

- `dovetail`: the simulator with the given policy, with slowdowns, history and metrics.
- `heapq`: a plain loop over a heap of ends: FIFO, the same placement, no sharing, no history.
- `accasim`: AccaSim 1.1.3 (PyPI, MIT), FIFO and first fit, reading SWF and writing its schedule.
  It needs Python < 3.10 or the two names that this file restores; skipped if it is not installed.

The jobs are Philly's (2,474 GPUs: 309 nodes of 8 and one of 2), every one of the same workload
for the cheap policies. The expensive ones run the busiest jobs on 32 x 8 GPUs with 26 synthetic
workloads, whose slowdowns come from the contention model of `dovetail generate`.
"""

from __future__ import annotations

import argparse
import collections
import collections.abc
import heapq
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dovetail.executor.simulation import simulate
from dovetail.instances.instance import Instance
from dovetail.instances.traces import Trace, TraceJob
from dovetail.instances.traces.files import read_trace
from dovetail.solver.policies import policy_named

NODES = [8] * 309 + [2]


def main() -> None:
    """Run the cells and print the table as Markdown."""
    options = _options()
    if options.cell:
        print(json.dumps(_cell(options)))
        return
    print(f"{platform.machine()}, Python {platform.python_version()}.")
    print()
    print("| simulator | policy | jobs | GPUs | events | seconds | events/s | peak MiB |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for cell in ("heapq", "accasim", *(f"dovetail:{name}" for name in options.cheap)):
        print(_row(options, cell, options.jobs, sum(NODES)), flush=True)
    for policy in options.expensive:
        print(_row(options, f"busiest:{policy}", options.busiest, 256), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--jobs", type=int, default=82247)
    parser.add_argument("--busiest", type=int, default=2000)
    parser.add_argument("--cheap", nargs="*", default=["fifo", "ssf"])
    parser.add_argument("--expensive", nargs="*", default=["castor", "dovetail"])
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    return parser.parse_args()


def _row(options: argparse.Namespace, cell: str, jobs: int, gpus: int) -> str:
    command = [sys.executable, __file__, str(options.trace), "--cell", cell]
    command += ["--jobs", str(options.jobs), "--busiest", str(options.busiest)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    engine, _, policy = cell.partition(":")
    name = "dovetail" if engine == "busiest" else engine
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1]
        return f"| {name} | {policy or 'fifo'} | {jobs:,} | {gpus:,} | not run: {why} | | | |"
    found = json.loads(done.stdout.splitlines()[-1])
    pace = found["events"] / found["seconds"]
    return (
        f"| {name} | {policy or 'fifo'} | {found['jobs']:,} | {gpus:,} | {found['events']:,} "
        f"| {found['seconds']:.2f} | {pace:,.0f} | {found['mib']:.0f} |"
    )


def _cell(options: argparse.Namespace) -> dict[str, Any]:
    engine, _, policy = options.cell.partition(":")
    trace = read_trace(options.trace)
    if engine == "busiest":
        trace = _busiest(trace, options.busiest)
    else:
        trace = trace.replace(
            TraceJob(job.id, job.arrival_s, job.workers, job.duration_s, "any")
            for job in trace.jobs[: options.jobs]
        )
    run = {"heapq": _heapq, "accasim": _accasim, "dovetail": _cheap, "busiest": _expensive}[engine]
    seconds, events = run(trace, policy)
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"jobs": len(trace.jobs), "events": events, "seconds": seconds, "mib": mib}


def _cheap(trace: Trace, policy: str) -> tuple[float, int]:
    world = Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "philly",
            "cluster": {
                "nodes": [
                    {"id": f"n{k}", "gpu_count": count, "gpu": {"model": "P100", "memory_mib": 1}}
                    for k, count in enumerate(NODES)
                ]
            },
            "workloads": {"any": {"memory_mib": 1}},
            "jobs": [],
        }
    )
    return _timed(trace, world, policy)


def _expensive(trace: Trace, policy: str) -> tuple[float, int]:
    from dovetail.instances.generate import generate

    world = generate(1, seed=1, workloads=26, shares=())
    gpu = world.cluster.nodes[0].gpus or (world.cluster.nodes[0].gpu,)
    kind = {"model": gpu[0].model, "memory_mib": gpu[0].memory_mib} if gpu[0] else {}
    data = world.model_dump(mode="json")
    data["cluster"]["nodes"] = [{"id": f"n{k}", "gpu_count": 8, "gpu": kind} for k in range(32)]
    names = list(world.workloads)
    jobs = [
        TraceJob(job.id, job.arrival_s, job.workers, job.duration_s, names[k * 7 % len(names)])
        for k, job in enumerate(trace.jobs)
    ]
    return _timed(trace.replace(jobs), Instance.from_data({**data, "jobs": []}), policy)


def _timed(trace: Trace, world: Instance, policy: str) -> tuple[float, int]:
    chosen = policy_named(policy)
    began = time.perf_counter()
    history = simulate(trace, world, chosen)
    return time.perf_counter() - began, history.events


def _busiest(trace: Trace, jobs: int) -> Trace:
    from dovetail.instances.traces.filters import busiest, largest

    return busiest(largest(trace, 32), jobs)


def _heapq(trace: Trace, _: str) -> tuple[float, int]:
    began = time.perf_counter()
    free = list(NODES)
    ends: list[tuple[float, int, list[tuple[int, int]]]] = []
    queue: collections.deque[int] = collections.deque()
    jobs = trace.jobs
    arrived = events = 0
    while arrived < len(jobs) or ends:
        at = jobs[arrived].arrival_s if arrived < len(jobs) else float("inf")
        if ends and ends[0][0] <= at:
            at, _, held = heapq.heappop(ends)
            for node, count in held:
                free[node] += count
        else:
            queue.append(arrived)
            arrived += 1
        events += 1
        while queue:
            held = _place(free, jobs[queue[0]].workers)
            if not held:
                break
            number = queue.popleft()
            heapq.heappush(ends, (at + jobs[number].duration_s, number, held))
    return time.perf_counter() - began, events


def _place(free: list[int], workers: int) -> list[tuple[int, int]]:
    """Take GPUs on the fullest node that holds the gang, else on the emptiest ones."""
    fullest = min([count for count in free if count >= workers], default=None)
    if fullest is not None:
        node = free.index(fullest)
        free[node] -= workers
        return [(node, workers)]
    if sum(free) < workers:
        return []
    held = []
    for node in sorted(range(len(free)), key=lambda n: -free[n]):
        count = min(free[node], workers)
        free[node] -= count
        workers -= count
        held.append((node, count))
        if not workers:
            break
    return held


def _accasim(trace: Trace, _: str) -> tuple[float, int]:
    for name in ("Mapping", "MutableMapping", "Sequence", "Iterable"):
        setattr(collections, name, getattr(collections.abc, name))
    from accasim.base.allocator_class import FirstFit
    from accasim.base.scheduler_class import FirstInFirstOut
    from accasim.base.simulator_class import Simulator

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        rows = ["; UnixStartTime: 0"]
        for k, job in enumerate(trace.jobs):
            length = max(1, round(job.duration_s))
            fixed = f"{length} {job.workers} {length} 1 {job.workers} {length} 1"
            rows.append(f"{k + 1} {round(job.arrival_s)} 0 {fixed} 1 1 1 1 1 1 -1 -1")
        Path("philly.swf").write_text("\n".join(rows) + "\n")
        groups = {"eight": {"core": 8, "mem": 10**9}, "two": {"core": 2, "mem": 10**9}}
        resources = {"eight": NODES.count(8), "two": NODES.count(2)}
        Path("system.json").write_text(json.dumps({"groups": groups, "resources": resources}))
        simulator = Simulator("philly.swf", "system.json", FirstInFirstOut(FirstFit()))
        began = time.perf_counter()
        simulator.start_simulation()
        return time.perf_counter() - began, 2 * len(trace.jobs)


if __name__ == "__main__":
    main()
