"""What the service says to a shim while a rank is being started, and what the shim answers."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from typing import Final

from dovetail.executor.live.clock import boot_s
from dovetail.executor.live.pools import shim
from dovetail.executor.live.pools.processes import TOKEN
from dovetail.executor.live.pools.run_files import RankFiles
from dovetail.instances.errors import DovetailError

_DISMISS_S: Final = 5.0


class LaunchError(DovetailError):
    """A rank cannot be started; the text says why."""


class NotNowError(LaunchError):
    """A rank cannot be started at present, through no fault of its job."""


class Gate:
    """A shim that has been started, and the process that it holds at the gate.

    Parameters
    ----------
    files : RankFiles
        Of the rank; its specification has been written.
    """

    def __init__(self, files: RankFiles) -> None:
        orders, self._orders = os.pipe()
        try:
            self._answers, answers = os.pipe()
        except OSError:
            os.close(orders)
            os.close(self._orders)
            raise
        try:
            self.pid = _spawn(files, orders, answers)
        except OSError:
            self.leave()
            raise
        finally:
            os.close(orders)
            os.close(answers)

    def answer(self, deadline_s: float) -> str:
        """Return the next line that the shim says; empty when it is gone, or too slow."""
        line = b""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline_s - boot_s()) * 1000):
                return ""
            part = os.read(self._answers, 4096)
            if not part:
                return ""
            line += part
        return line.decode(errors="replace").strip()

    @property
    def descriptor(self) -> int:
        """What becomes readable, while the process is held, only when its shim is gone."""
        return self._answers

    @property
    def gone(self) -> bool:
        """Whether the shim of a process that is held has ended."""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        return bool(poll.poll(0))

    def open(self) -> None:
        """Let the process go; where its shim has just died, its files tell what came of it."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, b"go\n")

    def leave(self) -> None:
        """Let go of the shim. What still waits at the gate ends."""
        os.close(self._orders)
        os.close(self._answers)

    def dismiss(self) -> None:
        """Let go of the shim and wait for its end."""
        self.leave()
        try:
            with contextlib.closing(_Descriptor(os.pidfd_open(self.pid))) as shim_process:
                poll = select.poll()
                poll.register(shim_process.number, select.POLLIN)
                ended = bool(poll.poll(_DISMISS_S * 1000))
        except OSError:
            # There is no descriptor to wait on: what is held at the gate dies with it.
            ended = False
        if not ended:
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class _Descriptor:
    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        os.close(self.number)


_REFUSED: Final = "refused "


def complaint(answer: str) -> str:
    """Return why a rank is not started, from what its shim answered instead."""
    reason = answer.removeprefix(_REFUSED).removeprefix("later ")
    return reason or "its launcher died or did not answer"


def is_blameless(answer: str) -> bool:
    """Return whether a rank is not started through no fault of its job."""
    return not answer.startswith(_REFUSED)


def _spawn(files: RankFiles, orders: int, answers: int) -> int:
    trouble = str(files.directory / "shim.log")
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", shim.__file__, str(files.directory)],
        {"PATH": os.defpath, "LC_ALL": "C.UTF-8", TOKEN: files.token},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, orders, 0),
            (os.POSIX_SPAWN_DUP2, answers, 1),
            (os.POSIX_SPAWN_OPEN, 2, trouble, append, 0o600),
        ],
        setsid=True,
        setsigmask=(),
    )
