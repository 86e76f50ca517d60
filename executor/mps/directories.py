"""Private pipe directories, one for each GPU and user."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dovetail.executor.mps.control import LONGEST_DIRECTORY
from dovetail.executor.mps.errors import MpsRefusedError


def place_of(base: Path, uuid: str, uid: int) -> Path:
    """Return the pipe directory of a GPU and a user: short, as the names of sockets must be."""
    place = base / f"{_key(uuid)}-{uid}"
    if len(os.fsencode(place)) > LONGEST_DIRECTORY:
        raise MpsRefusedError(f"{place}: longer than {LONGEST_DIRECTORY} bytes, too long for MPS")
    return place


def users_of(base: Path, uuid: str) -> Iterator[int]:
    """Yield the users for whom the GPU has a pipe directory."""
    for place in sorted(base.glob(f"{_key(uuid)}-*")):
        uid = place.name.removeprefix(f"{_key(uuid)}-")
        if uid.isdecimal():
            yield int(uid)


def make_base(base: Path) -> None:
    """Make the directory of all pipe directories; root's lets every user pass."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise MpsRefusedError(f"{base}: must be a directory of user {os.geteuid()}")
    base.chmod(0o711 if os.geteuid() == 0 else 0o700)


def make_private(place: Path, uid: int) -> None:
    """Make a pipe directory that nobody but its user may enter, or prove that it is one.

    Raises
    ------
    MpsRefusedError
        Something else is there, or a directory above keeps the user out.
    """
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        os.chown(place, uid, -1)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or stat.S_IMODE(found.st_mode) & 0o77:
        raise MpsRefusedError(f"{place}: must be a directory of user {uid}, closed to others")
    for above in place.parents if uid != os.geteuid() else ():
        if not above.stat().st_mode & stat.S_IXOTH:
            raise MpsRefusedError(f"{above}: user {uid} may not pass it (chmod o+x), as MPS needs")


def _key(uuid: str) -> str:
    return uuid.removeprefix("GPU-")[:8]
