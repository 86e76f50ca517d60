"""A device to measure on: a pool that starts workers, and readings of the device."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Final

from dovetail.executor.jobs.specs import Seat as PoolSeat
from dovetail.executor.pools.isolation import SchedulerStatus
from dovetail.executor.pools.pool import NodePool, Usage
from dovetail.executor.pools.runs.submissions import PoolSubmissions
from dovetail.instances.errors import DovetailError
from dovetail.measuring.campaign import Mode, WorkerSeat
from dovetail.measuring.results import Facts
from dovetail.measuring.worker import Worker

READING_S: Final = 1.0
"""Seconds between two readings of metrics; DCGM provides one per second."""

CONFIRM_S: Final = 10.0
"""Seconds within which the pool must confirm the share of a worker that is ready."""

_STEP_S: Final = 0.15
"""Longer than the period of the energy counter (about 0.1 s on data-centre GPUs)."""


class DeviceLostError(DovetailError):
    """The device stopped working, and a campaign may do nothing to restore it."""


class Device:
    """A device that no other program uses. Subclasses override what differs.

    Parameters
    ----------
    pool : NodePool
        The pool that has the device; closed with this object.
    gpu : str
        The device's id in the pool.
    facts : Facts
        Its description.

    Attributes
    ----------
    env : mapping of str to str
        Environment variables of workers, in addition to those of this process.
    has_kernels : bool
        Whether a profiler can record the kernels of its workers.
    submissions : PoolSubmissions
        Starts programs on the pool.
    """

    env: Mapping[str, str] = MappingProxyType({})
    has_kernels = False

    def __init__(self, pool: NodePool, gpu: str, facts: Facts) -> None:
        self.gpu, self.facts = gpu, facts
        self.submissions = PoolSubmissions(pool)

    def why_not(self, seat: WorkerSeat) -> str | None:
        """Return why a seat is not available or not allowed; None if it is."""
        return None

    def open(self, mode: Mode) -> None:
        """Prepare the device for workers of a mode; none of the other mode are running.

        Raises
        ------
        DovetailError
            If the device cannot be shared in this mode.
        """

    def worker(self, seat: WorkerSeat, command: Sequence[str], path: str) -> Worker:
        """Start a worker with a command, to which the path of its socket is appended."""
        worker = Worker(seat, self.submissions)
        worker.listen(path)
        worker.submission = self.submissions.submit(
            (*command, "--socket", path),
            PoolSeat(gpu=self.gpu, share=seat.share),
            self.env,
            "latency" if seat.first or seat.leads else "batch",
            seat.workload,
            seat.mode == "isolated",
        )
        return worker

    def unconfirmed(self, worker: Worker) -> str | None:
        """Return which part of its seat a ready worker lacks, or None."""
        run, until_s = worker.submission, time.monotonic() + CONFIRM_S
        if run is None:
            return None
        known = self.submissions.wait(lambda: run.ready or bool(run.unisolated), until_s)
        if run.unisolated:
            return f"is not isolated: {run.unisolated}"
        return None if known else "is not known to be under its cap on the device"

    def free_mib(self) -> float | None:
        """Return the free memory in MiB; None if unknown."""
        used = self.submissions.pool.usage().get(self.gpu)
        if used is None or used.memory_mib is None or self.facts.memory_mib is None:
            return None
        return self.facts.memory_mib - used.memory_mib

    def meter(self) -> Meter:
        """Start reading the device over a window."""
        return Meter(self.submissions.pool, self.gpu, self.energy_j, self.intercepted)

    def energy_j(self) -> float | None:
        """Return the energy counter in joules; None if there is none."""
        return None

    def intercepted(self) -> SchedulerStatus | None:
        """Return what was intercepted of isolated workers so far; None if nothing isolates."""
        return None

    def trouble(self) -> str:
        """Return the fault of the device; empty if there is none."""
        return ""

    def recover(self) -> None:
        """Wait until the device works again; called when no workers are left.

        Raises
        ------
        DeviceLostError
            If it does not.
        """

    def close(self) -> None:
        """End all workers and leave nothing behind."""
        self.submissions.close()


class Meter:
    """Readings of a device over a window that begins with this object.

    Parameters
    ----------
    pool : NodePool
        The pool that has the device.
    gpu : str
        The device's id in the pool.
    energy_j : callable
        Returns its energy counter, which advances in steps.
    intercepted : callable
        Returns what was intercepted of isolated workers so far, in counts that only grow.
    """

    def __init__(
        self,
        pool: NodePool,
        gpu: str,
        energy_j: Callable[[], float | None],
        intercepted: Callable[[], SchedulerStatus | None],
    ) -> None:
        self._pool, self._gpu, self._energy_j = pool, gpu, energy_j
        self._intercepted, self._counted = intercepted, intercepted()
        self._readings: list[tuple[Usage, float]] = []
        pool.usage()
        self._read_s = time.monotonic()
        self._begun_s, self._begun_j = self._stepped()

    def look(self) -> None:
        """Read the device if a second has passed; to be called several times a second."""
        if time.monotonic() - self._read_s >= READING_S:
            self._take()

    def read(self) -> tuple[dict[str, object], Mapping[str, float]]:
        """Return fields of `Result` about the window, and the peak memory of each run in MiB."""
        self._take()
        ended_s, ended_j = self._stepped()
        energy_j = power_w = None
        if ended_j is not None and self._begun_j is not None and ended_s > self._begun_s:
            energy_j = ended_j - self._begun_j
            power_w = energy_j / (ended_s - self._begun_s)
        used = [usage for usage, _ in self._readings]
        memory: dict[str, float] = {}
        for run, mib in (item for one in used for item in one.memory_by_run.items()):
            memory[run] = max(mib, memory.get(run, 0.0))
        names = dict.fromkeys(name for one in used for name in one.metrics)
        metrics = {name: self._over(one.metrics.get(name) for one in used) for name in names}
        launches, escapes = self._launches()
        fields: dict[str, object] = {
            "launches": launches,
            "escapes": escapes,
            "energy_j": energy_j,
            "power_w": power_w,
            "metrics": {name: mean for name, (mean, _) in metrics.items()},
            "metrics_variance": {k: v for k, (_, v) in metrics.items() if v is not None},
            "metrics_source": next((one.source for one in reversed(used) if one.metrics), ""),
            "clock_mhz": self._over(one.clock_mhz for one in used)[0],
            "temperature_c": self._over(one.temperature_c for one in used)[0],
            "throttled": tuple(sorted({why for one in used for why in one.throttled})),
            "disturbed_by": tuple(sorted({pid for one in used for pid in one.others})),
            "others_busy": self._over(one.others_busy for one in used)[0],
        }
        return fields, memory

    def _launches(self) -> tuple[Mapping[str, int], Mapping[str, str]]:
        """Return the intercepted launches of the window, and the kernels that cannot be cut."""
        now = self._intercepted()
        if self._counted is None or now is None:
            return {}, {}
        return Counter(now.launches) - Counter(self._counted.launches), now.escapes

    def _over(self, values: Iterable[float | None]) -> tuple[float | None, float | None]:
        """Return mean and variance of readings over time; None without any (or with one)."""
        timed = zip(values, (seconds for _, seconds in self._readings), strict=True)
        known = [(value, seconds) for value, seconds in timed if value is not None]
        if not known:
            return None, None
        values, seconds = zip(*known, strict=True)
        mean = fmean(values, seconds)
        variance = fmean([(value - mean) ** 2 for value in values], seconds)
        return mean, variance if len(known) > 1 else None

    def _take(self) -> None:
        usage, now_s = self._pool.usage().get(self._gpu), time.monotonic()
        if usage is not None:
            self._readings.append((usage, now_s - self._read_s))
        self._read_s = now_s

    def _stepped(self) -> tuple[float, float | None]:
        """Return a time and the energy by then, just after the counter has advanced.

        The counter advances about ten times a second; in between it lags by up to several per cent
        of a short window's energy.
        """
        until_s = time.monotonic() + _STEP_S
        before = now = self._energy_j()
        while before is not None and now == before and time.monotonic() < until_s:
            time.sleep(_STEP_S / 100)
            now = self._energy_j()
        return time.monotonic(), now
