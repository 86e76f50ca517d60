"""The state directory of a service, and how its socket is found."""

from __future__ import annotations

import json
import os
import socket as sockets
import time
from pathlib import Path

from dovetail.executor.system.directories import LOCK, lock_pid
from dovetail.instances.errors import DovetailError, InputError

ROOT_DIRECTORY = Path("/var/lib/dovetail")
ROOT_SOCKET = Path("/run/dovetail/api.sock")
SERVICE_FILE = "service.json"
"""The file of a state directory that names the socket of its service."""

MOST_SOCKET_BYTES = 107
"""The kernel's limit of a UNIX socket's name, less the zero at its end."""


START_S = 30.0
"""Seconds to wait for a service that is starting."""

MOMENT_S = 2.0
"""Seconds that a service may take from its command until it has locked its directory."""

_AGAIN_S = 0.1


class NoServiceError(DovetailError):
    """No service was found, or none answers."""


def default_directory() -> Path:
    """Return the state directory of this user's service.

    Raises
    ------
    InputError
        If nothing says where this user's files are.
    """
    if home := os.environ.get("DOVETAIL_HOME"):
        return Path(home)
    if os.getuid() == 0:
        return ROOT_DIRECTORY
    if state := os.environ.get("XDG_STATE_HOME"):
        return Path(state) / "dovetail"
    try:
        return Path.home() / ".local" / "state" / "dovetail"
    except RuntimeError:
        rule = f"must be set, as user {os.getuid()} has no home directory"
        raise InputError(rule, "DOVETAIL_HOME") from None


def default_socket(directory: Path) -> Path:
    """Return the default socket of the service of a directory."""
    return ROOT_SOCKET if directory == ROOT_DIRECTORY else directory / "api.sock"


def mps_directory(directory: Path) -> Path:
    """Return the directory of the MPS daemons of a service.

    For root it is one that other users may enter, unlike the state directory.
    """
    if os.geteuid() != 0:
        return directory / "mps"
    if directory == ROOT_DIRECTORY:
        return ROOT_SOCKET.parent / "mps"
    from hashlib import sha256

    digest = sha256(os.fsencode(directory)).hexdigest()
    return ROOT_SOCKET.parent / f"mps-{digest[:8]}"


def checked_socket(path: Path) -> Path:
    """Return the path if it is short enough for a socket.

    Raises
    ------
    InputError
        When it is longer than the kernel accepts.
    """
    length = len(os.fsencode(path))
    if length > MOST_SOCKET_BYTES:
        rule = f"must have at most {MOST_SOCKET_BYTES} bytes as a socket, got {length}"
        raise InputError(rule, "--socket", str(path))
    return path


def find_service() -> str:
    """Return the socket or the URL of the service that commands use.

    It is the one in ``DOVETAIL_SERVICE``; else this user's own service, if it has been announced;
    else root's.

    Raises
    ------
    NoServiceError
        When none is found.
    """
    if named := os.environ.get("DOVETAIL_SERVICE"):
        return named
    directory = default_directory()
    announced = _announced(directory)
    if announced is not None:
        return announced
    if "DOVETAIL_HOME" not in os.environ and ROOT_SOCKET.exists():
        return str(ROOT_SOCKET)
    return _soon_announced(directory)


def _soon_announced(directory: Path) -> str:
    """Wait for a service that is starting, and return its socket."""
    began_s = time.monotonic()
    pid = None
    while time.monotonic() < began_s + (MOMENT_S if pid is None else START_S):
        pid = _lock_holder(directory)
        announced = _announced(directory)
        if announced is not None:
            return announced
        # A full disk may have kept it from being announced.
        if _listens(default_socket(directory)):
            return str(default_socket(directory))
        time.sleep(_AGAIN_S)
    if pid is not None:
        raise NoServiceError(f"the service in {directory} (process {pid}) is still starting")
    raise NoServiceError(f"no service runs in {directory}: start one with dovetail serve")


def _listens(socket: Path) -> bool:
    try:
        with sockets.socket(sockets.AF_UNIX) as client:
            client.connect(os.fspath(socket))
    except OSError:
        return False
    return True


def _lock_holder(directory: Path) -> int | None:
    """Return the process that has locked the directory of a service, or None if none is known."""
    try:
        pid = lock_pid(directory / LOCK)
        # Taking the lock, even for a moment, would keep a service from starting.
        held = f":{(directory / LOCK).stat().st_ino} "
        locks = Path("/proc/locks").read_text().splitlines()
    except (OSError, ValueError):
        return None
    return pid if any("FLOCK" in line and held in line for line in locks) else None


def _announced(directory: Path) -> str | None:
    try:
        return str(json.loads((directory / SERVICE_FILE).read_text())["socket"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
