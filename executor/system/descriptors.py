"""How many files and sockets the service may have open, and its jobs."""

from __future__ import annotations

import resource
from typing import Final

FOR_JOBS: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""What the service was started with: many programs go wrong under a far larger limit."""


def take_all() -> int:
    """Let this process have as many descriptors as it may, and return how many that are."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
