"""The rank's own process, from its fork to its program."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
from typing import Any, NoReturn

from .kernel import PR_SET_PDEATHSIG, prctl, told

_CHUNK = 65536
_READY = b"ready"


class Child:
    """The rank's own process, held at a start barrier until it is released.

    Attributes
    ----------
    pid : int
        Of the process.
    outputs : list of int
        Where its output is read; its standard error apart where that has a file of its own.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        barrier_out, self._barrier = os.pipe()
        self._report, report_in = os.pipe()
        pipes = [os.pipe() for _ in spec["copies"]]
        self.outputs, outputs_in = [out for out, _ in pipes], [end for _, end in pipes]
        shim = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            # Without this the start barrier would never see the shim's end of it close.
            os.close(self._barrier)
            _become(spec, shim, barrier_out, report_in, outputs_in)
        for end in (barrier_out, report_in, *outputs_in):
            os.close(end)
        for output in self.outputs:
            os.set_blocking(output, False)

    def prepared(self) -> str:
        """Wait until it stands at the start barrier, and return why it cannot."""
        told = os.read(self._report, _CHUNK)
        return "" if told == _READY else told.decode(errors="replace") or "it died at its start"

    def release(self) -> str:
        """Open the start barrier, and return why its program could not be run."""
        os.write(self._barrier, b"g")
        os.close(self._barrier)
        return os.read(self._report, _CHUNK).decode(errors="replace")

    def give_up(self) -> None:
        """End it at the start barrier."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _become(
    spec: dict[str, Any], shim: int, barrier: int, report: int, outputs: list[int]
) -> NoReturn:
    """Turn the forked child into the rank: everything up to its program, then the start barrier."""
    try:
        os.setsid()
        _refuse_unspeakable(spec)
        _take_seat(spec)
        _take_streams(outputs)
        _take_user(spec)
        # Only now: a change of user would clear it.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != shim:
            os._exit(1)
        os.chdir(spec["cwd"])
        program = _program(spec["command"][0], spec["env"].get("PATH", os.defpath))
        _default_signals()
        os.write(report, _READY)
        if os.read(barrier, 1) != b"g":
            os._exit(1)
        os.execve(program, spec["command"], spec["env"])
    except BaseException as error:
        os.write(report, told(error).encode(errors="replace")[:_CHUNK])
    os._exit(1)


def _refuse_unspeakable(spec: dict[str, Any]) -> None:
    """Refuse before the start barrier what could not be handed to a program behind it."""
    if any("\0" in text for text in (*spec["command"], *spec["env"], *spec["env"].values())):
        raise ValueError("a NUL character is in its command or environment")
    if any(not name or "=" in name for name in spec["env"]):
        raise ValueError("an environment variable's name is empty or has a '=' in it")


def _take_seat(spec: dict[str, Any]) -> None:
    for path in spec["cgroups"]:
        with open(path, "w", encoding="ascii") as file:
            file.write("0")
    if spec["cpus"]:
        os.sched_setaffinity(0, spec["cpus"])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(spec["descriptors"], most), most))


def _take_streams(outputs: list[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(outputs[0], 1)
    os.dup2(outputs[-1], 2)


def _take_user(spec: dict[str, Any]) -> None:
    user = spec["user"]
    if user is not None:
        os.setgroups(user["groups"])
        os.setgid(user["gid"])
        os.setuid(user["uid"])
    os.umask(0o022)


def _program(name: str, path: str) -> str:
    found = shutil.which(name, path=path)
    if found is None:
        reason = "cannot be executed" if os.path.exists(name) else "is not found"
        raise FileNotFoundError(errno.ENOENT, f"the program {reason}", name)
    return found


def _default_signals() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
