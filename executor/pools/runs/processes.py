"""Processes of this machine: identified by pid and start time, and found by their token."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.pools.shim import kernel
from dovetail.executor.pools.shim.kernel import Stat, every_process, stat_of

TOKEN: Final = "DOVETAIL_LAUNCH"
"""The variable that every process of a rank inherits; its value is directory, run and rank."""


class ProcessId(NamedTuple):
    """A process, distinguished by its start time from later processes with its PID."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether it runs; a zombie does not."""
        stat = stat_of(self.pid)
        return stat is not None and stat.started == self.started and runs(stat)

    def send(self, number: int) -> bool:
        """Send it a signal, and return whether that succeeded."""
        return kernel.send(self.pid, self.started, number)

    def watch(self) -> int | None:
        """Return a descriptor that becomes readable when it ends, or None if it has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        # The PID may have been reused before it was opened.
        if self.alive:
            return descriptor
        os.close(descriptor)
        return None


def runs(stat: Stat) -> bool:
    """Return whether a process runs, and is not a zombie."""
    return stat.state not in "ZX"


def tokens() -> Iterator[tuple[ProcessId, str]]:
    """Yield every process whose environment can be read and has a token, with the token.

    The environment is the one that its program was started with: later changes are not visible.
    """
    name = f"{TOKEN}=".encode()
    for stat in every_process():
        try:
            environment = Path(f"/proc/{stat.pid}/environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            # It has ended, or belongs to another user.
            continue
        for entry in environment.split(b"\0"):
            if entry.startswith(name) and runs(stat):
                yield ProcessId(stat.pid, stat.started), entry[len(name) :].decode(errors="replace")
                break


def holders(token: str, uid: int) -> list[ProcessId]:
    """Return the running processes that hold the token of a user's rank.

    Processes of other users that put the token into their environment are left out. Jobs of root
    may change to any user.
    """
    return [
        process
        for process, held in tokens()
        if held == token and (uid == 0 or _user(process) in (uid, 0, os.geteuid()))
    ]


def _user(process: ProcessId) -> int | None:
    try:
        return Path(f"/proc/{process.pid}").stat().st_uid
    except FileNotFoundError:
        return None


def session(leader: ProcessId) -> list[ProcessId]:
    """Return the running processes of the session that a process leads or led.

    Empty if its PID has been reused: then the session has ended.
    """
    now = stat_of(leader.pid)
    if now is not None and now.started != leader.started:
        return []
    return [
        ProcessId(stat.pid, stat.started)
        for stat in every_process()
        if stat.session == leader.pid and stat.started >= leader.started and runs(stat)
    ]
