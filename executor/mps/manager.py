"""MPS on a machine: one control daemon for every GPU, run as the user whose jobs it serves.

Sources: NVIDIA's MPS guide; ``docs/explanation/mps.md`` says how each fact was learned.
"""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dovetail.executor.mps import directories, processes
from dovetail.executor.mps.client import check_uuid, client_environment
from dovetail.executor.mps.control import (
    DEVICES,
    PIPE_DIRECTORY,
    PROGRAM,
    Control,
    Health,
    HealthState,
    acting_as,
)
from dovetail.executor.mps.errors import MpsError, MpsRefusedError, NoDaemonError
from dovetail.executor.mps.foreign import MpsProcess, every_mps, foreign_mps
from dovetail.executor.mps.recovery import PATIENCE, Patience, Recovery, climb


class MpsManager:
    """One control daemon for every GPU, run as the user whose jobs it serves.

    A daemon serves one user at a time (a second user's clients would hang until the first's have
    left), so a GPU changes its user only when nobody can be a client of the old daemon. Nothing is
    remembered between calls: what is so is read from the directories, the daemons and /proc, and a
    service that starts again takes up the daemons it finds.

    Parameters
    ----------
    directory : Path
        Where the pipe directories are made, ``<8 digits of the UUID>-<uid>``. Short, as names of
        sockets are; when the service is root, every user whose jobs run must be able to pass the
        directories above it.
    program : str
        The control program.
    patience : Patience
        How long the rungs of a recovery may take.

    Notes
    -----
    Calls may come from several threads. Each runs the control program, which takes milliseconds,
    and up to 10 s where the daemon hangs; ``terminate`` and ``recover`` may take minutes: give
    them a thread. The compute mode of the GPU is never changed.
    """

    def __init__(
        self, directory: Path, *, program: str = PROGRAM, patience: Patience = PATIENCE
    ) -> None:
        self.directory = directory.absolute()
        self._program = program
        self._patience = patience
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def why_not(self) -> str | None:
        """Return why there is no MPS on this machine; None: there is."""
        if shutil.which(self._program) is None:
            return f"{self._program} is not installed"
        return None

    def environment(
        self, uuid: str, uid: int, share: int | None, memory_mib: float | None, latency: bool
    ) -> dict[str, str]:
        """Start the GPU's daemon if need be, and return what a client must have in its environment.

        The submitter's variables that begin with ``CUDA_MPS_`` are to be removed first.

        Parameters
        ----------
        uuid : str
            Of the GPU.
        uid : int
            The user that the client runs as.
        share : int or None
            Its cap on SMs in per cent; None = no cap.
        memory_mib : float or None
            The most device memory of this one process; None = no limit.
        latency : bool
            Whether it goes before batch jobs.

        Raises
        ------
        MpsError
            In one line: there is no MPS; a value is out of range; the service may not act as this
            user; another user's clients are, or may be, on the GPU; MPS of others is on it; a
            server is in trouble, or a recovery under way.
        """
        control = self._control(check_uuid(uuid), uid)
        found = client_environment(control.directory, uuid, share, memory_mib, latency)
        acting_as(uid)
        with self._locked(uuid):
            for other in self.foreign(uuid):
                raise MpsRefusedError(f"{uuid}: MPS of others may be on it: {other}; end it first")
            self._vacate(uuid, uid)
            self._ensure(control)
        return found

    def without_mps(self, uuid: str) -> dict[str, str]:
        """Return the environment of a process that must not meet any MPS daemon.

        CUDA tries the default pipe directory even where none is named, so this names one that does
        not exist.
        """
        return {DEVICES: uuid, PIPE_DIRECTORY: str(self.directory / "none")}

    def attached(self, uuid: str, pid: int) -> bool:
        """Whether a process, or one that descends from it, is in the GPU's client lists.

        Raises
        ------
        MpsError
            The daemon does not answer, or nobody understands what it says.
        """
        found: list[int] = []
        for control in self._controls(uuid):
            with suppress(NoDaemonError):
                found += control.all_clients()
        return any(processes.descends(client, pid) for client in found)

    def terminate(self, uuid: str, pid: int) -> bool:
        """End the GPU work of a process and its descendants.

        Returns
        -------
        bool
            True: none of them is a client with work any more, so that killing them is safe. False:
            a client could not be terminated, or the daemon does not answer.
        """
        try:
            done = [self._terminate(control, pid) for control in self._controls(uuid)]
        except MpsError:
            return False
        return all(done)

    def health(self, uuid: str) -> Health:
        """Return how MPS on the GPU is doing; a daemon in trouble is an answer, not an error.

        A daemon that is gone while its server, or a possible client, lives is not down: what
        becomes of them is unknown.
        """
        found = [self._health(control) for control in self._controls(uuid)]
        alive = [health for health in found if health.state is not HealthState.DOWN]
        return next(iter([*alive, *found]), Health(HealthState.DOWN, why="never started"))

    def recover(self, uuid: str) -> Recovery:
        """Climb the ladder of recovery until the GPU takes new clients again.

        Wait for the server; terminate its clients; make the daemon quit; kill it, proved to be
        ours; start another. Call it when there has been trouble: clients that are still there may
        be ended.

        Raises
        ------
        MpsRefusedError
            A recovery is under way.
        """
        with self._locked(uuid):
            found = [climb(control, self._patience) for control in self._live(uuid)]
        return Recovery(
            all(one.healthy for one in found),
            tuple(step for one in found for step in one.steps),
            tuple(pid for one in found for pid in one.left),
        )

    def foreign(self, uuid: str) -> tuple[MpsProcess, ...]:
        """Return MPS daemons and servers of others that may be on the GPU."""
        return tuple(foreign_mps(self.directory, uuid))

    def close(self) -> None:
        """End the daemons that nobody can be a client of; the others run on."""
        for daemon in every_mps():
            place = Path(daemon.directory or "/")
            if daemon.program != PROGRAM or place.parent != self.directory or not daemon.devices:
                continue
            control = self._control(daemon.devices, daemon.uid)
            if control.directory == place and not self._in_use(control):
                control.quit(self._patience.quit_s)

    @staticmethod
    def _health(control: Control) -> Health:
        control.trim_logs()
        health = control.health()
        left = _left_by(control) if health.state is HealthState.DOWN else ()
        if not left:
            return health
        why = f"{control}: its daemon is gone, but {_listed(left)} may be its server or clients"
        return Health(HealthState.UNKNOWN, control.uid, why=why)

    # One daemon, one user.

    def _vacate(self, uuid: str, uid: int) -> None:
        for control in self._live(uuid):
            if control.uid == uid:
                continue
            if self._in_use(control):
                raise MpsRefusedError(
                    f"{uuid}: user {control.uid} has, or may have, clients under MPS; user {uid} "
                    f"must wait until they have left (one user a server): "
                    f"{_listed(control.holders())}"
                )
            control.quit(self._patience.quit_s)

    def _ensure(self, control: Control) -> None:
        health = self._health(control)
        if health.state is HealthState.DOWN:
            self._start(control)
        elif health.state is HealthState.UNKNOWN:
            raise MpsError(health.why)
        elif control.daemon() is None:
            raise MpsRefusedError(f"{control}: what answers at {control.directory} is not ours")
        elif health.state is HealthState.FAULT:
            raise MpsError(f"{control}: a server is in fault")

    def _start(self, control: Control) -> None:
        stale = control.daemon()
        if stale is not None and not processes.kill(stale, self._patience.answer_s):
            raise MpsError(f"{control}: a daemon that does not answer, {stale.pid}, does not die")
        directories.make_base(self.directory)
        directories.make_private(control.directory, control.uid)
        control.start()

    @staticmethod
    def _in_use(control: Control) -> bool:
        """Whether anybody is, or may be, a client; a daemon that does not answer counts as used."""
        try:
            return bool(control.all_clients() or control.holders())
        except NoDaemonError:
            return bool(_left_by(control))
        except MpsError:
            return True

    def _terminate(self, control: Control, pid: int) -> bool:
        try:
            servers = control.servers()
        except NoDaemonError:
            return not control.server_processes()
        done = [
            control.terminate_client(server, client, self._patience.terminate_s)
            for server in servers
            for client in control.clients(server)
            if processes.descends(client, pid)
        ]
        return all(done)

    # Which daemons there are.

    def _control(self, uuid: str, uid: int) -> Control:
        program = shutil.which(self._program)
        if program is None:
            raise MpsError(f"{self._program} is not installed")
        place = directories.place_of(self.directory, uuid, uid)
        return Control(place, uuid, uid, program, self._patience.answer_s)

    def _controls(self, uuid: str) -> Iterator[Control]:
        for uid in directories.users_of(self.directory, check_uuid(uuid)):
            yield self._control(uuid, uid)

    def _live(self, uuid: str) -> list[Control]:
        """Return the controls with a process of theirs: a daemon, a server, a possible client."""
        return [
            control for control in self._controls(uuid) if control.daemon() or _left_by(control)
        ]

    @contextmanager
    def _locked(self, uuid: str) -> Iterator[None]:
        lock = self._locks[uuid]
        if not lock.acquire(timeout=self._patience.answer_s):
            raise MpsRefusedError(f"{uuid}: MPS on it is being recovered")
        try:
            yield
        finally:
            lock.release()


def _left_by(control: Control) -> tuple[int, ...]:
    return (*(server.pid for server in control.server_processes()), *control.holders())


def _listed(pids: Sequence[int]) -> str:
    return f"processes {', '.join(str(pid) for pid in pids) or 'unknown'}"
