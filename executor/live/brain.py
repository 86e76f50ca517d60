"""The state machine of live mode: events in, commands out, and no I/O at all.

Every change of a job's state goes through ``_TRANSITIONS``; anything else raises
``TransitionError`` with the job's whole history. Replaying a journal's events gives the same
state, and the commands that are still to be carried out: ``Brain.outstanding``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from dovetail.executor.live import events
from dovetail.executor.live.commands import Command, Launch, Release, Stop
from dovetail.executor.live.events import AnyEvent
from dovetail.executor.live.jobs import JobSpec, Run
from dovetail.instances.errors import DovetailError

MOST_LOSSES: Final = 3
"""Runs that may end unseen (a reboot, a killed launcher) before a job is given up."""


class JobState(StrEnum):
    """What a job is doing; ``docs/live-states.md`` has the diagram."""

    SUBMITTED = "submitted"
    """Its workload has no profile: it may start alone only."""
    WAITING = "waiting"
    """It may start, alone or beside others."""
    STARTING = "starting"
    """Its ranks are being started; its devices count as busy."""
    PROFILING = "profiling"
    """It runs alone, is being measured, and nobody may join."""
    RUNNING = "running"
    """Every rank runs under its cap."""
    STOPPING = "stopping"
    """It was asked to end; its devices count as busy until every rank is proven gone."""
    LOST = "lost"
    """Nobody can say whether a rank still runs; its devices count as busy."""
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


OVER: Final = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})
"""States that a job never leaves."""

HOLDING: Final = frozenset(
    {
        JobState.STARTING,
        JobState.PROFILING,
        JobState.RUNNING,
        JobState.STOPPING,
        JobState.LOST,
    }
)
"""States in which a job's devices are busy."""

QUEUED: Final = frozenset({JobState.SUBMITTED, JobState.WAITING})
"""States in which a job waits for devices."""

_S = JobState
_TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = MappingProxyType(
    {
        _S.SUBMITTED: frozenset({_S.WAITING, _S.STARTING, _S.CANCELLED}),
        _S.WAITING: frozenset({_S.STARTING, _S.CANCELLED}),
        _S.STARTING: frozenset(
            {_S.PROFILING, _S.RUNNING, _S.STOPPING, _S.LOST, _S.FINISHED}
            | {_S.FAILED, _S.WAITING, _S.SUBMITTED, _S.CANCELLED}
        ),
        _S.PROFILING: frozenset(
            {_S.RUNNING, _S.STOPPING, _S.LOST, _S.FINISHED, _S.FAILED, _S.WAITING, _S.SUBMITTED}
        ),
        _S.RUNNING: frozenset(
            {_S.STOPPING, _S.LOST, _S.FINISHED, _S.FAILED, _S.WAITING, _S.SUBMITTED}
        ),
        _S.STOPPING: frozenset({_S.WAITING, _S.SUBMITTED, _S.FAILED, _S.CANCELLED, _S.FINISHED}),
        _S.LOST: frozenset(
            {_S.STOPPING, _S.WAITING, _S.SUBMITTED, _S.FAILED, _S.CANCELLED, _S.FINISHED}
        ),
        _S.FINISHED: frozenset(),
        _S.FAILED: frozenset(),
        _S.CANCELLED: frozenset(),
    }
)


