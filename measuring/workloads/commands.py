"""Commands to this process, and the signals that ask it to end."""

from __future__ import annotations

import json
import os
import select
import signal
from types import FrameType
from typing import NamedTuple

RUN, STOP, PROFILE, QUIT = "run", "stop", "profile", "quit"
POISSON, FIXED = "poisson", "fixed"


class WorkerCommand(NamedTuple):
    """What to do.

    ``trace`` is the file that ``profile`` writes. ``run`` with ``requests_s``, the requests a
    second, answers these in place of the workload's own or of iterations without a pause;
    ``arrivals`` says whether they come at random times (``poisson``) or at equal distances
    (``fixed``).
    """

    do: str
    trace: str = ""
    requests_s: float = 0.0
    arrivals: str = POISSON


class Commands:
    """Lines of standard input, read on demand.

    SIGTERM, SIGINT and the end of input are treated as ``quit``, so that the process ends between
    two pieces of work: MPS may not survive other ends.
    """

    def __init__(self, source: int = 0) -> None:
        self._source = source
        self._unread = b""
        self._ending: WorkerCommand | None = None
        self._signalled, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _noted)

    def next(self) -> WorkerCommand:
        """Wait for the next command, and return it.

        Raises
        ------
        ValueError
            If a line is not a command.
        """
        found, self._ending = self._ending or self._read(None) or WorkerCommand(QUIT), None
        return found

    def end(self, within_s: float = 0) -> bool:
        """Return whether the run must end; wait at most ``within_s`` seconds for the command.

        ``next`` then returns the command that ends it.
        """
        self._ending = self._ending or self._read(within_s)
        if self._ending is not None and self._ending.do in (RUN, PROFILE):
            raise ValueError(f"{self._ending.do} was commanded during a run")
        return self._ending is not None

    def _read(self, within_s: float | None) -> WorkerCommand | None:
        while b"\n" not in self._unread:
            wait_s = None if within_s is None else max(0.0, within_s)
            ready, _, _ = select.select([self._signalled, self._source], [], [], wait_s)
            if not ready:
                return None
            read = b"" if self._signalled in ready else os.read(self._source, 65536)
            if not read:
                return WorkerCommand(QUIT)
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return _command(line)


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python has already written to the wake-up pipe."""


def _command(line: bytes) -> WorkerCommand:
    try:
        found = WorkerCommand(**json.loads(line))
    except (ValueError, TypeError):
        found = WorkerCommand("")
    known = found.do in (RUN, STOP, PROFILE, QUIT) and found.arrivals in (POISSON, FIXED)
    due = isinstance(found.requests_s, float | int) and found.requests_s >= 0
    if not known or not due or (found.do == PROFILE and not found.trace):
        raise ValueError(f"no command: {line.decode(errors='replace')!r}")
    return found
