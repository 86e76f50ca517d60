"""Records that outlast the machine's end: that a rank was started, and how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import time

RESERVED_BYTES = 1024
"""Room kept for the exit status, so that a full disk cannot take it."""

_RETRY_S = 1.0


def write_new(path: str, data: bytes, exclusive: bool = False) -> int:
    """Write a file that only its owner may read, and return it open.

    If it has to be exclusive and exists, FileExistsError is raised.
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
    """Make ``started.json``; return False if there is one already.

    If it is to be lasting, it is on the disk when this returns. If this process or the machine
    ends meanwhile, there may be a file that cannot be read; that, too, keeps the rank from being
    started.
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
    """The rank's exit status, for which room is kept from the beginning."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, "exit.json")
        # By its number: another shim may be trying to claim the same rank.
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
        """Give the room back."""
        with contextlib.suppress(OSError):
            os.unlink(self._beside)

    def write(self, status: int | None, refused: str = "", lapsed: bool = False) -> None:
        """Put the status into place, however long that takes: the service waits for it.

        The service makes it durable itself; where it is gone, `sync` does.
        """
        text = json.dumps({"status": status, "refused": refused[:200], "lapsed": lapsed})
        while not self._written(text.encode().ljust(RESERVED_BYTES)):
            time.sleep(_RETRY_S)

    def sync(self) -> None:
        """Wait until the status is on the disk, if the disk takes it."""
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
            return True  # the directory was removed: the status is not awaited
        except OSError:
            return False
        return True
