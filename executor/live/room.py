"""Whether a disk has room for what the start of a job writes."""

from __future__ import annotations

import os
from typing import Final

from dovetail.instances.errors import DovetailError

LEAST_BYTES: Final = 8 * 2**20
"""For the journal's log, and for specification, claim, exit status and first output of a run."""

_LEAST_FILES: Final = 100


class DiskFullError(DovetailError):
    """A disk has too little room for jobs to be started."""


def require_room(directory: str) -> None:
    """Refuse a directory whose disk is almost full; empty: do nothing.

    Raises
    ------
    DiskFullError
        One line.
    OSError
        When the disk cannot be examined.
    """
    if not directory:
        return
    found = os.statvfs(directory)
    few_files = found.f_files and found.f_favail < _LEAST_FILES
    if few_files or found.f_bavail * found.f_frsize < LEAST_BYTES:
        rule = f"its disk must have {LEAST_BYTES // 2**20} MiB and {_LEAST_FILES} files left"
        raise DiskFullError(f"{directory}: {rule}: nothing is started")
