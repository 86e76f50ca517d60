"""The history of a simulation: every stay of every job, and the pool over time."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dovetail.instances._record import AnyShare
from dovetail.solver.policies.state import Job

Ending = Literal["finished", "stopped", "failed", "out_of_memory"]


class Stay(NamedTuple):
    """A period of a job on GPUs, from its start until it finished or was removed.

    Attributes
    ----------
    job : int
        Number of the job.
    start_s, end_s : float
        Beginning and end.
    gpus : tuple of int
        Numbers of the GPUs.
    shares : tuple of (int or None), or None
        Its caps on these GPUs.
    mode : int
        Index into ``State.modes`` of the workload.
    delay_s : float
        Seconds without progress at the beginning, while the job was restored.
    done_s : float
        Seconds of work that were not lost.
    ending : str
        Reason of the end: ``finished``, ``stopped`` by the policy, ``failed`` with its node, or
        ``out_of_memory`` at its start (it did not run at all).
    """

    job: int
    start_s: float
    end_s: float
    gpus: tuple[int, ...]
    shares: tuple[AnyShare, ...] | None
    mode: int
    delay_s: float
    done_s: float
    ending: Ending


@dataclass(slots=True)
class JobTimes:
    """Times of a job.

    Attributes
    ----------
    work_s : float
        True run time alone on a GPU of speed 1.
    first_start_s, finish_s : float
        First start and end; NaN before.
    held_s : float
        Seconds on GPUs.
    shared_s : float
        Part of ``held_s`` with a co-runner on at least one GPU.
    worst_slowdown : float
        Largest slowdown at any time.
    breach_s : float
        Seconds with a slowdown above the gSLA.
    solo_s : float
        Seconds that the work that was not lost would have taken alone on the same GPUs.
    idle_at_s : float
        At its first start with a co-runner: when enough GPUs of one model would have been idle
        for it if no other job had started; NaN if it never started with a co-runner.
    left_s : float
        Seconds of work left at that start; NaN if it never started with a co-runner.
    """

    work_s: float
    first_start_s: float = float("nan")
    finish_s: float = float("nan")
    held_s: float = 0.0
    shared_s: float = 0.0
    worst_slowdown: float = 0.0
    breach_s: float = 0.0
    solo_s: float = 0.0
    idle_at_s: float = float("nan")
    left_s: float = float("nan")


def _doubles() -> array[float]:
    return array("d")


@dataclass
class Series:
    """The pool after each round, one column per figure.

    Number of ``pending`` jobs, GPUs that pending and running jobs ask for (``demanded``), ``busy``
    and ``shared`` GPUs, ``pace`` = sum of workers times progress in work seconds per second, and
    the round's real time (``decide_s``) and proven ``gap`` (NaN if nothing was proven).
    """

    time_s: array[float] = field(default_factory=_doubles)
    pending: array[float] = field(default_factory=_doubles)
    demanded: array[float] = field(default_factory=_doubles)
    busy: array[float] = field(default_factory=_doubles)
    shared: array[float] = field(default_factory=_doubles)
    pace: array[float] = field(default_factory=_doubles)
    decide_s: array[float] = field(default_factory=_doubles)
    gap: array[float] = field(default_factory=_doubles)


@dataclass
class History:
    """The record of a simulation, from which metrics, charts and conservation checks are made.

    Attributes
    ----------
    jobs : list of Job
        The jobs in their final state, by number.
    outcomes : list of JobTimes
        Their times, by number.
    stays : list of Stay
        In the order in which they ended.
    series : Series
        The pool after each round.
    events : int
        Number of arrivals, ends, failures and wake-ups.
    energy_j : float
        Energy of the GPUs in use; NaN if a power is unknown.
    gpus : int
        Number of GPUs of the pool.
    """

    jobs: list[Job]
    outcomes: list[JobTimes]
    stays: list[Stay] = field(default_factory=list)
    series: Series = field(default_factory=Series)
    events: int = 0
    energy_j: float = float("nan")
    gpus: int = 0
