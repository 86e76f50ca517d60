"""Pools of this machine's devices: real processes, each guarded by a shim."""

from __future__ import annotations

import logging
import os
import pwd
import queue
import re
import socket
import threading
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.specs import Owner, Run, probes_per_s
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.executor.pools.runs.files import (
    PASS_THROUGH,
    Part,
    PreparedPart,
    Rendezvous,
    RunFiles,
    home_token,
    whole,
    write_lasting,
)
from dovetail.executor.pools.runs.hooks import Hooks
from dovetail.executor.pools.runs.lease import NodeLease
from dovetail.executor.pools.runs.processes import TOKEN, tokens
from dovetail.executor.pools.runs.progress import HOOK_DIRECTORY, hook_environment
from dovetail.executor.pools.runs.room import RunRoom
from dovetail.executor.pools.runs.start_barrier import ForkServer, LaunchError, NotNowError
from dovetail.executor.pools.runs.supervisor import LEAVE_S, RunSupervisor
from dovetail.executor.pools.share_gate import ShareGate
from dovetail.executor.pools.shim.page import OWN
from dovetail.executor.system.clock import boot_id, boot_s
from dovetail.executor.system.descriptors import FOR_JOBS
from dovetail.instances.instance import Cluster
from dovetail.instances.slowdowns.shares import caps_of

_TAKEN_OUT: Final = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "NVIDIA_VISIBLE_DEVICES",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    }
)
_TAKEN_OUT_BY_PREFIX: Final = ("CUDA_MPS_", "DOVETAIL_", "TORCHELASTIC_", "PET_")


def environment_of(
    part: Part, rank: int, token: str, rendezvous: Rendezvous | None
) -> dict[str, str]:
    """Return the environment of a rank before its pool adds to it.

    Parameters
    ----------
    part : Part
        The part of the run on this node.
    rank : int
        The rank's number.
    token : str
        The token by which its processes are found.
    rendezvous : Rendezvous or None
        Where the ranks of a gang meet; None for a single process, which gets none of the
        variables of ``torch.distributed`` and so remains a plain program.
    """
    run = part.run
    kept = {name: value for name, value in run.spec.env.items() if not misleads(name)}
    own = {
        "DOVETAIL_JOB": run.job,
        "DOVETAIL_RUN": run.id,
        "DOVETAIL_RANK": str(rank),
        "DOVETAIL_GPU": run.seats[rank].gpu,
        TOKEN: token,
    }
    share = run.seats[rank].share
    if share is not None:
        own["DOVETAIL_SHARE"] = str(share)
    if run.spec.index is not None:
        own["DOVETAIL_ARRAY_INDEX"] = str(run.spec.index)
    if run.port is not None:
        own["DOVETAIL_PORT"] = str(run.port)
    if run.sub_batch is not None:
        own["DOVETAIL_SUB_BATCH"] = str(run.sub_batch)
    gang = {} if rendezvous is None else gang_environment(part, rank, rendezvous)
    env = {**login_environment(run.spec.owner.uid), **kept, **gang, **own}
    # If progress is read from the job's output, or probed, the job does not report it itself.
    counted = OWN if run.spec.progress_pattern is None and run.spec.probe is None else None
    return {**env, **hook_environment(counted, env)}


def gang_environment(part: Part, rank: int, rendezvous: Rendezvous) -> Mapping[str, str]:
    """Return the variables that ``torch.distributed`` reads.

    Every rank sees only its own device, so ``LOCAL_RANK`` is 0, as with ``torchrun
    --virtual-local-rank``. ``LOCAL_WORLD_SIZE`` counts the ranks on this node.
    """
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(part.run.seats)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": str(len(part.ranks)),
        "MASTER_ADDR": rendezvous.address,
        "MASTER_PORT": str(rendezvous.port),
    }


