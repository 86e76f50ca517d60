"""Declaration of the command ``doctor``."""

from __future__ import annotations

from typing import Final

from dovetail.toolkit.commands import Command, option
from dovetail.toolkit.values import address

COMMANDS: Final = (
    Command(
        "doctor",
        "Check what this machine lacks for live mode; exit status 0: jobs can share "
        "GPUs with SM shares, 3: without, 1: not at all.",
        "dovetail.doctor.commands:doctor",
        (
            option("--python FILE", "a Python with the PyTorch that jobs use (default: this one)"),
            option("--directory DIR", "the service's directory (default: that of serve)"),
            option("--socket PATH", "the service's socket (default: that of serve)"),
            option("--listen HOST:PORT", "see whether the service could listen there", address),
        ),
    ),
)
