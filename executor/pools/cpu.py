"""The pool of this machine's processor cores, as stand-ins for GPUs."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.gpus.splits import Splits
from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.local import LocalPool
from dovetail.executor.pools.made_up_shares import MadeUpProgram, made_up_gate
from dovetail.executor.pools.means import BY_NOTHING
from dovetail.executor.pools.names import Enforcement
from dovetail.executor.pools.pool import Usage
from dovetail.executor.pools.runs.cgroups import KEPT_BY, best_enforcement, find_groups
from dovetail.executor.pools.runs.files import DamagedError, home_token
from dovetail.executor.pools.runs.hooks import Bounds
from dovetail.executor.pools.runs.processes import ProcessId
from dovetail.executor.pools.runs.start_barrier import LaunchError
from dovetail.executor.pools.shim.kernel import descendants, every_process
from dovetail.executor.system.clock import boot_s
from dovetail.instances._record import IDLE
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster, Gpu, Node

SOURCE: Final = "CPU time as a stand-in; memory traffic and bus, not measured, are given as 0"


QUOTA_SHARES: Final = tuple(range(10, 100, 10))

_NOTICE: Final = "processor cores stand in for GPUs: no figure of this pool is one of a GPU"
_TICKS_S: Final = os.sysconf("SC_CLK_TCK")
_AT_WORK: Final = (0, 1, 2, 5, 6, 7)
_PAGE_MIB: Final = os.sysconf("SC_PAGE_SIZE") / 2**20


class CpuPool(LocalPool):
    """Groups of cores as devices: real processes and contention, and shares if enforceable.

    Parameters
    ----------
    directory : path
        The state directory.
    cores_per_device, devices : int
        Cores in each device, and number of devices; by default one core each, and all cores that
        this process may use.
    shares : {"quota", "affinity", "none"}, optional
        How shares are enforced; by default the first of these that is available here.
    made_up : Splits, optional
        Made-up evidence: only shares that it has are used, and the service can measure others.

    Raises
    ------
    InputError
        When there are fewer cores, or shares cannot be enforced in that way.
    """

    name = "cpu"
    quick_hooks = True

    def __init__(
        self,
        directory: Path,
        cores_per_device: int = 1,
        devices: int | None = None,
        shares: Enforcement | None = None,
        *,
        made_up: Splits | None = None,
    ) -> None:
        self._cores = _devices(cores_per_device, devices)
        if shares == "affinity" and cores_per_device == 1:
            raise InputError("shares must not be affinity if a device is one core", "--pool")
        super().__init__(directory)
        self._groups = find_groups(f"dovetail-{home_token(directory)}")
        self.shares = shares or best_enforcement(self._groups, cores_per_device)
        if self.shares == "quota" and self._groups is None:
            raise InputError("shares must not be quota: no cgroup can be limited here", "--pool")
        kept_by = "no shares, as requested" if shares == "none" else KEPT_BY[self.shares]
        self.notice = f"{_NOTICE}; {kept_by}"
        self._cluster = self._described()
        if made_up is not None:
            self.gate = made_up_gate(made_up, self._enforced(), MadeUpProgram())
            self.notice += "; the evidence of shares is made up"
        self._taken: dict[tuple[str, int], tuple[int, ...]] = {}
        self._taking = threading.Lock()
        self._usage = _CpuMeter(self._cores)

    def cluster(self) -> Cluster:
        """Return the devices, each with an equal part of the machine's memory."""
        shares = self._enforced()
        if self.gate is not None:
            models = {gpu.model for node in self._cluster.nodes for gpu in node.devices}
            shares = tuple(sorted(self.gate.allowed_anywhere(models).intersection(shares)))
        if shares != self._cluster.shares:
            self._cluster = self._cluster.model_copy(update={"shares": shares})
        return self._cluster

    def _described(self) -> Cluster:
        memory = os.sysconf("SC_PHYS_PAGES") * _PAGE_MIB // len(self._cores)
        gpus = tuple(
            Gpu(id=device, model=f"cpu-{len(cores)}-core", memory_mib=memory)
            for device, cores in self._cores.items()
        )
        node = Node(id=socket.gethostname(), gpus=gpus)
        return Cluster(shares=self._enforced(), uncapped=self.shares == "none", nodes=(node,))

    def resume(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Resume the runs that should exist, with their cores, and clean up after others."""
        beyond = super().resume(runs)
        ranks = [(run, rank) for run in self.kept() for rank in range(len(run.seats))]
        for run, rank in ranks:
            spec = self.files(run.id).rank(rank).spec()
            self._taken[run.id, rank] = tuple(spec["cpus"]) if spec else ()
        if self._groups is not None:
            for name in set(self._groups.names()) - {_group(*known) for known in ranks}:
                self._groups.remove(name)
        return beyond

    def rank_bounds(self, run: Run, rank: int) -> Bounds:
        """Return the cores of a rank, and the group that limits its time."""
        seat = run.seats[rank]
        if seat.gpu not in self._cores:
            raise LaunchError(f"no device {seat.gpu!r}")
        if seat.share is not None and self.shares == "none":
            raise LaunchError(f"a share of {seat.share} % cannot be enforced here")
        cpus = self._take_cores(run, rank)
        if self._groups is None:
            return Bounds(cpus)
        quota = self._quota(run, rank)
        try:
            return Bounds(cpus, (self._groups.make(_group(run, rank), quota),))
        except OSError as error:
            raise LaunchError(f"its cgroup cannot be created: {error.strerror}") from None

    def is_ready(self, run: Run, rank: int, pid: int) -> bool:
        """Return whether the kernel says that the rank is on its cores and in its group."""
        spec = self.files(run.id).rank(rank).spec()
        try:
            on_its_cores = spec is not None and os.sched_getaffinity(pid) == set(spec["cpus"])
            return on_its_cores and self._in_its_group(run, rank, pid)
        except OSError:
            # The rank, or its group, is gone; its supervisor will see that.
            return False

    def members(self, run: Run, rank: int) -> list[ProcessId]:
        """Return the processes of the rank's group."""
        return [] if self._groups is None else self._groups.members(_group(run, rank))

    def released(self, run: Run) -> None:
        """Remove the run's groups."""
        for rank in range(len(run.seats)):
            self._taken.pop((run.id, rank), None)
            if self._groups is not None:
                self._groups.remove(_group(run, rank))

    def usage(self) -> Mapping[str, Usage]:
        """Return the CPU time of each device's runs since the last call, and their memory."""
        return self._usage.read(self._guards())

    def close(self) -> None:
        """Close the pool; the jobs keep running."""
        super().close()
        if self._groups is not None:
            self._groups.close()

    def _enforced(self) -> tuple[int, ...]:
        if self.shares == "quota":
            return QUOTA_SHARES
        if self.shares == "none":
            return ()
        count = len(next(iter(self._cores.values())))
        return tuple(sorted({100 * cores // count for cores in range(1, count)}))

    def _in_its_group(self, run: Run, rank: int, pid: int) -> bool:
        if self._groups is None:
            return True
        name = _group(run, rank)
        inside = pid in {process.pid for process in self._groups.members(name)}
        return inside and self._groups.cores(name) == self._quota(run, rank)

    def _quota(self, run: Run, rank: int) -> float | None:
        seat = run.seats[rank]
        if seat.share is None or seat.share == IDLE or self.shares != "quota":
            return None
        return seat.share / 100 * len(self._cores[seat.gpu])

    def _take_cores(self, run: Run, rank: int) -> tuple[int, ...]:
        """Return all cores of the device, or the least used ones that make up the share."""
        seat = run.seats[rank]
        cores = self._cores[seat.gpu]
        with self._taking:
            if self.shares == "affinity" and seat.share is not None and seat.share != IDLE:
                count = max(1, -(-seat.share * len(cores) // 100))
                others = Counter(
                    core
                    for (other, _), taken in self._taken.items()
                    if other != run.id and not self.is_over(other)
                    for core in taken
                )
                cores = tuple(sorted(sorted(cores, key=lambda core: others[core])[:count]))
            self._taken[run.id, rank] = cores
        return cores

    def _guards(self) -> list[_Guarded]:
        found = []
        for run in self.kept():
            for rank, seat in enumerate(run.seats):
                try:
                    started = self.files(run.id).rank(rank).started()
                except DamagedError:
                    continue
                if started is not None and started.shim is not None:
                    capped = seat.share is not None
                    found.append(_Guarded(run.id, rank, seat.gpu, started.shim, capped))
        return found


class _Guarded(NamedTuple):
    """A rank, its device, the shim below which its processes are, and whether it has a cap."""

    run: str
    rank: int
    device: str
    shim: ProcessId
    capped: bool


class _CpuMeter:
    """CPU time that each device's ranks used or waited for, and their memory.

    Waiting counts because the process would have used the core. On a busy machine, used time alone
    would make a job that always computes look nearly idle.
    """

    def __init__(self, cores: Mapping[str, Sequence[int]]) -> None:
        self._cores = cores
        self._read_s = boot_s()
        self._busy_s = self._busy()
        self._wanted: dict[tuple[str, int], float] = {}
        self._had_s: dict[tuple[str, int], float] = {}
        self._most: dict[str, float] = {}

    def read(self, ranks: Sequence[_Guarded]) -> Mapping[str, Usage]:
        now_s, processes = boot_s(), every_process()
        spent: defaultdict[str, float] = defaultdict(float)
        had: defaultdict[str, float] = defaultdict(float)
        resident: Counter[str] = Counter()
        by_run: Counter[str] = Counter()
        wanted, had_s = {}, {}
        for rank in ranks:
            # The shim is not part of the job, but its time includes that of reaped children.
            shim = [stat for stat in processes if (stat.pid, stat.started) == rank.shim]
            below = descendants(rank.shim.pid, processes) if shim else []
            total = had_s[rank.run, rank.rank] = sum(s.cpu for s in shim + below) / _TICKS_S
            had[rank.device] += max(0.0, total - self._had_s.get((rank.run, rank.rank), 0.0))
            # Processes that wait because of their cap would not use the core.
            if not rank.capped:
                total += sum(_queued_s(stat.pid) for stat in below)
            wanted[rank.run, rank.rank] = total
            spent[rank.device] += max(0.0, total - self._wanted.get((rank.run, rank.rank), 0.0))
            pages = sum(stat.rss_pages for stat in below)
            resident[rank.device] += pages
            by_run[rank.run] += pages
        wall_s, self._read_s = now_s - self._read_s, now_s
        self._wanted, self._had_s = wanted, had_s
        busy_s, self._busy_s = self._busy_s, self._busy()
        self._most = {
            run: max(self._most.get(run, 0.0), pages * _PAGE_MIB) for run, pages in by_run.items()
        }
        homes = {rank.run: rank.device for rank in ranks}
        return {
            device: Usage(
                at_s=now_s,
                memory_mib=resident[device] * _PAGE_MIB,
                metrics=_metrics(spent[device], wall_s, len(cores)),
                source=SOURCE,
                memory_held_by=BY_NOTHING,
                memory_by_run={
                    run: most for run, most in self._most.items() if homes[run] == device
                },
                others_busy=_part(
                    sum(self._busy_s[core] - busy_s[core] for core in cores) - had[device],
                    wall_s * len(cores),
                )
                if busy_s
                else None,
            )
            for device, cores in self._cores.items()
        }

    def _busy(self) -> dict[int, float]:
        """Return the busy seconds of each core since the machine booted, including stolen time.

        The sum of user (which includes guests), nice, system, interrupts and steal in /proc/stat
        (proc_stat(5)). Empty if a container does not show every core.
        """
        text = Path("/proc/stat").read_text(encoding="ascii")
        lines = re.findall(r"^cpu(\d+) (.+)$", text, re.MULTILINE)
        found = {int(core): list(map(int, ticks.split())) for core, ticks in lines}
        mine = [core for cores in self._cores.values() for core in cores]
        if not found.keys() >= set(mine):
            return {}
        return {core: sum(found[core][at] for at in _AT_WORK) / _TICKS_S for core in mine}


def _queued_s(pid: int) -> float:
    """Return the seconds for which the threads of a process have waited for a core."""
    waited_ns = 0
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                waited_ns += int(file.read().split()[1])
    return waited_ns / 1e9


def _metrics(spent_s: float, wall_s: float, cores: int) -> Mapping[str, float]:
    if wall_s <= 0:
        return {}
    busy = _part(spent_s, wall_s * cores)
    machine = _part(spent_s, wall_s * (os.cpu_count() or 1))
    return {
        "sm_active": busy,
        "gpu_util": busy,
        "cpu_util": machine,
        "dram_active": 0.0,
        "pcie_rx_bytes_s": 0.0,
    }


def _part(spent_s: float, of_s: float) -> float:
    return min(1.0, max(0.0, spent_s / of_s)) if of_s > 0 else 0.0


def _devices(cores_per_device: int, devices: int | None) -> dict[str, tuple[int, ...]]:
    cores = sorted(os.sched_getaffinity(0))
    count = len(cores) // cores_per_device if devices is None else devices
    if not 0 < count * cores_per_device <= len(cores):
        raise InputError(
            f"must take at most the {len(cores)} cores that may be used, "
            f"got {count} devices of {cores_per_device}",
            "--pool",
        )
    return {
        f"cpu-{k}": tuple(cores[k * cores_per_device : (k + 1) * cores_per_device])
        for k in range(count)
    }


def _group(run: Run, rank: int) -> str:
    return f"{run.id}-{rank}"
