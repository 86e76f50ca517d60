"""The lock of a journal's directory, and beside it how far the journal was on the disk.

SQLite ends its log at the first frame with a wrong sum, so a changed byte there takes all later
events away without a word. The number of the last event that was surely on the disk is therefore
kept in the lock's file, too: a journal that has fewer has lost some.
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
    """Holds the lock of a directory, which goes with the process.

    Parameters
    ----------
    folder : path
        Created for its owner only if it does not exist.

    Attributes
    ----------
    synced : int
        The number of the last event that was on the disk, as far as the file says; 0: unknown.

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
            rule = f"a service runs here already (pid {pid})"
            raise JournalError(f"{source_name(folder)}: {rule}") from None
        self.synced = self._synced()
        # For people.
        self._write(0, str(os.getpid()))
        self.note_synced(self.synced)

    def note_synced(self, sequence: int) -> None:
        """Write down that the disk has all events up to this one.

        Over what is there, which takes no room on a full disk; and without waiting for the disk:
        a number that is too low loses no more than the notice.
        """
        self.synced = sequence
        self._write(1, str(sequence))
        self._write(2, _sum(sequence))

    def close(self) -> None:
        """Release the directory for another service."""
        os.close(self._file)

    def _synced(self) -> int:
        """Return the number in the file, 0 if there is none or it was changed."""
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
