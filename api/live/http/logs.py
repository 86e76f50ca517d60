"""Reading and following the output of a job, across rotation and restarts."""

from __future__ import annotations

import asyncio
import math
import os
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from dovetail.executor.jobs.specs import Owner
from dovetail.executor.live.errors import RefusedError
from dovetail.executor.live.requests.service_api import ServiceApi

_CHUNK_BYTES: Final = 64 * 1024
MOST_TAIL_BYTES: Final = 2**22
"""Most bytes of a log's last lines, which are in memory together; a whole log is read in parts."""

_POLL_S: Final = 0.25
_LACK_S: Final = 30.0
"""Seconds for which the last output of a job that is over is waited for if its node is silent."""


def written(newest: str, uid: int) -> Iterator[bytes]:
    """Yield the output of a rank so far, the oldest part first.

    Parameters
    ----------
    newest : str
        The newest part; older ones have ``.1``, ``.2``, ... appended.
    uid : int
        User id of the job's owner.
    """
    for part in _parts(newest):
        with _opened(part, uid) as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk


def require_own(newest: str, uid: int) -> None:
    """Refuse a log that its owner has replaced by another file.

    Raises
    ------
    RefusedError
        When it has been replaced.
    """
    for part in _parts(newest):
        # It may be just being rotated.
        with suppress(FileNotFoundError):
            _opened(part, uid).close()


def last_lines(newest: str, uid: int, lines: int) -> bytes:
    """Return the last lines of a rank's output, at most about ``MOST_TAIL_BYTES``."""
    found = b""
    for part in reversed(list(_parts(newest))):
        with _opened(part, uid) as file:
            found = _ending(file, lines, found)
        if found.count(b"\n") > lines or len(found) >= MOST_TAIL_BYTES:
            break
    return b"".join(found.splitlines(keepends=True)[-lines:]) if lines else b""


class RankOutput(NamedTuple):
    """The output of a rank, across rotation and new runs.

    Attributes
    ----------
    api : ServiceApi
        The service.
    job, rank : str, int
        The job and its rank.
    by : Owner
        The user who asks for it.
    uid : int
        User id of the job's owner.
    """

    api: ServiceApi
    job: str
    rank: int
    by: Owner
    uid: int

    def newest(self) -> str | None:
        """Return the path of its newest part."""
        return self.api.log_path(self.job, self.rank, self.by)

    def lacks(self) -> bool:
        """Return whether the newest part may lack output that its node has."""
        return bool(self.api.log_lack(self.job, self.rank, self.by))

    def is_over(self) -> bool:
        """Return whether nothing more will be written."""
        return self.api.is_over(self.job)


async def followed(
    log: RankOutput, lines: int | None, ending: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yield the output of a rank so far and as it is written, over all runs, until its job is over.

    Parameters
    ----------
    log : RankOutput
        Output of the rank.
    lines : int or None
        Number of last lines to begin with; None: all lines.
    ending : callable
        Returns whether to end earlier.
    """
    reader, until_s = _LogReader(log), math.inf
    try:
        if lines is not None:
            yield await asyncio.to_thread(reader.skip_to, lines)
        while True:
            # Asked before reading, so that everything written until the end is read.
            over = ending() or await asyncio.to_thread(log.is_over)
            while chunk := await asyncio.to_thread(reader.read):
                yield chunk
            if over:
                until_s = min(until_s, time.monotonic() + _LACK_S)
                if time.monotonic() > until_s or ending() or not await asyncio.to_thread(log.lacks):
                    return
            await asyncio.sleep(_POLL_S)
    finally:
        reader.close()


class _LogReader:
    """The position up to which a log has been read."""

    def __init__(self, log: RankOutput) -> None:
        self._log = log
        self._newest: str | None = None
        self._file: BinaryIO | None = None

    def skip_to(self, lines: int) -> bytes:
        """Return the last lines; ``read`` continues after them."""
        newest = self._log.newest()
        if newest is None:
            return b""
        text = last_lines(newest, self._log.uid, lines)
        self._open(newest, newest)
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)
        return text

    def read(self) -> bytes:
        """Return the next output, or nothing if there is none yet."""
        newest = self._log.newest()
        if newest is None:
            return b""
        if self._file is None:
            self._open(newest, next(_parts(newest), newest))
        while self._file is not None:
            if chunk := self._file.read(_CHUNK_BYTES):
                return chunk
            next_part = self._next_part(newest)
            if next_part is None:
                return b""
            self._open(newest, next_part)
        return b""

    def close(self) -> None:
        """Close the file being read."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, newest: str, part: str) -> None:
        self.close()
        self._newest = newest
        # If it does not exist yet, or is just being rotated, the next reading opens it.
        with suppress(FileNotFoundError):
            self._file = _opened(part, self._log.uid)

    def _next_part(self, newest: str) -> str | None:
        """Return the part after the one being read, or None if there is none."""
        assert self._file is not None
        parts = list(_parts(newest))
        if newest == self._newest:
            mine = os.fstat(self._file.fileno())
            place = next((k for k, part in enumerate(parts) if _same(part, mine)), -1)
            parts = parts[place + 1 :]
        return parts[0] if parts else None


def _parts(newest: str) -> Iterator[str]:
    """Yield the files of a log that exist, the oldest first."""
    older = []
    for k in count(1):
        part = f"{newest}.{k}"
        if not os.path.lexists(part):
            break
        older.append(part)
    yield from reversed(older)
    if os.path.lexists(newest):
        yield newest


def _opened(part: str, uid: int) -> BinaryIO:
    """Open a part of a log, but never a file that its owner has put in its place."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.fdopen(os.open(part, flags), "rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RefusedError(f"{Path(part).name} cannot be read: {error.strerror}") from None
    found = os.fstat(file.fileno())
    owners = (uid, os.getuid())
    if stat.S_ISREG(found.st_mode) and found.st_uid in owners and found.st_nlink <= 1:
        return file
    file.close()
    raise RefusedError(f"{Path(part).name} is not the log that was made for the job")


def _ending(file: BinaryIO, lines: int, behind: bytes) -> bytes:
    """Return the end of a file followed by ``behind``: at least ``lines`` lines, if it has them.

    It reads one line more, as the first may be cut, but at most about ``MOST_TAIL_BYTES``.
    """
    position = file.seek(0, os.SEEK_END)
    while position > 0 and behind.count(b"\n") <= lines and len(behind) < MOST_TAIL_BYTES:
        start = max(position - _CHUNK_BYTES, 0)
        file.seek(start)
        behind = file.read(position - start) + behind
        position = start
    return behind


def _same(part: str, mine: os.stat_result) -> bool:
    try:
        found = os.lstat(part)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)
