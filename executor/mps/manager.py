"""MPS on a machine: one control daemon per GPU, run as the user whose jobs it serves.

Sources: NVIDIA's MPS guide; ``docs/evidence/hardware.md`` lists the tests.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from dovetail.executor.mps import processes, recovery
from dovetail.executor.mps.control import (
    BusyDaemonError,
    Control,
    Health,
    HealthState,
    MpsError,
    NoDaemonError,
    acting_as,
)
from dovetail.executor.mps.partitions import PARTITION, shares_of
from dovetail.executor.mps.processes import (
    DEVICES,
    MEMORY,
    PERCENTAGE,
    PIPE_DIRECTORY,
    PRIORITY,
    PROGRAM,
    MpsProcess,
    every_mps,
)
from dovetail.executor.mps.recovery import PATIENCE, Recovery, RecoveryTimeouts
from dovetail.executor.system.bounded_folders import MOST_BYTES, bound

LONGEST_DIRECTORY: Final = 87
"""Longest path of a pipe directory in bytes, due to its sockets: 88 bytes fail with 535."""

_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class MpsManager:
    """One control daemon per GPU, run as the user whose jobs it serves.

    A daemon serves one user at a time: clients of a second user would hang until the clients of
    the first have left. So a GPU changes its user only when the old daemon can have no clients.
    The manager keeps no state between calls: it reads directories, daemons and ``/proc``, so a
    restarted service finds its daemons again.

    Parameters
    ----------
    directory : Path
        Parent of the pipe directories, ``<8 digits of the UUID>-<uid>``. Its path must be short
        because they contain sockets; under root, all users with jobs must be able to pass through
        the directories above.
    program : str
        The control program.
    patience : RecoveryTimeouts
        Timeouts.
    static : bool
        Whether every client has a static partition of the SMs (``partition``).

    Notes
    -----
    Calls may come from several threads. Each runs the control program, which takes milliseconds,
    or up to 10 s if the daemon hangs. ``terminate`` and ``recover`` may take minutes, so run them
    in a separate thread. The compute mode of the GPU is never changed.
    """

    def __init__(
        self,
        directory: Path,
        *,
        program: str = PROGRAM,
        patience: RecoveryTimeouts = PATIENCE,
        static: bool = False,
    ) -> None:
        self.directory = directory.absolute()
        self.program = program
        self.static = static
        self._patience = patience
        self._promised: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def why_not(self) -> str | None:
        """Return why this machine has no MPS, or None if it has."""
        if shutil.which(self.program) is None:
            return f"{self.program} is not installed"
        return None

    def environment(
        self,
        uuid: str,
        uid: int,
        share: int | None,
        memory_mib: float | None,
        priority: int | None = None,
    ) -> dict[str, str]:
        """Start the GPU's daemon if it does not run, and return the environment of a client.

        The caller must first remove the submitter's variables that begin with ``CUDA_MPS_``.

        Parameters
        ----------
        uuid : str
            UUID of the GPU.
        uid : int
            The client's user.
        share : int or None
            Largest share of the SMs in per cent.
        memory_mib : float or None
            Limit on the device memory of this process.
        priority : int, optional
            The client's priority, 0 (normal) or 1 (below normal), to measure its effect: on an H200
            it had none (``docs/explanation/pools.md``).

        Raises
        ------
        MpsError
            If there is no MPS, a value is out of range, the service may not act as this user,
            another user's clients are or may be on the GPU, MPS of others may see it, a server has
            failed, or a recovery is in progress. A `BusyDaemonError` if its daemon is busy.
        """
        control = self._control(check_uuid(uuid), uid)
        found = client_environment(control.directory, uuid, share, memory_mib, priority)
        acting_as(uid)
        with self._locked(uuid):
            for other in self.foreign(uuid):
                raise MpsError(f"{uuid}: MPS of others may be on it: {other}; end it first")
            self._vacate(uuid, uid)
            self._ensure(control)
        return found

    def chunks(self, uuid: str, uid: int) -> int:
        """Return the number of chunks of SMs that a GPU has for static partitions.

        A daemon of the user is started unless one runs.

        Raises
        ------
        MpsError
            As for ``environment``, or if the control program has no static partitions.
        """
        with self._locked(uuid):
            control = next(iter(self._live(uuid)), self._control(check_uuid(uuid), uid))
            self._ensure(control)
            return control.partitions().chunks

    def partition(self, uuid: str, uid: int, share: int | None, holder: str) -> dict[str, str]:
        """Reserve SMs for a client, and return the variable by which it uses them.

        The client needs the variables of ``environment``, too, without a share.

        Parameters
        ----------
        uuid, uid
            The GPU and the client's user.
        share : int or None
            A share of whole chunks (``partitions.shares_of``); None: all chunks.
        holder : str
            Who holds the partition until ``give_back``, even before a process has it.

        Raises
        ------
        MpsError
            If the share is no whole number of chunks, or so many are not free now.
        """
        control = self._control(check_uuid(uuid), uid)
        with self._locked(uuid):
            self._sweep(control)
            every = control.partitions().chunks
            chunks = every if share is None else shares_of(every).get(share)
            if chunks is None:
                raise MpsError(f"{control}: {share} % is no whole number of its {every} chunks")
            self._promised[uuid][holder] = found = control.add_partition(chunks)
        return {PARTITION: f"{uuid}/{found}"}

    def give_back(self, uuid: str, holder: str) -> None:
        """Let the next ``sweep`` remove a holder's partition once no process has it."""
        self._promised[uuid].pop(holder, None)

    def sweep(self, uuid: str) -> None:
        """Remove the static partitions of a GPU that nobody holds or uses.

        Raises
        ------
        MpsError
            If a daemon does not answer.
        """
        with self._locked(uuid):
            for control in self._live(uuid):
                with suppress(NoDaemonError):
                    self._sweep(control)

    def _sweep(self, control: Control) -> None:
        promised = self._promised[control.gpu].values()
        unused = [one for one in control.partitions().partitions if not one.in_use]
        loose = [one.id for one in unused if one.id not in promised]
        held = control.held_partitions() if loose else frozenset()
        for ident in loose:
            if ident not in held:
                control.remove_partition(ident)

    def without_mps(self, uuid: str) -> dict[str, str]:
        """Return the environment of a process that must not reach any MPS daemon.

        CUDA tries the default pipe directory if none is set, so this sets one that does not exist.
        """
        return {DEVICES: uuid, PIPE_DIRECTORY: str(self.directory / "none")}

    def attached(self, uuid: str, pid: int) -> bool:
        """Return whether a process or one of its descendants is in the GPU's client lists.

        Raises
        ------
        MpsError
            If the daemon does not answer, or its answer is not understood.
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
            True if none of them still has work on the GPU, so that killing them is safe; False if
            a client could not be terminated or the daemon does not answer.
        """
        try:
            done = [self._terminate(control, pid) for control in self._controls(uuid)]
        except MpsError:
            return False
        return all(done)

    def health(self, uuid: str) -> Health:
        """Return the state of MPS on a GPU; a failed daemon is a state, not an error.

        A daemon that died while its server or a possible client lives is UNKNOWN, not DOWN: the
        fate of the survivors is undocumented.
        """
        found = [_health(control) for control in self._controls(uuid)]
        alive = [health for health in found if health.state is not HealthState.DOWN]
        return next(iter([*alive, *found]), Health(HealthState.DOWN, why="never started"))

    def recover(self, uuid: str) -> Recovery:
        """Recover MPS on a GPU after a failure; remaining clients may be ended.

        Raises
        ------
        MpsError
            If a recovery is in progress.
        """
        with self._locked(uuid):
            found = [recovery.recover(one, self._patience) for one in self._live(uuid)]
        return Recovery(
            all(one.healthy for one in found),
            tuple(step for one in found for step in one.steps),
            tuple(pid for one in found for pid in one.left),
        )

    def foreign(self, uuid: str) -> tuple[MpsProcess, ...]:
        """Return daemons and servers of others that may see a GPU, which are left alone."""
        base = str(self.directory)
        return tuple(
            one
            for one in every_mps()
            if one.may_see(uuid) and os.path.dirname(one.pipe_directory or "") != base
        )

    def close(self) -> None:
        """End the daemons that can have no clients; the others keep running."""
        for daemon in every_mps():
            place, gpu = daemon.pipe_directory, daemon.environment.get(DEVICES)
            if place is None or not gpu or not daemon.is_daemon:
                continue
            if os.path.dirname(place) == str(self.directory):
                control = self._control(gpu, daemon.uid)
                if str(control.directory) == place and not _in_use(control):
                    control.quit(self._patience.quit_s)

    def _vacate(self, uuid: str, uid: int) -> None:
        """End the daemons of other users on a GPU, or refuse if one may have clients."""
        for control in self._live(uuid):
            if control.uid == uid:
                continue
            if _in_use(control):
                raise MpsError(
                    f"{uuid}: user {control.uid} has, or may have, clients under MPS; user {uid} "
                    f"must wait until they have left (one user a server): "
                    f"{_listed(control.holders())}"
                )
            control.quit(self._patience.quit_s)

    def _ensure(self, control: Control) -> None:
        """Start a daemon if it does not run, or refuse if it cannot take clients."""
        daemon = control.daemon()
        if daemon is not None and daemon.is_static is not control.static:
            self._change_mode(control)
        health = _health(control)
        if health.state is HealthState.DOWN:
            stale = control.daemon()
            if stale is not None and not processes.kill(stale, self._patience.answer_s):
                raise MpsError(
                    f"{control}: the daemon {stale.pid} does not answer and cannot be killed"
                )
            make_base(self.directory)
            make_private(control.directory, control.uid)
            control.start()
        elif health.state is HealthState.BUSY:
            raise BusyDaemonError(health.why)
        elif health.state is HealthState.UNKNOWN:
            raise MpsError(health.why)
        elif control.daemon() is None:
            raise MpsError(f"{control}: the daemon at {control.directory} is not ours")
        elif health.state is HealthState.FAULT:
            raise MpsError(f"{control}: a server is in fault")

    def _change_mode(self, control: Control) -> None:
        """End a daemon with other shares than these, or refuse if it may have clients."""
        if _in_use(control):
            shares = "limits" if control.static else "static partitions"
            raise MpsError(
                f"{control}: has, or may have, clients with {shares} of SMs: let them end"
            )
        control.quit(self._patience.quit_s)

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

    def _control(self, uuid: str, uid: int) -> Control:
        program = shutil.which(self.program)
        if program is None:
            raise MpsError(f"{self.program} is not installed")
        place = pipe_directory(self.directory, uuid, uid)
        return Control(place, uuid, uid, program, self._patience.answer_s, self.static)

    def _controls(self, uuid: str) -> Iterator[Control]:
        """Yield the daemon of every user who has a pipe directory for a GPU."""
        start = f"{_short(check_uuid(uuid))}-"
        for place in sorted(self.directory.glob(f"{start}*")):
            uid = place.name.removeprefix(start)
            if uid.isdecimal():
                yield self._control(uuid, int(uid))

    def _live(self, uuid: str) -> list[Control]:
        """Return the daemons that live, or have a living server or possible client."""
        return [one for one in self._controls(uuid) if one.daemon() or one.left_behind()]

    @contextmanager
    def _locked(self, uuid: str) -> Iterator[None]:
        lock = self._locks[uuid]
        if not lock.acquire(timeout=self._patience.answer_s):
            raise MpsError(f"{uuid}: MPS on it is being recovered")
        try:
            yield
        finally:
            lock.release()


