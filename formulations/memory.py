"""The memory that a round may take, estimated before it is allocated."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from dovetail.instances.errors import UnsupportedError

_GIB = 2.0**30
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def room_bytes() -> float:
    """Return the bytes that a round's arrays may take: half the memory of the process.

    That memory is the least of the machine's memory, the limits of the process (``ulimit -v``,
    ``-d``) and the limit of its container. The use by other processes is ignored, so that the same
    machine gives the same plan.
    """
    limits = [float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))]
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            limits.append(float(soft))
    for path in _CGROUP_LIMITS:
        try:
            limits.append(float(path.read_text()))
        except (OSError, ValueError):  # no such limit, or "max"
            continue
    return min(limits) / 2


def require_room(needed: float, what: str) -> None:
    """Refuse arrays that would take more bytes than there is room for.

    Raises
    ------
    UnsupportedError
        If they would; the message has what they are and how much they need.
    """
    room = room_bytes()
    if needed > room:
        need = f"need about {needed / _GIB:.3g} GiB"
        raise UnsupportedError(f"{what} {need}, half the memory is {room / _GIB:.3g} GiB")
