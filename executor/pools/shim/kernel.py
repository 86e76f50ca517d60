"""Process information from the kernel, and system calls through libc."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import NamedTuple, NoReturn

PR_SET_NAME = 15
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

LIBC = ctypes.CDLL(None, use_errno=True)


class Stat(NamedTuple):
    """The content of ``/proc/PID/stat``; times in clock ticks.

    ``cpu`` includes children that the process has waited for.
    """

    pid: int
    state: str
    parent: int
    group: int
    session: int
    cpu: int
    started: int
    rss_pages: int


def stat_of(pid: int) -> Stat | None:
    """Return the status of a process, or None if it does not exist.

    Raises
    ------
    OSError
        When the status cannot be read, which does not prove that the process has ended.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The program's name, in brackets, may contain any character.
    fields = line[line.rindex(b")") + 2 :].split()
    numbers = [int(field) for field in fields[1:22]]
    parent, group, session = numbers[:3]
    cpu, started, rss_pages = sum(numbers[10:14]), numbers[18], numbers[20]
    return Stat(pid, fields[0].decode(), parent, group, session, cpu, started, rss_pages)


def every_process() -> list[Stat]:
    """Return all visible processes."""
    found = (stat_of(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [stat for stat in found if stat is not None]


def descendants(pid: int, processes: list[Stat] | None = None) -> list[Stat]:
    """Return the processes below one, parents before their children.

    Parameters
    ----------
    pid : int
        The process.
    processes : list of Stat, optional
        All processes, if already read.
    """
    children: dict[int, list[Stat]] = {}
    for stat in every_process() if processes is None else processes:
        children.setdefault(stat.parent, []).append(stat)
    found: list[Stat] = []
    below = [pid]
    for parent in below:
        found += children.get(parent, [])
        below += [stat.pid for stat in children.get(parent, [])]
    return found


def send(pid: int, started: int, number: int) -> bool:
    """Signal a process, but no later process with its PID; return whether that succeeded."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        stat = stat_of(pid)
        if stat is None or stat.started != started:
            return False
        signal.pidfd_send_signal(process, number)
    except OSError:
        return False
    finally:
        os.close(process)
    return True


def boot_id() -> str:
    """Return the unique id of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def boot_s() -> float:
    """Return seconds since the machine booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def prctl(option: int, value: int | bytes) -> None:
    """Set an attribute of this process (``man prctl``)."""
    if LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise_errno()


def raise_errno() -> NoReturn:
    """Raise the error of the last call of libc."""
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


class EnvironmentEntry:
    """A variable of this process as shown in ``/proc``; a fork can overwrite its value.

    Parameters
    ----------
    name : str
        The variable, which must be set; new values must not be longer than its value.
    """

    def __init__(self, name: str) -> None:
        start = f"{name}=".encode()
        self._room = len(os.environb[name.encode()])
        entries = ctypes.POINTER(ctypes.c_void_p).in_dll(LIBC, "environ")
        k = 0
        while ctypes.string_at(entries[k], len(start)) != start:
            k += 1
        self._address = int(entries[k] or 0) + len(start)

    def write(self, value: bytes) -> None:
        """Replace the value; ValueError if the new one is too long."""
        if len(value) > self._room:
            raise ValueError(f"must have at most {self._room} bytes, got {len(value)}")
        ctypes.memmove(self._address, value.ljust(self._room, b"\0"), self._room)


def one_line(error: BaseException) -> str:
    """Return the text of an error in one line."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return " ".join(f"{error.strerror}{where}".split())
    return " ".join(str(error).split()) or type(error).__name__
