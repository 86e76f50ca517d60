"""Schedulers of thread blocks: one process per GPU and user that has isolated runs there.

As with MPS daemons, no state is kept between calls: sockets, ``/proc`` and the schedulers' status
are read, so a restarted service finds its schedulers again. A scheduler without processes that no
service asks for ends by itself.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, StrictInt, field_validator

from dovetail.executor.mps import processes
from dovetail.executor.mps.control import MpsError, acting_as
from dovetail.executor.mps.manager import make_base, make_private
from dovetail.executor.mps.processes import MpsProcess
from dovetail.executor.pools.isolation import IsolationError, SchedulerStatus
from dovetail.instances._children import module_command, module_environment
from dovetail.instances._record import FrozenMapping, Record
from dovetail.isolation import server
from dovetail.isolation.assemble import find_ptxas
from dovetail.isolation.interception import InterceptionError, environment, library

IDLE_S: Final = 60.0
"""Seconds after which a scheduler without processes that no service asks for ends."""

_PROGRAM: Final = "dovetail.isolation.server"
_ANSWER_S: Final = 30.0
_FOLDER_BYTES: Final = 256 * 2**20
"""Bytes that a user may write to the folder of a scheduler, which has PTX of assembled kernels."""
_LONGEST_SOCKET: Final = 107
_MOST_PID: Final = 2**22
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_Launches = Annotated[StrictInt, Field(ge=0, lt=2**63)]


class _JoinedProcess(Record):
    """A process that has joined a scheduler."""

    pid: Annotated[StrictInt, Field(ge=1, le=_MOST_PID)]
    priority: Literal["latency", "best-effort"]


class _StatusAnswer(Record):
    """The answer of a scheduler (``server.SchedulerServer.status``), validated.

    The scheduler is a process of the user, who may have replaced it, and other users read its
    texts.
    """

    clients: tuple[_JoinedProcess, ...] = ()
    launches: FrozenMapping[str, _Launches] = Field({})
    escapes: FrozenMapping[str, str] = Field({})

    @field_validator("launches")
    @classmethod
    def _known(cls, launches: Mapping[str, int]) -> Mapping[str, int]:
        return {name: launches[name] for name in server.COUNTS if name in launches}

    @field_validator("escapes")
    @classmethod
    def _limit(cls, escapes: Mapping[str, str]) -> Mapping[str, str]:
        return server.short_texts(escapes.items())


def _kernels(launches: Mapping[str, int]) -> int | None:
    """Return how many kernels were launched; a graph launches any number of them."""
    if launches.get("graph"):
        return None
    return sum(number for name, number in launches.items() if name not in server.NO_LAUNCHES)


class Schedulers:
    """The schedulers of a machine's GPUs, and the library that is loaded into runs.

    Parameters
    ----------
    directory : Path
        Parent of their folders, ``<8 digits of the UUID>-<uid>``, and of the library.
    idle_s : float
        Seconds without use after which a scheduler ends.
    """

    def __init__(self, directory: Path, idle_s: float = IDLE_S) -> None:
        self.directory = directory.absolute()
        self._idle_s = idle_s
        self._locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
        self._library: Path | None = None

    def why_not(self) -> str | None:
        """Build the library, and return why runs cannot be isolated here, or None if they can."""
        if find_ptxas() is None:
            return "there is no ptxas: it comes with the extra isolation of Dovetail"
        longest = self._socket("GPU-00000000", 2**32 - 2)
        if len(os.fsencode(longest)) > _LONGEST_SOCKET:
            return f"{longest}: longer than {_LONGEST_SOCKET} bytes, too long for a socket"
        try:
            make_base(self.directory)
            self._library = library(self.directory)
        except (InterceptionError, MpsError, OSError) as error:
            return str(error)
        return None

    def environment(
        self, uuid: str, uid: int, latency: bool, given: Mapping[str, str]
    ) -> dict[str, str]:
        """Start a GPU's scheduler if needed, and return the variables of an isolated rank.

        Parameters
        ----------
        uuid, uid
            The GPU and the rank's user.
        latency : bool
            Whether other runs wait for the rank's launches.
        given : mapping of str to str
            The job's own environment.

        Raises
        ------
        IsolationError
            If the library is missing, or the scheduler does not start.
        """
        if self._library is None or not self._library.exists():
            raise IsolationError("the library that intercepts launches is missing")
        self.ensure(uuid, uid)
        socket = self._socket(uuid, uid)
        keeper = socket.with_name("kept") / "ptxas"
        return environment(
            self._library,
            socket,
            "latency" if latency else "best-effort",
            given,
            keeper if keeper.exists() else None,
        )

    def ensure(self, uuid: str, uid: int) -> None:
        """Start a GPU's scheduler for a user unless one answers; kill one that hangs.

        Raises
        ------
        IsolationError
            If it does not start.
        """
        socket = self._socket(uuid, uid)
        with self._locks[socket]:
            known = self.process(uuid, uid)
            if known is not None and self.status(uuid, uid) is not None:
                return
            try:
                if known is not None and not processes.kill(known, _ANSWER_S):
                    raise IsolationError(f"scheduler {known.pid} hangs, and cannot be killed")
                make_base(self.directory)
                make_private(socket.parent, uid, _FOLDER_BYTES)
                self._start(socket, uid)
            except (MpsError, OSError, subprocess.TimeoutExpired) as error:
                raise IsolationError(f"the scheduler of thread blocks: {error}") from None

    def end(self, uuid: str, uid: int) -> None:
        """End a GPU's scheduler for a user, if one runs; its processes go on without isolation."""
        with self._locks[self._socket(uuid, uid)]:
            known = self.process(uuid, uid)
            if known is not None:
                processes.kill(known, _ANSWER_S)

    def process(self, uuid: str, uid: int) -> MpsProcess | None:
        """Return a GPU's scheduler for a user, identified by program, user and socket."""
        socket = str(self._socket(uuid, uid))
        found = processes.running(_PROGRAM)
        return next((one for one in found if one.uid == uid and socket in one.arguments), None)

    def began_s(self, uuid: str, uid: int) -> float | None:
        """Return when a GPU's scheduler for a user started, or None if none runs."""
        process = self.process(uuid, uid)
        return process.started / _TICKS_PER_S if process is not None else None

    def status(self, uuid: str, uid: int) -> SchedulerStatus | None:
        """Return the status of a GPU's scheduler for a user, or None if none answers."""
        try:
            answer = _StatusAnswer.model_validate(server.status(self._socket(uuid, uid)))
        except (OSError, ValueError):
            return None
        pids = frozenset(client.pid for client in answer.clients)
        return SchedulerStatus(pids, answer.launches, answer.escapes, _kernels(answer.launches))

    def _start(self, socket: Path, uid: int) -> None:
        command = [*module_command(_PROGRAM), str(socket), "--daemon"]
        command += ["--kept", str(socket.with_name("kept")), "--idle-s", str(self._idle_s)]
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
            cwd="/",
            env=module_environment(),
            umask=0o077,
            **acting_as(uid),
        )
        if ran.returncode:
            lines = ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"]
            raise IsolationError(f"the scheduler of thread blocks did not start: {lines[-1]}")

    def _socket(self, uuid: str, uid: int) -> Path:
        return self.directory / f"{uuid.removeprefix('GPU-')[:8]}-{uid}" / "socket"
