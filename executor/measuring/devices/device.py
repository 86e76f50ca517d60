"""What a campaign needs of a device: a pool on which workers start, and what it tells of itself."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple, Protocol

from dovetail.executor.live.pools.pool import NodePool, Usage
from dovetail.executor.live.pools.submissions import Submissions
from dovetail.executor.measuring.campaign import Mode
from dovetail.executor.measuring.records import Seat
from dovetail.executor.measuring.worker import Event
from dovetail.instances.errors import DovetailError

READING_S: Final = 1.0
"""Seconds of a reading of metrics: what DCGM gives one for."""

_STEP_S: Final = 0.15
"""Longer than between two steps of the energy counter (about 0.1 s on data-centre GPUs)."""


class DeviceLostError(DovetailError):
    """The device does not work any more, and nothing that is allowed here brings it back."""


class Facts(NamedTuple):
    """What the ledger's first record says of a device; None where it cannot be told.

    Attributes
    ----------
    gpu_model : str
        The model's name in data sets.
    stand_in : str or None
        What stands in for a GPU, in words.
    uuid, driver : str or None
        As NVML has them.
    sms : int or None
        Of the whole device.
    memory_mib : float or None
        Of the whole device.
    """

    gpu_model: str
    stand_in: str | None = None
    uuid: str | None = None
    driver: str | None = None
    sms: int | None = None
    memory_mib: float | None = None


class Conditions(NamedTuple):
    """What was read of a device over a window.

    Attributes
    ----------
    energy_j, power_w : float or None
        Of the whole device.
    metrics, metrics_variance : mapping
        Means over the window, by which means they were had (``metrics_source``), and the variance
        of readings of ``READING_S``; that of a single reading is not known.
    clock_mhz, temperature_c : float or None
        Means of the readings.
    throttled : tuple of str
        Why clocks were lowered, at any reading.
    memory_mib : mapping of str to float
        Device memory of runs, by their ids.
    disturbed_by : tuple of int
        Processes of others on the device.
    others_busy : float or None
        The part of the time that the device gave to others, where that cannot be avoided.
    """

    energy_j: float | None = None
    power_w: float | None = None
    metrics: Mapping[str, float] = {}
    metrics_variance: Mapping[str, float] = {}
    metrics_source: str = ""
    clock_mhz: float | None = None
    temperature_c: float | None = None
    throttled: tuple[str, ...] = ()
    memory_mib: Mapping[str, float] = {}
    disturbed_by: tuple[int, ...] = ()
    others_busy: float | None = None


class Device(Protocol):
    """A device that nobody else uses, and how workers come to it.

    Attributes
    ----------
    kind : str
        The worker's ``--device``: ``cuda`` or ``cpu``.
    gpu : str
        Its id in its pool.
    env : mapping of str to str
        Variables that workers have beside those of this process.
    """

    kind: str
    gpu: str
    env: Mapping[str, str]

    @property
    def facts(self) -> Facts:
        """What it is."""

    def why_not(self, seat: Seat) -> str | None:
        """Return why a setting cannot be had or may not be used; None: it may."""

    def opened(self, mode: Mode) -> Submissions:
        """Return the way to its pool for a way of sharing; nothing may run there in another.

        Raises
        ------
        DovetailError
            When it cannot be shared in this way.
        """

    def unconfirmed(self, seat: Seat, ready: Event) -> str | None:
        """Return what of its setting a worker says not to have; None: it has all of it."""

    def energy_j(self) -> float | None:
        """Return a counter of the joules it has used; None where it has none."""

    def trouble(self) -> str:
        """Return what is wrong with the device; empty where nothing is."""

    def recover(self) -> None:
        """Return once the device is well again; called when no worker is left.

        Raises
        ------
        DeviceLostError
            When it does not come back.
        """

    def close(self) -> None:
        """End all workers, and leave nothing behind."""


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

    def read(self) -> Conditions:
        """Return what was read since the window began."""
        self._take()
        power_w, energy_j = None, None
        ended_s, ended_j = self._stepped()
        if ended_j is not None and self._begun_j is not None and ended_s > self._begun_s:
            energy_j = ended_j - self._begun_j
            power_w = energy_j / (ended_s - self._begun_s)
        used = [usage for usage, _ in self._readings]
        metrics = self._metrics()
        memory: dict[str, float] = {}
        for one in used:
            memory |= {
                run: max(mib, memory.get(run, 0.0)) for run, mib in one.memory_by_run.items()
            }
        return Conditions(
            energy_j=energy_j,
            power_w=power_w,
            metrics={name: _mean(values) for name, values in metrics.items()},
            metrics_variance={n: _variance(v) for n, v in metrics.items() if len(v) > 1},
            metrics_source=next((one.source for one in reversed(used) if one.metrics), ""),
            clock_mhz=_weighed([(one.clock_mhz, s) for one, s in self._readings]),
            temperature_c=_weighed([(one.temperature_c, s) for one, s in self._readings]),
            throttled=tuple(sorted({why for one in used for why in one.throttled})),
            memory_mib=memory,
            disturbed_by=tuple(sorted({pid for one in used for pid in one.others})),
            others_busy=_weighed([(one.others_busy, s) for one, s in self._readings]),
        )

    def _take(self) -> None:
        usage, now_s = self._pool.usage().get(self._gpu), time.monotonic()
        if usage is not None:
            self._readings.append((usage, now_s - self._read_s))
        self._read_s = now_s

    def _metrics(self) -> dict[str, list[tuple[float, float]]]:
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for usage, seconds in self._readings:
            for name, value in usage.metrics.items():
                found[name].append((value, seconds))
        return found

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


def _mean(found: Sequence[tuple[float, float]]) -> float:
    values, seconds = zip(*found, strict=True)
    return fmean(values, seconds)


def _variance(found: Sequence[tuple[float, float]]) -> float:
    mean = _mean(found)
    return _mean([((value - mean) ** 2, seconds) for value, seconds in found])


def _weighed(found: Sequence[tuple[float | None, float]]) -> float | None:
    known = [(value, seconds) for value, seconds in found if value is not None]
    return _mean(known) if known else None
