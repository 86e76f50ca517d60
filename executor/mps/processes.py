"""Processes as ``/proc`` shows them, and the daemons and servers of MPS among them.

A daemon and its owner are identified by program, user and initial environment: there is no other
proof.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

PROGRAM: Final = "nvidia-cuda-mps-control"
SERVER: Final = "nvidia-cuda-mps-server"

PIPE_DIRECTORY: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOG_DIRECTORY: Final = "CUDA_MPS_LOG_DIRECTORY"
DEVICES: Final = "CUDA_VISIBLE_DEVICES"
PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
STATIC: Final = "-S"
"""The daemon's option for static partitions."""

PRIORITY: Final = "CUDA_MPS_CLIENT_PRIORITY"


class MpsProcess(NamedTuple):
    """A live process.

    Attributes
    ----------
    pid, parent, uid : int
        Its pid, its parent's pid, and its user.
    started : int
        Start time in clock ticks since boot; a later process with the same pid has a different one.
    arguments : tuple of str
        Its command line.
    environment : mapping of str to str
        The environment it was started with; empty if this user may not read it.
    """

    pid: int
    parent: int
    uid: int
    started: int
    arguments: tuple[str, ...]
    environment: Mapping[str, str]

    def runs(self, program: str) -> bool:
        """Return whether it runs a program of this name, directly or through an interpreter."""
        return any(Path(argument).name == program for argument in self.arguments[:4])

    @property
    def is_daemon(self) -> bool:
        """Whether it is a control daemon, not the front end of the same program."""
        return self.runs(PROGRAM) and bool({"-d", "-f"} & set(self.arguments))

    @property
    def is_static(self) -> bool:
        """Whether it is a control daemon with static partitions."""
        return self.is_daemon and STATIC in self.arguments

    @property
    def pipe_directory(self) -> str | None:
        """The pipe directory it was given; None if unset or unreadable."""
        return self.environment.get(PIPE_DIRECTORY)

    def may_see(self, uuid: str) -> bool:
        """Return whether it may see a GPU; a process with unknown devices may see all."""
        return may_see(self.environment.get(DEVICES), uuid)

    @property
    def program(self) -> str:
        """The MPS program that it runs, if it belongs to MPS."""
        return SERVER if self.runs(SERVER) else PROGRAM

    def __str__(self) -> str:
        """Return the name of a daemon or server in error messages."""
        place = f"(pipe directory {self.pipe_directory})"
        return f"{self.program} {self.pid} of user {self.uid} {place}"


def look(pid: int) -> MpsProcess | None:
    """Return a process, or None if there is none or it is a zombie."""
    try:
        # The name in parentheses may contain anything, so fields are counted from its end.
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        status = _read(pid, "status")
        arguments = os.fsdecode(_read(pid, "cmdline")).split("\0")[:-1]
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    try:
        variables = os.fsdecode(_read(pid, "environ")).split("\0")
    except OSError:
        variables = []
    environment = dict(one.split("=", 1) for one in variables if "=" in one)
    uid = next(int(line.split()[1]) for line in status.splitlines() if line.startswith(b"Uid:"))
    return MpsProcess(pid, int(fields[1]), uid, int(fields[19]), tuple(arguments), environment)


def every() -> Iterator[MpsProcess]:
    """Yield every visible process."""
    for pid in _pids():
        if (process := look(pid)) is not None:
            yield process


def running(*programs: str) -> Iterator[MpsProcess]:
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


def every_mps() -> Iterator[MpsProcess]:
    """Yield every control daemon and server of MPS on the machine."""
    return (one for one in running(PROGRAM, SERVER) if one.is_daemon or one.runs(SERVER))


def may_see(devices: str | None, uuid: str) -> bool:
    """Return whether ``CUDA_VISIBLE_DEVICES`` may include a GPU.

    True for any index, because its meaning is unknown here. UUIDs may be abbreviated.
    """
    if devices is None:
        return True
    names = [name.strip() for name in devices.split(",")]
    return any(uuid.startswith(name) if name.startswith("GPU-") else bool(name) for name in names)


def descends(pid: int, ancestor: int) -> bool:
    """Return whether a process is the other one or one of its descendants."""
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


def ends(process: MpsProcess, within_s: float, sent: signal.Signals | None = None) -> bool:
    """Wait for a process to end, after sending it a signal if given; return whether it ended.

    The signal goes through a handle, so it cannot reach a later process with the same pid.
    """
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


def kill(process: MpsProcess, within_s: float) -> bool:
    """Kill a process, and return whether it is gone."""
    return ends(process, within_s, signal.SIGKILL)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()
