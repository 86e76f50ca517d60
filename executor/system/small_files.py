"""Small files of a service that it has to write at its start, also where the disk is full."""

from __future__ import annotations

import os
from pathlib import Path

from dovetail.instances._json import json_text
from dovetail.instances.errors import InputError
from dovetail.instances.files import write_data


def write_kept(data: object, path: Path) -> None:
    """Write plain data to a small file, as ``write_data`` does.

    Where that fails, as on a full disk, it is written over what the file holds. That takes no
    room, and is whole as long as the disk writes a sector of 512 bytes whole.

    Raises
    ------
    InputError
        When the file is not there and cannot be made, or cannot be written.
    """
    try:
        write_data(data, path)
    except InputError:
        try:
            _write_over(json_text(data).encode(), path)
        except OSError:
            pass
        else:
            return
        raise


def _write_over(text: bytes, path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(file, text.ljust(os.fstat(file).st_size), 0)
        os.fsync(file)
    finally:
        os.close(file)
