"""What the kernel says of processes, and what is asked of it by way of libc."""

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
    """What ``/proc/PID/stat`` says of a process; times in clock ticks.

    ``cpu`` includes the children that it has waited for.
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
    """Return what the kernel says of a process, None where there is none.

    Raises
    ------
    OSError
        When that cannot be found out: it is no proof that a process has ended.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The program's name, in brackets, may hold anything.
    fields = line[line.rindex(b")") + 2 :].split()
    numbers = [int(field) for field in fields[1:22]]
    parent, group, session = numbers[:3]
    cpu, started, rss_pages = sum(numbers[10:14]), numbers[18], numbers[20]
    return Stat(pid, fields[0].decode(), parent, group, session, cpu, started, rss_pages)


def every_process() -> list[Stat]:
    """Return all processes that can be seen."""
    found = (stat_of(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [stat for stat in found if stat is not None]


def descendants(pid: int, processes: list[Stat] | None = None) -> list[Stat]:
    """Return the processes below one, parents before their children.

    Parameters
    ----------
    pid : int
        Of the process.
    processes : list of Stat, optional
        All processes, if they were read already.
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
    """Signal a process, and none that has its number since; return whether that was done."""
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
    """Return what tells this boot of the machine from every other."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def boot_s() -> float:
    """Return seconds since the machine booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def prctl(option: int, value: int | bytes) -> None:
    """Change something of this process (``man prctl``)."""
    if LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise_errno()


def raise_errno() -> NoReturn:
    """Raise the error of the last call of libc."""
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


class EnvironmentEntry:
    """A variable of this process as others see it in ``/proc``; a fork can write over its value.

    Parameters
    ----------
    name : str
        It is set, and its value is all the room that there is.

    Raises
    ------
    ValueError
        When what is to be written is longer.
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
        """Replace the value."""
        if len(value) > self._room:
            raise ValueError(f"must have at most {self._room} bytes, got {len(value)}")
        ctypes.memmove(self._address, value.ljust(self._room, b"\0"), self._room)


def one_line(error: BaseException) -> str:
    """Return the text of an error in one line."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return " ".join(f"{error.strerror}{where}".split())
    return " ".join(str(error).split()) or type(error).__name__
