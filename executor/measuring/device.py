"""What a campaign needs of a device: a pool on which workers start, and what it tells of itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Final

from dovetail.executor.jobs.specs import Seat as PoolSeat
from dovetail.executor.measuring.campaign import Mode
from dovetail.executor.measuring.records import Conditions, Facts, Seat
from dovetail.executor.measuring.worker import Worker
from dovetail.executor.pools.pool import NodePool, Usage
from dovetail.executor.pools.submissions import Submissions
from dovetail.instances.errors import DovetailError

READING_S: Final = 1.0
"""Seconds of a reading of metrics: what DCGM gives one for."""

CONFIRM_S: Final = 10.0
"""Seconds within which the pool confirms that a ready worker is under its cap."""

_STEP_S: Final = 0.15
"""Longer than between two steps of the energy counter (about 0.1 s on data-centre GPUs)."""


class DeviceLostError(DovetailError):
    """The device does not work any more, and nothing that is allowed here brings it back."""


class Device:
    """A device that nobody else uses, and how workers come to it; a kind overrides what differs.

    Parameters
    ----------
    pool : NodePool
        Has the device; is this object's from now on.
    gpu : str
        Its id there.
    facts : Facts
        What it is.

    Attributes
    ----------
    kind : str
        The worker's ``--device``: ``cuda`` or ``cpu``.
    env : mapping of str to str
        Variables that workers have beside those of this process.
    submissions : Submissions
        The way to the pool.
    """

    kind = "cpu"
    env: Mapping[str, str] = MappingProxyType({})

    def __init__(self, pool: NodePool, gpu: str, facts: Facts) -> None:
        self.gpu, self.facts = gpu, facts
        self.submissions = Submissions(pool)

    def why_not(self, seat: Seat) -> str | None:
        """Return why a setting cannot be had or may not be used; None: it may."""
        return None

    def open(self, mode: Mode) -> None:
        """Let workers share in this way from now on; there are none of the other one.

        Raises
        ------
        DovetailError
            When the device cannot be shared in this way.
        """

    def worker(self, seat: Seat, command: Sequence[str], path: str) -> Worker:
        """Start a worker by a command, which is told the path of its socket."""
        worker = Worker(seat, self.submissions)
        worker.listen(path)
        worker.submission = self.submissions.submit(
            (*command, "--socket", path),
            PoolSeat(gpu=self.gpu, share=seat.share),
            self.env,
            "latency" if seat.first else "batch",
            seat.workload,
        )
        return worker

    def unconfirmed(self, worker: Worker) -> str | None:
        """Return what of its setting a ready worker does not have; None: it has all of it."""
        run, until_s = worker.submission, time.monotonic() + CONFIRM_S
        if run is not None and not self.submissions.wait(lambda: run.ready, until_s):
            return "is not known to be under its cap on the device"
        return None

    def free_mib(self) -> float | None:
        """Return the memory that is free; None where that is not known."""
        used = self.submissions.pool.usage().get(self.gpu)
        if used is None or used.memory_mib is None or self.facts.memory_mib is None:
            return None
        return self.facts.memory_mib - used.memory_mib

    def meter(self) -> Meter:
        """Begin to read over a window."""
        return Meter(self.submissions.pool, self.gpu, self.energy_j)

    def energy_j(self) -> float | None:
        """Return a counter of the joules it has used; None where it has none."""
        return None

    def trouble(self) -> str:
        """Return what is wrong with the device; empty where nothing is."""
        return ""

    def recover(self) -> None:
        """Return once the device is well again; called when no worker is left.

        Raises
        ------
        DeviceLostError
            When it does not come back.
        """

    def close(self) -> None:
        """End all workers, and leave nothing behind."""
        self.submissions.close()


class Meter:
    """What a pool tells of a device over a window that begins when this is made.

    Parameters
    ----------
    pool : NodePool
        Has the device.
    gpu : str
        Its id there.
    energy_j : callable
        Returns its energy counter, which goes on by steps.
    """

    def __init__(self, pool: NodePool, gpu: str, energy_j: Callable[[], float | None]) -> None:
        self._pool, self._gpu, self._energy_j = pool, gpu, energy_j
        self._readings: list[tuple[Usage, float]] = []
        pool.usage()
        self._read_s = time.monotonic()
        self._begun_s, self._begun_j = self._stepped()

    def look(self) -> None:
        """Read each second; called a few times a second."""
        if time.monotonic() - self._read_s >= READING_S:
            self._take()

    def read(self) -> tuple[Conditions, Mapping[str, float]]:
        """Return what was read since the window began, and the most that each run held, in MiB."""
        self._take()
        ended_s, ended_j = self._stepped()
        known = ended_j is not None and self._begun_j is not None and ended_s > self._begun_s
        energy_j = (ended_j or 0.0) - (self._begun_j or 0.0) if known else None
        power_w = None if energy_j is None else energy_j / (ended_s - self._begun_s)
        used = [usage for usage, _ in self._readings]
        memory: dict[str, float] = {}
        for run, mib in (item for one in used for item in one.memory_by_run.items()):
            memory[run] = max(mib, memory.get(run, 0.0))
        names = dict.fromkeys(name for one in used for name in one.metrics)
        metrics = {name: self._over(one.metrics.get(name) for one in used) for name in names}
        conditions = Conditions.from_data(
            {
                "energy_j": energy_j,
                "power_w": power_w,
                "metrics": {name: mean for name, (mean, _) in metrics.items()},
                "metrics_variance": {k: v for k, (_, v) in metrics.items() if v is not None},
                "metrics_source": next((one.source for one in reversed(used) if one.metrics), ""),
                "clock_mhz": self._over(one.clock_mhz for one in used)[0],
                "temperature_c": self._over(one.temperature_c for one in used)[0],
                "throttled": sorted({why for one in used for why in one.throttled}),
                "disturbed_by": sorted({pid for one in used for pid in one.others}),
                "others_busy": self._over(one.others_busy for one in used)[0],
            }
        )
        return conditions, memory

    def _over(self, read: Iterable[float | None]) -> tuple[float | None, float | None]:
        """Return mean and variance over time of readings, None where there was none (or one)."""
        timed = zip(read, (seconds for _, seconds in self._readings), strict=True)
        known = [(value, seconds) for value, seconds in timed if value is not None]
        if not known:
            return None, None
        values, seconds = zip(*known, strict=True)
        mean = fmean(values, seconds)
        spread = fmean([(value - mean) ** 2 for value in values], seconds)
        return mean, spread if len(known) > 1 else None

    def _take(self) -> None:
        usage, now_s = self._pool.usage().get(self._gpu), time.monotonic()
        if usage is not None:
            self._readings.append((usage, now_s - self._read_s))
        self._read_s = now_s

    def _stepped(self) -> tuple[float, float | None]:
        """Return a moment and the energy by then, just after the counter has gone on.

        It goes on by steps, some ten a second; between them it says less than was used, which
        would be several per cent of a short window.
        """
        until_s = time.monotonic() + _STEP_S
        before = now = self._energy_j()
        while before is not None and now == before and time.monotonic() < until_s:
            time.sleep(_STEP_S / 100)
            now = self._energy_j()
        return time.monotonic(), now
