"""A processor core that stands in for a GPU: real processes and real contention, no CUDA.

Workers take turns on the core as the kernel lets them, whatever the campaign calls the way of
sharing. Caps are quotas of CPU time, where this machine allows control groups. Nothing keeps
others from the core, so that no figure of it is one of a GPU, nor of an idle machine; how much
they took of it is told.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from dovetail.executor.live.pools.cgroups import find_groups
from dovetail.executor.live.pools.shim import stat_of
from dovetail.executor.measuring.devices.device import (
    READING_S,
    Conditions,
    Facts,
    Series,
    started,
    worker_environment,
)
from dovetail.executor.measuring.records import Seat
from dovetail.executor.measuring.worker import Event
from dovetail.instances.errors import DovetailError

SOURCE: Final = "CPU time as a stand-in"

_TICKS_S: Final = os.sysconf("SC_CLK_TCK")
_AT_WORK: Final = (0, 1, 2, 5, 6, 7)
_PAGE_MIB: Final = os.sysconf("SC_PAGE_SIZE") / 2**20
_ONE_THREAD: Final = MappingProxyType({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})


class CpuDevice:
    """One core of this machine.

    Parameters
    ----------
    token : str
        Names the campaign's folder; control groups are told apart by it.
    core : int, optional
        Which; by default the last that this process may use.
    """

    kind = "cpu"

    def __init__(self, token: str, core: int | None = None) -> None:
        self._token = token
        self.core = max(os.sched_getaffinity(0)) if core is None else core
        digest = hashlib.sha256(token.encode()).hexdigest()[:8]
        self._groups = find_groups(f"dovetail-measure-{digest}")
        self._group_of: dict[int, str] = {}
        self._made = 0

    @property
    def facts(self) -> Facts:
        """The core, and that it is one."""
        model = processor_model()
        return Facts(
            gpu_model="cpu-1-core",
            stand_in=f"one processor core ({model}): no figure here is one of a GPU",
            memory_mib=os.sysconf("SC_PHYS_PAGES") * _PAGE_MIB,
        )

    def why_not(self, seat: Seat) -> str | None:
        """Return why a cap cannot be kept here."""
        if seat.share is not None and self._groups is None:
            return "a cap needs control groups that limit CPU time, and none can be made here"
        return None

    def launch(self, seat: Seat, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a worker on the core, and in a group of its own where it has a cap."""
        environment = worker_environment(self._token, _ONE_THREAD)
        with self._on_core():
            process = started(command, environment)
        if seat.share is not None:
            self._limit(seat, seat.share, process)
        return process

    def unconfirmed(self, seat: Seat, ready: Event, pid: int) -> str | None:
        """Ask the kernel whether a worker is on its core and in its group."""
        with contextlib.suppress(ProcessLookupError):
            if os.sched_getaffinity(pid) != {self.core}:
                return f"is not on core {self.core} alone"
        name = self._group_of.get(pid)
        if name is not None and self._groups is not None:
            inside = pid in {process.pid for process in self._groups.members(name)}
            if not inside or self._groups.cores(name) != (seat.share or 0) / 100:
                return f"is not limited to {seat.share} % of the core"
        return None

    def terminate(self, pid: int) -> None:
        """Do nothing: processes may be killed at any time."""

    def gone(self, pid: int) -> None:
        """Remove its group."""
        name = self._group_of.pop(pid, None)
        if name is not None and self._groups is not None:
            self._groups.remove(name)

    def free_mib(self) -> float | None:
        """Return what the kernel says is available."""
        found = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
        return None if found is None else int(found[1]) / 1024

    def meter(self, ours: Collection[int]) -> CpuMeter:
        """Begin to read the CPU time of the workers."""
        return CpuMeter(ours, self.core)

    def trouble(self) -> str | None:
        """Return nothing: a core has no trouble."""
        return None

    def recover(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Remove all groups."""
        if self._groups is not None:
            self._groups.close()

    @contextlib.contextmanager
    def _on_core(self) -> Iterator[None]:
        """Let this thread be on the core alone: what it starts is there from the beginning."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self.core})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def _limit(self, seat: Seat, share: int, process: subprocess.Popen[bytes]) -> None:
        assert self._groups is not None
        self._made += 1
        name = f"worker-{self._made}"
        self._group_of[process.pid] = name
        try:
            entrance = self._groups.make(name, share / 100)
            Path(entrance).write_text(str(process.pid), encoding="ascii")
        except OSError as error:
            process.kill()
            process.wait()
            self.gone(process.pid)
            raise DovetailError(f"its control group cannot be made: {error.strerror}") from None


class CpuMeter:
    """The CPU time and memory of workers over a window, and what others took of their core."""

    def __init__(self, ours: Collection[int], core: int) -> None:
        self._ours, self._core = tuple(ours), core
        self._begun_s = self._read_s = time.monotonic()
        self._cpu_s, self._core_s = self._spent_s(), core_busy_s(core)
        self._read_cpu_s, self._series = self._cpu_s, Series()

    def look(self) -> None:
        """Read each second how busy the core was with workers."""
        if time.monotonic() - self._read_s >= READING_S:
            self._take()

    def read(self) -> Conditions:
        """Return how busy the core was with workers, under the names of a GPU's metrics."""
        self._take()
        wall_s = self._read_s - self._begun_s
        spent_s, core_s = self._read_cpu_s - self._cpu_s, core_busy_s(self._core)
        others = None
        if core_s is not None and self._core_s is not None:
            others = _part(core_s - self._core_s - spent_s, wall_s)
        stats = [stat for pid in self._ours if (stat := stat_of(pid)) is not None]
        return Conditions(
            metrics=self._series.means(),
            metrics_variance=self._series.variances(),
            metrics_source=SOURCE,
            memory_mib={stat.pid: stat.rss_pages * _PAGE_MIB for stat in stats},
            others_busy=others,
        )

    def _take(self) -> None:
        now_s, spent_s = time.monotonic(), self._spent_s()
        busy = _part(spent_s - self._read_cpu_s, now_s - self._read_s)
        self._series.add({"sm_active": busy, "gpu_util": busy}, now_s - self._read_s)
        self._read_s, self._read_cpu_s = now_s, spent_s

    def _spent_s(self) -> float:
        stats = (stat_of(pid) for pid in self._ours)
        return sum(stat.cpu for stat in stats if stat is not None) / _TICKS_S


def _part(spent_s: float, wall_s: float) -> float:
    return min(1.0, max(0.0, spent_s / wall_s)) if wall_s > 0 else 0.0


def core_busy_s(core: int) -> float | None:
    """Return the seconds that a core was at work since the machine began, stolen ones included.

    User, nice, system, interrupts and steal of /proc/stat (proc_stat(5)), where guests are in
    user. None where a container does not show them.
    """
    found = re.search(rf"^cpu{core} (.+)$", Path("/proc/stat").read_text(), re.MULTILINE)
    if found is None:
        return None
    ticks = [int(one) for one in found[1].split()]
    return sum(ticks[at] for at in _AT_WORK) / _TICKS_S


def processor_model() -> str:
    """Return the name that the processor has in /proc/cpuinfo, else its architecture."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else platform.machine()
