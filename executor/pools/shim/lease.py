"""The lease of a rank, as read by its shim."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import zlib
from typing import TYPE_CHECKING, NamedTuple

from .kernel import LIBC, boot_id, boot_s, raise_errno

if TYPE_CHECKING:
    from collections.abc import Callable

LAPSED = "the lease of its node lapsed"
"""The reason that is reported for a rank whose lease was not renewed."""

_AHEAD_S = 2.0
"""Seconds before a lease's end at which its file is read, early enough to read it again."""

_AGAIN_S = 0.5
_LOOK_S = 0.5
_LOOKS = 3
_SETTLED_S = 0.01
_MOST_BYTES = 65536
_TFD_TIMER_ABSTIME = 1


class LeaseRecord(NamedTuple):
    """The content of a lease file, in seconds since the machine booted.

    ``since_s`` distinguishes a lease from an earlier one, whose ranks must not continue.
    """

    since_s: float
    deadline_s: float


def lease_line(record: LeaseRecord, boot: str) -> bytes:
    """Return the line of a lease file; its length is fixed, so that it can be overwritten."""
    text = f"{record.since_s:020.6f} {record.deadline_s:020.6f} {boot}"
    return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


def read_lease(path: str, boot: str) -> LeaseRecord | None:
    """Return the content of a lease file, or None if it is garbled or from another boot.

    Raises
    ------
    OSError
        When it cannot be read.
    """
    with open(path, "rb") as file:
        line = file.read(_MOST_BYTES)
    try:
        since, deadline, *_ = line.split()
        found = LeaseRecord(float(since), float(deadline))
    except ValueError:
        return None
    return found if line == lease_line(found, boot) else None


class Alarm:
    """Sleeps by the clock that includes suspended time, unlike ``poll`` and ``sleep``."""

    def __init__(self) -> None:
        self._timer = LIBC.timerfd_create(time.CLOCK_BOOTTIME, os.O_CLOEXEC)
        if self._timer < 0:
            raise_errno()

    def sleep_until(self, at_s: float) -> None:
        """Sleep until a time in seconds since the machine booted; return if it has passed."""
        moment = int(at_s), int(at_s % 1 * 1e9)
        # An interval of 0: once.
        times = (ctypes.c_long * 4)(0, 0, *moment)
        if LIBC.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, times, None) < 0:
            raise_errno()
        os.read(self._timer, 8)


class Lease:
    """The permission to run a rank, which ends unless its file is renewed in time.

    The file is read in a separate thread, so that a hanging disk does not prolong the lease.

    Parameters
    ----------
    path : str
        The lease file.
    kill_s : float
        Seconds between its end and the kill of the rank's processes.

    Attributes
    ----------
    deadline_s : float
        The latest known end of the lease.
    """

    def __init__(self, path: str, kill_s: float) -> None:
        self._path, self._boot = path, boot_id()
        self.kill_s = kill_s
        self._since_s: float | None = None
        self.deadline_s = 0.0

    @property
    def lapsed(self) -> bool:
        """Whether it has ended."""
        return boot_s() >= self.deadline_s

    def look(self) -> None:
        """Update the deadline from the file; an unreadable or garbled file changes nothing."""
        found = self._found()
        if found is None:
            return
        if self._since_s is None:
            self._since_s = found.since_s
        # A new lease does not apply to ranks of this one, which lapsed before it began.
        if found.since_s == self._since_s:
            self.deadline_s = max(self.deadline_s, found.deadline_s)

    def _found(self) -> LeaseRecord | None:
        # Several times, because it may be being written.
        for _ in range(_LOOKS):
            with contextlib.suppress(OSError):
                if found := read_lease(self._path, self._boot):
                    return found
            time.sleep(_SETTLED_S)
        return None

    def outlast(self, alarm: Alarm, reader: LeaseReader) -> None:
        """Return once it has lapsed.

        The file is read shortly before the lease's end and, if it was not renewed, repeatedly until
        the end.

        Parameters
        ----------
        alarm : Alarm
            The clock to sleep by.
        reader : LeaseReader
            The reader of this lease.
        """
        while True:
            now, ahead_s = boot_s(), self.deadline_s - _AHEAD_S
            alarm.sleep_until(ahead_s if now < ahead_s else min(now + _AGAIN_S, self.deadline_s))
            reader.read()
            if self.lapsed:
                return


class LeaseReader:
    """Reads on request in a thread, so that the caller waits only briefly."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._asked, self._done = threading.Event(), threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def read(self) -> None:
        """Request a read, and return when it is done or takes too long."""
        self._done.clear()
        self._asked.set()
        self._done.wait(_LOOK_S)

    def _serve(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            self._look()
            self._done.set()