def login_environment(uid: int) -> Mapping[str, str]:
    """Return the variables that a login would set, for submitters that do not set them."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return {"PATH": os.defpath}
    return {
        "PATH": os.defpath,
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell,
    }


def misleads(name: str) -> bool:
    """Return whether a process on a device must not inherit this variable."""
    return name in _TAKEN_OUT or name.startswith(_TAKEN_OUT_BY_PREFIX)


LOG_BYTES: Final = 64 * 2**20
LOG_FILES: Final = 4

_log = logging.getLogger(__name__)

_PORTS: Final = range(20_000, 30_000)
"""Below the range that Linux assigns to outgoing connections."""

_SHOWN: Final = 3
_THIS_MACHINE: Final = "127.0.0.1"


class LocalPool(Hooks):
    """The common base of all pools of local processes.

    A kind of pool overrides `cluster`, `sharing`, `library`, `libraries`, `allowed` and `usage`,
    which are called from the service's thread, and the hooks.

    Parameters
    ----------
    directory : path
        The state directory.
    log_bytes, log_files : int
        The size of a part of a rank's log, and the number of parts kept.
    """

    name = "local"
    notice = ""
    awaited = ""
    reserves = False
    gate: ShareGate | None = None

    def __init__(
        self, directory: Path, log_bytes: int = LOG_BYTES, log_files: int = LOG_FILES
    ) -> None:
        self.directory = directory
        self._log_bytes, self._log_files = log_bytes, log_files
        self._supervisors: dict[str, RunSupervisor] = {}
        self._unbegun: list[RunSupervisor] = []
        self._seen: queue.SimpleQueue[AnyEvent] = queue.SimpleQueue()
        self._prepared: queue.SimpleQueue[PreparedPart] = queue.SimpleQueue()
        self._address = _THIS_MACHINE
        self._lease: NodeLease | None = None
        self._wake: Callable[[], None] = lambda: None
        self._ports, self._pruning = threading.Lock(), threading.Lock()
        self._room = RunRoom(directory / "runs")
        self.fork_server = ForkServer(directory)
        for folder in (directory, directory / "runs"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(PASS_THROUGH)

    # Hooks.

    def lack(self, devices: int) -> None:
        """Do nothing: there are no more devices."""

    def cluster(self) -> Cluster:
        """Return the devices, and the shares that may be used on them."""
        raise NotImplementedError

    def sharing(self, same_user: bool) -> str | None:
        """Return why runs of one user, or of two, may never share a device; None: they may."""
        return None

    def library(self, run: Run) -> str:
        """Return the library that decides which shares compute correctly, empty if none does."""
        return ""

    def libraries(self) -> Collection[str]:
        """Return the libraries whose allowed shares are known."""
        return ()

    def allowed(self, library: str, model: str) -> Collection[int]:
        """Return the shares that a program with this library may have."""
        return caps_of(self.cluster().shares)

    def usage(self) -> Mapping[str, Usage]:
        """Return the usage of each device since the last call."""
        return {}

    # The same for all kinds of pools.

    def attach(self, wake: Callable[[], None]) -> None:
        """Set what to call, from any thread, as soon as ``poll`` has news."""
        self._wake = wake

    def resume(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Resume the runs that should exist, and return other runs that were found."""
        self.fork_server.start()
        if self._lease is None:
            self._note_boot(runs)
        for run in runs:
            self._keep(self.files(run.id).read_part() or whole(run)).begin()
        unreleased = {run.id for run in self.unreleased()}
        names = sorted((self._running() | unreleased) - set(self._supervisors))
        beyond = []
        for name in names:
            found = self.files(name).read_part()
            if found is None:
                _log.warning("processes of the run %s exist, but no record of it", name)
            else:
                self._keep(found).begin()
                beyond.append(found.run)
        return beyond

    def _note_boot(self, runs: Sequence[Run]) -> None:
        """Mark ranks without a trace as started in an earlier boot, if there was one.

        Without a lease, only the journal's event of a start is durable. The trace of a rank that
        ran may have been lost with the machine, so the rank must not be started again.
        """
        file, now = self.directory / "boot", boot_id()
        before = file.read_text(encoding="ascii") if file.exists() else now
        if before != now:
            for run in runs:
                for rank in range(len(run.seats)):
                    self.files(run.id).rank(rank).assume_started(before)
        if before != now or not file.exists():
            write_lasting(file, now.encode())

    def prelaunch(self, run: Run) -> None:
        """Bring every rank of the run to the start barrier, before its launch."""
        if self.quick_hooks and len(run.seats) == 1 and run.id not in self._supervisors:
            supervisor = self._keep(whole(run))
            self._unbegun.append(supervisor)
            supervisor.bring_one()
        else:
            self._kept_as(whole(run)).order(bring=True)

    def launch(self, run: Run) -> None:
        """Start every rank of the run that has no trace yet, all together or none."""
        self._kept_as(whole(run)).order(bring=True, launch=True)

    def stop(self, run: str, grace_s: float) -> None:
        """End every rank of the run (ask, wait, terminate, kill); safe to repeat."""
        if run in self._supervisors:
            self._supervisors[run].order(stop_s=grace_s)

    def pause(self, run: str, on: bool) -> None:
        """Suspend every process of a run, or let it continue; safe to repeat."""
        if run in self._supervisors:
            self._supervisors[run].order(pause=on)

    def release(self, run: str) -> None:
        """Release the resources of an ended run. Its logs stay."""
        supervisor = self._supervisors.pop(run, None)
        if supervisor is None:
            return
        supervisor.leave()
        self.files(run).forget_specs(supervisor.part)
        self.released(supervisor.kept)

    def poll(self) -> Sequence[AnyEvent]:
        """Return the events since the last call without waiting; the caller sets ``at_s``."""
        while self._unbegun:
            self._unbegun[-1].begin()
            self._unbegun.pop()
        return [self._seen.get_nowait() for _ in range(self._seen.qsize())]

    def progress(self, run: str) -> Sequence[Progress | None]:
        """Return the progress of each rank of a run; None for a rank that reports nothing."""
        supervisor = self._supervisors.get(run)
        return () if supervisor is None else supervisor.progress()

    def log_path(self, run: str, rank: int) -> str | None:
        """Return the newest log file of a rank; older parts have ``.1``, ``.2``, ... appended."""
        log = self.files(run).rank(rank).log
        return str(log) if log.exists() else None

    def log_lack(self, run: str, rank: int) -> str:
        """Return an empty text: logs are read where they are written."""
        return ""

    def prune(self, keep_s: float) -> None:
        """Remove the files of runs that ended longer ago or take too much of the disk."""
        with self._pruning:
            self._room.make(keep_s, self._is_held)

    def _is_held(self, run: str) -> bool:
        return run in self._supervisors or not self.files(run).released

    def close(self) -> None:
        """Close the pool; the jobs keep running."""
        # All at once, so that several supervisors that hang in hooks are awaited together.
        for supervisor in self._supervisors.values():
            supervisor.begin_leave()
        until_s = boot_s() + LEAVE_S
        for supervisor in self._supervisors.values():
            supervisor.leave(until_s)
        self._supervisors.clear()
        self.fork_server.close()

    # Additional methods for a node of a larger pool.

    def join(self, address: str, lease: NodeLease) -> None:
        """Become the part of a larger pool that is on this node; called before ``resume``.

        Parameters
        ----------
        address : str
            The address at which ranks on other nodes reach the ranks on this one.
        lease : NodeLease
            The lease under which every rank runs from now on.
        """
        self._address, self._lease = address, lease

    def prepare(
        self, run: Run, ranks: Collection[int], rendezvous: Rendezvous | None = None
    ) -> None:
        """Bring ranks of a run to the start barrier and hold them there.

        ``prepared`` reports that all of them wait there, or ``poll`` that they are refused. They
        are refused, through no fault of their job, if they are not committed within a minute, if
        one of them dies, or if the lease lapses. It is safe to repeat, and reports them again.

        Parameters
        ----------
        run : Run
            With all its seats.
        ranks : collection of int
            The ranks on this node.
        rendezvous : Rendezvous, optional
            Where its gang meets; None: on this node, which must have rank 0.
        """
        if rendezvous is None and 0 not in ranks:
            raise ValueError(f"{run.id}: where a gang meets is decided where its rank 0 is")
        self._kept_as(Part(run, tuple(sorted(ranks)), rendezvous)).order(bring=True, report=True)

    def has_trace(self, part: Part) -> bool:
        """Return whether a rank of a part was started here, or must never be."""
        files = self.files(part.run.id)
        return any((files.rank(k).directory / "started.json").exists() for k in part.ranks)

    def keep(self, part: Part) -> None:
        """Supervise a part, unless it is already; ``poll`` reports the traces of its ranks."""
        self._kept_as(self.files(part.run.id).read_part() or part).begin()

    def part(self, run: str) -> Part | None:
        """Return the part of a run that is supervised here, or None."""
        supervisor = self._supervisors.get(run)
        return None if supervisor is None else supervisor.part

    @property
    def trouble(self) -> str:
        """Why runs cannot be watched or ended, empty if they can."""
        all_of_them = [one.trouble for one in list(self._supervisors.values()) if one.trouble]
        more = f" and {len(all_of_them) - _SHOWN} more" if len(all_of_them) > _SHOWN else ""
        return "; ".join(all_of_them[:_SHOWN]) + more

    def prepared(self) -> Sequence[PreparedPart]:
        """Return the parts that reached the start barrier since the last call, without waiting."""
        return [self._prepared.get_nowait() for _ in range(self._prepared.qsize())]

    def commit(self, run: str) -> None:
        """Start the ranks at the start barrier, and refuse permanently the ranks not there.

        It is safe to repeat for ranks that have started.
        """
        if run in self._supervisors:
            self._supervisors[run].order(launch=True, commit=True)

    def abort(self, run: str, reason: str) -> None:
        """Refuse the ranks that have not started permanently, through no fault of their job."""
        if run in self._supervisors:
            self._supervisors[run].order(abort=reason)

    def unreleased(self) -> Sequence[Run]:
        """Return the runs of this directory that were launched or prepared, and not released."""
        folder = os.path.join(self.directory, "runs")
        # There may be tens of thousands of ended runs, which have no run.json.
        names = os.listdir(folder) if os.path.exists(folder) else []
        kept = sorted(name for name in names if os.path.exists(f"{folder}/{name}/run.json"))
        parts = [files.read_part() for files in map(self.files, kept) if not files.released]
        return [part.run for part in parts if part is not None]

    # For subclasses and supervisors.

    def files(self, run: str) -> RunFiles:
        """Return the files of a run."""
        return RunFiles(self.directory, run)

    def kept(self) -> Sequence[Run]:
        """Return the runs that are not released."""
        return [supervisor.kept for supervisor in list(self._supervisors.values())]

    def is_over(self, run: str) -> bool:
        """Return whether every rank of a run is over, or the run is not supervised."""
        supervisor = self._supervisors.get(run)
        return supervisor is None or supervisor.over

    def rank_spec(self, part: Part, rank: int, files: RunFiles) -> dict[str, object]:
        """Return the specification of a rank for its shim."""
        run, own = part.run, files.rank(rank)
        user = _user(run.spec.owner)
        if rank == 0 and run.port is not None and not _free(run.port, set()):
            raise NotNowError(f"its port {run.port} is used by another program")
        env = environment_of(part, rank, own.token, self.rendezvous(part))
        bounds = self.rank_bounds(run, rank)
        return {
            "command": run.spec.command,
            "cwd": run.spec.cwd,
            "env": {**env, **self.rank_environment(run, rank)},
            "user": user,
            "descriptors": FOR_JOBS,
            "cpus": bounds.cpus,
            "cgroups": bounds.cgroups,
            "log": {
                "most_bytes": self._log_bytes,
                "files": self._log_files,
                "mode": 0o644 if run.spec.public_log else 0o600,
            },
            "copies": _copies(run, rank),
            "lines": _lines(run),
            "probe": _probe(run) if rank == 0 else None,
            **self._leased(),
        }

    def rendezvous(self, part: Part) -> Rendezvous | None:
        """Return where the gang of a part meets, unchanged until its release."""
        if len(part.run.seats) == 1:
            return None
        return part.rendezvous or Rendezvous(self._address, self._port(self.files(part.run.id)))

    def _leased(self) -> dict[str, object]:
        lease = self._lease
        return {"lease": {"path": str(lease.path), "kill_s": lease.kill_s}} if lease else {}

    def _kept_as(self, part: Part) -> RunSupervisor:
        """Return the supervisor of a run, a new one if there is none yet."""
        return self._supervisors.get(part.run.id) or self._keep(part)

    def _keep(self, part: Part) -> RunSupervisor:
        supervisor = self._supervisors[part.run.id] = RunSupervisor(
            part, self.files(part.run.id), self, self.fork_server, self._report, self._lease
        )
        return supervisor

    def _report(self, event: AnyEvent | PreparedPart) -> None:
        """Queue an event for ``poll`` or ``prepared``; callable from any thread."""
        if isinstance(event, PreparedPart):
            self._prepared.put(event)
        else:
            self._seen.put(event)
        self._wake()

    def _running(self) -> set[str]:
        """Return the ids of the runs of this directory that have processes."""
        home = f"{home_token(self.directory)}/"
        return {token.split("/")[1] for _, token in tokens() if token.startswith(home)}

    def _port(self, files: RunFiles) -> int:
        """Return the port of a gang, reserved for it until its release."""
        with self._ports:
            known = files.port()
            if known is None:
                others = {self.files(run.id).port() for run in self.kept()}
                known = next(port for port in _from(files) if _free(port, others))
                files.write_port(known)
            return known


