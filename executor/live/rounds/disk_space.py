"""Check that a disk has room for the files that a start of a job writes."""

from __future__ import annotations

import os
from typing import Final

from dovetail.instances.errors import DovetailError

LEAST_BYTES: Final = 8 * 2**20
"""Space for the journal's log, and for a run's specification, claim, exit status and output."""

_LEAST_FILES: Final = 100


class DiskFullError(DovetailError):
    """A disk has too little room to start jobs."""


def require_space(directory: str) -> None:
    """Refuse a directory whose disk is almost full; do nothing if the name is empty.

    Raises
    ------
    DiskFullError
        If it is almost full.
    OSError
        If the disk cannot be examined.
    """
    if not directory:
        return
    found = os.statvfs(directory)
    few_files = found.f_files and found.f_favail < _LEAST_FILES
    if few_files or found.f_bavail * found.f_frsize < LEAST_BYTES:
        rule = f"its disk must have {LEAST_BYTES // 2**20} MiB and {_LEAST_FILES} files left"
        raise DiskFullError(f"{directory}: {rule}: nothing is started")
