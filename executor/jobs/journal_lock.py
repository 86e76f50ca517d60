"""The lock of a journal's directory, and the number of the last event that reached the disk.

SQLite ends its log at the first frame with a wrong check sum, so a changed byte there silently
removes all later events. The lock's file therefore also holds the number of the last event that was
certainly on the disk: a journal with fewer events has lost some.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

from dovetail.executor.system.directories import LOCK, require_own
from dovetail.instances.errors import DovetailError, source_name

_FIELD: Final = 20
_FORMAT: Final = f"{{:<{_FIELD - 1}}}\n"


class JournalError(DovetailError):
    """A journal cannot be written, read or locked; one line says why."""


class JournalLock:
    """The lock of a directory, held until `close` or the end of the process.

    Parameters
    ----------
    folder : path
        Created for its owner only if it does not exist.

    Attributes
    ----------
    synced : int
        Number of the last event on the disk according to the file; 0 = unknown.

    Raises
    ------
    InputError
        If other users could have prepared the directory (``require_own``).
    JournalError
        If another service has locked it, or it cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        require_own(folder)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(
                folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise JournalError(f"{source_name(folder)}: cannot be used: {reason}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = self._field(0) or "unknown"
            os.close(self._file)
            rule = f"a service already runs here (pid {pid})"
            raise JournalError(f"{source_name(folder)}: {rule}") from None
        self.synced = self._synced()
        # Only for information.
        self._write(0, str(os.getpid()))
        self.note_synced(self.synced)

    def note_synced(self, sequence: int) -> None:
        """Record that the disk has all events up to this one.

        The number is written in place, which needs no space on a full disk, and without waiting
        for the disk: if it is too low, only a loss of events goes unnoticed.
        """
        self.synced = sequence
        self._write(1, str(sequence))
        self._write(2, _sum(sequence))

    def close(self) -> None:
        """Release the directory for another service."""
        os.close(self._file)

    def _synced(self) -> int:
        """Return the number in the file; 0 if it is missing or damaged."""
        text = self._field(1)
        number = int(text) if text.isascii() and text.isdecimal() else 0
        return number if self._field(2) == _sum(number) else 0

    def _field(self, number: int) -> str:
        return os.pread(self._file, _FIELD, number * _FIELD).decode("ascii", "replace").strip()

    def _write(self, field: int, text: str) -> None:
        with suppress(OSError):
            os.pwrite(self._file, _FORMAT.format(text).encode(), field * _FIELD)


def _sum(sequence: int) -> str:
    return f"{zlib.crc32(str(sequence).encode()):08x}"
