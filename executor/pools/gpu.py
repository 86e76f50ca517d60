"""The pool of this machine's NVIDIA GPUs: jobs share them under MPS, or take turns without it.

The tests use NVIDIA's own MPS control daemon without a GPU, or a stand-in for it, and the real NVML
bindings with injected callbacks; ``docs/evidence/hardware.md`` has the results on a GPU.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypedDict

from dovetail.executor.gpus.cublas import CublasVersions, python_of
from dovetail.executor.gpus.dcgm import PROGRAM as DCGMI
from dovetail.executor.gpus.dcgm import SOURCE as DCGM
from dovetail.executor.gpus.dcgm import Dcgm
from dovetail.executor.gpus.nvml import GpuLostError, Nvml, NvmlError, NvmlGpu
from dovetail.executor.gpus.splits import Splits, partitioned
from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.specs import JobSpec, Run
from dovetail.executor.mps import processes as mps_processes
from dovetail.executor.mps.control import BusyDaemonError, MpsError
from dovetail.executor.mps.manager import MpsManager
from dovetail.executor.mps.partitions import wanted
from dovetail.executor.mps.processes import SERVER
from dovetail.executor.pools.device_health import Cause, DeviceHealth
from dovetail.executor.pools.gpu_health import FAULT_S, GpuHealth
from dovetail.executor.pools.isolation import Isolation, IsolationError, SchedulerStatus
from dovetail.executor.pools.local import LocalPool
from dovetail.executor.pools.means import find_means
from dovetail.executor.pools.names import STATIC_PARTITIONS
from dovetail.executor.pools.pool import Usage
from dovetail.executor.pools.runs.files import DamagedError, PreparedPart, Started, home_token
from dovetail.executor.pools.runs.hooks import Bounds
from dovetail.executor.pools.runs.memory_groups import ROOT, MemoryGroups
from dovetail.executor.pools.runs.processes import ProcessId, holders
from dovetail.executor.pools.runs.start_barrier import LaunchError, NotNowError
from dovetail.executor.pools.share_gate import WANTED, ShareGate, ShareProgram
from dovetail.executor.pools.shim.kernel import descendants, stat_of
from dovetail.executor.system.clock import boot_s
from dovetail.instances._record import IDLE, Idle, listed
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster, Node
from dovetail.instances.instance import Gpu as Device
from dovetail.instances.slowdowns.shares import share_code

TURNS: Final = "no MPS: jobs that share a GPU take turns on it (time slicing), without SM shares"

EXCLUSIVE: Final = "without MPS, a GPU in compute mode EXCLUSIVE_PROCESS takes one process"

MOST_JOBS: Final = 4
"""The most jobs on a GPU under MPS by default; three and more only with a cap each."""

RESERVE_MIB: Final = 1024.0
"""Memory kept free on every GPU for the driver and the MPS server.

On an H200 with driver 580, the driver used 615 MiB of NVML's total before the first process, and
the server 74 MiB more. The 517 MiB of a client's context count towards its own limit.
"""

OUTSIDE_S: Final = 15.0
"""Seconds that a process may be on a GPU without being a client of its MPS server."""

_NOT_ISOLATED: Final = "isolated"
_NO_ISOLATION: Final = "this machine does not isolate runs"

_log = logging.getLogger(__name__)


class _ProgramFault(NamedTuple):
    """The time at which a program's fault was seen on a GPU, and the runs on it."""

    at_s: float
    runs: frozenset[str]


class _Counted(NamedTuple):
    """The kernels that isolated runs had launched on a GPU at a time."""

    at_s: float
    kernels: int


class _Intercepted(TypedDict):
    launches: Mapping[str, int]
    escapes: Mapping[str, str]


