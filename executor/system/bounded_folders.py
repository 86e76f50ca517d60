"""Folders of other users that cannot fill the disk that they are on.

A user can fill a folder that the user owns, which would take the space of the service and all other
users of its disk. So each such folder is a separate file system, in memory and of limited size.
"""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 64 * 2**20
"""The size of a folder; memory is used only for data written to it."""

_MOST_FILES: Final = 4096
_NOSUID, _NODEV = 2, 4
_log = logging.getLogger(__name__)
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def bound(folder: Path, uid: int, most_bytes: int = MOST_BYTES) -> None:
    """Limit how much a user may write to an empty folder, or log that this process may not.

    This requires permission to mount, which root has except in most containers. A folder that is
    already limited is not changed.

    Parameters
    ----------
    folder : Path
        The folder, which then belongs to this user and is closed to others.
    uid : int
        The user.
    most_bytes : int
        The largest total size of its files.
    """
    if os.path.ismount(folder):
        return
    options = f"size={most_bytes},nr_inodes={_MOST_FILES},mode=0700,uid={uid}"
    source, kind = b"dovetail", b"tmpfs"
    flags = _NOSUID | _NODEV
    if _LIBC.mount(source, os.fsencode(folder), kind, ctypes.c_ulong(flags), options.encode()):
        reason = os.strerror(ctypes.get_errno())
        _log.warning(
            "%s is not limited in size, user %d can fill its disk: %s", folder, uid, reason
        )
