"""The control group of processes that outlive the service, apart from the service's own group.

Under a unit of systemd with ``Delegate=yes`` and ``DelegateSubgroup=`` (systemd 254), the service
starts in a group of its own below that of the unit, so that a limit of memory there binds the
service alone. What runs on without it is moved to the group ``jobs`` beside it: the fork server
with all jobs, and daemons of MPS. See ``systemd.resource-control(5)``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_NAME: Final = "jobs"


def entry_of_jobs(mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the file by which a process enters the group of jobs; create the group if needed.

    Empty if this process has no group of its own below one that was delegated to it.
    """
    own = _own_group(mounts.read_text("utf-8", errors="replace"))
    if own is None:
        return ""
    with suppress(OSError):
        if os.getxattr(own.parent, "user.delegate") == b"1":
            group = own.parent / _NAME
            group.mkdir(exist_ok=True)
            return str(group / "cgroup.procs")
    return ""


def move_to_jobs(pid: int) -> None:
    """Move a process to the group of jobs, if there is one; nothing depends on it."""
    entry = entry_of_jobs()
    if entry:
        with suppress(OSError):
            Path(entry).write_text(str(pid), encoding="ascii")


def _own_group(mounts: str) -> Path | None:
    """Return the group of this process in the hierarchy of version 2, None without one."""
    groups = Path("/proc/self/cgroup").read_text("utf-8", errors="replace").splitlines()
    own = next((line.removeprefix("0::") for line in groups if line.startswith("0::")), None)
    for line in mounts.splitlines():
        place, _, kind = line.partition(" - ")
        if own is not None and kind.startswith("cgroup2 "):
            root, point = place.split()[3:5]
            return Path(os.path.normpath(f"{point}/{os.path.relpath(own, root)}"))
    return None
