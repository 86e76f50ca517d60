"""What running jobs show of themselves: profiles, slowdowns, breaches. Pure logic, no I/O.

`Watch.observe` takes what a pool tells of progress and usage, and returns the events that follow:

- a run that is being profiled: ``Profiled`` once its rate is steady, ``ProfileFailed`` where it
  cannot be measured;
- runs that share a device: ``Measured``, a window at a time, each slowdown being the rate alone
  over the rate now;
- a run over its gSLA for longer than a window: the newest run beside it is stopped;
- a run over its walltime: it is stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import fmean, pvariance
from typing import Final, NamedTuple, Protocol

from dovetail.executor.live.brain import HOLDING, Brain, JobState, LiveJob
from dovetail.executor.live.events import (
    AnyEvent,
    Measured,
    Profiled,
    ProfileFailed,
    StopDecided,
)
from dovetail.executor.live.jobs import JobSpec, Run
from dovetail.executor.live.pools.pool import Progress, Usage
from dovetail.executor.live.rates import Rate, Sample, rate_of
from dovetail.instances.datasets import Measurement, SoloProfile
from dovetail.instances.instance import METRICS

WATCHED: Final = frozenset({JobState.PROFILING, JobState.RUNNING})
"""States in which a run's progress means something."""

_MOST_SAMPLES: Final = 2048
_MEMORY_GROWTH: Final = 1.02
_LEAST_SLOWDOWN, _MOST_SLOWDOWN = 1e-3, 1e15


@dataclass(frozen=True)
class WatchOptions:
    """How long things are looked at; all times in seconds.

    Attributes
    ----------
    warm_up_s : float
        After a run's first iteration, nothing counts for so long (compilation, caches, tuning).
    settle_s : float
        After somebody came to a device or left it, nothing counts for so long.
    profile_s, profile_most_s : float
        A profile takes at least the first, and at most about the second with its warm-up.
    window_s, window_most_s : float
        The first measurement of runs together takes ``window_s``, each further one of the same
        runs twice as long as the one before, up to ``window_most_s``. A gSLA is broken when it
        was for ``window_s``.
    stall_s : float
        A run with a gSLA that shares and has done no iteration for so long is over its gSLA.
    tolerance : float
        A rate is steady when its relative standard error is at most this, and it moves by at
        most twice this from the first half of the time to the second.
    iterations : int
        The fewest that make a rate.
    """

    warm_up_s: float = 10.0
    settle_s: float = 5.0
    profile_s: float = 60.0
    profile_most_s: float = 300.0
    window_s: float = 60.0
    window_most_s: float = 3600.0
    stall_s: float = 600.0
    tolerance: float = 0.03
    iterations: int = 5


class Knowledge(Protocol):
    """What is known of workloads apart from what runs now; no call waits for anything."""

    def workload(self, spec: JobSpec) -> str:
        """Return the name of a job's workload in the repository."""
        ...

    def alone(self, spec: JobSpec, gpu_model: str) -> SoloProfile | None:
        """Return the newest profile of a job's workload alone and uncapped, with its workers."""
        ...

    def predicted(self, runs: Sequence[Run], gpu: str) -> tuple[float, ...]:
        """Return the slowdown believed of each run beside the others there; empty if unknown."""
        ...


class Reading(NamedTuple):
    """What is seen of a run now.

    Attributes
    ----------
    iterations, total : float or None
        Done in this run by its slowest rank, and in all where the job says so.
    rate, solo_rate : float or None
        Iterations per second now, and alone and uncapped as its workload's profile says.
    slowdown, noise : float or None
        ``solo_rate / rate``, and the relative standard error of ``rate``.
    predicted : float or None
        The largest slowdown that was believed of it beside those who share its devices now.
    memory_mib : float or None
        The most that a rank of it was seen to use.
    """

    iterations: float | None = None
    total: float | None = None
    rate: float | None = None
    solo_rate: float | None = None
    slowdown: float | None = None
    noise: float | None = None
    predicted: float | None = None
    memory_mib: float | None = None


@dataclass
class _Track:
    """One run since it was first seen; times are of the service's clock."""

    seen_s: float
    first_s: float | None = None
    phase: object = None
    phase_s: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    total: float | None = None
    memory_mib: float | None = None
    memory_told_mib: float | None = None
    profiled: bool = False


@dataclass
class _Device:
    """One device while the same runs are on it."""

    residents: tuple[str, ...] = ()
    since_s: float = 0.0
    window_s: float = 0.0
    predicted: tuple[float, ...] = ()
    readings: list[Usage] = field(default_factory=list)


def watched(brain: Brain) -> list[str]:
    """Return the runs whose progress `Watch.observe` wants to see."""
    return [job.run.id for job in brain.jobs.values() if job.state in WATCHED and job.run]


class Watch:
    """Keeps what the last minutes showed; a new one after a restart begins to look anew.

    Parameters
    ----------
    models : mapping of str to str
        The model of every device, by its id.
    knowledge : Knowledge
        What is known of workloads.
    options : WatchOptions, optional
        How long things are looked at.
    """

    def __init__(
        self,
        models: Mapping[str, str],
        knowledge: Knowledge,
        options: WatchOptions | None = None,
    ) -> None:
        self._models = models
        self._knowledge = knowledge
        self._options = options or WatchOptions()

    def observe(
        self,
        brain: Brain,
        progress: Mapping[str, Sequence[Progress | None]],
        usage: Mapping[str, Usage],
        now_s: float,
        boot_s: float,
    ) -> tuple[AnyEvent, ...]:
        """Take in what a pool tells, and return what follows from it.

        Parameters
        ----------
        brain : Brain
            Jobs and devices; it is only read.
        progress : mapping of str to sequence of Progress or None
            ``pool.progress(run)`` of each of the `watched` runs.
        usage : mapping of str to Usage
            ``pool.usage()``.
        now_s, boot_s : float
            The moment on the service's clock, and on the clock of ``progress`` and ``usage``.
        """
        raise NotImplementedError

    def reading(self, run: str) -> Reading:
        """Return what was seen of a run at the last `observe`; empty if it is not watched."""
        raise NotImplementedError
