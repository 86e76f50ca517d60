"""Pools of this machine's devices: real processes, each guarded by a shim."""

from __future__ import annotations

import logging
import os
import pwd
import queue
import socket
import threading
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from dovetail.executor.live.events import AnyEvent
from dovetail.executor.live.jobs import Owner, Run
from dovetail.executor.live.pools.environment import environment_of
from dovetail.executor.live.pools.gate import LaunchError
from dovetail.executor.live.pools.keeper import Bounds, Keeper
from dovetail.executor.live.pools.pool import Progress, Usage
from dovetail.executor.live.pools.processes import Process, tokens
from dovetail.executor.live.pools.run_files import PASS_THROUGH, RunFiles, home_token
from dovetail.executor.live.progress import HOOK_DIRECTORY, read_progress
from dovetail.instances.instance import Cluster

LOG_BYTES: Final = 64 * 2**20
LOG_FILES: Final = 4

_log = logging.getLogger(__name__)

_PORTS: Final = range(20_000, 30_000)
"""Below what Linux gives to outgoing connections by itself."""


class LocalPool:
    """What every pool of local processes does alike; a kind of pool overrides the hooks.

    The hooks are `cluster`, `sharing`, `usage`, `rank_environment`, `rank_bounds`, `is_ready`,
    `before_kill`, `members` and `released`. Of these ``rank_environment``, ``rank_bounds``,
    ``is_ready``, ``before_kill`` and ``members`` are called from threads of the runs, several at
    a time for different runs, and may take seconds; the others from the service's thread.

    Parameters
    ----------
    directory : path
        The state directory.
    log_bytes, log_files : int
        The size of a part of a rank's log, and how many parts are kept.
    """

    name = "local"
    notice = ""

    def __init__(
        self, directory: Path, log_bytes: int = LOG_BYTES, log_files: int = LOG_FILES
    ) -> None:
        self.directory = directory
        self._log_bytes, self._log_files = log_bytes, log_files
        self._keepers: dict[str, Keeper] = {}
        self._seen: queue.SimpleQueue[AnyEvent] = queue.SimpleQueue()
        self._wake: Callable[[], None] = lambda: None
        self._ports = threading.Lock()
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(PASS_THROUGH)

    # Hooks.

    def cluster(self) -> Cluster:
        """Return the devices, and the shares that may be used on them."""
        raise NotImplementedError

    def sharing(self, first: Run, second: Run) -> str | None:
        """Return why two runs may never share a device; None: they may."""
        return None

    def library(self, run: Run) -> str:
        """Return the library on which it depends which shares compute right; empty: none."""
        return ""

    def allowed(self, library: str, model: str) -> Collection[int]:
        """Return the shares that a program with this library may have."""
        return self.cluster().shares

    def usage(self) -> Mapping[str, Usage]:
        """Return what each device has been doing since the last call."""
        return {}

    def rank_environment(self, run: Run, rank: int) -> Mapping[str, str]:
        """Return what a rank's environment needs for its device.

        Raises
        ------
        LaunchError
            When the rank cannot be started; then none of the run is.
        """
        return {}

    def rank_bounds(self, run: Run, rank: int) -> Bounds:
        """Return the cores and cgroups of a rank; LaunchError as above."""
        return Bounds()

    def is_ready(self, run: Run, rank: int, pid: int) -> bool:
        """Return whether a rank is proven to run under its cap; asked again until it is."""
        return True

    def before_kill(self, run: Run, rank: int) -> None:
        """Do what has to be done before the processes of a rank are killed."""

    def members(self, run: Run, rank: int) -> list[Process]:
        """Return processes that belong to a rank by other signs than token and session."""
        return []

    def released(self, run: Run) -> None:
        """Give back what the pool holds for a run that has ended."""

    # What is the same everywhere.

    def attach(self, wake: Callable[[], None]) -> None:
        """Set what to call, from any thread, as soon as ``poll`` has something to tell."""
        self._wake = wake

    def resume(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Take up the runs that should exist, and return what was found beyond them."""
        for run in runs:
            self._keep(run)
        names = sorted(self._running() - set(self._keepers))
        beyond = []
        for name in names:
            found = self.files(name).read_run()
            if found is None:
                _log.warning("processes of %s run, and nothing says what it is", name)
            else:
                self._keep(found)
                beyond.append(found)
        return beyond

    def launch(self, run: Run) -> None:
        """Start every rank of the run that has no trace yet, all or none at the same time."""
        if run.id not in self._keepers:
            self._keep(run)
        self._keepers[run.id].order_launch()

    def stop(self, run: str, grace_s: float) -> None:
        """End every rank of the run (ask, wait, terminate, kill); calling it again is harmless."""
        if run in self._keepers:
            self._keepers[run].order_stop(grace_s)

    def release(self, run: str) -> None:
        """Give back what an ended run held. Logs stay."""
        keeper = self._keepers.pop(run, None)
        if keeper is None:
            return
        keeper.leave()
        self.files(run).forget_specs()
        self.released(keeper.kept)

    def poll(self) -> Sequence[AnyEvent]:
        """Return at once what has happened since the last call; the caller sets ``at_s``."""
        return [self._seen.get_nowait() for _ in range(self._seen.qsize())]

    def progress(self, run: str) -> Sequence[Progress | None]:
        """Return how far each rank of a run is; None for a rank that reports nothing."""
        keeper = self._keepers.get(run)
        if keeper is None:
            return ()
        files = self.files(run)
        return [read_progress(str(files.rank(k).progress)) for k in range(len(keeper.kept.seats))]

    def log_path(self, run: str, rank: int) -> str | None:
        """Return the newest log file of a rank; older parts have ``.1``, ``.2``, ... appended."""
        log = self.files(run).rank(rank).log
        return str(log) if log.exists() else None

    def close(self) -> None:
        """Let go of everything but the jobs: they run on."""
        for keeper in self._keepers.values():
            keeper.leave()
        self._keepers.clear()

    def files(self, run: str) -> RunFiles:
        """Return the files of a run."""
        return RunFiles(self.directory, run)

    def kept(self) -> Sequence[Run]:
        """Return the runs that are not released."""
        return [keeper.kept for keeper in list(self._keepers.values())]

    def rank_spec(self, run: Run, rank: int, files: RunFiles) -> dict[str, object]:
        """Return what the shim of a rank is to run."""
        own = files.rank(rank)
        user = _user(run.spec.owner)
        _make_progress_file(own.progress, user)
        port = self._port(files) if len(run.seats) > 1 else None
        env = environment_of(run, rank, own.token, own.progress, port)
        bounds = self.rank_bounds(run, rank)
        return {
            "command": run.spec.command,
            "cwd": run.spec.cwd,
            "env": {**env, **self.rank_environment(run, rank)},
            "user": user,
            "cpus": bounds.cpus,
            "cgroups": bounds.cgroups,
            "log": {
                "most_bytes": self._log_bytes,
                "files": self._log_files,
                "mode": 0o644 if run.spec.public_log else 0o600,
            },
            "lines": _lines(run, own.progress),
        }

    def _keep(self, run: Run) -> None:
        self._keepers[run.id] = Keeper(run, self.files(run.id), self, self._tell)

    def _tell(self, event: AnyEvent) -> None:
        self._seen.put(event)
        self._wake()

    def _running(self) -> set[str]:
        """Return the ids of the runs of this directory that have processes."""
        home = f"{home_token(self.directory)}/"
        return {token.split("/")[1] for _, token in tokens() if token.startswith(home)}

    def _port(self, files: RunFiles) -> int:
        """Return the port of a gang: its own for as long as it is not released."""
        with self._ports:
            known = files.port()
            if known is None:
                others = {self.files(run.id).port() for run in self.kept()}
                known = next(port for port in _from(files.run) if _free(port, others))
                files.write_port(known)
            return known


def why_not_as(owner: Owner) -> str | None:
    """Return why jobs of a user cannot be run by this process; None: they can."""
    me = os.geteuid()
    if me in (0, owner.uid):
        return None
    return f"a service of user {me} cannot run jobs of {owner.name} (user {owner.uid})"


def _user(owner: Owner) -> dict[str, object] | None:
    """Return whom the rank has to become; None where that is who we are."""
    reason = why_not_as(owner)
    if reason is not None:
        raise LaunchError(reason)
    if owner.uid == os.geteuid():
        return None
    return {"uid": owner.uid, "gid": owner.gid, "groups": _groups(owner)}


def _groups(owner: Owner) -> list[int]:
    try:
        name = pwd.getpwuid(owner.uid).pw_name
    except KeyError:
        return [owner.gid]
    return os.getgrouplist(name, owner.gid)


def _make_progress_file(path: Path, user: Mapping[str, object] | None) -> None:
    """Make the file in which a rank's user may write, in a directory where he may not."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if user is not None:
            os.fchown(file, int(str(user["uid"])), int(str(user["gid"])))
    finally:
        os.close(file)


def _lines(run: Run, progress: Path) -> dict[str, str] | None:
    pattern = run.spec.progress_pattern
    if pattern is None:
        return None
    return {"modules": HOOK_DIRECTORY, "pattern": pattern, "path": str(progress)}


def _from(run: str) -> list[int]:
    """Return all ports, beginning where the run's name says: services rarely try the same."""
    first = zlib.crc32(run.encode()) % len(_PORTS)
    return [*_PORTS[first:], *_PORTS[:first]]


def _free(port: int, others: set[int | None]) -> bool:
    if port in others:
        return False
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