class GpuPool(LocalPool):
    """NVIDIA GPUs as devices, one MPS control daemon each.

    A device's id is the beginning of the GPU's UUID, which NVIDIA's tools accept, too. GPUs that
    are partitioned by MIG, in compute mode PROHIBITED or lost are left out.

    Parameters
    ----------
    directory : path
        The state directory.
    nvml : Nvml
        An open session; closed with the pool.
    mps : MpsManager
        Manages MPS in its directory.
    splits : Splits
        Evidence of the shares that compute correctly; no other shares are used.
    only : sequence of str
        Device ids or UUIDs, or their beginnings; empty for all GPUs.
    turns : bool
        Whether jobs take turns without MPS, even if MPS is available.
    isolation : Isolation, optional
        Isolates pairs; must work on this machine. By default no pair is isolated.
    program : ShareProgram, optional
        Measures further shares; by default nothing can.
    no_program : str
        Why there is no such program.
    priorities : bool
        Whether MPS is told to prefer latency-critical runs, to measure what that does. Nothing
        else relies on it, as it had no effect on an H200.
    groups_at : path
        Where NVIDIA's driver looks for control groups.

    Raises
    ------
    InputError
        When there is no such GPU, or none at all.
    """

    name = "gpu"
    gate: ShareGate

    def __init__(
        self,
        directory: Path,
        nvml: Nvml,
        mps: MpsManager,
        splits: Splits,
        only: Sequence[str] = (),
        turns: bool = False,
        isolation: Isolation | None = None,
        program: ShareProgram | None = None,
        no_program: str = "",
        priorities: bool = False,
        groups_at: Path = ROOT,
    ) -> None:
        super().__init__(directory)
        self._nvml, self._mps = nvml, mps
        self._gpus = {device_id(gpu): gpu for gpu in _chosen(_usable(nvml.gpus()), only)}
        no_mps = TURNS if turns else mps.why_not()
        self._has_mps = no_mps is None
        self.notice = "" if self._has_mps else TURNS
        self.reserves = mps.static
        self._chunks = self._counted_chunks() if self.reserves else None
        self._means = find_means(
            f"dovetail-{home_token(directory)}",
            nvml,
            [gpu.uuid for gpu in self._gpus.values()],
            mps.program if self._has_mps else None,
            groups_at,
        )
        self._uncounted: set[str] = set()
        self.gate = ShareGate(
            splits,
            nvml.driver(),
            program if self._has_mps else None,
            no_mps or no_program,
            enforced=self._has_mps,
            offers=WANTED if self._chunks is None else wanted(self._chunks, WANTED),
            python_of=self._python_of,
            strangers=self._strangers,
        )
        self._victims: dict[str, _ProgramFault] = {}
        self._outside_since: dict[tuple[str, int], float] = {}
        self._cublas = CublasVersions()
        self._device_health = DeviceHealth(directory / "sick.json", self._report)
        self._without_gpm = {g.uuid for g in self._gpus.values() if not nvml.has_gpm(g.uuid)}
        self._dcgm = Dcgm() if self._without_gpm and shutil.which(DCGMI) else None
        self._isolation, self._priorities = isolation, priorities
        self._unisolated: set[str] = set()
        self._doubted: set[str] = set()
        self._outsiders: set[str] = set()
        self._statuses: Mapping[tuple[str, int], SchedulerStatus] = {}
        self._counted: Mapping[str, _Counted] = {}
        self._told: dict[str, _Counted] = {}
        under_mps = mps if self._has_mps else None
        tend = self._tend_schedulers if isolation is not None else None
        self._health = GpuHealth(self._gpus, nvml, under_mps, self._device_health, self._end, tend)

    # Devices and shares.

    def cluster(self) -> Cluster:
        """Return the GPUs, and the shares under which some cuBLAS version computes correctly.

        Without MPS, jobs take turns on a GPU, which bounds what a co-runner can do.
        """
        devices = tuple(
            Device(id=name, model=self._model(gpu), memory_mib=gpu.memory_mib, sms=gpu.sms)
            for name, gpu in self._gpus.items()
        )
        shares: set[int | Idle] = set()
        if self._has_mps:
            shares.update(self.gate.allowed_anywhere({device.model for device in devices}))
        if self._isolation is not None and not self.reserves:
            shares.add(IDLE)
        return Cluster(
            sharing="mps" if self._has_mps else "time_sliced",
            nodes=(Node(id=socket.gethostname(), gpus=devices),),
            shares=tuple(sorted(shares, key=share_code)),
            uncapped=not self._has_mps,
            max_jobs_per_gpu=MOST_JOBS if self._has_mps else 2,
            reserve_mib=RESERVE_MIB,
        )

    def _model(self, gpu: NvmlGpu) -> str:
        """Return a GPU's model; with static partitions it is another one."""
        return partitioned(gpu.name) if self.reserves else gpu.name

    def _counted_chunks(self) -> int:
        """Return the number of chunks that each GPU has for static partitions.

        Raises
        ------
        InputError
            When there are none, or the GPUs differ in it.
        """
        if not self._has_mps:
            raise InputError(f"{STATIC_PARTITIONS} needs MPS", "--pool")
        try:
            found = {
                name: self._mps.chunks(gpu.uuid, os.geteuid()) for name, gpu in self._gpus.items()
            }
        except MpsError as error:
            raise InputError(f"{STATIC_PARTITIONS} is not possible: {error}", "--pool") from None
        if len(set(found.values())) != 1:
            text = ", ".join(f"{name} has {chunks}" for name, chunks in found.items())
            rule = f"{STATIC_PARTITIONS} needs GPUs of equally many chunks of SMs ({text})"
            raise InputError(f"{rule}: name some of them", "--pool")
        return next(iter(found.values()))

    def sharing(self, same_user: bool) -> str | None:
        """Return why runs of one user, or of two, may never share a GPU; None: they may."""
        if self._has_mps:
            return None if same_user else "an MPS server serves one user at a time"
        modes = {gpu.compute_mode for gpu in self._gpus.values()}
        return EXCLUSIVE if "exclusive_process" in modes else None

    def library(self, run: Run) -> str:
        """Return the version of cuBLAS that a run has loaded, empty if unknown."""
        owner = run.spec.owner
        return self._cublas.of(self._pids(run), owner.uid, owner.gid) or ""

    def _python_of(self, run: Run) -> str:
        return python_of(self._pids(run))

    def _pids(self, run: Run) -> list[int]:
        roots = [self._root(run, rank) for rank in range(len(run.seats))]
        return [pid for root in roots if root is not None for pid in _family(root.pid)]

    def _strangers(self, name: str) -> list[int]:
        """Return the processes on a GPU that holds no run, but for MPS servers."""
        try:
            pids = self._nvml.processes(self._gpus[name].uuid)
        except (NvmlError, GpuLostError) as error:
            self._health.silent(name, str(error))
            return []
        return sorted(pid for pid in pids if not _serves(pid))

    def libraries(self) -> Collection[str]:
        """Return the versions of cuBLAS with which shares of these GPUs were measured."""
        models = {gpu.model for node in self.cluster().nodes for gpu in node.devices}
        return self.gate.libraries(models)

    def allowed(self, library: str, model: str) -> Collection[int]:
        """Return the shares of a GPU model under which a cuBLAS version computes correctly."""
        if not self._has_mps or not library:
            return ()
        return self.gate.allowed(library, model)

    def usage(self) -> Mapping[str, Usage]:
        """Return the usage of each GPU since the last call; lost GPUs are left out."""
        found = {}
        for name, gpu in self._gpus.items():
            try:
                found[name] = self._read(name, gpu)
            except (GpuLostError, NvmlError) as error:
                self._health.silent(name, str(error))
        return found

    def look(self, name: str) -> str:
        """Check a GPU immediately, and return its faults, empty if there are none."""
        return self._health.look(name)

    def is_broken(self, name: str) -> bool:
        """Return whether a GPU has a fault that recovering MPS cannot fix."""
        return self._device_health.has(name, Cause.ANSWER, Cause.DRIVER)

    def resume(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Resume the runs that should exist, and start watching the GPUs."""
        self._device_health.resume(self._gpus.keys())
        beyond = super().resume(runs)
        if self._groups is not None:
            ours = {_group(run, k) for run in self.kept() for k in range(len(run.seats))}
            for name in set(self._groups.names()) - ours:
                self._groups.remove(name)
        for run in self.kept():
            if run.isolated and self._isolation is None:
                self._lose_isolation(run, _NO_ISOLATION)
            elif run.isolated:
                # Whether it had lost isolation when the last service ended is not known here.
                self._doubted.add(run.id)
        self._health.start()
        return beyond

    # Starting and ending ranks.

    def rank_environment(self, run: Run, rank: int) -> Mapping[str, str]:
        """Return the variables that bring a rank to its GPU, under its cap and limit."""
        seat, spec = run.seats[rank], run.spec
        if seat.gpu not in self._gpus:
            raise NotNowError(f"rank {rank}: the pool has no GPU {seat.gpu}")
        uuid, share = self._gpus[seat.gpu].uuid, None if seat.share == IDLE else seat.share
        isolated = self._isolated(run, rank, uuid) if run.isolated_on(seat) else {}
        if not self._has_mps:
            if share is not None:
                raise LaunchError(f"rank {rank}: no MPS, so no share can be enforced")
            return {**self._mps.without_mps(uuid), **isolated}
        cap = None if self.reserves else share
        try:
            under_mps = self._mps.environment(
                uuid, spec.owner.uid, cap, seat.memory_mib, self._priority(spec)
            )
            if self.reserves:
                holder = _group(run, rank)
                under_mps |= self._mps.partition(uuid, spec.owner.uid, share, holder)
            return {**under_mps, **isolated}
        except MpsError as error:
            if not isinstance(error, BusyDaemonError):
                self._health.rest(seat.gpu, str(error))
            raise NotNowError(f"rank {rank}: {error}") from None

    def rank_bounds(self, run: Run, rank: int) -> Bounds:
        """Return the control group that limits the memory of all processes of a rank."""
        seat = run.seats[rank]
        if self._groups is None or seat.memory_mib is None or seat.gpu not in self._gpus:
            return Bounds()
        uuid = self._gpus[seat.gpu].uuid
        try:
            return Bounds(cgroups=(self._groups.make(_group(run, rank), uuid, seat.memory_mib),))
        except (OSError, NvmlError, GpuLostError) as error:
            reason = f"its memory cannot be limited: {error}"
            if self._has_mps:  # only then does the rest end
                self._health.rest(seat.gpu, reason)
            raise NotNowError(f"rank {rank}: {reason}") from None

    def members(self, run: Run, rank: int) -> list[ProcessId]:
        """Return the processes of the rank's control group."""
        return [] if self._groups is None else self._groups.members(_group(run, rank))

    def released(self, run: Run) -> None:
        """Remove the run's control groups, and let its partitions go."""
        for rank, seat in enumerate(run.seats):
            if self._groups is not None:
                self._groups.remove(_group(run, rank))
            if self.reserves and seat.gpu in self._gpus:
                self._mps.give_back(self._gpus[seat.gpu].uuid, _group(run, rank))

    @property
    def _groups(self) -> MemoryGroups | None:
        groups = self._means.groups
        return groups if isinstance(groups, MemoryGroups) else None

    def _priority(self, spec: JobSpec) -> int | None:
        if not self._priorities:
            return None
        return 0 if spec.priority == "latency" else 1

    def is_ready(self, run: Run, rank: int, pid: int) -> bool:
        """Return whether a rank is a client of its GPU's MPS server, and isolated if it must be.

        A rank that uses the GPU but not the server runs without its cap, and is stopped. So is a
        rank that was started in the idle time of others but is not isolated; any other runs on.
        """
        isolated = run.isolated_on(run.seats[rank]) and run.id not in self._unisolated
        if not self._has_mps and not isolated:
            return True
        gpu, root = self._gpus.get(run.seats[rank].gpu), self._root(run, rank)
        if gpu is None or root is None:
            return False
        try:
            lacks = "" if self._mps_has(gpu, root) else "under MPS: it would ignore its share"
            if not lacks and isolated and not self._has_joined(run, gpu, root):
                lacks = _NOT_ISOLATED
            if not lacks:
                self._outside_since.pop((run.id, rank), None)
                return True
            outside = not self._nvml.processes(gpu.uuid).keys().isdisjoint(_family(root.pid))
        except (MpsError, NvmlError, GpuLostError) as error:
            _log.info("%s: rank %d cannot be looked up: %s", run.id, rank, error)
            return False
        self._judge_outsider(run, rank, lacks if outside else "")
        return False

    def before_kill(self, run: Run, rank: int) -> None:
        """Have MPS end the rank's work on the GPU: killing a busy client is undefined (NVIDIA)."""
        gpu, root = self._gpus.get(run.seats[rank].gpu), self._root(run, rank)
        if not self._has_mps or gpu is None:
            return
        if root is not None and root.alive:
            above = [root]
        else:
            above = holders(self.files(run.id).rank(rank).token, run.spec.owner.uid)
        done = [self._mps.terminate(gpu.uuid, process.pid) for process in above]
        if not all(done):
            _log.warning("%s: MPS could not end rank %d; it is killed anyway", run.id, rank)

    def close(self) -> None:
        """Close the pool; the jobs and the daemons that serve them keep running."""
        quiet = self._health.close()
        if self._dcgm is not None:
            self._dcgm.close()
        self._cublas.close()
        super().close()
        if self._groups is not None:
            self._groups.close()
        if quiet:
            self._mps.close()
            self._nvml.close()

    # Readings and events.

    def _read(self, name: str, gpu: NvmlGpu) -> Usage:
        readings = self._nvml.read(gpu.uuid)
        dcgm: Mapping[str, float] = {}
        if self._dcgm and gpu.uuid in self._without_gpm:
            dcgm = self._dcgm.metrics(gpu.uuid)
        memory, others = self._processes(name, gpu)
        self._check_groups(name, gpu, memory)
        return Usage(
            at_s=boot_s(),
            memory_mib=readings.used_mib,
            energy_j=readings.energy_j,
            metrics={**readings.metrics, **dcgm, **self._kernels(name)},
            source=DCGM if dcgm else readings.source,
            memory_by_run=memory,
            clock_mhz=readings.clock_mhz,
            temperature_c=readings.temperature_c,
            throttled=readings.throttled,
            others=others,
            driver=self.gate.driver,
            memory_held_by=self._means.held_by(name in self._uncounted),
            uuid=gpu.uuid,
            number=gpu.number,
            **self._intercepted(name),
        )

    def _processes(self, name: str, gpu: NvmlGpu) -> tuple[dict[str, float], tuple[int, ...]]:
        """Return the memory of each run on a GPU, if known, and the other processes there.

        If the driver's list has none of our own processes, its PIDs are from another namespace
        (we are in a container), and other processes cannot be identified.
        """
        by_pid = self._nvml.processes(gpu.uuid)
        roots = self._roots(name) if by_pid else {}
        found: dict[str, float] = defaultdict(float)
        others = set(by_pid)
        for pid, mib in by_pid.items():
            root = next((above for above in _line(pid) if above in roots), None)
            if root is not None:
                others.discard(pid)
                found[roots[root]] += mib or 0.0
        if not found:
            return {}, ()
        others = {pid for pid in others if not _serves(pid)}
        return {run: mib for run, mib in found.items() if mib}, tuple(sorted(others))

    def _check_groups(self, name: str, gpu: NvmlGpu, used: Mapping[str, float]) -> None:
        """Note a GPU on which the driver counts nothing in the control group of a run.

        NVIDIA documents the count for clients of MPS v3, not for those of the interface used here.
        """
        if self._groups is None or name in self._uncounted:
            return
        for run in self.kept():
            for rank, seat in enumerate(run.seats):
                if seat.gpu != name or seat.memory_mib is None or not used.get(run.id):
                    continue
                if self._groups.memory(_group(run, rank), gpu.uuid).used_mib == 0:
                    self._uncounted.add(name)
                    _log.warning("%s: the driver counts no memory of %s", name, _group(run, rank))

    def _roots(self, name: str) -> dict[int, str]:
        """Return the runs on a GPU by the PID at the root of their process tree."""
        found = {}
        for run in self.kept():
            for rank, seat in enumerate(run.seats):
                root = self._root(run, rank) if seat.gpu == name else None
                if root is not None:
                    found[root.pid] = run.id
        return found

    def _root(self, run: Run, rank: int) -> ProcessId | None:
        """Return the launcher of a rank, which also adopts its orphaned processes."""
        started = self._started(run, rank)
        return started.shim if started is not None else None

    def _started(self, run: Run, rank: int) -> Started | None:
        try:
            return self.files(run.id).rank(rank).started()
        except DamagedError:
            return None

    def _report(self, event: AnyEvent | PreparedPart) -> None:
        if isinstance(event, events.RankEnded) and event.status != 0:
            event = self._judged(event)
        super()._report(event)

    def _judged(self, ended: events.RankEnded) -> AnyEvent:
        """Return how a rank ended: as gone, not failed, if a fault may be another run's.

        MPS passes a fault on to every client of the GPU without naming its origin.
        """
        run = next((run for run in self.kept() if run.id == ended.run), None)
        name = run.seats[ended.rank].gpu if run is not None else ""
        if not self._has_mps or name not in self._gpus or not self._health.faulted(name):
            return ended
        known = self._victims.get(name)
        if known is None or boot_s() - known.at_s > FAULT_S:
            here = {one.id for one in self.kept() if name in {seat.gpu for seat in one.seats}}
            known = self._victims[name] = _ProgramFault(boot_s(), frozenset(here))
        if ended.run not in known.runs or len(known.runs) == 1:
            return ended
        reason = f"a fault on {name}, of {listed(sorted(known.runs))}, ended all work there"
        return events.RankGone(at_s=0.0, run=ended.run, rank=ended.rank, reason=reason)

    def _judge_outsider(self, run: Run, rank: int, lacks: str) -> None:
        key = (run.id, rank)
        if not lacks:
            self._outside_since.pop(key, None)
        elif boot_s() - self._outside_since.setdefault(key, boot_s()) > OUTSIDE_S:
            del self._outside_since[key]
            reason = f"rank {rank} is on the GPU, but not {lacks}"
            if lacks == _NOT_ISOLATED and run.seats[rank].share != IDLE:
                self._outsiders.add(run.id)
                self._lose_isolation(run, reason)
            else:
                self._report(events.StopDecided(at_s=0.0, run=run.id, reason=reason, then="fail"))

    def _mps_has(self, gpu: NvmlGpu, root: ProcessId) -> bool:
        return not self._has_mps or self._mps.attached(gpu.uuid, root.pid)

    # Isolation.

    def _isolated(self, run: Run, rank: int, uuid: str) -> Mapping[str, str]:
        """Return the variables of an isolated rank; NotNowError if it cannot be isolated."""
        spec = run.spec
        try:
            if self._isolation is None:
                raise IsolationError(_NO_ISOLATION)
            return self._isolation.environment(
                uuid, spec.owner.uid, spec.priority == "latency", spec.env
            )
        except IsolationError as error:
            self._lose_isolation(run, str(error))
            raise NotNowError(f"rank {rank}: it is not isolated: {error}") from None

    def _has_joined(self, run: Run, gpu: NvmlGpu, root: ProcessId) -> bool:
        """Return whether a process of a rank has joined the scheduler of its GPU."""
        assert self._isolation is not None
        status = self._isolation.status(gpu.uuid, run.spec.owner.uid)
        return status is not None and not status.pids.isdisjoint(_family(root.pid))

    def _lose_isolation(self, run: Run, reason: str) -> None:
        self._unisolated.add(run.id)
        self._report(events.IsolationLost(at_s=0.0, run=run.id, reason=reason))

    def _tend_schedulers(self) -> None:
        """Replace schedulers that have ended or hang; their runs have lost isolation.

        A scheduler that is not asked for its status ends by itself, so unused ones disappear.
        """
        kept = self.kept()
        names = {run.id for run in kept}
        self._unisolated &= names
        self._doubted &= names
        self._outsiders &= names
        served: dict[tuple[str, int], dict[str, tuple[Run, float]]] = defaultdict(dict)
        for run in kept:
            for rank, seat in enumerate(run.seats):
                started = self._started(run, rank) if run.isolated_on(seat) else None
                runs = started is not None and started.shim is not None and seat.gpu in self._gpus
                if started is not None and runs and not self.is_over(run.id):
                    served[seat.gpu, run.spec.owner.uid][run.id] = run, started.at_s
        statuses = {}
        # One of whose processes was seen on the GPU outside may have more there that never join.
        regained = {*self._unisolated, *self._doubted} - self._outsiders
        regained &= {name for runs_there in served.values() for name in runs_there}
        for (name, uid), runs_there in served.items():
            status = self._tend(name, uid, runs_there.values())
            for run, _ in runs_there.values():
                if run.id in regained and not (status and self._has_all(run, name, status)):
                    regained.discard(run.id)
            if status is not None:
                statuses[name, uid] = status
        for again in sorted(regained):
            self._unisolated.discard(again)
            self._doubted.discard(again)
            self._report(events.IsolationRegained(at_s=0.0, run=again))
        self._statuses, self._counted = statuses, _counted(statuses, boot_s())

    def _tend(
        self, name: str, uid: int, runs: Collection[tuple[Run, float]]
    ) -> SchedulerStatus | None:
        """Return the status of the scheduler of some runs, given with their start times.

        Processes of a run that began before the scheduler may have joined it in place of another.
        """
        assert self._isolation is not None
        uuid = self._gpus[name].uuid
        status = self._isolation.status(uuid, uid)
        since_s = self._isolation.began_s(uuid, uid) if status is not None else None
        for run, began_s in runs:
            serves = since_s is not None and since_s <= began_s
            serves = serves or (status is not None and self._has_all(run, name, status))
            if not serves and run.id not in self._unisolated:
                self._lose_isolation(run, f"the scheduler of isolated runs on {name} has ended")
        if since_s is None:
            try:
                self._isolation.ensure(uuid, uid)
            except IsolationError as error:
                _log.warning("%s: %s", name, error)
        return status

    def _has_all(self, run: Run, name: str, status: SchedulerStatus) -> bool:
        """Return whether each isolated rank on a GPU has a process in its scheduler."""
        roots = [
            self._root(run, rank)
            for rank, seat in enumerate(run.seats)
            if seat.gpu == name and run.isolated_on(seat)
        ]
        return all(root and not status.pids.isdisjoint(_family(root.pid)) for root in roots)

    def _intercepted(self, name: str) -> _Intercepted:
        """Return launches and escapes of the isolated runs on a GPU."""
        launches: Counter[str] = Counter()
        escapes: dict[str, str] = {}
        for (gpu, _), status in self._statuses.items():
            if gpu == name:
                launches.update(status.launches)
                escapes.update(status.escapes)
        return {"launches": launches, "escapes": escapes}

    def _kernels(self, name: str) -> Mapping[str, float]:
        """Return the kernels a second of isolated runs on a GPU since the last count."""
        before, now = self._told.pop(name, None), self._counted.get(name)
        if now is None:
            return {}
        self._told[name] = now
        if before is None or now.kernels < before.kernels or now.at_s <= before.at_s:
            return {}  # the scheduler has been replaced, or has not been asked again
        return {"kernels_s": (now.kernels - before.kernels) / (now.at_s - before.at_s)}

    def _end(self, name: str, pids: Collection[int]) -> None:
        """Stop the runs that lost their work on a GPU with its MPS server."""
        roots = self._roots(name) if pids else {}
        lost = {roots[above] for pid in pids for above in _line(pid) if above in roots}
        for run in self.kept():
            if run.id in lost:
                then: Literal["wait", "fail"] = "wait" if run.spec.requeue else "fail"
                reason = "the MPS server of its GPU failed"
                self._report(events.StopDecided(at_s=0.0, run=run.id, reason=reason, then=then))


def _group(run: Run, rank: int) -> str:
    return f"{run.id}-{rank}"


def _line(pid: int) -> Iterator[int]:
    """Yield a process and its ancestors."""
    seen: set[int] = set()
    while pid > 1 and pid not in seen:
        yield pid
        seen.add(pid)
        stat = stat_of(pid)
        pid = stat.parent if stat is not None else 0


def _serves(pid: int) -> bool:
    """Return whether a process is an MPS server, which holds a GPU for its clients."""
    process = mps_processes.look(pid)
    return process is not None and process.runs(SERVER)


def _family(pid: int) -> list[int]:
    return [pid, *(process.pid for process in descendants(pid))]


def device_id(gpu: NvmlGpu) -> str:
    """Return the id of a GPU in a pool."""
    return gpu.uuid[:12]


def _usable(gpus: Iterable[NvmlGpu]) -> list[NvmlGpu]:
    return [gpu for gpu in gpus if not gpu.mig and gpu.compute_mode != "prohibited"]


def _chosen(gpus: Sequence[NvmlGpu], only: Sequence[str]) -> list[NvmlGpu]:
    chosen = [gpu for gpu in gpus if not only or any(gpu.uuid.startswith(name) for name in only)]
    for name in only:
        if not any(gpu.uuid.startswith(name) for gpu in gpus):
            known = ", ".join(map(device_id, gpus)) or "none"
            raise InputError(f"must name usable GPUs ({known}), got {name!r}", "--pool")
    if not chosen:
        raise InputError("there is no usable GPU: see dovetail doctor", "--pool")
    return chosen


def _counted(
    statuses: Mapping[tuple[str, int], SchedulerStatus], at_s: float
) -> Mapping[str, _Counted]:
    """Return the kernels that were launched on each GPU whose schedulers all know how many."""
    found: dict[str, list[int | None]] = defaultdict(list)
    for (name, _), status in statuses.items():
        found[name].append(status.kernels)
    return {
        name: _Counted(at_s, sum(number for number in numbers if number is not None))
        for name, numbers in found.items()
        if None not in numbers
    }
