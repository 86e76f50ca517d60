"""Limits on the open files and sockets of the service and its jobs."""

from __future__ import annotations

import resource
from typing import Final

FOR_JOBS: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""The limit that the service was started with: many programs fail under a far larger one."""


def take_all() -> int:
    """Raise this process's limit on descriptors to the maximum, and return it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
