"""Compare the solvers on generated rounds: time, peak memory, value and proven gap.

    python benchmarks/plan.py                      all sizes and solvers
    python benchmarks/plan.py --sizes 30 --time-limit 5      a short form

Every cell runs in a process of its own on the same instance: `dovetail.solve` from the records
to the checked plan, with the listing of candidate groups and the model included. Memory is the
peak of the process or, for ``milp``, of the solver's if that is larger.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from dovetail.instances.objectives import OBJECTIVES, ObjectiveName

FAMILIES: dict[str, dict[str, Any]] = {
    "one GPU a job": {"gangs": False},
    "whole gangs": {"gang_sharing": "whole"},
    "partial gangs": {},
}
SOLVERS = ("matching", "cpsat", "highs", "milp", "milp:HiGHS", "greedy")
SEED = 1


def main() -> None:
    """Run the cells and print the table as Markdown."""
    options = _options()
    if options.cell:
        print(json.dumps(_cell(*json.loads(options.cell))))
        return
    print(_heading(options.objective, options.time_limit))
    for family in FAMILIES:
        for size in options.sizes:
            for row in _rows(family, size, options):
                print(row, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS))
    parser.add_argument("--objective", choices=OBJECTIVES, default="throughput")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    return parser.parse_args()


def _heading(objective: str, time_limit: float) -> str:
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    libraries = ("ortools", "scipy", "pulp")
    versions = ", ".join(f"{name} {version(name)}" for name in libraries)
    return (
        f"{objective.capitalize()}, time limit {time_limit:g} s, seed {SEED}; "
        f"{machine}; {versions}.\n\n"
        "| family | jobs | GPUs | solver | seconds | MB | value | gap | status |\n"
        "|---|--:|--:|---|--:|--:|--:|--:|---|"
    )


def _rows(family: str, size: int, options: argparse.Namespace) -> Iterator[str]:
    for solver in options.solvers:
        cell = json.dumps([family, size, solver, options.objective, options.time_limit])
        child = subprocess.run(
            [sys.executable, __file__, "--cell", cell], capture_output=True, text=True, check=False
        )
        if child.returncode:
            last = child.stderr.strip().splitlines()[-1]
            why = "cannot take it" if "UnsupportedError" in last else last
            yield f"| {family} | {size} | | {solver} | | | | | {why} |"
            continue
        found = json.loads(child.stdout)
        gap = "none" if found["gap"] is None else f"{found['gap']:.1e}"
        yield (
            f"| {family} | {size} | {found['gpus']} | {solver} | {found['seconds']:.2f} "
            f"| {found['megabytes']:.0f} | {found['value']:.4f} | {gap} | {found['status']} |"
        )


def _cell(
    family: str, size: int, solver: str, objective: ObjectiveName, time_limit: float
) -> dict[str, object]:
    """Solve one instance in this process and measure it."""
    from dovetail import solve
    from dovetail.instances.generate import generate

    instance = generate(size, seed=SEED, **FAMILIES[family])
    started = time.perf_counter()
    result = solve(instance, objective, solver, time_limit)
    seconds = time.perf_counter() - started
    own, child = (resource.getrusage(scope).ru_maxrss for scope in _SCOPES)
    return {
        "gpus": len(instance.places),
        "seconds": seconds,
        "megabytes": max(own, child) / 1024,
        "value": result.objective,
        "gap": result.gap,
        "status": f"{result.status}, {result.stopped}",
    }


_SCOPES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)

if __name__ == "__main__":
    main()
