"""One control daemon of MPS, through ``nvidia-cuda-mps-control``.

The program exits 0 on most failures, so what it prints is parsed, and what is not understood is an
error. Answers were recorded with 535.309.01 without a GPU
(``tests/executor/mps/transcripts``); those that need a server are documented by NVIDIA (man
page; MPS guide, "Appendix: Tools and Interface Reference").
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from dovetail.executor.mps import processes
from dovetail.executor.mps.errors import (
    MpsError,
    MpsRefusedError,
    NoAnswerError,
    NoDaemonError,
    NoServerError,
    UnknownCommandError,
)
from dovetail.executor.mps.processes import Process

PROGRAM: Final = "nvidia-cuda-mps-control"
SERVER: Final = "nvidia-cuda-mps-server"

PIPE_DIRECTORY: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOG_DIRECTORY: Final = "CUDA_MPS_LOG_DIRECTORY"
DEVICES: Final = "CUDA_VISIBLE_DEVICES"

ANSWER_S: Final = 10.0
"""Enough for any machine: the usual answer takes milliseconds."""

LONGEST_DIRECTORY: Final = 87
"""Bytes of a pipe directory's path: 88 fail with 535, as ``control_privileged`` is a socket."""

_LOG_MOST: Final = 16 * 2**20
_KEPT_VARIABLES: Final = ("PATH", "LD_LIBRARY_PATH")
_NO_DAEMON: Final = "Cannot find MPS control daemon process"
_REFUSALS: Final[tuple[tuple[re.Pattern[str], type[MpsError]], ...]] = (
    (re.compile(r'Unknown command "'), UnknownCommandError),
    (re.compile(r"Server \d+ not found"), NoServerError),
    (re.compile(r"Not enough privilege|Insufficient privileges"), MpsRefusedError),
)


class HealthState(StrEnum):
    """What MPS on a GPU is doing."""

    DOWN = "down"
    """No daemon of ours answers."""
    IDLE = "idle"
    """A daemon runs and has no server; the first client brings one."""
    ACTIVE = "active"
    """Every server serves."""
    UNTOLD = "untold"
    """A server runs; the installed control program cannot tell its state (before 555)."""
    STARTING = "starting"
    """A server is initialising."""
    FAULT = "fault"
    """A client's fault has stopped a server; newcomers are refused."""
    UNKNOWN = "unknown"
    """The daemon does not answer in time, is gone from under its clients, or talks nonsense."""


_WORST_LAST: Final = tuple(HealthState)
_STATUS: Final = {
    "ACTIVE": HealthState.ACTIVE,
    "INITIALIZING": HealthState.STARTING,
    "FAULT": HealthState.FAULT,
}
"""What ``get_server_status`` answers."""


class Health(NamedTuple):
    """MPS on one GPU.

    Attributes
    ----------
    state : HealthState
        The worst of its servers'.
    uid : int or None
        The user it serves; None where it is down.
    servers, clients : tuple of int
        Their pids.
    why : str
        In words, where there is something to say.
    """

    state: HealthState
    uid: int | None = None
    servers: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    why: str = ""


class Spoken(NamedTuple):
    """One run of the control program; ``exit`` is None where it did not end in time."""

    options: tuple[str, ...]
    command: str
    exit: int | None
    out: str
    err: str
    seconds: float


