"""Time of a decision, and of its check, with a long queue in front of a busy cluster.

    python benchmarks/decisions.py
    python benchmarks/decisions.py --sizes 12:40 128:800 --decisions 50     a short form

GPUs are in nodes of 8. The table gives the number of jobs that wait or run at a time; in a
simulation, an event (an end, or an arrival) asks for a decision. The first decision, in which a
whole queue meets an idle cluster, has its own column; for later ones, the median and the 99th
percentile are given. *check* is the median time of the independent checker for one of them. The 26
workloads, with all pairs known, come from the contention model of ``dovetail generate``; gangs are
as many and as large as in Philly and may share some of their GPUs. Seconds are processor time, so
that other load on the machine matters little.
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dovetail.executor.simulation import pool, simulate
from dovetail.instances.generate import generate
from dovetail.instances.instance import Instance
from dovetail.instances.traces import Trace, TraceJob
from dovetail.solver.pairing import compile_kernels
from dovetail.solver.policies import Decision, Policy, State, policy_named

SIZES = ("12:40", "128:800", "1024:5000", "4096:10000")
GANG, GANGS = 0.067, (2, 4, 8, 16)
MEAN_S = 3600.0


class EnoughError(Exception):
    """As many decisions as were asked for have been made."""


class Timed:
    """A policy whose decisions are timed; it ends the simulation after some."""

    def __init__(self, policy: Policy, decisions: int) -> None:
        self.seconds: list[float] = []
        self._policy = policy
        self._decisions = decisions

    def decide(self, state: State) -> Decision:
        """Return the policy's decision."""
        if len(self.seconds) > self._decisions:
            raise EnoughError
        began = time.process_time()
        decision = self._policy.decide(state)
        self.seconds.append(time.process_time() - began)
        return decision


def main() -> None:
    """Measure every size under every policy and print the table as Markdown."""
    options = _options()
    compile_kernels()
    print(f"{platform.machine()}, Python {platform.python_version()}.")
    print()
    print("| GPUs | jobs | policy | decisions | first ms | p50 ms | p99 ms | check ms |")
    print("|--:|--:|---|--:|--:|--:|--:|--:|")
    for size in options.sizes:
        gpus, jobs = (int(part) for part in size.split(":"))
        for policy in options.policies:
            print(_row(gpus, jobs, policy, options.decisions), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="GPUS:JOBS")
    parser.add_argument("--policies", nargs="+", default=["dovetail", "castor"])
    parser.add_argument("--decisions", type=int, default=300)
    return parser.parse_args()


def _row(gpus: int, jobs: int, name: str, decisions: int) -> str:
    world = _world(gpus)
    timed = Timed(policy_named(name), decisions)
    checks: list[float] = []
    pool.violations, unmeasured = _timing(pool.violations, checks), pool.violations
    try:
        simulate(_trace(jobs, decisions, gpus, list(world.workloads)), world, timed)
    except EnoughError:
        pass
    finally:
        pool.violations = unmeasured
    first, *later = (1e3 * seconds for seconds in timed.seconds)
    p50, p99 = np.percentile(later, [50, 99])
    check = f"{1e3 * np.median(checks):.1f}" if checks else "-"
    return (
        f"| {gpus:,} | {jobs:,} | {name} | {len(later)} "
        f"| {first:.0f} | {p50:.1f} | {p99:.1f} | {check} |"
    )


def _timing(check: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - passed on
        began = time.process_time()
        found = check(*arguments, **options)
        into.append(time.process_time() - began)
        return found

    return timed


def _world(gpus: int) -> Instance:
    world = generate(1, seed=1, workloads=26, shares=())
    (gpu,) = world.cluster.nodes[0].devices[:1]
    kind = {"model": gpu.model, "memory_mib": gpu.memory_mib}
    data = world.model_dump(mode="json")
    counts = [8] * (gpus // 8) + [gpus % 8] * (gpus % 8 > 0)
    data["cluster"]["nodes"] = [
        {"id": f"n{k}", "gpu_count": count, "gpu": kind} for k, count in enumerate(counts)
    ]
    return Instance.from_data({**data, "jobs": []})


def _trace(jobs: int, later: int, gpus: int, workloads: list[str]) -> Trace:
    """Return the trace of jobs that are there from the beginning, and of some that come later."""
    rng = random.Random(0)
    most = sum(gang <= gpus for gang in GANGS)
    found = []
    for k in range(jobs + later):
        arrival_s = 0.0 if k < jobs else MEAN_S * (k - jobs) / later
        workers = rng.choice(GANGS[:most]) if rng.random() < GANG else 1
        seconds = max(60.0, rng.lognormvariate(np.log(MEAN_S) - 1.0, 1.4))
        found.append(TraceJob(f"j{k}", arrival_s, workers, seconds, rng.choice(workloads)))
    return Trace.of("queue", found)


if __name__ == "__main__":
    main()
