"""The lease of a node: until when its ranks may run, unless it is renewed.

One small file a node says it to all its shims, so that a renewal costs the same however many
ranks there are. ``docs/internals/launcher.md`` tells what shims make of it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from dovetail.executor.pools.shim.lease import LeaseRecord, lease_line, read_lease
from dovetail.executor.system.clock import boot_id, boot_s

KILL_S: Final = 5.0
"""Seconds between a lapse, when ranks are asked to end, and the kill of what is left of them."""


SHIM_KILL_S: Final = 10.0
"""Seconds that a shim has to kill what it guards, before it is killed itself."""


class Lease:
    """The lease of this node, written by one process; renewing it is safe from any thread.

    A lease that lapsed may be renewed, but never for ranks that ran before: it is another one
    then, and their shims know that from its beginning.

    Parameters
    ----------
    path : path
        Its file. What is there of this boot is taken up.
    kill_s : float
        Seconds between a lapse and the kill.

    Raises
    ------
    OSError
        When there is a file that cannot be read.
    """

    def __init__(self, path: Path, kill_s: float = KILL_S) -> None:
        self.path, self.kill_s = path, kill_s
        self._boot = boot_id()
        self._record = _known(path, self._boot)
        self._renewing = threading.Lock()

    @property
    def deadline_s(self) -> float:
        """When it lapses, seconds since the machine booted; 0 before the first renewal."""
        return self._record.deadline_s

    @property
    def lapsed(self) -> bool:
        """Whether no rank may run, nor be started."""
        return boot_s() >= self.deadline_s

    def end_of(self, started_s: float) -> float:
        """Return until when a rank may run that was started then, under a lease of this node.

        One that is older than this lease had another, which had ended when this one began.
        """
        record = self._record
        return record.since_s if started_s < record.since_s else record.deadline_s

    def renew_until(self, deadline_s: float) -> None:
        """Let ranks run until then; an earlier deadline than the known one changes nothing.

        Parameters
        ----------
        deadline_s : float
            Seconds since the machine booted.

        Raises
        ------
        OSError
            When it cannot be written. The lease is what it was then.
        """
        with self._renewing:
            if deadline_s <= self.deadline_s:
                return
            since_s = boot_s() if self.lapsed else self._record.since_s
            record = LeaseRecord(since_s, deadline_s)
            _write(self.path, lease_line(record, self._boot))
            self._record = record


def _known(path: Path, boot: str) -> LeaseRecord:
    try:
        return read_lease(str(path), boot) or LeaseRecord(0.0, 0.0)
    except FileNotFoundError:
        return LeaseRecord(0.0, 0.0)


def _write(path: Path, line: bytes) -> None:
    """Write a line over the one before, which takes no room on a disk that is full.

    A reader that sees half of it notices by the check sum.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.pwrite(file, line, 0) != len(line):
            raise OSError("the lease could be written in part only")
    finally:
        os.close(file)
