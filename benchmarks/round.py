"""Measure whole rounds: from the data about the jobs to a checked plan.

    python benchmarks/round.py                        all tables
    python benchmarks/round.py --tables arrays        from slowdown arrays
    python benchmarks/round.py --tables instances     from an instance, by `dovetail.solve`
    python benchmarks/round.py --tables objectives    the same without reasons, by objective

The first table starts from arrays of slowdowns at 9 splits, gSLAs, memory and a limit of 40 % of
the GPUs asked for: the best split of each pair, the matching, GPUs of named nodes for every
group, and a check of the plan and its proof that shares no code with the engine. The second is
`dovetail.solve`, whose plan comes with reasons for waiting jobs, on generated instances
of 300 workloads (loading them is excluded). The third is `dovetail.solve` without reasons, under
each objective: 64 workloads for 1,000 jobs, 300 for 10,000. Every cell runs in a process of its
own, kernels loaded; medians of at least 5 runs unless a run takes longer than 20 s (the table says
how many). Memory is the peak of the process. All instances are synthetic: a contention model with
4 % noise, gSLAs from 1 to 2.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.solver import Matching, best_splits, certificate_errors, match_pairs
from dovetail.solver.pairing import BestSplits

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RUNS = 5
LONG_RUN_S = 20.0
QUOTA = 0.4
MEMORY_LIMIT = 48.0
GPUS_PER_NODE = 8
SHARES = np.arange(1, 10) / 10
SEED = 1

ARRAY_ROUNDS = ((1000, 1000), (3000, 300), (10_000, 300))
"""Jobs and workloads of the first table; as many workloads as jobs: all jobs distinct."""

INSTANCE_ROUNDS = ((1000, 300), (3000, 300), (10_000, 300))

OBJECTIVE_ROUNDS = ((1000, 64), (10_000, 300))


@dataclass
class Arrays:
    """What is known of a round."""

    slowdown: Floats
    workload: Ints
    gsla: Floats
    memory: Floats
    gpus: int


def arrays(jobs: int, workloads: int) -> Arrays:
    """Draw a round.

    A job of compute part c that can use a fraction q of the SMs, next to one with the rest, is
    slowed to c max(1, q / share) + (1 - c) max(1, sum of the memory bandwidths asked for).
    """
    rng = np.random.default_rng(SEED)
    compute, demand = rng.uniform(0.2, 0.9, workloads), rng.uniform(0.1, 1.0, workloads)
    bandwidth = rng.uniform(0.05, 0.95, workloads)
    alone = np.maximum(1, demand[:, None] / SHARES)[:, None, :]
    shared = np.maximum(1, bandwidth[:, None] + bandwidth)[:, :, None]
    part = compute[:, None, None]
    noise = 1 + 0.04 * rng.standard_normal((workloads, workloads, 1))
    workload = np.arange(jobs) if workloads == jobs else rng.integers(0, workloads, jobs)
    return Arrays(
        slowdown=(part * alone + (1 - part) * shared) * noise,
        workload=workload,
        gsla=rng.uniform(1, 2, jobs),
        memory=rng.choice([4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 40.0], workloads)[workload],
        gpus=round(QUOTA * jobs),
    )


def array_round(given: Arrays) -> dict[str, float]:
    """Plan and check a round; return the seconds of each step."""
    clock = _Clock()
    # Values of 32 bits: half the memory, exact to 6e-8.
    found = best_splits(
        given.slowdown,
        given.workload,
        gsla=given.gsla,
        memory=given.memory,
        memory_limit=MEMORY_LIMIT,
        dtype=np.float32,
    )
    clock.lap("best splits")
    alone = np.ones(len(given.workload))
    matching = match_pairs(found.value, alone, gpus=given.gpus)
    clock.lap("matching")
    node, slot = places(matching.mate)
    clock.lap("GPUs")
    check(given, matching, found, node * GPUS_PER_NODE + slot)
    clock.lap("check of the plan")
    errors = certificate_errors(matching, found.value, alone, gpus=given.gpus)
    assert not errors, errors
    clock.lap("check of the proof")
    return clock.seconds


def places(mate: Ints) -> tuple[Ints, Ints]:
    """Return the node and the GPU on it of each job, -1 where it waits."""
    jobs = np.arange(len(mate))
    leader = np.where(mate >= 0, np.minimum(jobs, mate), -1)
    gpu = np.full(len(mate), -1)
    gpu[mate >= 0] = np.unique(leader[mate >= 0], return_inverse=True)[1]
    node, slot = np.divmod(gpu, GPUS_PER_NODE)
    return np.where(gpu < 0, -1, node), np.where(gpu < 0, -1, slot)


def check(given: Arrays, matching: Matching, found: BestSplits, gpu: Ints) -> None:
    """Hold the plan against the arrays: GPUs, splits, gSLAs, memory, value."""
    held, count = np.unique(gpu[matching.mate >= 0], return_counts=True)
    assert len(held) <= given.gpus
    assert count.max() <= 2
    split = found.of_mates(matching.mate)
    own = np.flatnonzero(split >= 0)
    mate = matching.mate[own]
    assert (gpu[own] == gpu[mate]).all()
    assert (split[own] + split[mate] == len(SHARES) - 1).all()
    slowdown = given.slowdown[given.workload[own], given.workload[mate], split[own]]
    assert (slowdown <= given.gsla[own]).all()
    assert (given.memory[own] + given.memory[mate] <= MEMORY_LIMIT).all()
    alone = np.count_nonzero((matching.mate >= 0) & (split < 0))
    value = float((1 / slowdown).sum()) + alone
    assert abs(value - matching.value) <= 1e-7 * value


class _Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


def array_cell(jobs: int, workloads: int) -> dict[str, Any]:
    """Measure a round from arrays."""
    array_round(arrays(300, 300))
    given = arrays(jobs, workloads)
    return measured(lambda: array_round(given))


def instance_cell(jobs: int, workloads: int) -> dict[str, Any]:
    """Measure a round from an instance."""
    from dovetail import solve
    from dovetail.instances.generate import generate

    solve(generate(200, seed=SEED, workloads=30, gangs=False))
    given = generate(jobs, seed=SEED, workloads=workloads, gangs=False)
    laps = _Laps()
    gaps = []

    def run() -> dict[str, float]:
        result = solve(given)
        gaps.append(result.gap)
        return laps.taken(result.runtime_s)

    return measured(run) | {"gap": gaps[-1]}


def objective_cell(jobs: int, workloads: int, objective: str) -> dict[str, Any]:
    """Measure a round without reasons: seconds on the wall and of the processor."""
    from dovetail import solve
    from dovetail.instances.generate import generate

    solve(generate(200, seed=SEED, workloads=30, gangs=False), objective, explain=False)
    given = generate(jobs, seed=SEED, workloads=workloads, gangs=False)
    wall, processor, gap = [], [], 0.0
    while len(wall) < RUNS and sum(wall) <= LONG_RUN_S:
        began, worked = time.perf_counter(), time.process_time()
        result = solve(given, objective, explain=False)
        wall.append(time.perf_counter() - began)
        processor.append(time.process_time() - worked)
        gap = result.gap
    return {
        "wall": float(np.median(wall)),
        "cpu": float(np.median(processor)),
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "gap": gap,
        "runs": len(wall),
    }


def objective_rows(limit: float) -> Iterator[str]:
    """Yield the table of the objectives as Markdown."""
    from dovetail.instances.objectives import OBJECTIVES

    yield "\n### `dovetail.solve(explain=False)`, one GPU a job\n"
    yield "| jobs | objective | wall s | processor s | peak MiB | gap | runs |"
    yield "|--:|---|--:|--:|--:|--:|--:|"
    for jobs, workloads in OBJECTIVE_ROUNDS:
        for objective in OBJECTIVES:
            cell = run_cell(["objectives", jobs, workloads, objective], limit)
            yield (
                f"| {jobs:,} | {objective} | {cell['wall']:.3f} | {cell['cpu']:.3f} "
                f"| {cell['mib']:.0f} | {cell['gap']:.1e} | {cell['runs']} |"
            )


class _Laps:
    """Times the steps of ``solve`` from outside, each without those inside it."""

    def __init__(self) -> None:
        from dovetail.solver import rounds
        from dovetail.solver.matching import exact_pairs, table_pairs
        from dovetail.solver.pairing import SplitValues

        self._seconds: dict[str, float] = {}
        self._inside = 0.0
        for owner, function, name in (
            (table_pairs, "pair_tables", "tables of the workloads"),
            (SplitValues, "rounded", "best splits"),
            (exact_pairs, "match_pairs", "matching"),
            (exact_pairs, "solve_in_stages", "chosen groups"),
            (rounds, "place", "GPUs"),
            (rounds, "check", "check of the plan"),
            (rounds, "reasons", "reasons of waiting jobs"),
        ):
            setattr(owner, function, self._timed(name, getattr(owner, function)))

    def taken(self, total: float) -> dict[str, float]:
        """Return the seconds of each step, and of the rest, and begin anew."""
        seconds, self._seconds, self._inside = self._seconds, {}, 0.0
        return seconds | {"rest": total - sum(seconds.values())}

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            outer, self._inside = self._inside, 0.0
            began = time.perf_counter()
            result = call(*arguments, **options)
            whole = time.perf_counter() - began
            self._seconds[name] = self._seconds.get(name, 0.0) + whole - self._inside
            self._inside = outer + whole
            return result

        return timed


def measured(run: Callable[[], dict[str, float]]) -> dict[str, Any]:
    """Return the medians of the steps and of their sum, the number of runs, and the peak."""
    runs: list[dict[str, float]] = []
    while len(runs) < RUNS:
        runs.append(run())
        if sum(runs[0].values()) > LONG_RUN_S:
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "total": float(np.median([sum(each.values()) for each in runs])),
        "steps": {name: float(np.median([each[name] for each in runs])) for name in runs[0]},
        "runs": len(runs),
        "mib": peak,
    }


CELLS: dict[str, tuple[str, Callable[[int, int], dict[str, Any]], tuple[tuple[int, int], ...]]] = {
    "arrays": ("From slowdown arrays (9 splits, gSLAs, memory)", array_cell, ARRAY_ROUNDS),
    "instances": ("`dovetail.solve`, one GPU a job, throughput", instance_cell, INSTANCE_ROUNDS),
}


def rows(table: str, limit: float) -> Iterator[str]:
    """Yield a table as Markdown, a column for each round."""
    title, _, rounds = CELLS[table]
    yield f"\n### {title}\n"
    cells = [run_cell([table, jobs, workloads], limit) for jobs, workloads in rounds]
    names = [f"{n:,} jobs, {k:,} workloads" if k < n else f"{n:,} distinct" for n, k in rounds]
    yield "| seconds | " + " | ".join(names) + " |"
    yield "|---|" + "--:|" * len(rounds)
    for step in cells[0]["steps"]:
        yield f"| {step} | " + " | ".join(f"{c['steps'][step]:.4f}" for c in cells) + " |"
    yield "| **whole round** | " + " | ".join(f"**{c['total']:.3f}**" for c in cells) + " |"
    yield "| peak MiB | " + " | ".join(f"{c['mib']:.0f}" for c in cells) + " |"
    yield "| runs | " + " | ".join(str(c["runs"]) for c in cells) + " |"


def run_cell(cell: list[Any], limit: float) -> dict[str, Any]:
    """Measure a cell in a process of its own."""
    command = [sys.executable, __file__, "--cell", json.dumps(cell)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def heading() -> str:
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba"))
    return f"Medians; seed {SEED}; {machine}; {versions}."


def main() -> None:
    """Run the cells and print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    tables = [*CELLS, "objectives"]
    parser.add_argument("--tables", nargs="+", default=tables, choices=tables)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds per cell")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        table, *arguments = json.loads(options.cell)
        measure = CELLS[table][1] if table in CELLS else objective_cell
        print(json.dumps(measure(*arguments)))
        return
    subprocess.run([sys.executable, "-m", "dovetail.solver.pairing"], check=True)  # compiles once
    print(heading())
    for table in options.tables:
        found = rows(table, options.limit) if table in CELLS else objective_rows(options.limit)
        for line in found:
            print(line, flush=True)


if __name__ == "__main__":
    main()
