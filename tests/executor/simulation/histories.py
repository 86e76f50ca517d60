"""Prints whole histories of small simulations, for comparison between processes.

    python -m tests.executor.simulation.histories FOLDER [COMPILED]

Each history is a file: the stays of all jobs, what became of them, and the pool after each round,
without the times that decisions took. Engine ``compiled``, or as it is chosen by default.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from dovetail.executor.simulation.history import History
from dovetail.executor.simulation.pool import simulate
from dovetail.instances.generate import generate
from dovetail.instances.instance import Instance
from dovetail.instances.traces.trace import Trace, TraceJob
from dovetail.solver.pairing.matching import compile_kernels
from dovetail.solver.policies.registry import policy_named

POLICIES = ("dovetail", "dovetail:time_limit_s=0.02", "dovetail:objective=energy,time_limit_s=0.1")
SETTINGS = {"one-model": ("V100",), "two-models": ("V100", "T4")}


def world(models: Sequence[str]) -> Instance:
    """Return 24 GPUs of these models, and ten workloads of random slowdowns."""
    made = generate(10, gpus=24, workloads=10, seed=3, shares=(), gpu_models=models)
    return made.replace(jobs=())


def jobs(world: Instance) -> Trace:
    """Return 80 jobs, a third of them gangs, that arrive in bursts."""
    rng = np.random.default_rng(5)
    names = list(world.workloads)
    return Trace.of(
        "bursts",
        [
            TraceJob(
                id=f"j{k}",
                arrival_s=float(k // 20 * 3000),
                workers=int(rng.choice([1, 1, 1, 2, 4])),
                duration_s=float(np.round(rng.lognormal(7.5, 1.0), 3)),
                workload=str(rng.choice(names)),
                gsla=2.0,
            )
            for k in range(80)
        ],
    )


def text(history: History) -> str:
    """Return all that happened, a line each, without what decisions took of real time."""
    series = asdict(history.series)
    del series["decide_s"]
    pool = [f"{name} {[*map(float.hex, values)]}" for name, values in series.items()]
    rows = [*history.stays, *history.outcomes, *history.jobs]
    return "\n".join([*map(repr, rows), *pool, repr(history.events), repr(history.energy_j)])


def main() -> None:
    """Write the histories."""
    folder = Path(sys.argv[1])
    if "compiled" in sys.argv[2:]:
        compile_kernels()
    for name, models in SETTINGS.items():
        where = world(models)
        for policy in POLICIES:
            history = simulate(jobs(where), where, policy_named(policy))
            (folder / f"{name} {policy}".replace(":", " ")).write_text(text(history))


if __name__ == "__main__":
    main()
