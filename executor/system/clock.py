"""The clock of live mode: close to the time of day, and monotonic."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def boot_s() -> float:
    """Return seconds since the machine booted, including suspended time; it cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the kernel's id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class ServiceClock:
    """Seconds close to the time since the epoch, which continue from the end of a journal.

    The time of day is read once. From then on the clock follows the machine's uptime, so that
    setting the system clock ends no job and reorders no event.

    Parameters
    ----------
    least_s : float
        The end of the journal; the clock starts no earlier.
    boot_s : callable
        Returns seconds since the machine booted.
    """

    def __init__(self, least_s: float = 0.0, boot_s: Callable[[], float] = boot_s) -> None:
        self.boot_s = boot_s
        self._offset_s = max(time.time(), least_s) - boot_s()

    def now_s(self) -> float:
        """Return the present time."""
        return self.at(self.boot_s())

    def at(self, since_boot_s: float) -> float:
        """Return the time of this clock for a time in seconds since the machine booted."""
        return since_boot_s + self._offset_s
