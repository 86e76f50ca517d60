"""Checks that state directories are safe from other users.

The rules are similar to ``StrictModes`` of OpenSSH.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from dovetail.instances.errors import InputError, source_name

LOCK: Final = "lock"
"""The file of a state directory that is locked by its service; see `lock_pid`."""


def lock_pid(lock: Path) -> int:
    """Return the PID in the first line of a lock file.

    Raises
    ------
    OSError, ValueError
        If there is none.
    """
    return int(lock.read_bytes().partition(b"\n")[0])


def require_own(directory: Path) -> None:
    """Refuse an existing directory that other users could have prepared.

    It must belong to this user and must not be world-writable. For root, all folders above it must
    belong to root and must not be world-writable, unless they are sticky, as ``/tmp`` is.

    Raises
    ------
    InputError
        One line.
    """
    resolved = directory.resolve()
    if resolved.exists():
        _require(resolved, {os.geteuid()})
    if os.geteuid() == 0:
        # In a user namespace, the root of the system has another uid.
        trusted = {0, os.stat("/").st_uid}
        for folder in {*resolved.parents, *Path(os.path.abspath(directory)).parents}:
            if folder.exists():
                _require(folder, trusted, sticky=True)


def require_closed(directory: Path) -> None:
    """Refuse a directory to which other users may write, unless a folder above keeps them out.

    Raises
    ------
    InputError
        One line.
    """
    resolved = directory.resolve()
    if not any(_is_open(path) for path in (resolved, *resolved.iterdir())):
        return
    trusted = {os.geteuid(), os.stat("/").st_uid}
    for folder in (resolved, *resolved.parents):
        found = folder.stat()
        if found.st_uid in trusted and not found.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
            return
    rule = "others may write there: it must lie below a folder of mode 700"
    raise InputError(rule, source=source_name(directory))


def _is_open(path: Path) -> bool:
    found = path.lstat()
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return bool(stat.S_ISDIR(found.st_mode) and writable)


def _require(folder: Path, owners: set[int], sticky: bool = False) -> None:
    found = folder.stat()
    if found.st_uid not in owners:
        rule = f"must belong to user {os.geteuid()}, got one of user {found.st_uid}"
        raise InputError(rule, source=source_name(folder))
    if found.st_mode & stat.S_IWOTH and not (sticky and found.st_mode & stat.S_ISVTX):
        rule = f"must not be writable by everybody, got mode {stat.S_IMODE(found.st_mode):o}"
        raise InputError(rule, source=source_name(folder))
