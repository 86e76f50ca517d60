"""Whether a service could start here: its directory, who holds it, its socket and its port."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from dovetail.executor.live.directories import LOCK
from dovetail.executor.live.doctor.finding import Level, Seen
from dovetail.executor.live.mps.processes import look

_LEAST_DISK: Final = 2**30
_LONGEST_SOCKET: Final = 107
_NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "lustre", "gpfs", "beegfs", "ceph"}
)
_LISTENS: Final = "0A"
"""State of a socket that listens in ``/proc/net/tcp`` (``TCP_LISTEN`` in the kernel)."""


def running(directory: Path, pid: int | None) -> Seen:
    """Tell of the service that has this state directory."""
    if pid is None:
        return Seen(f"none runs in {directory}")
    remedy = "what it runs is told by dovetail queue; end it with SIGTERM before another"
    return Seen(f"one runs in {directory}: {_process(pid)}", Level.NOTE, remedy)


def state(directory: Path) -> Seen:
    """Say whether a service could keep its state here."""
    existing = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
    other = "name another with --directory, or $DOVETAIL_HOME"
    if not existing.is_dir():
        told = f"{directory} cannot be made: {existing} is no directory"
        return Seen(told, Level.BROKEN, other)
    if not os.access(existing, os.W_OK | os.X_OK) or _is_read_only(existing):
        return Seen(f"{directory} cannot be written", Level.BROKEN, other)
    kind = _file_system(existing)
    if kind in _NETWORK_FILE_SYSTEMS:
        remedy = "the journal's locks are not safe there: name a local one with --directory"
        return Seen(f"{directory} is on {kind}", Level.BROKEN, remedy)
    free = shutil.disk_usage(existing).free
    if free < _LEAST_DISK:
        told = f"{directory} has {free / 2**20:.0f} MiB free"
        return Seen(told, Level.LACKING, "make room: logs and the journal are kept there")
    return Seen(f"{directory}, {free / 2**30:.0f} GiB free")


def _is_read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _file_system(path: Path) -> str:
    """Return the kind of the file system that holds a path, empty where it is not told."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    mounts = {fields[1]: fields[2] for fields in map(str.split, lines) if len(fields) > 2}
    resolved = Path(os.path.realpath(path))
    return next((mounts[str(at)] for at in (resolved, *resolved.parents) if str(at) in mounts), "")


def holder(directory: Path) -> int | None:
    """Return the service of a directory: who holds its journal's lock, 0 where it is not told.

    None: there is none.
    """
    try:
        lock = os.open(directory / LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        # Shared, and only for this moment: two doctors do not keep each other out.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        told = os.read(lock, 20).decode("ascii", "replace").strip()
        return int(told) if told.isdecimal() else 0
    else:
        return None
    finally:
        os.close(lock)


def unix_socket(path: Path, service: int | None) -> Seen:
    """Say whether a service could listen here; ``service`` is the one that runs."""
    other = "name another with dovetail serve --socket"
    length = len(os.fsencode(path))
    if length > _LONGEST_SOCKET:
        told = f"{path} has {length} bytes; a socket's name may have {_LONGEST_SOCKET}"
        return Seen(told, Level.BROKEN, other)
    if not os.path.lexists(path):
        above = next(one for one in path.parents if os.path.exists(one))
        if not os.access(above, os.W_OK | os.X_OK):
            return Seen(f"{path}: {above} cannot be written", Level.BROKEN, other)
        return Seen(f"{path} is free")
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return Seen(f"{path} is there and is no socket", Level.BROKEN, other)
    peer = _peer(path)
    if peer is None:
        return Seen(f"{path} is left from a service that is gone; it is replaced")
    if service is not None and peer in (0, service):
        return Seen(f"{path} is that of the service that runs")
    return Seen(f"{path} is in use: {_process(peer)} listens there", Level.BROKEN, other)


def _peer(path: Path) -> int | None:
    """Return the process that listens on a socket, 0 where it is not told; None: nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError:
            return 0
        told = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(told[:4], "little")


def port(address: tuple[str, int] | None) -> Seen | None:
    """Say whether a service could listen on TCP, where it is to."""
    if address is None:
        return None
    host, number = address
    where = f"{host}:{number}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server(address, family=family).close()
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            told = f"{where} is in use: {_process(_port_holder(number))} listens there"
            return Seen(told, Level.BROKEN, "name another with --listen")
        told = f"{where} cannot be had: {getattr(error, 'strerror', None) or error}"
        return Seen(told, Level.BROKEN, "name another with --listen")
    return Seen(f"{where} is free")


def _port_holder(port: int) -> int:
    """Return the process that listens on a TCP port, 0 where that may not be seen."""
    inodes = {line[9] for line in _tcp_sockets() if _listens_on(line, port)}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        if wanted & _open_files(pid):
            return int(pid)
    return 0


def _tcp_sockets() -> Iterator[list[str]]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        yield from (line.split() for line in lines)


def _listens_on(fields: list[str], port: int) -> bool:
    return fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port


def _open_files(pid: str) -> set[str]:
    folder, found = f"/proc/{pid}/fd", set()
    # It has ended, or is another user's.
    with suppress(OSError):
        for name in os.listdir(folder):
            # One that was closed meanwhile says nothing of the others.
            with suppress(FileNotFoundError):
                found.add(os.readlink(f"{folder}/{name}"))
    return found


def _process(pid: int) -> str:
    """Return what people call a process."""
    process = look(pid) if pid else None
    if process is None:
        return "a process that is not told"
    name = Path(process.arguments[0]).name if process.arguments else "?"
    return f"{name}, pid {pid}, uid {process.uid}"
