"""Co-scheML's experiment (Cluster Computing 2021, section 6.2): 24 jobs on three single GPUs.

    python benchmarks/papers/coscheml.py --out coscheml.csv

Twelve applications, each twice, in random order, one every 15, 30 or 60 seconds; nodes of one GPU.
The paper ran HPC codes, training and inference on Titan Xp and published no pairs. Here:

- Applications and pairs are Lucid's, training only: each seed draws twelve of the configurations
  that fit the GPU, which has the 11.91 GB of the paper's Titan Xp, so that memory forbids some
  pairs. Their interference is mild (mean slowdown 1.09). World ``v100`` takes Gavel's, which is
  harsh (1.9), with utilisations as in ``worlds.gavel`` and no memory.
- Durations are drawn for each application, log-uniform in 1..10 minutes; the paper gives none.
- Predictions: the truth with a log-normal error of 5 %.

Utilisation is the time kernels run: solo utilisation times progress.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import worlds
from runs import (
    Case,
    Row,
    by_policy,
    common_options,
    end_in_one_line,
    label,
    number,
    parsed,
    print_table,
    print_waits,
    results,
)

from dovetail.executor.simulation.beliefs import beliefs_named
from dovetail.executor.simulation.setup import Setup
from dovetail.instances.instance import Instance
from dovetail.instances.traces import Trace, TraceJob

POLICIES = ("binpack", "loadbalance", "mystic", "coscheml", "dovetail")
GPU_MIB = 11.91 * 1024
APPLICATIONS = 12
COPIES = 2
DURATIONS_S = (60.0, 600.0)

PAPER = {
    "binpack": ("+26", "+29", "+28", "-"),
    "loadbalance": ("+18", "+11", "+0.2", "59"),
    "mystic": ("+19", "+16", "+4", "67"),
    "coscheml": ("0", "0", "0", "78"),
}
"""Section 6.2, over ten workloads: by how many per cent Co-scheML's makespan and mean JCT are lower
than each policy's and its speed-up higher, and the GPU utilisation of each in %."""


def main() -> None:
    """Run and print the tables."""
    options = _options()
    cases = [
        _case(options, world, nodes, interval, workload)
        for world in options.worlds
        for nodes in options.nodes
        for interval in options.intervals
        for workload in range(options.seeds)
    ]
    rows = results(cases, options, 1)
    for world, nodes, interval in product(options.worlds, options.nodes, options.intervals):
        where = {"world": world, "nodes": str(nodes), "interval_s": f"{interval:g}"}
        mine = [row for row in rows if where.items() <= row.items()]
        title = f"{world}, {nodes} GPUs, one job every {interval:g} s"
        _print(title, mine, options.policies)


def _options() -> argparse.Namespace:
    parser = common_options(__doc__, POLICIES)
    parser.set_defaults(seeds=10)
    parser.add_argument("--worlds", nargs="+", default=["v100", "rtx3090"], choices=worlds.NAMES)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 4])
    parser.add_argument("--intervals", type=float, nargs="+", default=[15.0, 30.0, 60.0])
    parser.add_argument("--beliefs", default="noise:0.05")
    return parsed(parser)


def _case(
    options: argparse.Namespace, name: str, nodes: int, interval_s: float, workload: int
) -> Case:
    labels = {
        "world": name,
        "nodes": str(nodes),
        "interval_s": f"{interval_s:g}",
        "workload": str(workload),
        "beliefs": options.beliefs,
    }
    world = _world(name, options.data, nodes)
    setup = Setup(
        trace=workload_of(world, interval_s, workload),
        world=world,
        beliefs=beliefs_named(options.beliefs),
    )
    return Case(labels, setup)


def _world(name: str, data: Path, nodes: int) -> Instance:
    if name == "rtx3090":
        return worlds.lucid(data, nodes, gpus_per_node=1, memory_mib=GPU_MIB)
    return worlds.named(name, data, nodes, gpus_per_node=1)


def workload_of(world: Instance, interval_s: float, seed: int) -> Trace:
    """Return twelve applications twice, in random order; the interval changes arrivals only."""
    rng = np.random.default_rng(seed)
    fitting = [name for name, w in world.workloads.items() if w.memory_mib <= GPU_MIB]
    applications = rng.choice(fitting, APPLICATIONS, replace=False).tolist()
    low, high = map(math.log, DURATIONS_S)
    duration_s = np.exp(rng.uniform(low, high, APPLICATIONS)).round()
    order = rng.permutation(COPIES * APPLICATIONS) % APPLICATIONS
    return Trace.of(
        f"coscheml-{seed}",
        [
            TraceJob(f"j{k}", k * interval_s, 1, float(duration_s[which]), applications[which])
            for k, which in enumerate(order.tolist())
        ],
    )


def _print(title: str, rows: list[Row], policies: Sequence[str]) -> None:
    own = [row for row in rows if row["policy"] == "coscheml"]
    head = (
        *("policy", "makespan min", "mean JCT min", "speed-up", "utilisation %"),
        *("makespan: Co-scheML lower by %", "JCT %", "speed-up higher by %"),
    )
    body = []
    for policy, mine in by_policy(rows, policies):
        paper = PAPER.get(policy, ("-",) * 4)
        lower = [
            100 * (1 - number(own, name) / number(mine, name))
            for name in ("makespan_s", "jct_mean_s")
        ]
        higher = 100 * (number(own, "speedup_mean") / number(mine, "speedup_mean") - 1)
        body.append(
            [
                label(policy, mine),
                f"{number(mine, 'makespan_s') / 60:.1f}",
                f"{number(mine, 'jct_mean_s') / 60:.1f}",
                f"{number(mine, 'speedup_mean'):.3f}",
                f"{100 * number(mine, 'kernel_utilisation'):.0f} ({paper[3]})",
                *(
                    f"{value:+.1f} ({theirs})"
                    for value, theirs in zip([*lower, higher], paper[:3], strict=True)
                ),
            ]
        )
    print_table(f"Co-scheML 6.2: {title}; ours (paper's)", head, body)
    print_waits(title, rows, policies)


if __name__ == "__main__":
    end_in_one_line(main)
