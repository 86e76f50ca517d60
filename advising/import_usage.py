"""``dovetail import usage``: an instance of what runs and waits on a cluster."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Final

from dovetail.toolkit.commands import OUTPUT, Command, argument, option, pair

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
            "--assume-slowdown S",
            "let jobs with parts of GPUs share if their memory fits, and assume that two slow each "
            "other by S >= 1 (default: no job shares)",
            float,
        ),
        OUTPUT,
    ),
)


def import_usage(options: Namespace) -> int:
    """Write an instance of records; report what was chosen or left out."""
    from dovetail.advising.reader import read_usage
    from dovetail.advising.snapshot import instance_of
    from dovetail.advising.usage import joined, require_jobs
    from dovetail.toolkit.files import write_made

    usage = joined([read_usage(path, options.form) for path in options.files])
    require_jobs(usage, ", ".join(options.files))
    made = instance_of(
        usage,
        options.name,
        card_mib={model: float(mib) for model, mib in options.gpu_memory},
        model=options.gpu_model,
        assumed=options.assume_slowdown,
    )
    for note in (*map(str, usage.left_out), *usage.notes, *made.notes):
        print(f"dovetail: {note}", file=sys.stderr)
    write_made(options, made.instance)
    return 0
