"""``dovetail generate``: a synthetic instance."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from dovetail.toolkit.commands import OUTPUT, SEED, Command, option, whole
from dovetail.toolkit.files import write_made

GENERATE: Final = Command(
    "generate",
    "Make a synthetic instance from a seed.",
    "dovetail.data.generate:generate",
    (
        option("--jobs N", "number of jobs", whole(1), required=True),
        SEED._replace(text="same seed, same instance", kind=int),
        option("--gpus N", "number of GPUs (default: 40 % of the demand)", whole(1)),
        option("--workloads N", "number of workloads (default: at most 64)", whole(1)),
        option("--no-gangs", "one GPU for each job"),
        option(
            "--gang-sharing RULE",
            "the cluster's rule, partial or whole",
            default="partial",
            choices=("partial", "whole"),
        ),
        option("--running F", "fraction of the jobs that run already", float, "0"),
        OUTPUT,
    ),
)


def generate(options: Namespace) -> int:
    """Write a synthetic instance."""
    from dovetail.instances.generate import generate as made

    write_made(
        options,
        made(
            options.jobs,
            seed=options.seed,
            gpus=options.gpus,
            workloads=options.workloads,
            gangs=not options.no_gangs,
            gang_sharing=options.gang_sharing,
            running=options.running,
        ),
    )
    return 0
