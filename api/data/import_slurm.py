"""``dovetail import slurm``: an instance of a cluster under Slurm."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Final

from dovetail.toolkit.commands import OUTPUT, Command, option, pair
from dovetail.toolkit.files import write_made

SLURM: Final = Command(
    "slurm",
    "Make an instance of a cluster under Slurm, as it is now.",
    "dovetail.data.import_slurm:import_slurm",
    (
        option(
            "--gpu-memory TYPE=MIB",
            "memory of GPUs of this type (gpu: of GPUs without a type); may be repeated",
            pair("TYPE=MIB", r"\d+(?:\.\d+)?"),
            repeated=True,
        ),
        option("--jobs FILE", "output of squeue --json (default: run it)"),
        option("--nodes FILE", "output of scontrol show node (default: run it)"),
        option("--topology FILE", "topology.conf: leaf switches are racks"),
        option("--partition P", "nodes and jobs of this partition only"),
        option("--constraint F", "nodes with this feature only"),
        OUTPUT,
    ),
)


def import_slurm(options: Namespace) -> int:
    """Write an instance of a cluster under Slurm; report what was left out."""
    from dovetail.instances.importers.slurm import import_slurm as read

    made = read(
        {name: float(mib) for name, mib in options.gpu_memory},
        jobs=options.jobs,
        nodes=options.nodes,
        topology=options.topology,
        partition=options.partition,
        constraint=options.constraint,
    )
    if made.left_out:
        print(f"dovetail: left out: {'; '.join(made.left_out)}", file=sys.stderr)
    write_made(options, made.instance)
    return 0
