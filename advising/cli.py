"""The command ``advise``."""

from __future__ import annotations

from typing import Final

from dovetail.toolkit.commands import Command, argument, option

ADVISE: Final = Command(
    "advise",
    "Say which jobs could share GPUs and what that would save, from records of a cluster's use.",
    "dovetail.advising.commands:advise",
    (
        argument(
            "FILE ...",
            "records of jobs, nodes and utilisation (sacct, kubectl, nvidia-smi, Prometheus ...)",
            "files",
        ),
        option("--form NAME", "the reader of all files (default: the one that recognises each)"),
    ),
    section="planning",
)
