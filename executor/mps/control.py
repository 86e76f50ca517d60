"""One control daemon of MPS, driven through ``nvidia-cuda-mps-control``.

The program exits with 0 on most failures, so its output is parsed, and unknown output is an error.
Answers were recorded with 535.309.01 without a GPU (``tests/executor/mps/transcripts``), and with
580.159.04 on an H200; other answers that need a server are documented by NVIDIA (man page; MPS
guide, "Appendix: Tools and Interface Reference").

If it gets several commands at once, the daemon of 580 accepts some of them only when they are sent
again, and occasionally gives an empty answer. Neither is treated as a fault of MPS (observed: 48
commands from 8 to 16 starting workers in 110 s, all accepted within 0.3 s).
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from dovetail.executor.mps import processes
from dovetail.executor.mps.partitions import PARTITION, PartitionTable, parsed
from dovetail.executor.mps.processes import (
    DEVICES,
    LOG_DIRECTORY,
    PIPE_DIRECTORY,
    PROGRAM,
    SERVER,
    STATIC,
    MpsProcess,
)
from dovetail.executor.system.jobs_group import move_to_jobs
from dovetail.instances.errors import DovetailError

ANSWER_S: Final = 10.0
"""Timeout of a command in seconds; the usual answer takes milliseconds."""

BUSY_S: Final = 2.0
"""Seconds for which a command is retried while the daemon is busy."""

_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.2
_BUSY: Final = "Cannot send command to MPS control daemon process"
_LONGEST_LOG: Final = 16 * 2**20
_INHERITED: Final = ("PATH", "LD_LIBRARY_PATH")
_AS_DAEMON: Final = "-d"
_UNLIMITED: Final = ("/bin/sh", "-c", 'ulimit -S -d "$(ulimit -H -d)" && exec "$0" "$@"')
"""Prefix of the daemon's command: the service's limit on its own memory must not apply to MPS."""
_UNRECOGNIZED: Final = "Unrecognized option"
_NO_DAEMON: Final = "Cannot find MPS control daemon process"


class MpsError(DovetailError):
    """MPS failed, or a request would break one of its rules; the message is one line."""


class NoDaemonError(MpsError):
    """No control daemon answers at this pipe directory."""


class NoServerError(MpsError):
    """The daemon has no server with this pid."""


class BusyDaemonError(MpsError):
    """The daemon lives, but accepted no command for some seconds because it was busy."""


class UnknownCommandError(MpsError):
    """The installed control program does not know the command."""


class HealthState(StrEnum):
    """State of MPS on a GPU, the worst last."""

    DOWN = "down"
    """No daemon of ours answers."""
    BUSY = "busy"
    """The daemon accepts no command now: the state of its servers is unknown, but not a fault."""
    IDLE = "idle"
    """A daemon runs without a server; the first client starts one."""
    ACTIVE = "active"
    """All servers are serving clients."""
    UNREPORTED = "unreported"
    """A server runs; the installed control program cannot report its state (before 555)."""
    STARTING = "starting"
    """A server is initialising."""
    FAULT = "fault"
    """A client's fault has stopped a server; new clients are refused."""
    UNKNOWN = "unknown"
    """The daemon does not answer in time or intelligibly, or died while it had clients."""


_WORST_LAST: Final = tuple(HealthState)
_STATUS: Final = {
    "ACTIVE": HealthState.ACTIVE,
    "INITIALIZING": HealthState.STARTING,
    "FAULT": HealthState.FAULT,
}
"""Answers to ``get_server_status``."""


class Health(NamedTuple):
    """State of MPS on one GPU.

    Attributes
    ----------
    state : HealthState
        The worst state of its servers.
    uid : int or None
        The user it serves; None if it is down.
    servers, clients : tuple of int
        Their pids.
    why : str
        The reason in words, if known.
    """

    state: HealthState
    uid: int | None = None
    servers: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    why: str = ""


class Reply(NamedTuple):
    """Outcome of one run of the control program; ``exit`` is None if it timed out."""

    options: tuple[str, ...]
    command: str
    exit: int | None
    out: str
    err: str
    seconds: float


