"""Folders of other users that cannot fill the disk they lie on.

A folder that a user owns can be filled by that user, and would take the room of the service and of
everybody else on its disk. So each is a file system of its own, in memory and of limited size.
"""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 64 * 2**20
"""The size of a folder; memory is taken only for what is written."""

_MOST_FILES: Final = 4096
_NOSUID, _NODEV = 2, 4
_log = logging.getLogger(__name__)
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def bound(folder: Path, uid: int, most_bytes: int = MOST_BYTES) -> None:
    """Bound what a user may write to an empty folder, or log that this process may not.

    It takes the right to mount, which root has, though not in most containers. A folder that is
    bounded already stays as it is.

    Parameters
    ----------
    folder : Path
        It becomes one of this user, closed to others.
    uid : int
        The user.
    most_bytes : int
        The most that its files may have.
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
