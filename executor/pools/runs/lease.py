"""The lease of a node: the time until which its ranks may run, unless it is renewed.

One small file per node tells all its shims, so a renewal costs the same for any number of ranks.
``docs/internals/launcher.md`` describes how shims use it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from dovetail.executor.pools.shim.lease import LeaseRecord, lease_line, read_lease
from dovetail.executor.system.clock import boot_id, boot_s

KILL_S: Final = 5.0
"""Seconds between a lapse, when ranks are asked to end, and the kill of their processes."""


SHIM_KILL_S: Final = 10.0
"""Seconds that a shim has to kill its rank before it is killed itself."""


class NodeLease:
    """The lease of this node, written by one process and renewed from any thread.

    A lease that lapsed may be renewed, but not for ranks that ran before: it is then a new lease,
    which their shims recognize by its start time.

    Parameters
    ----------
    path : path
        Its file. A lease in it that was written since this boot is continued.
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
        """Whether no rank may run or be started."""
        return boot_s() >= self.deadline_s

    def end_of(self, started_s: float) -> float:
        """Return until when a rank that started at a given time may run.

        A rank older than this lease had an earlier lease, which ended before this one began.
        """
        record = self._record
        return record.since_s if started_s < record.since_s else record.deadline_s

    def renew_until(self, deadline_s: float) -> None:
        """Let ranks run until a deadline; one that is earlier than the present changes nothing.

        Parameters
        ----------
        deadline_s : float
            Seconds since the machine booted.

        Raises
        ------
        OSError
            When it cannot be written; the lease is then unchanged.
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
    """Overwrite the line, which needs no space on a full disk.

    A reader that sees a partial write notices it by the checksum.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.pwrite(file, line, 0) != len(line):
            raise OSError("the lease could only be written in part")
    finally:
        os.close(file)
