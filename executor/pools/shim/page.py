"""The page in which a rank says how far it is: memory of a fixed size.

A file that a job's user may write can be made as large as its disk, by the job or, as long as
anything has it open, by others of its user. A page can be neither grown nor cut.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

from .durable import write_new

NUMBER = 198
"""The descriptor of the page in a shim and in its rank: programs and scripts use lower ones."""

OWN = f"/proc/self/fd/{NUMBER}"
"""The page as the process that has it finds it."""

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def make(size: int) -> None:
    """Make the page of this process and of what it forks."""
    page = os.memfd_create("dovetail-progress", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(page, size)
    fcntl.fcntl(page, fcntl.F_ADD_SEALS, SEALS)
    os.dup2(page, NUMBER)
    os.close(page)


def hand_over(user: dict[str, int] | None) -> None:
    """Let only a user write to the page; None: this process's own."""
    os.fchmod(NUMBER, 0o600)
    if user is not None:
        os.fchown(NUMBER, user["uid"], user["gid"])


def named(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment of a rank in which the page goes by the number of this process.

    Children close descriptors that they do not know, and find it there all the same. If nothing
    in the environment names the page, this process has it no more.
    """
    if OWN not in environment.values():
        os.close(NUMBER)
        return environment
    path = f"/proc/{os.getpid()}/fd/{NUMBER}"
    return {name: path if value == OWN else value for name, value in environment.items()}


def leave(path: str) -> None:
    """Write what the page says to a file, if it says anything."""
    with contextlib.suppress(OSError):
        content = os.pread(NUMBER, os.fstat(NUMBER).st_size, 0)
        if any(content):
            os.close(write_new(path, content))