@dataclass(frozen=True)
class Control:
    """The control daemon of one GPU and one user, running or not.

    Attributes
    ----------
    directory : Path
        Its pipe and log directory, private to the user.
    gpu : str
        UUID of the only GPU it sees.
    uid : int
        The user it runs as and serves.
    program : str
        Path of the control program.
    answer_s : float
        Timeout of a command in seconds.
    static : bool
        Whether its clients have static partitions of the SMs.
    """

    directory: Path
    gpu: str
    uid: int
    program: str
    answer_s: float = ANSWER_S
    static: bool = False

    def start(self) -> None:
        """Start the daemon; it listens when this returns.

        Raises
        ------
        MpsError
            If it does not start or does not answer.
        """
        mode = [STATIC] if self.static else []
        done = self._checked([_AS_DAEMON, *mode], "", self.answer_s)
        if self.static and _UNRECOGNIZED in done.out + done.err:
            raise MpsError(f"{self}: {self.program} has no static partitions (before CUDA 13.1)")
        if done.exit != 0:
            raise MpsError(f"{self}: did not start: {_output(done)}")
        daemon = self.daemon()
        if daemon is None:
            raise MpsError(f"{self}: was started, but no such process lives: {_output(done)}")
        move_to_jobs(daemon.pid)  # before it has a server
        self.servers()

    def daemon(self) -> MpsProcess | None:
        """Return the daemon's process, identified by program, user, pipe directory and GPU."""
        return next(
            (
                one
                for one in processes.running(PROGRAM)
                if one.is_daemon and self._owns(one) and one.environment.get(DEVICES) == self.gpu
            ),
            None,
        )

    def server_processes(self) -> tuple[MpsProcess, ...]:
        """Return the processes of its servers, even after the daemon has died."""
        return tuple(one for one in processes.running(SERVER) if self._owns(one))

    def holders(self) -> tuple[int, ...]:
        """Return the pids of possible clients: processes that were given its pipe directory."""
        return tuple(
            one.pid
            for one in processes.every()
            if self._owns(one) and not one.runs(PROGRAM) and not one.runs(SERVER)
        )

    def left_behind(self) -> tuple[int, ...]:
        """Return the pids of its servers and possible clients."""
        return (*(one.pid for one in self.server_processes()), *self.holders())

    def servers(self) -> tuple[int, ...]:
        """Return the pids of its servers."""
        found = self._pids("get_server_list")
        # A busy daemon may give an empty answer, and acting on "no server" cannot be undone.
        if not found and self.server_processes():
            found = self._pids("get_server_list", is_answer=bool)
        return found

    def clients(self, server: int) -> tuple[int, ...]:
        """Return the pids of a server's clients; empty if the server has ended."""
        command = f"get_client_list {server}"
        try:
            # Only two empty answers mean no client: a busy daemon may give one.
            return self._pids(command) or self._pids(command)
        except NoServerError:
            return ()

    def all_clients(self) -> tuple[int, ...]:
        """Return the pids of the clients of all its servers."""
        return tuple(client for server in self.servers() for client in self.clients(server))

    def status(self, server: int) -> HealthState:
        """Return the state of a server.

        Raises
        ------
        NoServerError
            If the server has ended.
        """
        command = f"get_server_status {server}"
        try:
            lines = self.ask(command, is_answer=bool)
        except UnknownCommandError:
            return HealthState.UNREPORTED
        if not lines:
            raise BusyDaemonError(f"{self}: the answer to {command!r} was empty")
        words = {word.strip(":.,") for word in " ".join(lines).split()}
        found = [state for word, state in _STATUS.items() if word in words]
        if len(found) != 1:
            raise self._not_understood(command, lines)
        return found[0]

    def health(self) -> Health:
        """Return the state of the daemon and its servers; failures are states, not errors."""
        try:
            servers = self.servers()
            clients = tuple(client for server in servers for client in self.clients(server))
            states = []
            for server in servers:
                with suppress(NoServerError):
                    states.append(self.status(server))
        except NoDaemonError as error:
            return Health(HealthState.DOWN, why=str(error))
        except BusyDaemonError as error:
            return Health(HealthState.BUSY, self.uid, why=str(error))
        except MpsError as error:
            return Health(HealthState.UNKNOWN, self.uid, why=str(error))
        if not states:
            return Health(HealthState.IDLE, self.uid)
        return Health(max(states, key=_WORST_LAST.index), self.uid, servers, clients)

    def terminate_client(self, server: int, client: int, within_s: float) -> bool:
        """End a client's work on the GPU, and return whether it has ended."""
        try:
            lines = self.ask(f"terminate_client {server} {client}", within_s)
        except NoServerError:
            return True
        return lines[-1:] == ("0",) or client not in self.clients(server)

    def partitions(self) -> PartitionTable:
        """Return the chunks and static partitions of the GPU."""
        lines = self.ask("lspart", is_answer=bool)
        try:
            return parsed(lines, self.gpu)
        except ValueError:
            raise self._not_understood("lspart", lines) from None

    def add_partition(self, chunks: int) -> str:
        """Reserve SMs, and return the id of the partition."""
        command = f"sm_partition add {self.gpu} {chunks}"
        lines = self.ask(command)
        words = (word for line in lines for word in line.split())
        start = f"{self.gpu}/"
        found = next((word for word in words if word.startswith(start)), None)
        if found is None:
            text = " / ".join(lines) or "nothing"
            raise MpsError(f"{self}: {chunks} chunks of SMs were not reserved: {text}")
        return found.removeprefix(start)

    def remove_partition(self, ident: str) -> None:
        """Return the SMs of a partition; ``partitions`` shows whether that was done."""
        self.ask(f"sm_partition rm {self.gpu} {ident}")

    def held_partitions(self) -> frozenset[str]:
        """Return the ids of the partitions that living processes were given."""
        start = f"{self.gpu}/"
        given = (one.environment.get(PARTITION, "") for one in processes.every() if self._owns(one))
        return frozenset(name.removeprefix(start) for name in given)

    def quit(self, within_s: float) -> None:
        """End the daemon, and its servers by force after ``within_s`` seconds.

        Raises
        ------
        MpsError
            If it still lives.
        """
        daemon = self.daemon()
        self._sent(f"quit -t {max(1, round(within_s))}", within_s + self.answer_s)
        if daemon is not None and not processes.ends(daemon, self.answer_s):
            raise MpsError(f"{self}: was asked to quit, but process {daemon.pid} still lives")

    def ask(
        self,
        command: str,
        within_s: float | None = None,
        is_answer: Callable[[Sequence[str]], bool] = lambda _: True,
    ) -> tuple[str, ...]:
        """Send a command to the daemon, and return the lines of its answer.

        Parameters
        ----------
        command : str
            The command for the control program.
        within_s : float, optional
            Timeout in seconds.
        is_answer : callable
            Returns whether lines can be the answer; if not, the command is retried for ``BUSY_S``.

        Raises
        ------
        NoDaemonError, UnknownCommandError, NoServerError
            If the answer says so.
        BusyDaemonError
            If the daemon was busy with other commands for ``BUSY_S``.
        MpsError
            If it timed out, lacked privileges, or failed otherwise.
        """
        done = self._sent(command, self.answer_s if within_s is None else within_s, is_answer)
        if _NO_DAEMON in done.err:
            raise NoDaemonError(f"{self}: no control daemon answers")
        if done.exit != 0:
            raise MpsError(f"{self}: {command!r} failed: {_output(done)}")
        lines = _lines(done)
        for line in lines:
            if (error := _refusal(line)) is not None:
                raise error(f"{self}: {command!r}: {line}")
        return lines

    def _sent(
        self,
        command: str,
        within_s: float,
        is_answer: Callable[[Sequence[str]], bool] = lambda _: True,
    ) -> Reply:
        """Send a command until a busy daemon accepts it, and return the outcome."""
        until_s, pause_s = time.monotonic() + BUSY_S, _PAUSE_S
        while True:
            done = self._checked([], command, within_s)
            busy = done.exit != 0 and _BUSY in done.out + done.err
            if not busy and (done.exit != 0 or is_answer(_lines(done))):
                return done
            if time.monotonic() >= until_s:
                if busy:
                    raise BusyDaemonError(f"{self}: {command!r}: busy for {BUSY_S:g} s")
                return done
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def say(self, options: Sequence[str], command: str, within_s: float) -> Reply:
        """Run the control program once, and return its outcome, even a failure.

        Raises
        ------
        MpsError
            If the program cannot be run as this user.
        """
        begun, status, out, err = time.monotonic(), None, "", ""
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        place = str(self.directory)
        try:
            done = subprocess.run(
                [*(_UNLIMITED if _AS_DAEMON in options else ()), self.program, *options],
                input=f"{command}\n",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=within_s,
                check=False,
                cwd="/",
                env={**inherited, DEVICES: self.gpu, PIPE_DIRECTORY: place, LOG_DIRECTORY: place},
                umask=0o077,
                **acting_as(self.uid),
            )
            status, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired:
            pass
        except OSError as error:
            raise MpsError(f"{self}: {self.program}: {error.strerror}") from None
        return Reply(tuple(options), command, status, out, err, time.monotonic() - begun)

    def trim_logs(self) -> None:
        """Empty long logs: every command adds five lines, and the daemon rotates nothing."""
        for name in ("control.log", "server.log"):
            # The directory belongs to the user, so a service of root must not follow links in it.
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
            with suppress(OSError), os.fdopen(os.open(self.directory / name, flags), "rb+") as log:
                found = os.fstat(log.fileno())
                # The daemon opens it with O_APPEND, so it continues at the new end.
                if found.st_uid == self.uid and found.st_size > _LONGEST_LOG:
                    log.truncate(0)

    def __str__(self) -> str:
        """Return its name in error messages."""
        return f"MPS of {self.gpu} for user {self.uid}"

    def _owns(self, process: MpsProcess) -> bool:
        return process.uid == self.uid and process.pipe_directory == str(self.directory)

    def _pids(
        self, command: str, is_answer: Callable[[Sequence[str]], bool] = lambda _: True
    ) -> tuple[int, ...]:
        lines = self.ask(command, is_answer=is_answer)
        if not all(line.isascii() and line.isdecimal() for line in lines):
            raise self._not_understood(command, lines)
        return tuple(int(line) for line in lines)

    def _not_understood(self, command: str, lines: Sequence[str]) -> MpsError:
        return MpsError(f"{self}: {command!r} was answered by {' / '.join(lines)!r}")

    def _checked(self, options: Sequence[str], command: str, within_s: float) -> Reply:
        reply = self.say(options, command, within_s)
        if reply.exit is None:
            asked = command or " ".join(options)
            raise MpsError(f"{self}: {asked!r} was not answered in {within_s:g} s")
        return reply


def acting_as(uid: int) -> dict[str, Any]:
    """Return the options of ``subprocess`` that run a program as a user.

    Raises
    ------
    MpsError
        If this process runs neither as that user nor as root.
    """
    if uid == os.geteuid():
        return {}
    if os.geteuid() != 0:
        me = os.geteuid()
        raise MpsError(f"user {uid}: a service of user {me} runs MPS for its own user only")
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return {"user": uid, "group": uid, "extra_groups": []}
    # Some systems give /dev/nvidia* to a group.
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    return {"user": uid, "group": account.pw_gid, "extra_groups": groups}


def _refusal(line: str) -> type[MpsError] | None:
    """Return the error that a line of an answer reports, or None."""
    if line.startswith('Unknown command "'):
        return UnknownCommandError
    if re.match(r"Server \d+ not found", line):
        return NoServerError
    if line.startswith(("Not enough privilege", "Insufficient privileges")):
        return MpsError
    return None


def _lines(done: Reply) -> tuple[str, ...]:
    return tuple(line.strip() for line in done.out.splitlines() if line.strip())


def _output(done: Reply) -> str:
    lines = " / ".join(line.strip() for line in (done.out + done.err).splitlines())
    return lines or f"exit status {done.exit}"
