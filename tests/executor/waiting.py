"""Waiting for events in other threads and processes, without assertions on time."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 300.0
"""After so long, what a test waits for will not come: the machine may be busy with much else."""


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    """Return once ``condition()`` holds; fail with ``what`` when it does not in time."""
    until = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"not within {LIMIT_S:g} s: {what or condition}")
        time.sleep(0.02)
