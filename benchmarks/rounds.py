"""Measure a stream of rounds: how long a scheduler waits each time a job ends and one arrives.

    python benchmarks/rounds.py
    python benchmarks/rounds.py --pending 50 --objectives jct --rounds 5    a short form

256 GPUs in 32 nodes, 26 workloads with all pairs known, gangs as in Philly that may share some of
their GPUs. The table gives the number of jobs that wait at first; 200 more run, or wait if they do
not fit. In every round one running job ends and one arrives, and the jobs that the plan starts run
from then on. The same rounds are solved in several ways; each is measured relative to the first,
round by round, so that other load on the machine matters little:

- *with reasons*: with a reason for each waiting job;
- *cold*: without reasons (``explain=False``);
- *warm*: also starting from the last round (``previous=``, ``Instance.with_jobs``);
- *in time*: also within ``--limit`` seconds.

The last table is the first round, in which a whole queue meets a cluster of running jobs: how
long it takes under a limit, and the gap that is proven by then. Instances are synthetic
(``dovetail generate``).
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from dovetail import Instance, solve
from dovetail.instances.generate import generate
from dovetail.instances.instance import Job
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.plan import Plan
from dovetail.solver.pairing import compile_kernels
from dovetail.solver.result import Result

GPUS = 256
WORKLOADS = 26
RUNNING = 200
SEED = 1
SETTLING_S = 2.0
"""Limit of the rounds before those that are measured."""

Way = Callable[[Instance, Result | None], Result]


def ways(objective: ObjectiveName, limit: float) -> dict[str, Way]:
    """Return the ways to solve a round; each gets what it returned the last time."""
    return {
        "with reasons": lambda i, _: solve(i, objective),
        "cold": lambda i, _: solve(i, objective, explain=False),
        "warm": lambda i, last: solve(i, objective, explain=False, previous=last),
        "in time": lambda i, last: solve(
            i, objective, explain=False, previous=last, time_limit=limit
        ),
    }


def stream(
    pending: int, shares: Sequence[int], objective: ObjectiveName, rounds: int
) -> Iterator[Instance]:
    """Yield the rounds: the first, in which the whole queue waits, and those that follow."""
    drawn = generate(
        RUNNING + pending + rounds, seed=SEED, gpus=GPUS, workloads=WORKLOADS, shares=shares
    )
    chance = random.Random(SEED)
    old, new = list(drawn.jobs[: RUNNING + pending]), list(drawn.jobs[RUNNING + pending :])
    head = drawn.with_jobs(old[:RUNNING])
    jobs = started(head.jobs, settled(head, objective)) + old[RUNNING:]
    for arrives in new:
        ended = chance.choice([job for job in jobs if job.running])
        jobs = [job for job in jobs if job is not ended] + [arrives]
        instance = drawn.with_jobs(jobs)
        yield instance
        jobs = started(jobs, settled(instance, objective))


def settled(instance: Instance, objective: ObjectiveName) -> Plan:
    return solve(instance, objective, explain=False, time_limit=SETTLING_S).plan


def started(jobs: Sequence[Job], plan: Plan) -> list[Job]:
    """Return the jobs, those that the plan starts running."""
    placed = {row.job: row for row in plan.assignments if row.start}
    return [
        job.replace(state="running", gpus=placed[job.id].gpus, share=placed[job.id].share)
        if job.id in placed
        else job
        for job in jobs
    ]


def measured(instances: Sequence[Instance], way: Way) -> list[float]:
    """Return the processor's seconds of each round but the first."""
    last = way(instances[0], None)
    seconds = []
    for instance in instances[1:]:
        began = time.process_time()
        last = way(instance, last)
        seconds.append(time.process_time() - began)
    return seconds


def row(
    pending: int, shares: Sequence[int], objective: ObjectiveName, options: argparse.Namespace
) -> str:
    """Return the row of a stream."""
    instances = list(stream(pending, shares, objective, options.rounds + 2))[1:]
    by_way = {
        name: measured(instances, way) for name, way in ways(objective, options.limit).items()
    }
    first = by_way["with reasons"]
    cells = [f"{1e3 * median(first):.0f}"]
    for name, seconds in by_way.items():
        if name != "with reasons":
            ratio = median(own / whole for own, whole in zip(seconds, first, strict=True))
            cells.append(f"{1e3 * median(seconds):.0f} ({ratio:.2f})")
    middle = instances[len(instances) // 2]
    runs = sum(job.running for job in middle.jobs)
    counts = f"{runs} | {len(middle.jobs) - runs} | {len(shares) or 'none'}"
    return f"| {objective} | {counts} | " + " | ".join(cells) + " |"


def first_row(
    pending: int, shares: Sequence[int], objective: ObjectiveName, limits: Sequence[float]
) -> str:
    """Return the row of a first round: seconds and gap under each limit."""
    instance = next(stream(pending, shares, objective, 1))
    cells = []
    for limit in limits:
        began = time.perf_counter()
        found = solve(instance, objective, explain=False, time_limit=limit)
        seconds = time.perf_counter() - began
        gap = "none" if found.gap is None else f"{found.gap:.1e}"
        cells.append(f"{seconds:.2f} s, {gap}")
    waits = sum(not job.running for job in instance.jobs)
    return f"| {objective} | {waits} | {len(shares) or 'none'} | " + " | ".join(cells) + " |"


def main() -> None:
    """Measure the streams and print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--pending", type=int, nargs="+", default=[50, 500])
    parser.add_argument("--objectives", nargs="+", default=["throughput", "jct"])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--limit", type=float, default=0.1)
    parser.add_argument("--limits", type=float, nargs="+", default=[0.0, 0.1, 0.5, 2.0])
    options = parser.parse_args()
    compile_kernels()
    print(f"Medians of {options.rounds} rounds; {platform.machine()}, {platform.python_version()}.")
    print(
        "\n| objective | running | waiting | SM splits | with reasons, ms | cold, ms (x) "
        f"| warm, ms (x) | in {options.limit:g} s, ms (x) |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    cases = [
        (pending, shares, objective)
        for shares in ((), tuple(range(10, 100, 10)))
        for objective in options.objectives
        for pending in options.pending
    ]
    for case in cases:
        print(row(*case, options), flush=True)
    limits = " | ".join(f"{limit:g} s" for limit in options.limits)
    print(f"\n| objective | waiting | SM splits | {limits} |")
    print("|---|--:|--:|" + "---|" * len(options.limits))
    for case in cases:
        print(first_row(*case, options.limits), flush=True)


if __name__ == "__main__":
    main()
