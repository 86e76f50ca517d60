"""The line between the service and a shim while a rank is being started."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Final

from dovetail.executor.pools import shim
from dovetail.executor.pools.runs.files import RankFiles
from dovetail.executor.pools.runs.processes import TOKEN
from dovetail.executor.pools.runs.progress import PAGE_BYTES
from dovetail.executor.system.clock import boot_s
from dovetail.executor.system.jobs_group import entry_of_jobs
from dovetail.instances.errors import DovetailError

_DISMISS_S: Final = 5.0
_TOKEN_BYTES: Final = 512


class LaunchError(DovetailError):
    """A rank cannot be started, for the reason in the text."""


class NotNowError(LaunchError):
    """A rank cannot be started at present, through no fault of its job."""


class ForkServer:
    """The process that forks the shims of a pool, started before the first shim.

    It is restarted whenever it is gone, and ends with this process. Its methods may be called from
    any thread.

    Parameters
    ----------
    directory : path
        The state directory; shown in the list of processes.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._using = threading.Lock()
        self._requests: socket.socket | None = None
        self._pid, self._closed = 0, False

    def start(self) -> None:
        """Start it, unless it is known to run."""
        with self._using:
            self._started()

    def fork(self, files: RankFiles, line: socket.socket) -> None:
        """Assign a shim to a rank, connected by this line."""
        request = b"\0".join([os.fsencode(files.directory), files.token.encode()])
        with self._using:
            try:
                socket.send_fds(self._started(), [request], [line.fileno()])
            except OSError:
                # It has ended, or is stopped.
                self._end()
                socket.send_fds(self._started(), [request], [line.fileno()])

    def kill(self) -> None:
        """Kill it because it does not answer; its forks keep running."""
        with self._using:
            self._end()

    def close(self) -> None:
        """End it permanently; its forks keep running."""
        with self._using:
            self._closed = True
            self._end()

    def _started(self) -> socket.socket:
        if self._closed:
            raise NotNowError("the service ends")
        if self._requests is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.settimeout(_DISMISS_S)
            try:
                with theirs:
                    self._pid = _spawn(self._directory, theirs.fileno())
            except OSError:
                ours.close()
                raise
            self._requests = ours
        return self._requests

    def _end(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None
            # It holds no state, and may be stopped.
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


class StartBarrier:
    """The line to a shim, and the process that the shim holds at the start barrier.

    Parameters
    ----------
    server : ForkServer
        Forks the shim.
    files : RankFiles
        The files of the rank, whose specification has been written.

    Attributes
    ----------
    opened : bool
        Whether the process is released.
    """

    def __init__(self, server: ForkServer, files: RankFiles) -> None:
        self._server = server
        self._received, self.opened = b"", False
        self._shim: int | None = None
        self._line, theirs = socket.socketpair()
        try:
            with theirs:
                server.fork(files, theirs)
        except (OSError, NotNowError):
            self._line.close()
            raise

    def heard(self) -> str | None:
        """Return the next line of the shim; None if there is none yet, empty if it is gone."""
        while not (line := self._next_line()):
            if not self.speaks:
                return None
            if not self._read():
                return ""
        return line

    def answer(self, deadline_s: float) -> str:
        """Wait for the next line of the shim; empty if it is gone or too slow."""
        while (line := self.heard()) is None:
            if not _readable(self.descriptor, deadline_s - boot_s()):
                return ""
        return line

    @property
    def descriptor(self) -> int:
        """The descriptor that becomes readable when the shim ends or sends more."""
        return self._line.fileno()

    @property
    def speaks(self) -> bool:
        """Whether the shim has ended or sent more; it sends nothing while the process is held."""
        return _readable(self.descriptor, 0.0)

    def open(self) -> None:
        """Release the process as soon as it arrives; if its shim has died, its files show that."""
        if not self.opened:
            self.opened = True
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._line.sendall(b"go\n")

    def leave(self) -> None:
        """Disconnect from the shim. A process that still waits at the start barrier ends."""
        self._line.close()
        if self._shim is not None:
            os.close(self._shim)
            self._shim = None

    def dismiss(self) -> None:
        """Disconnect from the shim and wait for its end."""
        if self._shim is None and not self.answer(boot_s() + _DISMISS_S) and self._shim is None:
            # The shim has not answered yet: make sure that its request is never served.
            self._server.kill()
        self._line.close()
        if self._shim is not None and not _readable(self._shim, _DISMISS_S):
            signal.pidfd_send_signal(self._shim, signal.SIGKILL)
            _readable(self._shim, math.inf)
        self.leave()

    def _next_line(self) -> str:
        """Return the next complete line received, empty if there is none."""
        line, end, rest = self._received.lstrip(b"\n").partition(b"\n")
        if not end:
            return ""
        self._received = rest
        return line.decode(errors="replace").strip()

    def _read(self) -> bool:
        """Receive from the shim; return False if it has closed the line."""
        try:
            part, shims, *_ = socket.recv_fds(self._line, 4096, 1)
        except ConnectionResetError:
            return False
        if shims:
            (self._shim,) = shims
        self._received += part
        return bool(part)


def _readable(descriptor: int, within_s: float) -> bool:
    """Wait until a descriptor is readable or the time is up; return whether it is readable."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if within_s == math.inf else max(0.0, within_s) * 1000))


_REFUSED: Final = "refused "


def complaint(answer: str) -> str:
    """Return why a rank is not started, from the answer of its shim."""
    reason = answer.removeprefix(_REFUSED).removeprefix("later ")
    return reason or "its launcher died or did not answer"


def is_blameless(answer: str) -> bool:
    """Return whether the job is not at fault that a rank is not started."""
    return not answer.startswith(_REFUSED)


def _spawn(directory: Path, requests: int) -> int:
    folder = os.path.dirname(os.path.dirname(os.path.abspath(shim.__file__)))
    program = f"import sys; sys.path.append({folder!r}); from shim.server import serve; "
    return os.posix_spawn(
        sys.executable,
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"{program}serve({TOKEN!r}, sys.argv[1], {PAGE_BYTES}, sys.argv[2])",
            str(directory),
            entry_of_jobs(),
        ],
        {"PATH": os.defpath, "LC_ALL": "C.UTF-8", TOKEN: " " * _TOKEN_BYTES},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, requests, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_RDWR, 0),
        ],
        setsid=True,
        setsigmask=(),
    )
