"""The parts of a shared device's time and power that its jobs answer for.

A counter of energy covers the whole device, so the parts of co-runners are modelled. A job alone on
a device answers for all of it. Jobs that share one answer for its time in proportion to their
speeds (rate now / rate alone): under time slicing this is the time that each has the device, under
MPS each has its work's worth of it. Idle power, the least that the device drew while it held no
job, is split equally. The rest is split in proportion to dynamic power alone x speed: an iteration
is taken to need the same dynamic energy beside others as alone. The parts sum to the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final, Literal, NamedTuple

from dovetail.executor.live.views import PartView
from dovetail.executor.pools.pool import Usage

LONGEST_S: Final = 60.0
"""Seconds between two readings of a device beyond which it is unknown what ran in between."""

_Origin = Literal["measured", "modelled", "equal"]


class DeviceSharer(NamedTuple):
    """A job on a device.

    Attributes
    ----------
    run, job : str
        The run and its job.
    speed : float or None
        Rate now / rate alone, 0 if it does not run at the moment; None if unknown.
    measured : bool
        Whether the speed was measured, and not predicted.
    alone_w : float or None
        Power of the device while the workload ran on it alone; None if unknown.
    """

    run: str
    job: str
    speed: float | None
    measured: bool
    alone_w: float | None


def attributed(
    residents: Sequence[DeviceSharer], power_w: float | None, idle_w: float
) -> tuple[PartView, ...]:
    """Return the parts of a device's time and power, one for each of its jobs.

    Parameters
    ----------
    residents : sequence of DeviceSharer
        The jobs on the device.
    power_w : float or None
        Its power now; None if unknown.
    idle_w : float
        Its idle power; 0 if it never was idle.
    """
    times, from_times = _times(residents)
    powers: Iterable[float | None] = repeat(None)
    from_powers: _Origin = "equal"
    if power_w is not None:
        powers, from_powers = _powers(residents, power_w, min(idle_w, power_w))
    return tuple(
        PartView(
            job=one.job,
            time=time,
            time_source=from_times,
            power_w=power,
            power_source=from_powers if power is not None else "",
        )
        for one, time, power in zip(residents, times, powers, strict=False)
    )


def _times(residents: Sequence[DeviceSharer]) -> tuple[list[float], _Origin]:
    if len(residents) == 1:
        return [1.0], "measured"
    speeds = [one.speed for one in residents]
    measured = all(one.measured for one in residents)
    return _split(1.0, speeds, "measured" if measured else "modelled")


def _powers(
    residents: Sequence[DeviceSharer], power_w: float, idle_w: float
) -> tuple[list[float], _Origin]:
    if len(residents) == 1:
        return [power_w], "measured"
    dynamic = [
        None
        if one.alone_w is None or one.speed is None
        # A job that does not run draws nothing beyond idle power.
        else max(one.alone_w - idle_w, 0.0) * one.speed
        for one in residents
    ]
    parts, origin = _split(power_w - idle_w, dynamic, "modelled")
    return [idle_w / len(residents) + part for part in parts], origin


def _split(
    whole: float, weights: Sequence[float | None], origin: _Origin
) -> tuple[list[float], _Origin]:
    """Return parts in proportion to weights, equal parts if a weight is unknown or all are 0."""
    known = [weight for weight in weights if weight is not None]
    total = sum(known)
    if len(known) < len(weights) or total <= 0:
        return [whole / len(weights)] * len(weights), "equal"
    return [whole * weight / total for weight in known], origin


class Account(NamedTuple):
    """What a run has used so far, by its parts of devices: energy (None if unknown) and time."""

    energy_j: float | None = None
    device_s: float = 0.0


class Accounts:
    """Adds up what runs use of devices, reading by reading.

    The time between two readings is charged to the jobs that were on the device at the first.

    Attributes
    ----------
    of_run : dict of str to Account
        What each run that was on a device at the last reading has used.
    parts : mapping of str to tuple of PartView
        The present parts of each device with jobs.
    """

    def __init__(self) -> None:
        self.of_run: dict[str, Account] = {}
        self.parts: Mapping[str, tuple[PartView, ...]] = {}
        self._residents: Mapping[str, Sequence[DeviceSharer]] = {}
        self._idle_w: dict[str, float] = {}

    def charge(self, before: Mapping[str, Usage], now: Mapping[str, Usage]) -> None:
        """Charge the time between the last readings of devices and these."""
        for gpu, power_w, seconds in _intervals(before, now):
            residents = self._residents.get(gpu, ())
            if not residents:
                if power_w is not None:
                    self._idle_w[gpu] = min(power_w, self._idle_w.get(gpu, power_w))
                continue
            parts = attributed(residents, power_w, self._idle_w.get(gpu, 0.0))
            for one, part in zip(residents, parts, strict=True):
                self._add(one.run, part, seconds)

    def _add(self, run: str, part: PartView, seconds: float) -> None:
        energy_j, device_s = self.of_run.get(run, Account())
        if part.power_w is not None:
            energy_j = (energy_j or 0.0) + part.power_w * seconds
        self.of_run[run] = Account(energy_j, device_s + part.time * seconds)

    def settle(
        self, residents: Mapping[str, Sequence[DeviceSharer]], power_w: Mapping[str, float]
    ) -> None:
        """Note the present jobs on devices, and forget the runs that have left."""
        self._residents = {gpu: there for gpu, there in residents.items() if there}
        self.parts = {
            gpu: attributed(there, power_w.get(gpu), self._idle_w.get(gpu, 0.0))
            for gpu, there in self._residents.items()
        }
        present = {one.run for there in residents.values() for one in there}
        self.of_run = {run: used for run, used in self.of_run.items() if run in present}


def _intervals(
    before: Mapping[str, Usage], now: Mapping[str, Usage]
) -> Iterator[tuple[str, float | None, float]]:
    """Yield devices with their mean power between two readings, and the seconds between."""
    for gpu, new in now.items():
        old = before.get(gpu)
        seconds = new.at_s - old.at_s if old else 0.0
        if old is None or not 0 < seconds <= LONGEST_S:
            continue
        known = old.energy_j is not None and new.energy_j is not None
        # A counter that went back was reset by a new driver.
        drawn_j = new.energy_j - old.energy_j if known else -1.0  # type: ignore[operator]
        yield gpu, drawn_j / seconds if drawn_j >= 0 else None, seconds