class TransitionError(DovetailError):
    """An event does not fit the state that it meets."""


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

    ``status`` is its exit status, None while it runs or where it is not known.
    """

    state: RankState = RankState.ASKED
    pid: int | None = None
    pid_started: int | None = None
    status: int | None = None
    trouble: str = ""


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
        What was submitted.
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
        How many runs failed by themselves, and how many ended unseen.
    stop_reason, stop_then : str
        Why its run is being stopped, and what then: ``wait``, ``fail`` or ``cancel``.
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
    stop_reason: str = ""
    stop_then: str = ""

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


@dataclass
class Device:
    """A device as the journal tells it: why it may not be used, and who drains it."""

    sick: str = ""
    drained: str = ""


WorkloadKey = tuple[int, str]
"""A workload is known by the user who runs it and its name."""


@dataclass
class Brain:
    """All jobs and devices; changed by ``apply`` only.

    Attributes
    ----------
    jobs : dict of str to LiveJob
        Every job ever submitted, by id.
    devices : dict of str to Device
        Of the pool, by id.
    profiled : set
        Workloads whose solo profile is known.
    unrecorded : dict of int to Profiled or Measured
        What is not yet known to be in the repository, by sequence number.
    now_s : float
        When the last event happened.
    sequence : int
        The number of the last event.
    queued, holding : dict of str to LiveJob
        Those of ``jobs`` that wait for devices and that hold some, in no order.
    """

    jobs: dict[str, LiveJob] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    profiled: set[WorkloadKey] = field(default_factory=set)
    unrecorded: dict[int, events.Profiled | events.Measured] = field(default_factory=dict)
    now_s: float = 0.0
    sequence: int = 0
    queued: dict[str, LiveJob] = field(default_factory=dict)
    holding: dict[str, LiveJob] = field(default_factory=dict)

    def apply(self, event: AnyEvent) -> tuple[Command, ...]:
        """Take in an event and return what is to be done for it.

        Raises
        ------
        TransitionError
            When the event does not fit the state. Nothing but ``sequence`` and ``now_s`` has
            changed then, so that a journal with such an event is replayed like any other.
        """
        try:
            return tuple(_REACTIONS[type(event)](self, event))
        finally:
            self.now_s = max(self.now_s, event.at_s)
            self.sequence += 1

    def add(self, job: LiveJob) -> None:
        """Take in a job of a checkpoint."""
        self.jobs[job.id] = job
        self._file(job)

    def queue(self) -> list[LiveJob]:
        """Return the jobs that wait for devices, in the order of submission."""
        return sorted(self.queued.values(), key=_submission)

    def outstanding(self) -> tuple[Command, ...]:
        """Return what has to be done again after a restart: it may or may not have been done."""
        found: list[Command] = []
        for job in sorted(self.holding.values(), key=_submission):
            if job.run is None:
                continue
            if job.state is JobState.STARTING:
                found.append(Launch(job.run))
            elif job.state is JobState.STOPPING:
                found.append(Stop(job.run.id, job.spec.grace_s))
        return tuple(found)

    def next_job_id(self) -> str:
        """Return the id of the next job to be submitted."""
        return f"j{len(self.jobs) + 1}"

    def residents(self) -> dict[str, list[LiveJob]]:
        """Return the jobs that hold each device, in the order of submission."""
        found: dict[str, list[LiveJob]] = {gpu: [] for gpu in self.devices}
        for job in sorted(self.holding.values(), key=_submission):
            if job.run is not None:
                for seat in job.run.seats:
                    found.setdefault(seat.gpu, []).append(job)
        return found

    # What events do. Each checks before it changes anything.

    def _submitted(self, event: events.Submitted) -> list[Command]:
        self._require(event.job not in self.jobs, f"job {event.job!r} exists")
        known = (event.spec.owner.uid, event.spec.workload) in self.profiled
        state = JobState.WAITING if known else JobState.SUBMITTED
        job = LiveJob(event.job, event.spec, state, self.sequence + 1)
        job.history.append(Step(event.at_s, state, "submitted"))
        self.add(job)
        return []

    def _cancel(self, event: events.CancelRequested) -> list[Command]:
        job = self._job(event.job)
        why = f"cancelled by {event.by}"
        if job.state in OVER:
            return []
        if job.state in QUEUED:
            self._move(job, JobState.CANCELLED, event.at_s, why)
            return []
        job.stop_reason, job.stop_then = why, "cancel"
        return self._stop(job, event.at_s, why)

    def _drain(self, event: events.DrainChanged) -> list[Command]:
        chosen = event.gpus or tuple(self.devices)
        unknown = [gpu for gpu in chosen if gpu not in self.devices]
        self._require(not unknown, f"no device {', '.join(unknown)}")
        for gpu in chosen:
            self.devices[gpu].drained = event.by if event.on else ""
        return []

    def _placed(self, event: events.Placed) -> list[Command]:
        job = self._job(event.run.job)
        self._require(job.state in QUEUED, f"{job.id} is placed while it is {job.state}", job)
        wanted = f"{job.id}.{job.runs + 1}"
        self._require(event.run.id == wanted, f"run {event.run.id!r} is not {wanted!r}", job)
        residents = self.residents()
        for seat in event.run.seats:
            self._require(seat.gpu in self.devices, f"no device {seat.gpu}", job)
            others = residents[seat.gpu]
            alone = event.profiling or any(other.state is JobState.PROFILING for other in others)
            self._require(not (alone and others), f"{seat.gpu} is being used alone", job)
        job.run, job.runs, job.profiling = event.run, job.runs + 1, event.profiling
        job.ranks = [RankView() for _ in event.run.seats]
        job.stop_reason = job.stop_then = ""
        self._move(job, JobState.STARTING, event.at_s, f"placed on {_places(event.run)}")
        return [Launch(event.run)]

    def _stop_decided(self, event: events.StopDecided) -> list[Command]:
        job = self._job_of(event.run)
        if job.state not in HOLDING or job.stop_then:
            return []
        job.stop_reason, job.stop_then = event.reason, event.then
        return self._stop(job, event.at_s, event.reason)

    def _rank_started(self, event: events.RankStarted) -> list[Command]:
        job, rank = self._rank(event)
        if rank.state in (RankState.ASKED, RankState.LOST):
            rank.state = RankState.STARTED
            rank.pid, rank.pid_started = event.pid, event.pid_started
        return self._found_again(job, event.at_s)

    def _rank_ready(self, event: events.RankReady) -> list[Command]:
        job, rank = self._rank(event)
        if rank.state is not RankState.OVER:
            rank.state = RankState.READY
        return self._found_again(job, event.at_s)

    def _rank_refused(self, event: events.RankRefused) -> list[Command]:
        return self._rank_over(event, None, event.reason)

    def _rank_ended(self, event: events.RankEnded) -> list[Command]:
        trouble = "" if event.status == 0 else _status(event.rank, event.status)
        return self._rank_over(event, event.status, trouble)

    def _rank_gone(self, event: events.RankGone) -> list[Command]:
        return self._rank_over(event, None, f"lost: rank {event.rank}: {event.reason}")

    def _rank_lost(self, event: events.RankLost) -> list[Command]:
        job, rank = self._rank(event)
        if rank.state is RankState.OVER:
            return []
        rank.state = RankState.LOST
        if job.state in (JobState.STARTING, JobState.PROFILING, JobState.RUNNING):
            self._move(job, JobState.LOST, event.at_s, f"rank {event.rank}: {event.reason}")
        return []

    def _profiled(self, event: events.Profiled) -> list[Command]:
        job = self._job_of(event.run)
        self.unrecorded[self.sequence + 1] = event
        self._learn(_key(job), event.at_s, f"{job.id} has been profiled")
        return []

    def _workload_known(self, event: events.WorkloadKnown) -> list[Command]:
        self._learn((event.uid, event.workload), event.at_s, "its workload has a profile")
        return []

    def _profile_failed(self, event: events.ProfileFailed) -> list[Command]:
        job = self._job_of(event.run)
        job.alone_only = event.reason
        return []

    def _measured(self, event: events.Measured) -> list[Command]:
        for run in event.runs:
            self._job_of(run)
        self.unrecorded[self.sequence + 1] = event
        return []

    def _recorded(self, event: events.Recorded) -> list[Command]:
        for sequence in [known for known in self.unrecorded if known <= event.sequence]:
            del self.unrecorded[sequence]
        return []

    def _device_sick(self, event: events.DeviceSick) -> list[Command]:
        self._device(event.gpu).sick = event.reason
        return []

    def _device_healed(self, event: events.DeviceHealed) -> list[Command]:
        self._device(event.gpu).sick = ""
        return []

    def _service_started(self, event: events.ServiceStarted) -> list[Command]:
        for gpu in event.gpus:
            self.devices.setdefault(gpu, Device())
        return []

    # Parts that several events share.

    def _learn(self, key: WorkloadKey, at_s: float, why: str) -> None:
        """Let the jobs of a workload share from now on."""
        self.profiled.add(key)
        for job in [*self.queued.values(), *self.holding.values()]:
            if _key(job) == key and job.state is JobState.PROFILING:
                self._move(job, JobState.RUNNING, at_s, why)
            elif _key(job) == key and job.state is JobState.SUBMITTED:
                self._move(job, JobState.WAITING, at_s, why)

    def _rank_over(
        self,
        event: events.RankEnded | events.RankGone | events.RankRefused,
        status: int | None,
        trouble: str,
    ) -> list[Command]:
        job, rank = self._rank(event)
        if rank.state is RankState.OVER:
            return []
        rank.state, rank.status, rank.trouble = RankState.OVER, status, trouble
        if all(other.state is RankState.OVER for other in job.ranks):
            return self._conclude(job, event.at_s)
        if trouble:
            return self._stop(job, event.at_s, trouble)
        return self._found_again(job, event.at_s)

    def _stop(self, job: LiveJob, at_s: float, why: str) -> list[Command]:
        if job.run is None:
            return []
        if job.state is not JobState.STOPPING:
            self._move(job, JobState.STOPPING, at_s, why)
        return [Stop(job.run.id, job.spec.grace_s)]

    def _found_again(self, job: LiveJob, at_s: float) -> list[Command]:
        """Move a job on whose ranks are all known again to run."""
        good = (RankState.READY, RankState.OVER)
        if job.state not in (JobState.STARTING, JobState.LOST):
            return []
        if all(rank.state in good for rank in job.ranks):
            profile = job.profiling and _key(job) not in self.profiled and not job.alone_only
            state = JobState.PROFILING if profile else JobState.RUNNING
            self._move(job, state, at_s, "every rank runs")
        return []

    def _conclude(self, job: LiveJob, at_s: float) -> list[Command]:
        """Say what becomes of a job none of whose ranks runs any more."""
        assert job.run is not None
        state, why = self._outcome(job)
        self._move(job, state, at_s, why)
        return [Release(job.run.id)]

    def _outcome(self, job: LiveJob) -> tuple[JobState, str]:
        queued = JobState.WAITING if _key(job) in self.profiled else JobState.SUBMITTED
        if all(rank.status == 0 for rank in job.ranks):
            return JobState.FINISHED, "every rank ended with status 0"
        if job.stop_then == "cancel":
            return JobState.CANCELLED, job.stop_reason
        if job.stop_then:
            state = queued if job.stop_then == "wait" else JobState.FAILED
            return state, job.stop_reason
        trouble = next(rank.trouble for rank in job.ranks if rank.trouble)
        if trouble.startswith("lost: "):
            job.losses += 1
            again = job.spec.requeue and job.losses <= MOST_LOSSES
        else:
            job.failures += 1
            again = job.failures <= job.spec.retries
        return (queued, f"again after: {trouble}") if again else (JobState.FAILED, trouble)

    def _move(self, job: LiveJob, state: JobState, at_s: float, why: str) -> None:
        rule = f"{job.id} cannot go from {job.state} to {state}"
        self._require(state in _TRANSITIONS[job.state], rule, job)
        job.state = state
        job.history.append(Step(at_s, state, why))
        self._file(job)

    def _file(self, job: LiveJob) -> None:
        for kept, states in ((self.queued, QUEUED), (self.holding, HOLDING)):
            if job.state in states:
                kept[job.id] = job
            else:
                kept.pop(job.id, None)

    def _job(self, name: str) -> LiveJob:
        self._require(name in self.jobs, f"no job {name!r}")
        return self.jobs[name]

    def _job_of(self, run: str) -> LiveJob:
        job = self._job(run.rpartition(".")[0])
        known = job.run is not None and job.run.id == run
        self._require(known, f"{run!r} is not the present run of {job.id}", job)
        return job

    def _rank(
        self,
        event: events.RankStarted
        | events.RankReady
        | events.RankRefused
        | events.RankEnded
        | events.RankLost
        | events.RankGone,
    ) -> tuple[LiveJob, RankView]:
        job = self._job_of(event.run)
        self._require(event.rank < len(job.ranks), f"{event.run} has no rank {event.rank}", job)
        return job, job.ranks[event.rank]

    def _device(self, gpu: str) -> Device:
        self._require(gpu in self.devices, f"no device {gpu!r}")
        return self.devices[gpu]

    def _require(self, holds: bool, rule: str, job: LiveJob | None = None) -> None:
        if not holds:
            past = [f"{step.state} ({step.why})" for step in job.history] if job else []
            raise TransitionError("; ".join([rule, *past]))


def _submission(job: LiveJob) -> int:
    return job.sequence


def _key(job: LiveJob) -> WorkloadKey:
    return job.spec.owner.uid, job.spec.workload


def _places(run: Run) -> str:
    return ", ".join(
        seat.gpu if seat.share is None else f"{seat.gpu} at {seat.share} %" for seat in run.seats
    )


def _status(rank: int, status: int) -> str:
    ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return f"rank {rank} {ended}"


_REACTIONS: Final[Mapping[type, Callable[..., list[Command]]]] = MappingProxyType(
    {
        events.Submitted: Brain._submitted,
        events.CancelRequested: Brain._cancel,
        events.DrainChanged: Brain._drain,
        events.Placed: Brain._placed,
        events.StopDecided: Brain._stop_decided,
        events.RankStarted: Brain._rank_started,
        events.RankReady: Brain._rank_ready,
        events.RankRefused: Brain._rank_refused,
        events.RankEnded: Brain._rank_ended,
        events.RankLost: Brain._rank_lost,
        events.RankGone: Brain._rank_gone,
        events.Profiled: Brain._profiled,
        events.WorkloadKnown: Brain._workload_known,
        events.ProfileFailed: Brain._profile_failed,
        events.Measured: Brain._measured,
        events.Recorded: Brain._recorded,
        events.DeviceSick: Brain._device_sick,
        events.DeviceHealed: Brain._device_healed,
        events.ServiceStarted: Brain._service_started,
    }
)
