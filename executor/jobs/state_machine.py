"""The state machine of live mode: events in, commands out, and no I/O at all.

Every change of a job's state must be in ``TRANSITIONS``; any other raises ``TransitionError``
with the job's whole history. Replaying a journal's events gives the same state and the commands
that may still have to be carried out (``StateMachine.outstanding``).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from operator import attrgetter
from typing import Final

from dovetail.executor.jobs import events
from dovetail.executor.jobs.commands import Command, Launch, Pause, Release, StopRun
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.live_jobs import (
    DeviceState,
    LiveJob,
    MeasuredShares,
    Measuring,
    RankState,
    RankView,
    Step,
)
from dovetail.executor.jobs.specs import FIXED, Charges, JobSpec, WorkloadKey
from dovetail.executor.jobs.states import HOLDING, OVER, QUEUED, TRANSITIONS, JobState
from dovetail.instances._record import IDLE
from dovetail.instances.errors import DovetailError

FIRST_REST_S: Final = 1.0
"""Seconds before a service that has ended starts again; twice as long after each quick end."""

LONGEST_REST_S: Final = 300.0
"""The longest of these times."""

STEADY_S: Final = 600.0
"""An end of a service is quick if it ran for less than this since its start."""

MOST_LOSSES: Final = 3
"""Runs of a job that may be lost (their end was not seen, or they could not start)."""

KEPT_OVER: Final = 20_000
"""Jobs that are over and still known; earlier ones are only in the journal."""

RESTARTED: Final = "restarted"
"""What ``StateMachine.tally`` calls runs after the first of a job."""

KEPT_APART: Final = 1000
"""Most recent separated pairs that are remembered, of jobs and of workloads each."""


class TransitionError(DovetailError):
    """An event does not fit the present state."""


@dataclass
class StateMachine:
    """All jobs and devices; changed by ``apply`` only.

    Attributes
    ----------
    jobs : dict of str to LiveJob
        By id, in the order of submission: all jobs that are not over, and the last `KEPT_OVER` that
        are.
    submitted : int
        Number of jobs ever submitted.
    devices : dict of str to DeviceState
        Devices of the pool and of earlier pools, by id.
    profiled : set
        Workloads whose solo profile is known.
    unrecorded : dict of int to Profiled or Measured
        Profiles and measurements that may not be in the repository yet, by event number.
    apart : list of (str, str)
        Jobs that must not share again until one of them is over.
    broken : list of Separated
        Pairs of workloads that exceeded a gSLA, until a measurement at the same caps keeps it.
    libraries : dict of int to dict of str to str
        The library that each workload loaded last, by its user.
    shares : MeasuredShares
        How far the service is with the shares that it measures itself.
    reserved : dict of str to Reserved
        The reservations of waiting jobs.
    now_s : float
        When the last event happened.
    sequence : int
        The number of the last event.
    queued, barred, holding : dict of str to LiveJob
        The jobs that wait for devices; the jobs that are held, rest, wait for other jobs to end or
        for their array; and the jobs that hold devices. None has an order.
    resting : dict of str to LiveJob
        The services among ``barred`` that have ended and rest before they start again.
    over : list
        The jobs that are over, as a heap of (end, ``sequence``, id).
    requests : dict of str to list of str
        The jobs of each request that had a key, as long as all of them are known.
    used : dict of int to float
        Device seconds of each user's completed runs. When a user's first job begins to wait, the
        user is raised to the least of the users that already wait: idle time earns no priority.
    waiting : Counter of int
        Number of jobs in ``queued`` by user.
    active : Counter of str
        Number of jobs in ``queued`` and ``holding`` by array, for arrays with a limit.
    ended : deque of LiveJob
        Jobs that have ended recently; the reader, which notifies their owners, removes them.
    tally : Counter of str
        How many jobs have ended in each state, and under ``restarted`` how many runs followed an
        earlier run of their job, since the reader emptied it.
    charges : Charges
        Memory that the jobs of each user take.
    """

    jobs: dict[str, LiveJob] = field(default_factory=dict)
    submitted: int = 0
    devices: dict[str, DeviceState] = field(default_factory=dict)
    profiled: set[WorkloadKey] = field(default_factory=set)
    unrecorded: dict[int, events.Profiled | events.Measured] = field(default_factory=dict)
    apart: list[tuple[str, str]] = field(default_factory=list)
    broken: list[events.Separated] = field(default_factory=list)
    libraries: dict[int, dict[str, str]] = field(default_factory=dict)
    shares: MeasuredShares = field(default_factory=MeasuredShares)
    reserved: dict[str, events.Reserved] = field(default_factory=dict)
    now_s: float = 0.0
    sequence: int = 0
    queued: dict[str, LiveJob] = field(default_factory=dict)
    barred: dict[str, LiveJob] = field(default_factory=dict)
    holding: dict[str, LiveJob] = field(default_factory=dict)
    resting: dict[str, LiveJob] = field(default_factory=dict)
    over: list[tuple[float, int, str]] = field(default_factory=list, compare=False)
    requests: dict[str, list[str]] = field(default_factory=dict)
    used: dict[int, float] = field(default_factory=dict)
    waiting: Counter[int] = field(default_factory=Counter)
    active: Counter[str] = field(default_factory=Counter)
    ended: deque[LiveJob] = field(default_factory=partial(deque, maxlen=KEPT_OVER), compare=False)
    tally: Counter[str] = field(default_factory=Counter, compare=False)

    def __post_init__(self) -> None:
        self._wanted: list[Command] = []
        self.charges = Charges()

    def apply(self, event: AnyEvent) -> tuple[Command, ...]:
        """Apply an event and return the commands that follow from it.

        Raises
        ------
        TransitionError
            If the event does not fit the state. Only ``sequence`` and ``now_s`` change then, so
            that a journal with such an event can be replayed.
        """
        self._wanted.clear()
        try:
            getattr(self, f"_{event.kind}")(event)
            return tuple(self._wanted)
        finally:
            self.now_s = max(self.now_s, event.at_s)
            self.sequence += 1

    def add(self, job: LiveJob) -> None:
        """Add a job of a checkpoint."""
        self.jobs[job.id] = job
        if job.request:
            self.requests.setdefault(job.request, []).append(job.id)
        self._file(job)

    def may_share(self, job: LiveJob) -> bool:
        """Return whether a job may share devices."""
        return job.spec.key in self.profiled and not job.alone_only

    def are_apart(self, first: str, second: str) -> bool:
        """Return whether two jobs must not share again."""
        return (first, second) in self.apart or (second, first) in self.apart

    def replicas(self, service: str) -> list[LiveJob]:
        """Return the jobs of a service that are not over, in the order of submission."""
        found = [job for job in self.live() if job.service == service]
        return sorted(found, key=attrgetter("sequence"))

    def live(self) -> list[LiveJob]:
        """Return the jobs that are not over, in no order."""
        return [*self.queued.values(), *self.barred.values(), *self.holding.values()]

    def library(self, spec: JobSpec) -> str:
        """Return the library that a job's workload loaded last; empty before its first run."""
        return self.libraries.get(spec.owner.uid, {}).get(spec.workload, "")

    def queue(self) -> list[LiveJob]:
        """Return the jobs that wait for devices, in the order of submission."""
        return sorted(self.queued.values(), key=attrgetter("sequence"))

    def outstanding(self) -> tuple[Command, ...]:
        """Return the commands to repeat after a restart; some may have been carried out already."""
        found: list[Command] = []
        for job in sorted(self.holding.values(), key=attrgetter("sequence")):
            if job.run is None:
                continue
            if job.state is JobState.STOPPING:
                found.append(StopRun(job.run.id, job.grace_s))
                continue
            if any(rank.state is RankState.ASKED for rank in job.ranks):
                found.append(Launch(job.run))
            if job.paused is not None:
                found.append(Pause(job.run.id, job.paused))
        return tuple(found)

    def next_job_id(self) -> str:
        """Return the id of the next job to be submitted."""
        return f"j{self.submitted + 1}"

    def residents(self) -> dict[str, list[LiveJob]]:
        """Return the jobs that hold each device, in the order of submission."""
        found: dict[str, list[LiveJob]] = {gpu: [] for gpu in self.devices}
        for job in sorted(self.holding.values(), key=attrgetter("sequence")):
            if job.run is not None:
                for seat in job.run.seats:
                    found.setdefault(seat.gpu, []).append(job)
        return found

    # The effects of events: a method for each kind, which checks before it changes anything.

    def _submitted(self, event: events.Submitted) -> None:
        wanted = self.next_job_id()
        self._require(event.job == wanted, f"the next job is {wanted!r}, not {event.job!r}")
        known = event.spec.key in self.profiled
        state = JobState.WAITING if known else JobState.SUBMITTED
        job = LiveJob(event.job, event.spec, state, self.sequence + 1, request=event.request)
        job.history.append(Step(event.at_s, state, "submitted"))
        job.held = event.spec.owner.name if event.spec.held else ""
        first = dict.fromkeys((*event.spec.after, *event.spec.after_any))
        job.awaits = [name for name in first if self._job(name).state not in OVER]
        self.submitted += 1
        job.crowded = self._is_crowded(job)
        if not job.barred:
            self._begin_to_wait(job, event.at_s)
        self.add(job)

    def _cancel_requested(self, event: events.CancelRequested) -> None:
        job = self._job(event.job)
        why = f"cancelled by {event.by}"
        if job.state in OVER:
            return
        if job.state in QUEUED:
            self._move(job, JobState.CANCELLED, event.at_s, why)
            return
        job.stop_reason, job.stop_then = why, "cancel"
        if event.grace_s is not None:
            job.stop_grace_s = event.grace_s
        self._stop(job, event.at_s, why)

    def _hold_changed(self, event: events.HoldChanged) -> None:
        job = self._job(event.job)
        self._require(job.state not in OVER, f"{job.id} is {job.state}, and no longer waits", job)
        job.held = event.by if event.on else ""
        if job.state in QUEUED:
            self._unbar(job, event.at_s)
            self._admit_next(job, event.at_s)

    def _pause_changed(self, event: events.PauseChanged) -> None:
        job = self._job(event.job)
        runs = (JobState.PROFILING, JobState.RUNNING, JobState.PAUSED)
        self._require(job.state in runs, f"{job.id} is {job.state}, and does not run", job)
        assert job.run is not None
        if event.on is not (job.state is JobState.PAUSED):
            job.paused = event.on
            done = "paused" if event.on else "resumed"
            self._move(job, self._under_way(job), event.at_s, f"{done} by {event.by}")
        self._wanted.append(Pause(job.run.id, event.on))

    def _edited(self, event: events.Edited) -> None:
        job = self._job(event.job)
        spec = event.spec.model_copy(update={"env": job.spec.env})
        self._require(job.state in QUEUED, f"{job.id} is {job.state}, and does not wait", job)
        for name in (*FIXED, *(["workers"] if job.runs else ())):
            same = getattr(spec, name) == getattr(job.spec, name)
            self._require(same, f"the {name} of {job.id} cannot be edited", job)
        self._require(job.failures <= spec.retries, f"{job.id} has failed more often", job)
        other = spec.workload != job.spec.workload
        job.spec = spec
        self.charges.put(job.id, spec)
        if job.run is not None:
            job.run = job.run.model_copy(update={"spec": spec})
        # It may need other devices now.
        self.reserved.pop(job.id, None)
        if other:
            job.alone_only = ""
            state = JobState.WAITING if job.spec.key in self.profiled else JobState.SUBMITTED
            if state is not job.state:
                self._move(job, state, event.at_s, f"edited by {event.by}")

    def _restart_due(self, event: events.RestartDue) -> None:
        job = self._job(event.job)
        self._require(job.id in self.resting, f"{job.id} is {job.state}, and does not rest", job)
        job.again_s = None
        self._unbar(job, event.at_s)

    def _drain_changed(self, event: events.DrainChanged) -> None:
        chosen = event.gpus or tuple(self.devices)
        unknown = [gpu for gpu in chosen if gpu not in self.devices]
        self._require(not unknown, f"no device {', '.join(unknown)}")
        for gpu in chosen:
            self.devices[gpu].drained = event.by if event.on else ""

    def _placed(self, event: events.Placed) -> None:
        job = self._job(event.run.job)
        self._check_place(job, event)
        # One copy of the specification, not one per run.
        job.run = event.run.model_copy(update={"spec": job.spec})
        job.runs, job.profiling = job.runs + 1, event.profiling
        self.tally[RESTARTED] += job.runs > 1
        job.ranks = [RankView() for _ in event.run.seats]
        job.trouble = job.stop_reason = job.stop_then = ""
        job.unseen, job.stop_grace_s, job.paused = False, None, None
        self._move(job, JobState.STARTING, event.at_s, f"placed on {event.run.places}")
        self._isolate(job.devices)
        self._wanted.append(Launch(job.run))

    def _reserved(self, event: events.Reserved) -> None:
        job = self._job(event.job)
        waits = job.id in self.queued
        self._require(waits, f"{job.id} is {job.state}, and does not wait for devices", job)
        for gpu in event.gpus:
            self._device(gpu)
        if event.gpus:
            self.reserved[job.id] = event
        else:
            self.reserved.pop(job.id, None)

    def _check_place(self, job: LiveJob, event: events.Placed) -> None:
        wanted = f"{job.id}.{job.runs + 1}"
        self._require(job.state in QUEUED, f"{job.id} is placed while it is {job.state}", job)
        self._require(not job.barred, f"{job.id} is placed while it may not start", job)
        self._require(event.run.id == wanted, f"run {event.run.id!r} is not {wanted!r}", job)
        # The journal keeps its environment once.
        placed = event.run.spec.model_copy(update={"env": job.spec.env})
        self._require(placed == job.spec, f"{wanted} is not what was submitted", job)
        residents = self.residents()
        may_share = self.may_share(job) and not event.profiling
        for seat in event.run.seats:
            trouble = self._device(seat.gpu).trouble
            self._require(not trouble, f"{seat.gpu} {trouble}", job)
            others = residents[seat.gpu]
            together = may_share and all(self.may_share(other) for other in others)
            self._require(together or not others, f"{seat.gpu} is being used alone", job)
            for other in others:
                apart = self.are_apart(job.id, other.id)
                self._require(not apart, f"{other.id} on {seat.gpu} was separated from it", job)
                same = job.service != "" and job.service == other.service
                self._require(not same, f"{other.id} on {seat.gpu} is a replica of it", job)

    def _stop_decided(self, event: events.StopDecided) -> None:
        job = self._present(event.run)
        if job is None or job.state not in HOLDING or job.state is JobState.STOPPING:
            return
        may = event.then != "wait" or job.spec.requeue
        self._require(may, f"{job.id} may not be started again", job)
        job.stop_reason, job.stop_then = event.reason, event.then
        self._stop(job, event.at_s, event.reason)

    def _rank_started(self, event: events.RankStarted) -> None:
        job, rank = self._rank(event)
        if job is None or rank.state is RankState.OVER:
            return
        if rank.pid is None:
            rank.pid, rank.pid_started = event.pid, event.pid_started
        if rank.started_s is None:
            rank.started_s = event.at_s
        rank.state = RankState.READY if rank.proven else RankState.STARTED
        self._settle(job, event.at_s)

    def _rank_ready(self, event: events.RankReady) -> None:
        job, rank = self._rank(event)
        if job is None or rank.state is RankState.OVER:
            return
        rank.state, rank.proven = RankState.READY, True
        self._settle(job, event.at_s)

    def _rank_refused(self, event: events.RankRefused) -> None:
        job, rank = self._rank(event)
        never = job is None or rank.state is RankState.OVER or not rank.has_run
        self._require(never, f"rank {event.rank} of {event.run} has run", job)
        self._rank_over(event, None, f"cannot start: {event.reason}")

    def _rank_ended(self, event: events.RankEnded) -> None:
        job, _ = self._rank(event)
        trouble = "" if event.status == 0 else _status(event.rank, event.status)
        if event.asked and job is not None and job.state is not JobState.STOPPING:
            trouble = f"rank {event.rank} was asked to end, and the journal does not say why"
        self._rank_over(event, event.status, trouble)

    def _rank_gone(self, event: events.RankGone) -> None:
        self._rank_over(event, None, f"rank {event.rank}: {event.reason}")

    def _rank_lost(self, event: events.RankLost) -> None:
        job, rank = self._rank(event)
        if job is None or rank.state is RankState.OVER:
            return
        rank.state = RankState.LOST
        if job.state not in (JobState.STOPPING, JobState.LOST):
            self._move(job, JobState.LOST, event.at_s, f"rank {event.rank}: {event.reason}")

    def _isolation_lost(self, event: events.IsolationLost) -> None:
        job = self._present(event.run)
        if job is None or job.state not in HOLDING:
            return
        job.unisolated = event.reason
        for other in self._loses_with(job):
            again = other.spec.requeue or not _has_run(other)
            other.stop_reason = f"{job.id} is not isolated: {event.reason}"
            other.stop_then = "wait" if again else "fail"
            self._stop(other, event.at_s, other.stop_reason)

    def _isolation_regained(self, event: events.IsolationRegained) -> None:
        job = self._present(event.run)
        if job is not None and job.state in HOLDING:
            job.unisolated = ""
            self._isolate(job.devices)

    def _profiled(self, event: events.Profiled) -> None:
        job = self._job_of(event.run)
        self.unrecorded[self.sequence + 1] = event
        self._learn(job.spec.key, event.at_s, f"{job.id} has been profiled")

    def _workload_known(self, event: events.WorkloadKnown) -> None:
        self._learn((event.uid, event.workload), event.at_s, "its workload has a profile")

    def _profile_failed(self, event: events.ProfileFailed) -> None:
        job = self._job_of(event.run)
        # If another job's profile came first, it may be sharing by now.
        if job.state in OVER or job.spec.key in self.profiled:
            return
        job.alone_only = event.reason
        if job.state is JobState.PROFILING:
            self._move(job, JobState.RUNNING, event.at_s, f"has no profile: {event.reason}")

    def _measured(self, event: events.Measured) -> None:
        for run in event.runs:
            self._job_of(run)
        self.unrecorded[self.sequence + 1] = event
        self.broken = [pair for pair in self.broken if not pair.is_refuted_by(event)]

    def _separated(self, event: events.Separated) -> None:
        first, second = (self._job_of(run) for run in event.runs)
        self._require(first is not second, f"{first.id} cannot be separated from itself", first)
        stops = JobState.STOPPING in (first.state, second.state)
        apart = stops or first.devices.isdisjoint(second.devices)
        self._require(apart, f"{first.id} and {second.id} share a device, and none stops")
        if not {first.state, second.state} & OVER:
            self.apart = [*self.apart, (first.id, second.id)][-KEPT_APART:]
        self.broken = [*self.broken, event][-KEPT_APART:]

    def _library_seen(self, event: events.LibrarySeen) -> None:
        self.libraries.setdefault(event.uid, {})[event.workload] = event.library
        if event.python:
            self.shares.pythons[event.library] = event.python

    def _measuring_begun(self, event: events.MeasuringBegun) -> None:
        present = self.shares.present
        self._require(present is None, "another share is being measured")
        self._device(event.gpu)
        of_device = event.gpu, event.gpu_model, event.library, event.share
        self.shares.present = Measuring(event.run, *of_device, since_s=event.at_s)

    def _measuring_stopped(self, event: events.MeasuringStopped) -> None:
        present = self._measuring(event.run)
        present.stopping = present.stopping or event.reason

    def _measuring_ended(self, event: events.MeasuringEnded) -> None:
        ended = self._measuring(event.run)
        self.shares.present = None
        if event.outcome == "failed":
            self.shares.failures += 1
            self.shares.failed_s, self.shares.failure = event.at_s, event.reason
            self.shares.failed_on, self.shares.failed_with = ended.gpu, ended.library
        elif event.outcome != "stopped":
            self.shares.failures, self.shares.failure = 0, ""

    def _recorded(self, event: events.Recorded) -> None:
        for sequence in [known for known in self.unrecorded if known <= event.sequence]:
            del self.unrecorded[sequence]

    def _device_sick(self, event: events.DeviceSick) -> None:
        self._device(event.gpu).sick = event.reason

    def _device_healed(self, event: events.DeviceHealed) -> None:
        self._device(event.gpu).sick = ""

    def _devices_changed(self, event: events.DevicesChanged | events.ServiceStarted) -> None:
        for gpu in event.gpus:
            self.devices.setdefault(gpu, DeviceState())
        for name, device in self.devices.items():
            device.present = name in event.gpus

    _service_started = _devices_changed

    # Parts that several events share.

    def _loses_with(self, job: LiveJob) -> list[LiveJob]:
        """Return the jobs that must not continue at ``idle`` when a job is no longer isolated.

        The job itself is among them only if it has run; otherwise its start is refused.
        """
        residents = self.residents()
        shared = [gpu for gpu in sorted(job.devices) if len(residents[gpu]) > 1]
        found = {
            other.id: other
            for gpu in shared
            for other in residents[gpu]
            if other.run is not None
            and other.run.share_on(gpu) == IDLE
            and other.state is not JobState.STOPPING
            and (_has_run(job) if other is job else job.spec.priority == "latency")
        }
        return list(found.values())

    def _isolate(self, gpus: Collection[str]) -> None:
        """Let isolated best-effort jobs give way on devices with a job that leads, or no longer."""
        residents = self.residents() if gpus else {}
        for gpu in sorted(gpus):
            leads = any(job.leads(gpu) for job in residents[gpu])
            for job in residents[gpu]:
                if job.run is not None and job.spec.priority != "latency" and not job.unisolated:
                    job.run = job.run.beside(gpu, leads)

    def _learn(self, key: WorkloadKey, at_s: float, why: str) -> None:
        """Allow the jobs of a workload to share."""
        self.profiled.add(key)
        for job in self.live():
            if job.spec.key == key and job.state is JobState.PROFILING:
                self._move(job, JobState.RUNNING, at_s, why)
            elif job.spec.key == key and job.state is JobState.SUBMITTED:
                self._move(job, JobState.WAITING, at_s, why)

    def _rank_over(
        self,
        event: events.RankEnded | events.RankGone | events.RankRefused,
        status: int | None,
        trouble: str,
    ) -> None:
        job, rank = self._rank(event)
        if job is None or rank.state is RankState.OVER:
            return
        # Peers of a lost rank fail, often before the rank is proven gone.
        missed = rank.state is RankState.LOST and isinstance(event, events.RankGone)
        rank.state, rank.status = RankState.OVER, status
        rank.ended_s = max(_over_s(event), job.since_s)
        if trouble and (missed or not job.trouble):
            job.trouble, job.unseen = trouble, _blameless(event)
        if all(other.state is RankState.OVER for other in job.ranks):
            self._conclude(job, max(other.ended_s or 0.0 for other in job.ranks))
        elif trouble:
            self._stop(job, rank.ended_s, trouble)
        else:
            self._settle(job, event.at_s)

    def _stop(self, job: LiveJob, at_s: float, why: str) -> None:
        assert job.run is not None
        if job.state is not JobState.STOPPING:
            self._move(job, JobState.STOPPING, at_s, why)
        self._wanted.append(StopRun(job.run.id, job.grace_s))

    def _settle(self, job: LiveJob, at_s: float) -> None:
        """Move a starting or lost job to the state that follows from its ranks."""
        if job.state not in (JobState.STARTING, JobState.LOST):
            return
        states = {rank.state for rank in job.ranks}
        if states <= {RankState.READY, RankState.OVER}:
            self._move(job, self._under_way(job), at_s, "every rank runs")
        elif job.state is JobState.LOST and RankState.LOST not in states:
            self._move(job, JobState.STARTING, at_s, "every rank was found again")

    def _under_way(self, job: LiveJob) -> JobState:
        """Return the state of a job whose ranks all run."""
        if job.paused:
            return JobState.PAUSED
        profile = job.profiling and job.spec.key not in self.profiled and not job.alone_only
        return JobState.PROFILING if profile else JobState.RUNNING

    def _conclude(self, job: LiveJob, at_s: float) -> None:
        """Move a job whose ranks are all over to its next state."""
        assert job.run is not None
        if _has_run(job):
            job.unisolated = ""
        state, why = self._outcome(job, at_s)
        self._move(job, state, at_s, why)
        self._wanted.append(Release(job.run.id))

    def _outcome(self, job: LiveJob, at_s: float) -> tuple[JobState, str]:
        queued = JobState.WAITING if job.spec.key in self.profiled else JobState.SUBMITTED
        # Many programs save their state and exit with 0 when they are asked to stop, so this does
        # not show that they had finished.
        match job.stop_then:
            case "cancel":
                return JobState.CANCELLED, job.stop_reason
            case "fail":
                return JobState.FAILED, job.stop_reason
            case "wait":
                job.quick_ends = 0
                return queued, job.stop_reason
        ended = job.trouble or _ALL_WELL
        if job.spec.service:
            rest_s = self._rest(job, at_s)
            if rest_s is None:
                return JobState.FAILED, f"{job.quick_ends} quick ends in a row: {ended}"
            return queued, f"again in {rest_s:g} s after: {ended}"
        if not job.trouble:
            return JobState.FINISHED, ended
        if self._again(job):
            return queued, f"again after: {ended}"
        return JobState.FAILED, ended

    def _rest(self, job: LiveJob, at_s: float) -> float | None:
        """Let a service that has ended rest, and return for how long; None: it ends for good."""
        began_s = min((r.started_s for r in job.ranks if r.started_s is not None), default=at_s)
        job.quick_ends = 1 if at_s - began_s >= STEADY_S else job.quick_ends + 1
        if 0 < job.spec.retries < job.quick_ends:
            return None
        rest_s = min(FIRST_REST_S * 2.0 ** min(job.quick_ends - 1, 20), LONGEST_REST_S)
        job.again_s = at_s + rest_s
        return rest_s

    def _again(self, job: LiveJob) -> bool:
        """Count a failed run, and return whether there may be another."""
        if job.unseen:
            job.losses += 1
            may = job.spec.requeue or not _has_run(job)
            return may and job.losses <= MOST_LOSSES
        job.failures += 1
        return job.failures <= job.spec.retries

    def _move(self, job: LiveJob, state: JobState, at_s: float, why: str) -> None:
        """Move a job to another state; if it is over, release or cancel the jobs that await it."""
        self._enter(job, state, at_s, why)
        ended = [job] if state in OVER else []
        while ended:
            first = ended.pop()
            for other in [*self.barred.values()]:
                if first.id not in other.awaits:
                    continue
                if first.id in other.spec.after and first.state is not JobState.FINISHED:
                    how = "failed" if first.state is JobState.FAILED else "was cancelled"
                    why = f"{first.id}, which had to finish before it, {how}"
                    self._enter(other, JobState.CANCELLED, at_s, why)
                    ended.append(other)
                else:
                    other.awaits.remove(first.id)
                    self._unbar(other, at_s)

    def _unbar(self, job: LiveJob, at_s: float) -> None:
        """Let a job compete for devices unless it is barred."""
        job.crowded = job.id not in self.queued and self._is_crowded(job)
        if not job.barred and job.id not in self.queued:
            self._begin_to_wait(job, at_s)
        self._file(job)

    def _is_crowded(self, job: LiveJob) -> bool:
        """Return whether a job that does not compete yet must wait for others of its array."""
        most = job.spec.most_running
        return most is not None and self.active[job.array] >= most

    def _admit_next(self, left: LiveJob, at_s: float) -> None:
        """Let the next job of an array compete if the limit of the array allows it."""
        if left.spec.most_running is None or self._is_crowded(left):
            return
        waits = (
            job
            for job in self.barred.values()
            if job.array == left.array and job.crowded and not (job.held or job.awaits)
        )
        job = min(waits, key=attrgetter("sequence"), default=None)
        if job is not None:
            self._unbar(job, at_s)

    def _enter(self, job: LiveJob, state: JobState, at_s: float, why: str) -> None:
        rule = f"{job.id} cannot go from {job.state} to {state}"
        self._require(state in TRANSITIONS[job.state], rule, job)
        uid, left = job.spec.owner.uid, () if state in HOLDING else job.devices
        if job.state in HOLDING and state not in HOLDING:
            held_s = job.spec.workers * job.held_s(at_s)
            self.used[uid] = self.used.get(uid, 0.0) + held_s
        if state in QUEUED and job.state not in QUEUED:
            self._begin_to_wait(job, at_s)
        job.state = state
        job.note(Step(at_s, state, why))
        if state in OVER:
            job.held, job.again_s = "", None
            job.forget_words()
            self.ended.append(job)
            self.tally[state.value] += 1
        self._file(job)
        self._isolate(left)
        self._admit_next(job, at_s)

    def _begin_to_wait(self, job: LiveJob, at_s: float) -> None:
        """Note that a job competes; raise its user's usage if no other job of the user waits."""
        job.competes_since_s = at_s
        uid = job.spec.owner.uid
        if not self.waiting[uid]:
            others = [self.used.get(other, 0.0) for other in self.waiting]
            floor = min(others) if others else max(self.used.values(), default=0.0)
            self.used[uid] = max(self.used.get(uid, 0.0), floor)

    def _file(self, job: LiveJob) -> None:
        self._count(job)
        if job.state in OVER or job.id not in self.charges:
            self.charges.put(job.id, None if job.state in OVER else job.spec)
        waits = job.state in QUEUED
        was_active = job.id in self.queued or job.id in self.holding
        for kept, belongs in (
            (self.queued, waits and not job.barred),
            (self.barred, waits and job.barred),
            (self.holding, job.state in HOLDING),
            (self.resting, waits and job.again_s is not None),
        ):
            if belongs:
                kept[job.id] = job
            else:
                kept.pop(job.id, None)
        if job.spec.most_running is not None:
            active = job.id in self.queued or job.id in self.holding
            self.active[job.array] += active - was_active
        if job.id not in self.queued:
            self.reserved.pop(job.id, None)
        if job.state in OVER:
            heappush(self.over, (job.since_s, job.sequence, job.id))
            self.apart = [pair for pair in self.apart if job.id not in pair]
        if len(self.over) > KEPT_OVER:
            forgotten = self.jobs.pop(heappop(self.over)[2])
            self._forget_request(forgotten)

    def _count(self, job: LiveJob) -> None:
        """Update the number of the user's waiting jobs, before ``queued`` is changed."""
        competes = job.state in QUEUED and not job.barred
        uid, change = job.spec.owner.uid, competes - (job.id in self.queued)
        self.waiting[uid] += change
        if not self.waiting[uid]:
            del self.waiting[uid]

    def _forget_request(self, job: LiveJob) -> None:
        if job.request:
            self.requests[job.request].remove(job.id)
            if not self.requests[job.request]:
                del self.requests[job.request]

    def _job(self, name: str) -> LiveJob:
        self._require(name in self.jobs, f"no job {name!r}")
        return self.jobs[name]

    def _job_of(self, run: str) -> LiveJob:
        """Return the job of a present or past run."""
        name, _, number = run.rpartition(".")
        job = self._job(name)
        known = number.isdecimal() and 1 <= int(number) <= job.runs
        self._require(known, f"{job.id} has no run {run!r}", job)
        return job

    def _present(self, run: str) -> LiveJob | None:
        """Return the job if this is its present or last run; None for an earlier run."""
        job = self._job_of(run)
        assert job.run is not None
        return job if job.run.id == run else None

    def _rank(self, event: events.RankEvent) -> tuple[LiveJob | None, RankView]:
        """Return the job and the rank of an event; no job for an earlier run."""
        job = self._present(event.run)
        if job is None:
            return None, RankView(RankState.OVER)
        self._require(event.rank < len(job.ranks), f"{event.run} has no rank {event.rank}", job)
        return job, job.ranks[event.rank]

    def _measuring(self, run: str) -> Measuring:
        present = self.shares.present
        self._require(present is not None and present.run == run, f"{run} measures no share")
        assert present is not None
        return present

    def _device(self, gpu: str) -> DeviceState:
        self._require(gpu in self.devices, f"no device {gpu!r}")
        return self.devices[gpu]

    def _require(self, holds: bool, rule: str, job: LiveJob | None = None) -> None:
        if not holds:
            past = [f"{step.state} ({step.why})" for step in job.history] if job else []
            raise TransitionError("; ".join([rule, *past]))


_ALL_WELL: Final = "every rank ended with status 0"


def _has_run(job: LiveJob) -> bool:
    """Return whether a process of its present or last run has been seen."""
    return any(rank.has_run for rank in job.ranks)


def _blameless(event: AnyEvent) -> bool:
    """Return whether the job is not to blame for the end of its rank."""
    match event:
        case events.RankRefused(later=blameless) | events.RankEnded(asked=blameless):
            return blameless
        case _:
            return isinstance(event, events.RankGone)


def _over_s(event: AnyEvent) -> float:
    """Return when a rank ended, as far as that is known."""
    ended_s = event.ended_s if isinstance(event, events.RankEnded) else None
    return event.at_s if ended_s is None else ended_s


def _status(rank: int, status: int) -> str:
    ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return f"rank {rank} {ended}"
