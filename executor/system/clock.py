"""The clock of live mode: near the time of day, and never going back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def boot_s() -> float:
    """Return seconds since the machine booted; suspended time counts, and it cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the name that the kernel gave itself when the machine booted."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class ServiceClock:
    """Seconds near the time since the epoch that go on where a journal ended.

    The time of day is read once. From then on the clock follows the machine's uptime, so that a
    clock that is set, forward or back, ends no job and reorders no event.

    Parameters
    ----------
    least_s : float
        Where the journal ended; the clock begins no earlier.
    boot_s : callable
        Returns seconds since the machine booted.
    """

    def __init__(self, least_s: float = 0.0, boot_s: Callable[[], float] = boot_s) -> None:
        self.boot_s = boot_s
        self._offset_s = max(time.time(), least_s) - boot_s()

    def now_s(self) -> float:
        """Return the present moment."""
        return self.at(self.boot_s())

    def at(self, since_boot_s: float) -> float:
        """Return a moment that is given in seconds since the machine booted."""
        return since_boot_s + self._offset_s
