"""Carries out ``advise``."""

from __future__ import annotations

from argparse import Namespace

from dovetail.advising.reader import read_usage
from dovetail.advising.usage import joined, require_jobs
from dovetail.toolkit.wording import counted


def advise(options: Namespace) -> int:
    """Read the files and print the advice."""
    usage = joined([read_usage(path, options.form) for path in options.files])
    require_jobs(usage, ", ".join(options.files))
    print(counted({"job": len(usage.jobs)}))
    return 0