@dataclass(frozen=True)
class Control:
    """The control daemon of one GPU and one user, whether it runs or not.

    Attributes
    ----------
    directory : Path
        For its sockets and logs; nobody but the user may enter it.
    gpu : str
        UUID of the only GPU it sees.
    uid : int
        The user it runs as and serves.
    program : str
        Path of the control program.
    answer_s : float
        Seconds after which a command counts as not answered.
    """

    directory: Path
    gpu: str
    uid: int
    program: str
    answer_s: float = ANSWER_S

    def start(self) -> None:
        """Start the daemon; it listens when this returns.

        Raises
        ------
        MpsError
            It did not start, or does not answer.
        """
        done = self._run(["-d"], "", self.answer_s)
        if done.exit != 0:
            raise MpsError(f"{self}: did not start: {_words(done)}")
        if self.daemon() is None:
            raise MpsError(f"{self}: was started, but no such process lives: {_words(done)}")
        self.servers()

    def daemon(self) -> Process | None:
        """Return the daemon's process, proved by name, user, pipe directory and GPU."""
        return next((one for one in processes.running(PROGRAM) if self._is_daemon(one)), None)

    def server_processes(self) -> tuple[Process, ...]:
        """Return the processes of its servers, whether the daemon lives or not."""
        return tuple(one for one in processes.running(SERVER) if self._given(one))

    def holders(self) -> tuple[int, ...]:
        """Return the processes that may be clients: they were given its pipe directory."""
        return tuple(
            found.pid
            for found in processes.every()
            if self._given(found) and not found.runs(PROGRAM) and not found.runs(SERVER)
        )

    def servers(self) -> tuple[int, ...]:
        """Return the pids of its servers."""
        return self._pids("get_server_list")

    def clients(self, server: int) -> tuple[int, ...]:
        """Return the pids of a server's clients; none where the server has gone."""
        try:
            return self._pids(f"get_client_list {server}")
        except NoServerError:
            return ()

    def all_clients(self) -> tuple[int, ...]:
        """Return the pids of the clients of all its servers."""
        return tuple(client for server in self.servers() for client in self.clients(server))

    def status(self, server: int) -> HealthState:
        """Return how a server is.

        Raises
        ------
        NoServerError
            The server has gone.
        """
        command = f"get_server_status {server}"
        try:
            answer = self.ask(command)
        except UnknownCommandError:
            return HealthState.UNTOLD
        words = {word.strip(":.,") for word in " ".join(answer).split()}
        found = [state for word, state in _STATUS.items() if word in words]
        if len(found) != 1:
            raise self._not_understood(command, answer)
        return found[0]

    def health(self) -> Health:
        """Return how the daemon and its servers are; what cannot be known is a state of its own."""
        try:
            servers = self.servers()
            clients = tuple(client for server in servers for client in self.clients(server))
            states = []
            for server in servers:
                with suppress(NoServerError):
                    states.append(self.status(server))
        except NoDaemonError as error:
            return Health(HealthState.DOWN, why=str(error))
        except MpsError as error:
            return Health(HealthState.UNKNOWN, self.uid, why=str(error))
        if not states:
            return Health(HealthState.IDLE, self.uid)
        return Health(max(states, key=_WORST_LAST.index), self.uid, servers, clients)

    def terminate_client(self, server: int, client: int, within_s: float) -> bool:
        """End all GPU work of a client, and say whether that was done.

        A client that is no longer in the list afterwards has ended too.
        """
        try:
            answer = self.ask(f"terminate_client {server} {client}", within_s)
        except NoServerError:
            return True
        return answer[-1:] == ("0",) or client not in self.clients(server)

    def quit(self, within_s: float) -> None:
        """End the daemon, its servers by force if they still run after ``within_s`` seconds.

        Raises
        ------
        MpsError
            It still lives.
        """
        daemon = self.daemon()
        self._run([], f"quit -t {max(1, round(within_s))}", within_s + self.answer_s)
        if daemon is not None and not processes.ends(daemon, self.answer_s):
            raise MpsError(f"{self}: was told to quit, but process {daemon.pid} still lives")

    def ask(self, command: str, within_s: float | None = None) -> tuple[str, ...]:
        """Send a command to the daemon, and return the lines that it answers.

        Raises
        ------
        NoDaemonError
            None answers.
        NoAnswerError
            It took too long, or the program failed in an unknown way.
        UnknownCommandError, NoServerError, MpsRefusedError
            As the answer says.
        """
        done = self._run([], command, self.answer_s if within_s is None else within_s)
        if _NO_DAEMON in done.err:
            raise NoDaemonError(f"{self}: no control daemon answers")
        if done.exit != 0:
            raise NoAnswerError(f"{self}: {command!r} failed: {_words(done)}")
        lines = tuple(line.strip() for line in done.out.splitlines() if line.strip())
        for line in lines:
            for pattern, error in _REFUSALS:
                if pattern.match(line):
                    raise error(f"{self}: {command!r}: {line}")
        return lines

    def say(self, options: Sequence[str], command: str, within_s: float) -> Spoken:
        """Run the control program once, and return what came of it, whatever that is."""
        begun, status, out, err = time.monotonic(), None, "", ""
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        place = str(self.directory)
        try:
            done = subprocess.run(
                [self.program, *options],
                input=f"{command}\n",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=within_s,
                check=False,
                cwd="/",
                env={**kept, DEVICES: self.gpu, PIPE_DIRECTORY: place, LOG_DIRECTORY: place},
                umask=0o077,
                **acting_as(self.uid),
            )
            status, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired:
            pass
        except OSError as error:
            raise MpsError(f"{self}: {self.program}: {error.strerror}") from None
        return Spoken(tuple(options), command, status, out, err, time.monotonic() - begun)

    def trim_logs(self) -> None:
        """Empty logs that have grown long: every command adds five lines, and nobody rotates."""
        for name in ("control.log", "server.log"):
            # The directory is the user's: a link there must not lead a root service astray.
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
            with suppress(OSError), os.fdopen(os.open(self.directory / name, flags), "rb+") as log:
                found = os.fstat(log.fileno())
                # The daemon appends (O_APPEND), so that it goes on at the new end.
                if found.st_uid == self.uid and found.st_size > _LOG_MOST:
                    log.truncate(0)

    def __str__(self) -> str:
        """Return what errors call it."""
        return f"MPS of {self.gpu} for user {self.uid}"

    def _is_daemon(self, process: Process) -> bool:
        environment = process.environment() or {}
        return is_daemon(process) and self._given(process) and environment.get(DEVICES) == self.gpu

    def _given(self, process: Process) -> bool:
        if process.uid != self.uid:
            return False
        environment = process.environment() or {}
        return environment.get(PIPE_DIRECTORY) == str(self.directory)

    def _pids(self, command: str) -> tuple[int, ...]:
        answer = self.ask(command)
        if not all(line.isascii() and line.isdecimal() for line in answer):
            raise self._not_understood(command, answer)
        return tuple(int(line) for line in answer)

    def _not_understood(self, command: str, answer: Sequence[str]) -> NoAnswerError:
        return NoAnswerError(f"{self}: {command!r} was answered by {' / '.join(answer)!r}")

    def _run(self, options: Sequence[str], command: str, within_s: float) -> Spoken:
        spoken = self.say(options, command, within_s)
        if spoken.exit is None:
            what = command or " ".join(options)
            raise NoAnswerError(f"{self}: {what!r} was not answered in {within_s:g} s")
        return spoken


def is_daemon(process: Process) -> bool:
    """Whether a process of the control program is a daemon: its front end has no such option."""
    return bool({"-d", "-f"} & set(process.arguments))


def acting_as(uid: int) -> dict[str, Any]:
    """Return the options of ``subprocess`` that run a program as a user.

    Raises
    ------
    MpsRefusedError
        The service is not root, and the user is another.
    """
    if uid == os.geteuid():
        return {}
    if os.geteuid() != 0:
        raise MpsRefusedError(
            f"user {uid}: a service of user {os.geteuid()} runs MPS for its own user only"
        )
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return {"user": uid, "group": uid, "extra_groups": []}
    # Some systems give /dev/nvidia* to a group.
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    return {"user": uid, "group": account.pw_gid, "extra_groups": groups}


def _words(done: Spoken) -> str:
    said = " / ".join(line.strip() for line in (done.out + done.err).splitlines())
    return said or f"exit status {done.exit}"