def why_not_as(owner: Owner) -> str | None:
    """Return why this process cannot run jobs of a user, or None if it can."""
    me = os.geteuid()
    if me in (0, owner.uid):
        return None
    return f"a service of user {me} cannot run jobs of {owner.name} (user {owner.uid})"


def _user(owner: Owner) -> dict[str, object] | None:
    """Return the user that the rank must run as; None for this process's user."""
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


def _copies(run: Run, rank: int) -> list[str | None]:
    """Return the files that the user chose for output and, if separate, for errors."""
    spec = run.spec
    values = {"j": run.job, "a": str(spec.index or 0), "t": str(rank), "r": str(rank), "%": "%"}
    values["u"] = spec.owner.name
    values["x"] = (spec.name or spec.workload).replace("/", "_")

    def path(pattern: str | None) -> str | None:
        if pattern is None:
            return None
        return os.path.join(spec.cwd, re.sub("%(.)", lambda code: values[code[1]], pattern))

    return [path(spec.output)] if spec.error is None else [path(spec.output), path(spec.error)]


def _lines(run: Run) -> dict[str, str] | None:
    pattern = run.spec.progress_pattern
    if pattern is None:
        return None
    return {"modules": HOOK_DIRECTORY, "pattern": pattern, "path": OWN}


def _probe(run: Run) -> dict[str, object] | None:
    spec = run.spec
    if spec.probe is None:
        return None
    how = spec.probe.replace("{port}", str(run.port))
    histogram, per_s = spec.probe_histogram, probes_per_s(spec)
    return {"modules": HOOK_DIRECTORY, "how": how, "histogram": histogram, "per_s": per_s}


def _from(files: RunFiles) -> list[int]:
    """Return all ports, in an order that differs by run and directory to avoid collisions."""
    first = zlib.crc32(f"{files.home}/{files.run}".encode()) % len(_PORTS)
    return [*_PORTS[first:], *_PORTS[:first]]


def _free(port: int, others: set[int | None]) -> bool:
    if port in others:
        return False
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as tried:
        try:
            # On every address, as torch's store listens.
            tried.bind(("", port))
        except OSError:
            return False
    return True
