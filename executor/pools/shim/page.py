"""The page in which a rank reports its progress: memory of a fixed size.

A file that the job's user may write could fill the disk, through the job or another process of the
user that has it open. A sealed page can neither grow nor shrink.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

from .durable import write_new

NUMBER = 198
"""The descriptor of the page in a shim and in its rank: programs and scripts use lower ones."""

OWN = f"/proc/self/fd/{NUMBER}"
"""The path of the page in the process that has it."""

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def make(size: int) -> None:
    """Create the page of this process and its forks."""
    page = os.memfd_create("dovetail-progress", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(page, size)
    fcntl.fcntl(page, fcntl.F_ADD_SEALS, SEALS)
    os.dup2(page, NUMBER)
    os.close(page)


def hand_over(user: dict[str, int] | None) -> None:
    """Let only a user write to the page; None: this process's user."""
    os.fchmod(NUMBER, 0o600)
    if user is not None:
        os.fchown(NUMBER, user["uid"], user["gid"])


def named(environment: dict[str, str]) -> dict[str, str]:
    """Return a rank's environment in which the page's path contains the PID of this process.

    Children close descriptors that they do not know, but still find the page by this path. If no
    variable names the page, it is closed.
    """
    if OWN not in environment.values():
        os.close(NUMBER)
        return environment
    path = f"/proc/{os.getpid()}/fd/{NUMBER}"
    return {name: path if value == OWN else value for name, value in environment.items()}


def leave(path: str) -> None:
    """Write the content of the page to a file, unless the page is empty."""
    with contextlib.suppress(OSError):
        content = os.pread(NUMBER, os.fstat(NUMBER).st_size, 0)
        if content.strip(b"\0"):
            os.close(write_new(path, content))
