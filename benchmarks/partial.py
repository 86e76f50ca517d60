"""Number of jobs with partial sharing that are solved to proven optimality in 1, 10 and 60 seconds.

    python benchmarks/partial.py                                  the whole table
    python benchmarks/partial.py --sizes 100 --budgets 1 --seeds 1    a short form

Every cell runs in a process of its own: `dovetail.solve` from the records to the checked plan,
with the compiled code loaded before. The instances are synthetic (`dovetail generate`: 64
workloads, nine SM splits, gSLAs from 1 to 2, GPUs for 40 % of the demand) with gangs as in
Philly: 6.7 % of the jobs have 2 to 16 workers, which may share some of their GPUs.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any


def main() -> None:
    """Run the cells and print the table as Markdown."""
    options = _options()
    if options.cell:
        print(json.dumps(_cell(*json.loads(options.cell))))
        return
    print(f"Throughput, partial sharing; {platform.machine()}, Python {platform.python_version()}.")
    print()
    budgets = [f"{budget:g} s" for budget in options.budgets]
    print("| solver | jobs | gangs | GPUs | " + " | ".join(budgets) + " |")
    print("|---|--:|--:|--:|" + "---|" * len(budgets))
    for solver in options.solvers:
        for size in options.sizes:
            print(_row(solver, size, options.budgets, options.seeds), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    sizes = [100, 200, 300, 500, 700, 1000, 1500]
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes)
    parser.add_argument("--budgets", type=float, nargs="+", default=[1.0, 10.0, 60.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--solvers", nargs="+", default=["matching"])
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    return parser.parse_args()


def _row(solver: str, size: int, budgets: Sequence[float], seeds: Sequence[int]) -> str:
    """Return the row of a size: how many instances each budget closes, and the worst gap."""
    by_seed = [list(_until_solved(solver, size, budgets, seed)) for seed in seeds]
    entries = []
    for k in range(len(budgets)):
        cells = [cells[min(k, len(cells) - 1)] for cells in by_seed]
        solved = [cell for cell in cells if cell["status"] == "optimal"]
        entry = f"{len(solved)} of {len(cells)}"
        if solved:
            entry += f", longest {max(cell['seconds'] for cell in solved):.2g} s"
            entry += f" ({max(cell['processor_s'] for cell in solved):.2g} s of the processor)"
        if len(solved) < len(cells):
            entry += f", gap up to {max(cell['gap'] for cell in cells):.1e}"
        entries.append(entry)
    first = by_seed[0][0]
    sizes = f"{size:,} | {first['gangs']} | {first['gpus']}"
    return f"| {solver} | {sizes} | " + " | ".join(entries) + " |"


def _until_solved(
    solver: str, size: int, budgets: Sequence[float], seed: int
) -> Iterator[dict[str, Any]]:
    """Yield the outcome of growing budgets, up to the first that suffices."""
    for budget in budgets:
        cell = json.dumps([solver, size, seed, budget])
        done = subprocess.run(
            [sys.executable, __file__, "--cell", cell], capture_output=True, text=True, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
        yield found
        if found["status"] == "optimal":
            return


def _cell(solver: str, size: int, seed: int, budget: float) -> dict[str, object]:
    from dovetail import solve
    from dovetail.instances.generate import generate
    from dovetail.solver.pairing import compile_kernels

    compile_kernels()
    solve(generate(20, seed=seed), solver=solver)
    instance = generate(size, seed=seed)
    started, used = time.perf_counter(), time.process_time()
    result = solve(instance, solver=solver, time_limit=budget)
    return {
        "gangs": sum(job.workers > 1 for job in instance.jobs),
        "gpus": len(instance.places),
        "seconds": time.perf_counter() - started,
        "processor_s": time.process_time() - used,
        "status": result.status,
        "gap": result.gap,
    }


if __name__ == "__main__":
    main()
