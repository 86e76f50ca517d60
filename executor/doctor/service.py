"""Checks whether a service could start: its directory, socket and port."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from dovetail.executor.doctor.commands import command, moved_away, own_directory
from dovetail.executor.doctor.finding import Finding, broken, lacking, note
from dovetail.executor.mps.processes import look
from dovetail.executor.system.directories import LOCK, lock_pid

_LEAST_DISK: Final = 2**30
_LONGEST_SOCKET: Final = 107
_NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "lustre", "gpfs", "beegfs", "ceph"}
)


def running(directory: Path, pid: int | None) -> Finding:
    """Report the service that uses a state directory."""
    if pid is None:
        return Finding(f"none runs in {directory}")
    remedy = "dovetail queue lists what it runs; end it with SIGTERM before another"
    return note(f"one runs in {directory}: {_process(pid)}", remedy)


def state(directory: Path) -> Finding:
    """Check that a service could keep its state here."""
    existing = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
    other = "name another with --directory, or $DOVETAIL_HOME"
    if not existing.is_dir():
        return broken(f"{directory} cannot be created: {existing} is not a directory", other)
    read_only = os.statvfs(existing).f_flag & os.ST_RDONLY
    if not os.access(existing, os.W_OK | os.X_OK) or read_only:
        making = () if read_only else _making_writable(directory, existing)
        return broken(f"{directory} cannot be written", other, *making)
    kind = _file_system(existing)
    if kind in _NETWORK_FILE_SYSTEMS:
        remedy = "the journal's locks are not safe there: name a local one with --directory"
        return broken(f"{directory} is on {kind}", remedy)
    free = shutil.disk_usage(existing).free
    if free < _LEAST_DISK:
        text = f"{directory} has {free / 2**20:.0f} MiB free"
        return lacking(text, "free space: logs and the journal are kept there")
    return Finding(f"{directory}, {free / 2**30:.0f} GiB free")


def _making_writable(directory: Path, existing: Path) -> tuple[str, ...]:
    """Return the command after which this user can write a directory that is missing or its own."""
    if existing != directory:
        return (own_directory(directory),)
    if directory.stat().st_uid == os.geteuid():
        return (command("chmod", "u+rwx", "--", directory),)
    return ()


def _file_system(path: Path) -> str:
    """Return the type of a path's file system; empty if unknown."""
    mounts = dict[str, str]()
    with suppress(OSError), open("/proc/self/mounts") as lines:
        mounts = {fields[1]: fields[2] for fields in map(str.split, lines) if len(fields) > 2}
    resolved = Path(os.path.realpath(path))
    return next((mounts[str(at)] for at in (resolved, *resolved.parents) if str(at) in mounts), "")


def holder(directory: Path) -> int | None:
    """Return the pid of a directory's service (the holder of the journal's lock).

    0 if the pid is unknown, None if no service runs.
    """
    with suppress(OSError), open(directory / LOCK, "rb") as lock:
        try:
            # Shared and brief, so that two doctors do not block each other.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                return lock_pid(directory / LOCK)
            except (OSError, ValueError):
                return 0
    return None


def unix_socket(path: Path, service: int | None) -> Finding:
    """Check that a service could listen here; ``service`` is the pid of a running one."""
    other = "name another with dovetail serve --socket"
    length = len(os.fsencode(path))
    if length > _LONGEST_SOCKET:
        text = f"{path} has {length} bytes; a socket's path may have {_LONGEST_SOCKET}"
        return broken(text, other)
    if not os.path.lexists(path):
        above = next(one for one in path.parents if os.path.exists(one))
        if not os.access(above, os.W_OK | os.X_OK):
            making = (own_directory(path.parent),) if above != path.parent else ()
            return broken(f"{path}: {above} cannot be written", other, *making)
        return Finding(f"{path} is free")
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return broken(f"{path} exists, but is not a socket", other, moved_away(path))
    peer = _peer(path)
    if peer is None:
        return Finding(f"{path} is left from an ended service and will be replaced")
    if service is not None and peer in (0, service):
        return Finding(f"{path} is the socket of the running service")
    return broken(f"{path} is in use: {_process(peer)} listens there", other)


def _peer(path: Path) -> int | None:
    """Return the pid that listens on a socket; 0 if unknown, None if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError:
            return 0
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], "little")


def port(address: tuple[str, int] | None) -> Finding | None:
    """Check that a service could listen on a TCP address, if one is given."""
    if address is None:
        return None
    host, number = address
    where, other = f"{host}:{number}", "name another with --listen"
    try:
        socket.create_server(
            address, family=socket.AF_INET6 if ":" in host else socket.AF_INET
        ).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        return broken(f"{where} cannot be used: {reason}", other)
    return Finding(f"{where} is free")


def _process(pid: int) -> str:
    """Return a description of a process."""
    process = look(pid) if pid else None
    if process is None:
        return "an unknown process"
    name = Path(process.arguments[0]).name if process.arguments else "?"
    return f"{name}, pid {pid}, uid {process.uid}"
