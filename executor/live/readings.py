"""Readings of the present runs, and the last readings of runs that are over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from dovetail.executor.pools.pool import Progress, Usage

MOST: Final = 10_000
"""Number of runs whose readings are kept; the oldest are forgotten first."""


class RunReading(NamedTuple):
    """The present figures of a run; None if unknown.

    Attributes
    ----------
    iterations, total : float or None
        Iterations that its slowest rank has done in this run, and all iterations if the job reports
        them.
    rate, solo_rate : float or None
        Iterations per second now, and alone and uncapped according to its workload's profile.
    slowdown : float or None
        ``solo_rate / rate``.
    predicted, upper : float or None
        The largest slowdown believed with its present co-runners, and its upper bound.
    predicted_by : str
        The source of ``predicted``, in words.
    memory_used_mib : float or None
        The most memory that one of its ranks was seen to use.
    launches, escapes : mapping
        As in ``Usage``, of the devices on which it is isolated.
    """

    iterations: float | None = None
    total: float | None = None
    rate: float | None = None
    solo_rate: float | None = None
    slowdown: float | None = None
    predicted: float | None = None
    upper: float | None = None
    predicted_by: str = ""
    memory_used_mib: float | None = None
    launches: Mapping[str, int] = {}
    escapes: Mapping[str, str] = {}


NOTHING: Final = RunReading()


class LastReading:
    """The last reading of each run, only in memory: lost when the service ends.

    Attributes
    ----------
    now : mapping of str to RunReading
        The last sample of each watched run.
    readings : dict of str to RunReading
        By run, without rates; ``slowdown`` and ``predicted`` are the last values while it shared.
    usage : mapping of str to Usage
        The last usage of each device.
    power_w : mapping of str to float
        Power of each device for which it is known.
    """

    def __init__(self, most: int = MOST) -> None:
        self.now: Mapping[str, RunReading] = {}
        self.readings: dict[str, RunReading] = {}
        self.usage: Mapping[str, Usage] = {}
        self.power_w: Mapping[str, float] = {}
        self._most = most

    def note(self, run: str, now: RunReading, shares: bool) -> None:
        """Record the reading of a run; ``shares`` says whether it has co-runners."""
        before = self.readings.get(run, NOTHING)
        slowed = now if shares and now.slowdown is not None else before
        self._keep(
            run,
            before._replace(
                iterations=before.iterations if now.iterations is None else now.iterations,
                total=before.total if now.total is None else now.total,
                slowdown=slowed.slowdown,
                predicted=slowed.predicted,
                predicted_by=slowed.predicted_by,
                memory_used_mib=now.memory_used_mib,
            ),
        )

    def note_end(self, run: str, ranks: Iterable[Progress | None]) -> None:
        """Record the final progress of a run from the last reports of its ranks."""
        reporting = [rank for rank in ranks if rank is not None]
        if reporting:
            slowest = min(reporting, key=lambda rank: rank.iterations)
            before = self.readings.get(run, NOTHING)
            total = before.total if slowest.total is None else slowest.total
            self._keep(run, before._replace(iterations=slowest.iterations, total=total))

    def _keep(self, run: str, reading: RunReading) -> None:
        self.readings.pop(run, None)
        self.readings[run] = reading
        if len(self.readings) > self._most:
            del self.readings[next(iter(self.readings))]
