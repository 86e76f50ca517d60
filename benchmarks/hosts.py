"""Jobs of one node that slow each other through its host, and the cost of ignoring that.

    python benchmarks/hosts.py                          the simulated table
    python benchmarks/hosts.py --eva MATRIX.csv         how well the model fits Eva's measurements

Nothing in the table is measured. Jobs of the synthetic contention model share 8 nodes of 4 GPUs;
their workloads' needs of processors, host memory and disk are drawn so that two of them on one node
keep 0.65 to 1 of their throughput, as in Eva's matrix (EuroSys 2025; `contention_matrix.csv`
in its artifact). Host slowdowns multiply those on the GPU (`dovetail.instances.hosts`).
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.optimize import least_squares

from dovetail.executor.simulation import Options, simulate
from dovetail.executor.simulation.metrics import summary
from dovetail.executor.simulation.worlds import synthetic_world
from dovetail.instances.hosts import host_slowdown
from dovetail.instances.instance import HostResources, Instance
from dovetail.instances.traces.draws import with_gslas, with_workloads
from dovetail.instances.traces.generated import synthetic
from dovetail.solver.policies import policy_named

SHORT = ("cpu_cores", "memory_bytes_s", "disk_bytes_s")
LARGEST = 1 / 0.65 / 2
"""The part of a resource of which two ask together so much that they keep 0.65."""

CELLS = (
    ("fifo", False),
    ("tensorshare", False),
    ("castor", False),
    ("dovetail", False),
    ("dovetail", True),
)


def main() -> None:
    """Print a table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--eva", type=Path, metavar="MATRIX.csv")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--load", type=float, default=0.9)
    options = parser.parse_args()
    if options.eva:
        _print_fit(_eva(options.eva))
        return
    print("| policy | knows hosts | mean JCT h | makespan h | gSLAs broken % | slowdown |")
    print("|---|---|--:|--:|--:|--:|")
    for policy, known in CELLS:
        rows = [_simulated(policy, known, seed, options) for seed in range(options.seeds)]
        jct, makespan, broken, slowdown = (fmean(column) for column in zip(*rows, strict=True))
        print(
            f"| {policy} | {'yes' if known else 'no'} | {jct / 3600:.2f} | {makespan / 3600:.2f} "
            f"| {100 * broken:.1f} | {slowdown:.2f} |",
            flush=True,
        )


def world(seed: int) -> Instance:
    """Return the synthetic world of a seed, its nodes with hosts."""
    made = synthetic_world(16, nodes=8, gpus_per_node=4, seed=seed)
    draw = np.random.default_rng(seed)
    has = HostResources.from_data(dict.fromkeys(SHORT, 1.0))
    needs = {}
    for name in made.workloads:
        part = draw.uniform(0.0, 0.1, len(SHORT))
        if draw.random() < 0.5:
            part[draw.integers(len(SHORT))] = draw.uniform(0.2, LARGEST)
        needs[name] = HostResources.from_data(dict(zip(SHORT, part.tolist(), strict=True)))
    nodes = tuple(node.replace(host=has) for node in made.cluster.nodes)
    workloads = {name: one.replace(host=needs[name]) for name, one in made.workloads.items()}
    return made.replace(cluster=made.cluster.replace(nodes=nodes), workloads=workloads)


def _simulated(
    policy: str, known: bool, seed: int, options: argparse.Namespace
) -> tuple[float, float, float, float]:
    where = world(seed)
    trace = synthetic(options.jobs, seed, len(where.places), options.load, largest=4)
    trace = with_gslas(with_workloads(trace, tuple(where.workloads), seed), "uniform:1:2", seed)
    rules = Options(hosts_known=known)
    found = summary(simulate(trace, where, policy_named(policy), rules), trace)
    return found["jct_mean_s"], found["makespan_s"], found["violation_rate"], found["slowdown_mean"]


def _eva(path: Path) -> np.ndarray:
    """Return Eva's matrix: the throughput that the row's job keeps with the column's, or NaN."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return np.array([[np.nan if x in ("x", "") else float(x) for x in row[1:]] for row in rows])


def _print_fit(kept: np.ndarray) -> None:
    """Print the errors of the best parts of two and of three resources, in sample."""
    known = ~np.isnan(kept)
    kept = np.minimum(kept, 1.0)
    print(f"{known.sum()} ratios of {len(kept)} workloads, {kept[known].min():.3f} to 1")
    print(f"no job is slowed: mean absolute error {np.abs(1 - kept[known]).mean():.3f}")
    mean = kept[known].mean()
    print(f"all keep {mean:.3f}: {np.abs(mean - kept[known]).mean():.3f}")
    for resources in (1, 2, 3):
        error = min(_fitted(kept, known, resources, seed) for seed in range(20))
        print(f"{resources} resources: {error:.3f}")


def _fitted(kept: np.ndarray, known: np.ndarray, resources: int, seed: int) -> float:
    draw = np.random.default_rng(seed)

    def errors(flat: np.ndarray) -> np.ndarray:
        part = np.where(flat > 0.05, flat, 0.0).reshape(len(kept), resources)
        load = part[:, None, :] + part[None, :, :]
        return np.asarray((1 / host_slowdown(part[:, None, :], load) - kept)[known])

    start = draw.uniform(0.3, 0.7, len(kept) * resources)
    found = least_squares(errors, start, bounds=(0.0, 1.0))
    return float(np.abs(errors(found.x)).mean())


if __name__ == "__main__":
    main()
