"""What /proc says of processes: the only proof of whose a daemon is."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process that lives; ``started`` (clock ticks since boot) tells pids from reused ones."""

    pid: int
    parent: int
    started: int
    uid: int
    arguments: tuple[str, ...]

    def runs(self, program: str) -> bool:
        """Whether it runs a program of this name, an interpreter before it allowed."""
        return any(Path(argument).name == program for argument in self.arguments[:4])

    def environment(self) -> Mapping[str, str] | None:
        """Return the environment it was started with, or None where that may not be read."""
        try:
            raw = _read(self.pid, "environ")
        except OSError:
            return None
        pairs = (part.partition("=") for part in os.fsdecode(raw).split("\0") if part)
        return {name: value for name, _, value in pairs}


def look(pid: int) -> Process | None:
    """Return the process, or None where none lives (a zombie does not)."""
    try:
        # The name, in parentheses, may hold anything: fields are counted from its end.
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        status = _read(pid, "status")
        arguments = os.fsdecode(_read(pid, "cmdline")).split("\0")[:-1]
    except OSError:
        return None
    state, parent, started = fields[0], int(fields[1]), int(fields[19])
    if state in (b"Z", b"X"):
        return None
    uid = next(int(line.split()[1]) for line in status.splitlines() if line.startswith(b"Uid:"))
    return Process(pid, parent, started, uid, tuple(arguments))


def every() -> Iterator[Process]:
    """Yield every process that can be seen."""
    for pid in _pids():
        if (process := look(pid)) is not None:
            yield process


def running(*programs: str) -> Iterator[Process]:
    """Yield the processes that run a program of one of these names."""
    needles = [os.fsencode(program) for program in programs]
    for pid in _pids():
        try:
            line = _read(pid, "cmdline")
        except OSError:
            continue
        if any(needle in line for needle in needles):
            process = look(pid)
            if process is not None and any(process.runs(program) for program in programs):
                yield process


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process is another one, or a child's child of it."""
    seen: set[int] = set()
    while pid not in seen:
        if pid == ancestor:
            return True
        seen.add(pid)
        process = look(pid)
        if process is None:
            return False
        pid = process.parent
    return False


def ends(process: Process, within_s: float) -> bool:
    """Wait for a process to end, and return whether it has."""
    return _with_handle(process, within_s, None)


def kill(process: Process, within_s: float) -> bool:
    """Kill this very process, never one that has its pid since; return whether it is gone."""
    return _with_handle(process, within_s, signal.SIGKILL)


def _with_handle(process: Process, within_s: float, sent: signal.Signals | None) -> bool:
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        now = look(process.pid)
        if now is None or now.started != process.started:
            return True
        if sent is not None:
            signal.pidfd_send_signal(handle, sent)
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        return bool(poller.poll(within_s * 1000))
    except ProcessLookupError:
        return True
    finally:
        os.close(handle)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()
