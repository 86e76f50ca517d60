"""The rank's own process, from its fork to its program."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import socket
from typing import TYPE_CHECKING, Any, NoReturn

from . import page, prober
from .kernel import PR_SET_PDEATHSIG, boot_id, one_line, prctl, stat_of

if TYPE_CHECKING:
    from .kernel import EnvironmentEntry

OOM_SCORE_ADJ = 500
"""When memory runs out, a process of a job is rated as if it had half of all memory in addition.

So the kernel kills jobs before the service, the shims and the MPS servers (proc(5)).
"""

_CHUNK = 65536
_READY = b"ready"
_GO = b"go"


def read_spec(directory: bytes) -> dict[str, Any]:
    """Return the specification of a rank from ``spec.json`` in its directory."""
    with open(os.path.join(directory, b"spec.json"), encoding="utf-8") as file:
        spec: dict[str, Any] = json.load(file)
    return spec


class Child:
    """The process that becomes a rank. It is forked before the rank is known.

    Parameters
    ----------
    token : EnvironmentEntry
        The variable by which it is found.
    rehearsal : bytes
        The directory of a rank that is prepared once, but never started.

    Attributes
    ----------
    pid : int
        Its process id.
    outputs : list of int
        The pipes of its standard output and, if that has a separate file, standard error.
    line : socket.socket
        Readable once the process has sent a message, or has ended.
    identity : dict
        Identifies the process and its shim: PIDs, start times and boot.
    """

    def __init__(self, token: EnvironmentEntry, rehearsal: bytes) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipes = [os.pipe(), os.pipe()]
        self.outputs, outputs_in = [out for out, _ in pipes], [end for _, end in pipes]
        shim = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self.line.close()
            _become(theirs, token, rehearsal, shim, outputs_in)
        theirs.close()
        for end in outputs_in:
            os.close(end)
        for output in self.outputs:
            os.set_blocking(output, False)
        self.identity: dict[str, object] = {
            "pid": self.pid,
            "pid_started": _started(self.pid),
            "shim": shim,
            "shim_started": _started(shim),
            "boot": boot_id(),
        }

    def prepare(self, directory: bytes, token: bytes) -> None:
        """Send it to the start barrier of a rank."""
        with contextlib.suppress(OSError):
            self.line.send(directory + b"\0" + token)

    def prepared(self) -> str:
        """Wait until it is at the start barrier; return why it cannot be, empty if it is."""
        answer = self._answer()
        return "" if answer == _READY else answer.decode(errors="replace") or "it died at its start"

    def release(self) -> str:
        """Open the start barrier; return why the program could not be run, empty if it was."""
        with contextlib.suppress(OSError):
            self.line.send(_GO)
        return self._answer().decode(errors="replace")

    def give_up(self) -> None:
        """End it at the start barrier."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _answer(self) -> bytes:
        """Return its next message, empty once it has closed its end, as execve does."""
        try:
            return self.line.recv(_CHUNK)
        except ConnectionResetError:
            return b""


def _become(
    line: socket.socket, token: EnvironmentEntry, rehearsal: bytes, shim: int, outputs: list[int]
) -> NoReturn:
    """Turn the forked child into the rank: prepare, wait at the start barrier, run the program."""
    try:
        os.setsid()
        os.umask(0o022)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _default_signals()
        _end_with(shim)
        with contextlib.suppress(OSError, ValueError):
            _prepare(read_spec(rehearsal), outputs, shim)
        request = line.recv(_CHUNK)
        if not request:
            os._exit(1)
        directory, held = request.split(b"\0")
        token.write(held)
        spec = read_spec(directory)
        program = _prepare(spec, outputs, shim)
        line.send(_READY)
        if line.recv(_CHUNK) != _GO:
            os._exit(1)
        if spec.get("probe"):
            prober.begin(spec, shim, line)
        os.execve(program, spec["command"], page.named(spec["env"]))
    except BaseException as error:
        line.send(one_line(error).encode(errors="replace")[:_CHUNK])
    os._exit(1)


def _prepare(spec: dict[str, Any], outputs: list[int], shim: int) -> str:
    """Prepare this process as a rank up to its program, and return the program's path."""
    _refuse_unspeakable(spec)
    _take_seat(spec)
    os.dup2(outputs[0], 1)
    os.dup2(outputs[len(spec["copies"]) - 1], 2)
    page.hand_over(spec["user"])
    if spec["user"] is not None:
        os.setgroups(spec["user"]["groups"])
        os.setgid(spec["user"]["gid"])
        os.setuid(spec["user"]["uid"])
        # Changing the user clears it.
        _end_with(shim)
    os.chdir(spec["cwd"])
    return _program(spec["command"][0], spec["env"].get("PATH", os.defpath))


def _started(pid: int) -> int:
    stat = stat_of(pid)
    assert stat is not None
    return stat.started


def _end_with(shim: int) -> None:
    """Have the kernel kill this process when its shim ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != shim:
        os._exit(1)


def _refuse_unspeakable(spec: dict[str, Any]) -> None:
    """Refuse, before the start barrier, texts that cannot be passed to a program."""
    if any("\0" in text for text in (*spec["command"], *spec["env"], *spec["env"].values())):
        raise ValueError("a NUL character is in its command or environment")
    if any(not name or "=" in name for name in spec["env"]):
        raise ValueError("an environment variable's name is empty or has a '=' in it")


def _take_seat(spec: dict[str, Any]) -> None:
    _come_first_when_memory_runs_out()
    for path in spec["cgroups"]:
        with open(path, "w", encoding="ascii") as file:
            file.write("0")
    if spec["cpus"]:
        os.sched_setaffinity(0, spec["cpus"])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(spec["descriptors"], most), most))
    # The limit on its memory is the service's own.
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _come_first_when_memory_runs_out() -> None:
    """Raise the score by which the kernel selects processes to kill; only root can lower it."""
    with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        if int(file.read()) < OOM_SCORE_ADJ:
            file.seek(0)
            file.write(str(OOM_SCORE_ADJ))


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
