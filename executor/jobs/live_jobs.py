"""Jobs, ranks and devices as derived from the events of the journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from dovetail.executor.jobs.specs import JobSpec, Run
from dovetail.executor.jobs.states import HOLDING, JobState

KEPT_STEPS: Final = 200
"""Changes of state that are kept of a service at least, besides the first."""


class RankState(StrEnum):
    """State of one rank of a run."""

    ASKED = "asked"
    STARTED = "started"
    READY = "ready"
    LOST = "lost"
    OVER = "over"


@dataclass
class RankView:
    """One rank of a job's present run.

    ``status`` is its exit status, None while it runs or if it is unknown. ``proven``: it was seen
    to run under its cap; this never changes back. ``started_s`` is when its process was first
    seen, ``ended_s`` when it ended.
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
    """A change of state in the history of a job."""

    at_s: float
    state: JobState
    why: str


@dataclass
class LiveJob:
    """A job of live mode.

    Attributes
    ----------
    id : str
        ``j1``, ``j2``, ... in the order of submission.
    spec : JobSpec
        The specification; once the job is over, without its environment and with a short command.
    state : JobState
        The present state.
    sequence : int
        Number of the event that submitted it.
    history : list of Step
        All changes of state; of a service, the first and the last `KEPT_STEPS`.
    run : Run or None
        The present run, or the last one.
    ranks : list of RankView
        The ranks of that run.
    profiling : bool
        Whether that run is measured alone.
    alone_only : str
        Why it may never share; empty if it may.
    unisolated : str
        Why its present run (or its next run, if the present one could not start) is not isolated;
        empty otherwise.
    runs : int
        Number of starts.
    failures, losses : int
        Number of runs that failed, and of runs that were lost through no fault of the job.
    trouble : str
        The first fault of the present run, or of the last one; a lost rank takes precedence.
    unseen : bool
        True if the job is not to blame for it: the end of a rank was not seen, or a rank could not
        be started at that moment.
    request : str
        Key of the request that submitted it; empty if it had none.
    stop_reason, stop_then : str
        Why the run is being stopped, and what follows: ``wait``, ``fail`` or ``cancel``. Empty if
        it is stopped because of its own fault.
    stop_grace_s : float or None
        Grace period of that stop if it was shortened; None = the job's own.
    held : str
        Name of the user who holds it; empty if it is not held.
    awaits : list of str
        Jobs that must be over before it may start and are not over yet.
    crowded : bool
        Whether it waits because its array has reached ``most_running``.
    competes_since_s : float
        When it last began to compete for devices.
    paused : bool or None
        Whether its run should be suspended; None = never requested.
    again_s : float or None
        When a service that has ended may start again; None = it does not rest.
    quick_ends : int
        How often in a row a service has ended soon after its start.
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
    unisolated: str = ""
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
    again_s: float | None = None
    quick_ends: int = 0

    @property
    def barred(self) -> bool:
        """Whether it waits for something other than devices."""
        return bool(self.held or self.awaits or self.crowded or self.again_s is not None)

    @property
    def array(self) -> str:
        """The id of the first job of its array; its own id if it is not in an array."""
        return f"j{int(self.id[1:]) - (self.spec.place or 0)}"

    @property
    def service(self) -> str:
        """The id of the first replica of its service; empty if it is a job with an end."""
        return self.array if self.spec.service else ""

    @property
    def submitted_s(self) -> float:
        """When it was submitted."""
        return self.history[0].at_s

    @property
    def since_s(self) -> float:
        """When it entered its present state."""
        return self.history[-1].at_s

    @property
    def why(self) -> str:
        """Why it entered its present state."""
        return self.history[-1].why

    @property
    def grace_s(self) -> float:
        """Seconds between the request to stop and the kill."""
        own_s = self.spec.grace_s
        return own_s if self.stop_grace_s is None else min(own_s, self.stop_grace_s)

    @property
    def devices(self) -> frozenset[str]:
        """The devices that it holds."""
        if self.run is None or self.state not in HOLDING:
            return frozenset()
        return frozenset(seat.gpu for seat in self.run.seats)

    def leads(self, gpu: str) -> bool:
        """Return whether isolated best-effort jobs on a device run in its idle time only."""
        if self.run is None or self.spec.priority != "latency" or self.unisolated:
            return False
        return self.run.isolated and self.run.share_on(gpu) is None

    def held_s(self, now_s: float) -> float:
        """Return how many seconds its present run has held devices; 0 if it holds none."""
        began_s = now_s
        for step in reversed(self.history):
            if step.state not in HOLDING:
                break
            began_s = step.at_s
        return max(0.0, now_s - began_s)

    def note(self, step: Step) -> None:
        """Add a change of state; a service, which has no end, forgets the oldest."""
        self.history.append(step)
        if self.spec.service and len(self.history) > 2 * KEPT_STEPS:
            del self.history[1:-KEPT_STEPS]

    def forget_words(self) -> None:
        """Free the words that only a start needs."""
        self.spec = self.spec.without_words()
        if self.run is not None:
            self.run = self.run.model_copy(update={"spec": self.spec})


@dataclass
class Measuring:
    """The measuring of one share of a device, by a run without a job.

    Attributes
    ----------
    run : str
        Id of the run.
    gpu, gpu_model : str
        The device, which is otherwise idle, and its model.
    library : str
        The library whose products are compared.
    share : int
        The share in per cent.
    since_s : float
        When it began.
    stopping : str
        Why it is being stopped; empty if it is not.
    """

    run: str
    gpu: str
    gpu_model: str
    library: str
    share: int
    since_s: float
    stopping: str = ""


@dataclass
class MeasuredShares:
    """How far the service is with the shares that it measures itself.

    Attributes
    ----------
    present : Measuring or None
        What is being measured.
    failures : int
        Number of failures since the last result.
    failed_s : float
        When the last of them happened.
    failure : str
        What it was.
    failed_on, failed_with : str
        Device and library of the last failure; others are tried before them.
    pythons : dict of str to str
        A Python for each library that jobs have loaded, if one is known.
    """

    present: Measuring | None = None
    failures: int = 0
    failed_s: float = 0.0
    failure: str = ""
    failed_on: str = ""
    failed_with: str = ""
    pythons: dict[str, str] = field(default_factory=dict)


@dataclass
class DeviceState:
    """A device of the pool, or of an earlier one.

    Attributes
    ----------
    sick : str
        Why it must not be used; empty if it may.
    drained : str
        Name of the user who drains it; empty if it is not drained.
    present : bool
        Whether the pool had it at the last report.
    """

    sick: str = ""
    drained: str = ""
    present: bool = True

    @property
    def trouble(self) -> str:
        """Why it takes no new jobs; empty if it does."""
        if not self.present:
            return "is not in the pool"
        return self.sick or (f"is being drained by {self.drained}" if self.drained else "")
