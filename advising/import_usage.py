"""``dovetail import usage``: an instance of what runs and waits on a cluster."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Final

from dovetail.instances.errors import InputError
from dovetail.toolkit.commands import (
    GPUS_PER_NODE,
    OUTPUT,
    Command,
    argument,
    finite,
    option,
    pair,
    whole,
)

IMPORT_USAGE: Final = Command(
    "usage",
    "Make an instance of what runs and waits on a cluster, from its records.",
    "dovetail.advising.import_usage:import_usage",
    (
        argument("FILE ...", "records of jobs and nodes, as for dovetail advise", "files"),
        option("--form NAME", "the reader of all files (default: the one that recognises each)"),
        option("--name NAME", "name of the instance", default="snapshot"),
        option(
            "--gpu-memory MODEL=MIB",
            "memory of GPUs of this model, if the records do not say it; may be repeated",
            pair("MODEL=MIB", r"\d+(?:\.\d+)?"),
            repeated=True,
        ),
        option("--gpu-model MODEL", "take the GPUs of this model only"),
        option(
            "--gpus N",
            "take N free GPUs of the model of --gpu-memory in place of those in the records; all "
            "jobs then wait",
            whole(1),
        ),
        GPUS_PER_NODE,
        option(
            "--assume-slowdown S",
            "let jobs with parts of GPUs share if their memory fits, and assume that two slow each "
            "other by S >= 1 (default: no job shares)",
            finite,
        ),
        OUTPUT,
    ),
)


def import_usage(options: Namespace) -> int:
    """Write an instance of records; report what was chosen or left out."""
    from dovetail.advising.reader import read_usage
    from dovetail.advising.snapshot import instance_of, on_new_nodes
    from dovetail.advising.usage import joined, require_jobs
    from dovetail.toolkit.files import naming, write_made

    card_mib = {model: float(mib) for model, mib in options.gpu_memory}
    usage = joined([read_usage(path, options.form) for path in options.files])
    require_jobs(len(usage.jobs), usage.left_out, ", ".join(options.files))
    if options.gpus is not None:
        if len(card_mib) != 1:
            got = ", ".join(card_mib) or "none"
            raise InputError(f"needs one --gpu-memory MODEL=MIB, got {got}", "--gpus")
        ((model, memory_mib),) = card_mib.items()
        usage = on_new_nodes(usage, options.gpus, options.gpus_per_node, model, memory_mib)
    with naming(", ".join(options.files)):
        made = instance_of(
            usage,
            options.name,
            card_mib=card_mib,
            model=options.gpu_model,
            assumed=options.assume_slowdown,
        )
    for note in (*map(str, usage.left_out), *usage.notes, *made.notes):
        print(f"dovetail: {note}", file=sys.stderr)
    write_made(options, made.instance)
    return 0
