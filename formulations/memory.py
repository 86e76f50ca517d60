"""How much memory a round may take: estimated before it is taken."""

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
    """Return what the arrays of a round may take: half the memory that the process may have.

    That is the least of the machine's memory, the limits of the process (``ulimit -v``, ``-d``)
    and that of its container. What others use does not count, so that the same machine gives the
    same plan.
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
    """Refuse what would take more bytes than there is room for.

    Raises
    ------
    UnsupportedError
        With what it is and how much it needs.
    """
    room = room_bytes()
    if needed > room:
        need = f"need about {needed / _GIB:.3g} GiB"
        raise UnsupportedError(f"{what} {need}, half the memory is {room / _GIB:.3g} GiB")
