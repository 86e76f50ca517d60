"""Small files that a service must write at its start, even if the disk is full."""

from __future__ import annotations

import os
from pathlib import Path

from dovetail.instances.errors import InputError
from dovetail.instances.files import write_data
from dovetail.instances.reading.json_text import json_text


def write_kept(data: object, path: Path) -> None:
    """Write plain data to a small file, as ``write_data`` does.

    If that fails, for example on a full disk, the file is overwritten in place. That needs no
    space, and is atomic if the disk writes a sector of 512 bytes atomically.

    Raises
    ------
    InputError
        When the file cannot be created or written.
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
