"""Records of simulated runs: the behaviour defined by their commands, and their progress."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from dovetail.executor.jobs.events import AnyEvent, RankEnded, RankReady, RankStarted
from dovetail.executor.jobs.specs import JobSpec, Run
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Workload


class Program(NamedTuple):
    """The behaviour of a simulated rank, read from words ``key=value`` of its command.

    Attributes
    ----------
    work_s : float
        Seconds that it takes alone on a GPU of speed 1.
    status : int
        Its exit status; negative for a signal.
    rank : int or None
        The only rank that ends, while the others wait for it; None: all end.
    deaf : bool
        Whether it ignores a request to end.
    """

    work_s: float
    status: int = 0
    rank: int | None = None
    deaf: bool = False

    @classmethod
    def of(cls, spec: JobSpec, workload: Workload) -> Program:
        """Return the program of a job.

        ``work_s`` is taken from the command, else from the job's ``estimate_s``, else from the
        workload's ``duration_s``.

        Raises
        ------
        InputError
            When a value is not a number, or the amount of work is unknown.
        """
        words = _words(spec)
        work_s = words.get("work_s", spec.estimate_s or workload.duration_s)
        if work_s is None or work_s <= 0:
            raise InputError("must be > 0, or the job needs an estimate", "work_s", spec.workload)
        rank = int(words["rank"]) if "rank" in words else None
        if rank is not None and not 0 <= rank < spec.workers:
            raise InputError(f"must be in 0..{spec.workers - 1}, got {rank}", "rank", spec.workload)
        return cls(work_s, int(words.get("status", 0)), rank, bool(words.get("deaf", 0)))


@dataclass
class SimulatedRun:
    """A run, with all state that must survive a restart of the service.

    Attributes
    ----------
    run : Run
        The run.
    begins_s : float
        When its ranks are ready and its work begins.
    done_s, as_of_s : float
        Seconds of work that were done when the run was last saved, and the time of that.
    kill_s : float or None
        When it will be killed.
    began : bool
        Whether its ranks are ready.
    paused : bool
        Whether it is suspended.
    statuses : list of (int or None)
        Exit status of each rank; None while it runs.
    from_s : float
        Seconds of work of its job up to the checkpoint from which it resumed.
    """

    run: Run
    begins_s: float
    done_s: float
    as_of_s: float
    kill_s: float | None = None
    began: bool = False
    paused: bool = False
    statuses: list[int | None] = field(default_factory=list)
    from_s: float = 0.0

    @property
    def alive(self) -> bool:
        """Whether at least one rank runs."""
        return any(status is None for status in self.statuses)

    @property
    def stands_still(self) -> bool:
        """Whether it makes no progress: it is paused, or ranks wait for a rank that ended."""
        return self.paused or any(status is not None for status in self.statuses)

    def events(self) -> Iterable[AnyEvent]:
        """Yield the events that lead to the current state of every rank."""
        for rank, status in enumerate(self.statuses):
            yield RankStarted(at_s=0.0, run=self.run.id, rank=rank)
            if self.began:
                yield RankReady(at_s=0.0, run=self.run.id, rank=rank)
            if status is not None:
                yield RankEnded(at_s=0.0, run=self.run.id, rank=rank, status=status)


def _words(spec: JobSpec) -> dict[str, float]:
    """Return the values that a command gives for the fields of ``Program``."""
    found = {}
    for word in spec.command:
        key, _, value = word.partition("=")
        if key in Program._fields:
            found[key] = _number(key, value)
    return found


def _number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"must be a number, got {value!r}", key)
    return number
