"""Waiting for events in other threads and processes, without assertions on time."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 300.0
"""After so long, what a test waits for will not come: the machine may be busy with much else."""


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    """Return once ``condition()`` holds; fail with ``what`` when it does not in time.

    One that takes long (a look at all processes, a command) is tried less often.
    """
    began = now = time.monotonic()
    while not condition():
        took, now = time.monotonic() - now, time.monotonic()
        if now > began + LIMIT_S:
            raise AssertionError(f"not within {LIMIT_S:g} s: {what or condition}")
        time.sleep(min(max(0.02, 3 * took), 0.5))
        now = time.monotonic()
