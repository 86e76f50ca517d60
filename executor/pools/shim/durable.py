"""Durable records that survive a crash of the machine: a rank's start and its end."""

from __future__ import annotations

import contextlib
import json
import os
import time

RESERVED_BYTES = 1024
"""Space reserved for the exit status, so that it can be written to a full disk."""

_RETRY_S = 1.0


def write_new(path: str, data: bytes, exclusive: bool = False) -> int:
    """Write a file that only its owner may read, and return it open.

    If ``exclusive`` is set and the file exists, FileExistsError is raised.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(path, flags | (os.O_EXCL if exclusive else os.O_TRUNC), 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
    except BaseException:
        os.close(file)
        if exclusive:
            os.unlink(path)
        raise
    return file


def claim(directory: str, record: dict[str, object], lasting: bool = True) -> bool:
    """Create ``started.json``; return False if it exists already.

    With ``lasting``, it is on the disk when this returns. If this process or the machine ends
    meanwhile, an unreadable file may remain, which also keeps the rank from being started.
    """
    try:
        path = os.path.join(directory, "started.json")
        file = write_new(path, json.dumps(record).encode(), exclusive=True)
    except FileExistsError:
        return False
    try:
        if lasting:
            os.fsync(file)
            sync(directory)
    finally:
        os.close(file)
    return True


def sync(path: str) -> None:
    """Wait until a file's content, or a directory's names, are on the disk."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class ExitFile:
    """The file of the rank's exit status, whose space is reserved from the beginning."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, "exit.json")
        # With its PID: another shim may be trying to claim the same rank.
        self._beside = os.path.join(directory, f"exit.{os.getpid()}.tmp")
        file = write_new(self._beside, b"")
        try:
            os.posix_fallocate(file, 0, RESERVED_BYTES)
        except OSError:
            self.give_up()
            raise
        finally:
            os.close(file)

    def give_up(self) -> None:
        """Free the reserved space."""
        with contextlib.suppress(OSError):
            os.unlink(self._beside)

    def write(self, status: int | None, refused: str = "", lapsed: bool = False) -> None:
        """Write the status, retrying until it succeeds: the service waits for it.

        The service makes it durable itself; if the service is gone, `sync` does.
        """
        text = json.dumps({"status": status, "refused": refused[:200], "lapsed": lapsed})
        while not self._written(text.encode().ljust(RESERVED_BYTES)):
            time.sleep(_RETRY_S)

    def sync(self) -> None:
        """Wait until the status is on the disk; errors of the disk are ignored."""
        with contextlib.suppress(OSError):
            sync(self._path)
            sync(self._directory)

    def _written(self, data: bytes) -> bool:
        try:
            # In place: the reserved blocks are written over.
            file = os.open(self._beside, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(file, data, 0)
            finally:
                os.close(file)
            os.rename(self._beside, self._path)
        except FileNotFoundError:
            return True  # the directory was removed, so the status is not needed
        except OSError:
            return False
        return True
