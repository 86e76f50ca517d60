"""What is seen of runs, and what was seen last of those that are over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from dovetail.executor.pools.pool import Progress

MOST: Final = 10_000
"""Runs that are kept; those noted longest ago are forgotten first."""


class RunReading(NamedTuple):
    """What is seen of a run now; None for what is unknown.

    Attributes
    ----------
    iterations, total : float or None
        Done in this run by its slowest rank, and in all if the job reports it.
    rate, solo_rate : float or None
        Iterations per second now, and alone and uncapped as its workload's profile says.
    slowdown : float or None
        ``solo_rate / rate``.
    predicted, upper : float or None
        The largest slowdown that was believed with its present co-runners, and the bound on it.
    predicted_by : str
        Where ``predicted`` is from, in words.
    memory_used_mib : float or None
        The most that a rank of it was seen to use.
    launches, escapes : mapping
        As of ``Usage``, of the devices on which it is isolated.
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
    """The last reading of each run, in memory only: a service that starts again has none.

    Attributes
    ----------
    now : mapping of str to RunReading
        What the last sample showed of each run that is watched.
    readings : dict of str to RunReading
        By run, without rates; ``slowdown`` and ``predicted`` are the last while it shared.
    """

    def __init__(self, most: int = MOST) -> None:
        self.now: Mapping[str, RunReading] = {}
        self.readings: dict[str, RunReading] = {}
        self._most = most

    def note(self, run: str, now: RunReading, shares: bool) -> None:
        """Keep what a run shows; ``shares`` says whether it has co-runners."""
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
        """Keep how far a run came, by what its ranks reported last."""
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
