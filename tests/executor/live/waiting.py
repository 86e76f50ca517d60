"""Waiting for what happens in other threads and processes, without asserting on time."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], within_s: float = 60.0, what: str = "") -> None:
    """Return once ``condition()`` holds; fail with ``what`` when it does not in time."""
    until = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"not within {within_s:g} s: {what or condition}")
        time.sleep(0.02)
