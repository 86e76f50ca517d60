"""A job, its ranks and a device as the journal tells them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from dovetail.executor.jobs.specs import JobSpec, Run
from dovetail.executor.jobs.states import HOLDING, JobState


class RankState(StrEnum):
    """What is known of one rank of a run."""

    ASKED = "asked"
    STARTED = "started"
    READY = "ready"
    LOST = "lost"
    OVER = "over"


@dataclass
class RankView:
    """One rank of a job's present run.

    ``status`` is its exit status, None while it runs or where it is not known. ``proven``: it
    was seen to run under its cap, which it keeps for life. ``started_s`` is when it was first
    heard of as a process, ``ended_s`` when it was over.
    """

    state: RankState = RankState.ASKED
    started_s: float | None = None
    ended_s: float | None = None
    pid: int | None = None
    pid_started: int | None = None
    proven: bool = False
    status: int | None = None

    @property
    def has_run(self) -> bool:
        """Whether its process has been seen."""
        return self.proven or self.pid is not None or self.state is RankState.STARTED


class Step(NamedTuple):
    """A line of a job's history."""

    at_s: float
    state: JobState
    why: str


@dataclass
class LiveJob:
    """A job as the journal tells it.

    Attributes
    ----------
    id : str
        ``j1``, ``j2``, ... in the order of submission.
    spec : JobSpec
        What was submitted; once the job is over, without its environment, which is large and of
        no more use.
    state : JobState
        Where it stands.
    sequence : int
        The number of the event that submitted it.
    history : list of Step
        How it came there.
    run : Run or None
        Its present run, or the last one.
    ranks : list of RankView
        Of that run.
    profiling : bool
        Whether that run is to be measured alone.
    alone_only : str
        Why it may never share, empty where it may.
    runs : int
        How often it was started.
    failures, losses : int
        How many runs failed by themselves, and how many were lost through no fault of theirs.
    trouble : str
        What went wrong in its present run, or the last one: a rank was lost for good, or else what
        came first.
    unseen : bool
        Whether that says nothing of the job: a rank ended unseen, or could not be started then.
    request : str
        Of which request it is a part, empty where that had no key.
    stop_reason, stop_then : str
        Why its run is being stopped, and what then: ``wait``, ``fail`` or ``cancel``. Empty where
        it is stopped for its own trouble.
    stop_grace_s : float or None
        The grace of that stop where somebody has shortened it; None: the job's own.
    held : str
        Who holds it, empty where it is not held.
    awaits : list of str
        The jobs that have to be over before it may start, and are not.
    crowded : bool
        Whether it waits as its array has as many jobs that hold devices or compete as it may.
    competes_since_s : float
        When it last began to compete for devices.
    paused : bool or None
        Whether its run is to stand still; None: nobody ever asked for that.
    """

    id: str
    spec: JobSpec
    state: JobState
    sequence: int
    history: list[Step] = field(default_factory=list)
    run: Run | None = None
    ranks: list[RankView] = field(default_factory=list)
    profiling: bool = False
    alone_only: str = ""
    runs: int = 0
    failures: int = 0
    losses: int = 0
    trouble: str = ""
    unseen: bool = False
    stop_reason: str = ""
    stop_then: str = ""
    request: str = ""
    stop_grace_s: float | None = None
    held: str = ""
    awaits: list[str] = field(default_factory=list)
    crowded: bool = False
    competes_since_s: float = 0.0
    paused: bool | None = None

    @property
    def barred(self) -> bool:
        """Whether it waits for something else than devices."""
        return bool(self.held or self.awaits or self.crowded)

    @property
    def array(self) -> str:
        """The id of the first job of its array, its own where it is of none."""
        return f"j{int(self.id[1:]) - (self.spec.place or 0)}"

    @property
    def submitted_s(self) -> float:
        """When it was submitted."""
        return self.history[0].at_s

    @property
    def since_s(self) -> float:
        """When it came to its present state."""
        return self.history[-1].at_s

    @property
    def why(self) -> str:
        """Why it came to its present state."""
        return self.history[-1].why

    @property
    def grace_s(self) -> float:
        """Seconds from being asked to stop to being killed."""
        own_s = self.spec.grace_s
        return own_s if self.stop_grace_s is None else min(own_s, self.stop_grace_s)

    @property
    def devices(self) -> frozenset[str]:
        """Those that it holds."""
        if self.run is None or self.state not in HOLDING:
            return frozenset()
        return frozenset(seat.gpu for seat in self.run.seats)

    def held_s(self, now_s: float) -> float:
        """Return for how long its present run has held devices; 0 where it holds none."""
        began_s = now_s
        for step in reversed(self.history):
            if step.state not in HOLDING:
                break
            began_s = step.at_s
        return max(0.0, now_s - began_s)

    def forget_environment(self) -> None:
        """Free what only a start needs."""
        self.spec = self.spec.replace(env={})
        if self.run is not None:
            self.run = self.run.model_copy(update={"spec": self.spec})


@dataclass
class Device:
    """A device as the journal tells it.

    Attributes
    ----------
    sick : str
        Why it may not be used, empty where it may.
    drained : str
        Who drains it, empty where nobody does.
    present : bool
        Whether the pool has it, as it was told last.
    """

    sick: str = ""
    drained: str = ""
    present: bool = True

    @property
    def trouble(self) -> str:
        """Why it takes no new jobs, empty where it does."""
        if not self.present:
            return "is not in the pool"
        return self.sick or (f"is being drained by {self.drained}" if self.drained else "")
