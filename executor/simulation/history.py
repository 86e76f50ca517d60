"""What happened in a simulation: every stay of every job, and the pool over time."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dovetail.solver.policies import Job

Ending = Literal["finished", "stopped", "failed", "out_of_memory"]


class Stay(NamedTuple):
    """One time of a job on GPUs, from its start until it finished or was taken off.

    Attributes
    ----------
    job : int
        Its number.
    start_s, end_s : float
        When.
    gpus : tuple of int
        Where.
    shares : tuple of (int or None), or None
        Its caps there.
    mode : int
        Index into ``State.modes`` of its workload.
    delay_s : float
        How long it made no progress at first because it had to be restored.
    done_s : float
        Seconds of work that it kept.
    ending : str
        Why it ended: ``finished``, ``stopped`` by the policy, ``failed`` with its node, or
        ``out_of_memory`` as it started (it then never ran).
    """

    job: int
    start_s: float
    end_s: float
    gpus: tuple[int, ...]
    shares: tuple[int | None, ...] | None
    mode: int
    delay_s: float
    done_s: float
    ending: Ending


@dataclass(slots=True)
class Outcome:
    """What became of a job.

    Attributes
    ----------
    work_s : float
        The seconds it truly needed alone on a GPU of speed 1.
    first_start_s, finish_s : float
        When it first ran and when it ended; NaN before.
    held_s : float
        Seconds it held GPUs.
    shared_s : float
        Seconds of these in which it shared at least one of them.
    worst_slowdown : float
        The largest slowdown it had at any time.
    breach_s : float
        Seconds in which its slowdown was above its gSLA.
    solo_s : float
        Seconds its kept work would have taken alone on the GPUs it ran on.
    idle_at_s : float
        Of the moment when it first started beside another: the time at which enough GPUs of one
        model would have been idle for it, had nobody else started; NaN if it never did.
    left_s : float
        Seconds of work it had left at that moment; NaN likewise.
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
    """The pool after each round, one column each.

    ``pending`` jobs and the GPUs they ask for (``demanded``, those held included), ``busy`` and
    ``shared`` GPUs, ``pace`` = sum of workers times progress in work seconds a second, and what
    the round took: ``decide_s`` of real time, ``gap`` (NaN where nothing was proven).
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
    """Everything that metrics, pictures and the conservation checks are made from.

    Attributes
    ----------
    jobs : list of Job
        As they were at the end, by number.
    outcomes : list of Outcome
        By number.
    stays : list of Stay
        In the order in which they ended.
    series : Series
        After each round.
    events : int
        Arrivals, ends, failures and wake-ups that were processed.
    energy_j : float
        Of GPUs with somebody on them; NaN where a power is unknown.
    gpus : int
        GPUs of the pool.
    """

    jobs: list[Job]
    outcomes: list[Outcome]
    stays: list[Stay] = field(default_factory=list)
    series: Series = field(default_factory=Series)
    events: int = 0
    energy_j: float = float("nan")
    gpus: int = 0