def check_uuid(uuid: str) -> str:
    """Return the UUID of a whole GPU.

    Raises
    ------
    MpsError
        If it is an index, which the daemon would renumber, or a MIG instance.
    """
    if _UUID.fullmatch(uuid) is None:
        raise MpsError(f"{uuid!r}: MPS needs the UUID of a whole GPU (GPU-xxxxxxxx-...)")
    return uuid


def client_environment(
    directory: Path,
    uuid: str,
    share: int | None,
    memory_mib: float | None,
    priority: int | None = None,
) -> dict[str, str]:
    """Return the variables of a client of the daemon at ``directory``.

    A client sees one GPU, so its memory limit is set for device 0.
    """
    found = {
        DEVICES: check_uuid(uuid),
        PIPE_DIRECTORY: str(directory),
    }
    if priority is not None:
        found[PRIORITY] = str(_within(priority, 0, 1, "priority"))
    if share is not None:
        found[PERCENTAGE] = str(_within(share, 1, 100, "share"))
    if memory_mib is not None:
        found[MEMORY] = f"0={_within(int(memory_mib), 1, 2**31, 'memory_mib')}M"
    return found


def pipe_directory(base: Path, uuid: str, uid: int) -> Path:
    """Return the pipe directory of a GPU and a user.

    Raises
    ------
    MpsError
        If its path is too long for the sockets in it.
    """
    place = base / f"{_short(uuid)}-{uid}"
    if len(os.fsencode(place)) > LONGEST_DIRECTORY:
        raise MpsError(f"{place}: longer than {LONGEST_DIRECTORY} bytes, too long for MPS")
    return place


