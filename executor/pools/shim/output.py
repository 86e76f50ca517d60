"""The readers of a rank's output: its log, files chosen by its user, the progress counter."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import stat as stat_module
import struct
import sys
from typing import TYPE_CHECKING, Any

from .kernel import one_line

_NONE = 2**32 - 1

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Readers = list[Callable[[bytes], object]]


class OutputLog:
    """The output of a rank: ``log``, and older parts as ``log.1``, ``log.2``, ...

    The parts belong to this process's user, so only output makes them grow, and output is dropped
    while the disk has little space.

    Parameters
    ----------
    path : str
        The path of the newest part.
    most_bytes : int
        The largest size of a part, which ends at the end of a line if possible.
    files : int
        The number of parts kept, including the newest.
    reader : int, optional
        A user who may read the parts, if the file system supports access control lists.
    mode : int
        The permissions of the parts.
    """

    _FREE_BYTES = 24 * 2**20
    """Bytes left free on the disk, enough to start jobs (``live.rounds.starts``)."""

    _LOOK_BYTES = 2**18
    """Bytes written between two checks of the free space."""

    def __init__(
        self,
        path: str,
        most_bytes: int,
        files: int,
        reader: int | None = None,
        mode: int = 0o600,
    ) -> None:
        self._path, self._most, self._files = path, most_bytes, files
        self._reader, self._mode = reader, mode
        self._lost, self._unseen = 0, 0
        self._open()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def write(self, data: bytes) -> None:
        """Append output. If the disk is full, output is dropped, and a note says how much."""
        while data:
            room = self._most - self._size
            if len(data) > room and self._size:
                cut = data.rfind(b"\n", 0, max(room, 0)) + 1
                self._append(data[:cut])
                data = data[cut:]
                self._rotate()
            else:
                self._append(data[: self._most])
                data = data[self._most :]

    def _append(self, data: bytes) -> None:
        if self._lost:
            note = f"[dovetail: {self._lost} bytes of output lost, the disk took no more]\n"
            if self._refused(note.encode()):
                self._lost += len(data)
                return
            self._lost = 0
        self._lost += self._refused(data)

    def _refused(self, data: bytes) -> int:
        """Write as much as fits on the disk, and return the number of bytes not written."""
        view = memoryview(data)
        with contextlib.suppress(OSError):
            while view and self._has_room(len(view)):
                written = os.write(self._file, view)
                self._size += written
                view = view[written:]
        return len(view)

    def _has_room(self, size: int) -> bool:
        self._unseen += size
        if self._unseen < self._LOOK_BYTES:
            return True
        found = os.fstatvfs(self._file)
        if found.f_bavail * found.f_frsize < self._FREE_BYTES:
            return False
        self._unseen = 0
        return True

    def _rotate(self) -> None:
        old = self._file
        try:
            self._empty(self._files - 1)
            for number in range(self._files - 1, 0, -1):
                newer = f"{self._path}.{number - 1}" if number > 1 else self._path
                with contextlib.suppress(FileNotFoundError):
                    os.rename(newer, f"{self._path}.{number}")
            if self._files == 1:
                os.unlink(self._path)
            self._open()
        except OSError:
            # The present part continues to grow, so nothing is lost.
            self._size = 0
            return
        os.close(old)

    def _empty(self, number: int) -> None:
        """Free the space of a part, which an open reader would keep after its removal."""
        with contextlib.suppress(FileNotFoundError):
            os.truncate(f"{self._path}.{number}" if number else self._path, 0)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self._path, flags, self._mode)
        os.fchmod(self._file, self._mode)
        if self._reader is not None:
            _let_read(self._file, self._reader, self._mode)
        self._size = os.fstat(self._file).st_size


class ErrorLog(io.TextIOBase):
    """Text that is appended to a file, which exists only once there is some; errors are ignored."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, text: str) -> int:
        """Append text."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(OSError):
            file = os.open(self._path, flags, 0o600)
            try:
                os.write(file, text.encode(errors="replace"))
            finally:
                os.close(file)
        return len(text)


class Copy(OutputLog):
    """A copy of the output in a file chosen by the user: appended to, and never rotated."""

    def __init__(self, path: str, mode: int) -> None:
        super().__init__(path, sys.maxsize, 1, mode=mode)

    def _has_room(self, size: int) -> bool:
        """Return True: the disk that the user chose has its own limits."""
        return True

    def _open(self) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        # No file that could block, or that another user put there as a trap.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        flags |= os.O_NONBLOCK | os.O_NOCTTY
        self._file = os.open(self._path, flags, self._mode)
        found = os.fstat(self._file)
        null = stat_module.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3)
        if not null and not stat_module.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "must be a regular file", self._path)
        self._size = 0


def _let_read(file: int, uid: int, mode: int) -> None:
    """Let a user read a file of ours by an access control list (``man acl``), if supported."""
    everybody = mode & 0o7
    entries = ((0x01, 6, _NONE), (0x02, 4, uid), (0x04, 0, _NONE), (0x10, 4, _NONE))
    packed = [struct.pack("<HHI", *entry) for entry in (*entries, (0x20, everybody, _NONE))]
    with contextlib.suppress(OSError):
        os.setxattr(file, "system.posix_acl_access", struct.pack("<I", 2) + b"".join(packed))


@contextlib.contextmanager
def _rights_of(user: dict[str, Any] | None) -> Iterator[None]:
    """Open files as a user while the block runs; None: as this process's user."""
    if user is None:
        yield
        return
    groups, gid, uid = os.getgroups(), os.getegid(), os.geteuid()
    os.setgroups(user["groups"])
    os.setegid(user["gid"])
    os.seteuid(user["uid"])
    try:
        yield
    finally:
        os.seteuid(uid)
        os.setegid(gid)
        os.setgroups(groups)


def _copies(spec: dict[str, Any]) -> list[Readers]:
    """Return the readers that copy each of the rank's outputs with the rights of its user."""
    os.umask(0o022)
    try:
        with _rights_of(spec["user"]):
            mode = spec["log"]["mode"]
            return [[Copy(path, mode).write] if path else [] for path in spec["copies"]]
    except OSError as error:
        # The user chose the path, so this is not a fault of the service, unlike other OSErrors.
        raise ValueError(f"its output: {one_line(error)}") from None


def readers_of(directory: str, spec: dict[str, Any]) -> list[Readers]:
    """Return the readers of each of the rank's outputs."""
    user, settings = spec["user"], spec["log"]
    path = os.path.join(directory, "log")
    reader = user["uid"] if user else None
    log = OutputLog(path, settings["most_bytes"], settings["files"], reader, settings["mode"])
    return [[log.write, *_counters(spec["lines"]), *copies] for copies in _copies(spec)]


def _counters(lines: dict[str, str] | None) -> Readers:
    """Return the readers that look for progress in an output."""
    if lines is None:
        return []
    if lines["modules"] not in sys.path:
        sys.path.insert(0, lines["modules"])
    found = importlib.import_module("dovetail_progress_lines").Lines
    return [found(lines["pattern"], lines["path"]).feed]
