"""What a campaign needs of a device."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple, Protocol

from dovetail.executor.live.pools.environment import misleads
from dovetail.executor.measuring.records import Seat
from dovetail.executor.measuring.worker import Event
from dovetail.instances.errors import DovetailError

TOKEN: Final = "DOVETAIL_MEASURE"
"""The variable that every worker has; its value is the folder of results."""


READING_S: Final = 1.0
"""Seconds of a reading of metrics: what DCGM gives one for."""


class DeviceLostError(DovetailError):
    """The device does not work any more, and nothing that is allowed here brings it back."""


class Facts(NamedTuple):
    """What the ledger's first line says of a device; None where it cannot be told.

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
        Means of several looks.
    throttled : tuple of str
        Why clocks were lowered, at any look.
    memory_mib : mapping of int to float
        Device memory of processes, by pid.
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
    memory_mib: Mapping[int, float] = {}
    disturbed_by: tuple[int, ...] = ()
    others_busy: float | None = None


class Series:
    """Metrics over a window, as means of parts of it."""

    def __init__(self) -> None:
        self._values: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def add(self, metrics: Mapping[str, float], seconds: float = READING_S) -> None:
        """Take in the means of a part that was so long."""
        for name, value in metrics.items():
            self._values[name].append((value, seconds))

    def means(self) -> dict[str, float]:
        """Return the mean of each metric over the window."""
        return {name: _mean(found) for name, found in self._values.items()}

    def variances(self) -> dict[str, float]:
        """Return the variance of one reading of each metric of which there are several."""
        return {
            name: _mean([((value - mean) ** 2, seconds) for value, seconds in self._values[name]])
            for name, mean in self.means().items()
            if len(self._values[name]) > 1
        }


def _mean(found: Sequence[tuple[float, float]]) -> float:
    values, seconds = zip(*found, strict=True)
    return fmean(values, seconds)


class Meter(Protocol):
    """Reads a device over a window that begins when it is made."""

    def look(self) -> None:
        """Look once more; called a few times a second."""

    def read(self) -> Conditions:
        """Return what was read since the window began."""


class Device(Protocol):
    """A device that nobody else uses, and how workers come to it."""

    @property
    def kind(self) -> str:
        """The worker's ``--device``: ``cuda`` or ``cpu``."""

    @property
    def facts(self) -> Facts:
        """What it is."""

    def why_not(self, seat: Seat) -> str | None:
        """Return why a setting cannot be had or may not be used; None: it may."""

    def launch(self, seat: Seat, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a worker's process, with pipes, as the leader of a session.

        Raises
        ------
        DovetailError
            When it cannot be started.
        """

    def unconfirmed(self, seat: Seat, ready: Event, pid: int) -> str | None:
        """Return what of its setting a ready worker does not have; None: it has all of it."""

    def terminate(self, pid: int) -> None:
        """Make it safe to kill a worker that does not obey."""

    def gone(self, pid: int) -> None:
        """Take note that a worker has ended."""

    def free_mib(self) -> float | None:
        """Return the memory that is free; None where that is not known."""

    def meter(self, ours: Collection[int]) -> Meter:
        """Begin to read over a window; ``ours`` are the pids of all workers."""

    def trouble(self) -> str | None:
        """Return what has gone wrong with the device since the last call; None: nothing."""

    def recover(self) -> None:
        """Bring the device back when there was trouble and no worker is left.

        Raises
        ------
        DeviceLostError
            When it does not come back.
        """

    def close(self) -> None:
        """Leave nothing behind; all workers have ended."""


def worker_environment(token: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without what would lead a worker astray, and ``own``."""
    kept = {name: value for name, value in os.environ.items() if not misleads(name)}
    return {**kept, **own, TOKEN: token}


def started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process with pipes, in a session of its own: Ctrl-C is for the campaign alone.

    Raises
    ------
    DovetailError
        When it cannot be started.
    """
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
    except OSError as error:
        raise DovetailError(f"{command[0]} cannot be run: {error.strerror}") from None