def make_base(base: Path) -> None:
    """Create the parent of all pipe directories; if it is root's, every user may pass it."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise MpsError(f"{base}: must be a directory of user {os.geteuid()}")
    base.chmod(0o711 if os.geteuid() == 0 else 0o700)


def make_private(place: Path, uid: int, most_bytes: int = MOST_BYTES) -> None:
    """Create a pipe directory that only its user may enter, or check that it is one.

    A directory of another user is limited in size (``bounded_folders``) if this process may mount;
    it must not be in use yet.

    Raises
    ------
    MpsError
        If something else exists there, or the user may not pass a directory above it.
    """
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        os.chown(place, uid, -1)
    if uid != os.geteuid() and not place.is_symlink():
        bound(place, uid, most_bytes)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or stat.S_IMODE(found.st_mode) & 0o77:
        raise MpsError(f"{place}: must be a directory of user {uid}, closed to others")
    for above in place.parents if uid != os.geteuid() else ():
        if not above.stat().st_mode & stat.S_IXOTH:
            raise MpsError(f"{above}: user {uid} may not pass it (chmod o+x), as MPS needs")


def _health(control: Control) -> Health:
    control.trim_logs()
    health = control.health()
    left = control.left_behind() if health.state is HealthState.DOWN else ()
    if not left:
        return health
    why = f"{control}: its daemon is gone, but {_listed(left)} may be its server or clients"
    return Health(HealthState.UNKNOWN, control.uid, why=why)


def _in_use(control: Control) -> bool:
    """Return whether a daemon has or may have clients; one that does not answer may."""
    try:
        return bool(control.all_clients() or control.holders())
    except NoDaemonError:
        return bool(control.left_behind())
    except MpsError:
        return True


def _short(uuid: str) -> str:
    return uuid.removeprefix("GPU-")[:8]


def _within(value: int, least: int, most: int, name: str) -> int:
    if not least <= value <= most:
        raise MpsError(f"{name}: must be from {least} to {most}, got {value}")
    return value


def _listed(pids: Sequence[int]) -> str:
    return f"processes {', '.join(str(pid) for pid in pids) or 'unknown'}"
