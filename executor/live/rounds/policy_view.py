"""The pool as policies and plans see it, synchronised with the state machine and the beliefs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import JobSpec, WorkloadKey
from dovetail.executor.jobs.states import HOLDING, OVER, QUEUED, JobState
from dovetail.executor.live.beliefs import WHOLE
from dovetail.executor.live.job_beliefs import JobBeliefs, workload_name
from dovetail.executor.live.rounds.categories import ALONE, Category, CategoryState, Layout
from dovetail.executor.live.rounds.fair_share import most_of, taking_part
from dovetail.formulations.rules import slowdown_alone, slowdown_at_last
from dovetail.instances._record import IDLE
from dovetail.instances.instance import Cluster, Instance, Workload
from dovetail.instances.slowdowns.sets import LARGEST, product_slowdown, slowdown_at
from dovetail.solver.policies.policy import Start
from dovetail.solver.policies.state import STOPS_APART_S, Job, Reservation, State

UNKNOWN_WORK_S: Final = 3600.0
"""Assumed work of a job without an estimate or a finished job of its workload."""

LEAST_START_S: Final = 60.0
"""Assumed least time from the start of a job to its first new work."""


class RunHistory(NamedTuple):
    """A job's runs, read from its history.

    Attributes
    ----------
    started_s : float
        When its present run was placed; NaN if it holds no devices.
    ran_from_s : float
        When every rank of its present or last run first ran; NaN before that.
    last_ran_s : float
        Duration of its last run, once that has ended.
    held_s : float
        Seconds for which it held devices in earlier runs.
    done_s : float
        Seconds of work that earlier runs are assumed to have done: all the time they ran if the job
        resumes from checkpoints (``requeue``), otherwise 0.
    waiting_since_s : float
        When it last began to wait.
    """

    started_s: float = math.nan
    ran_from_s: float = math.nan
    last_ran_s: float = 0.0
    held_s: float = 0.0
    done_s: float = 0.0
    waiting_since_s: float = 0.0

    @property
    def start_up_s(self) -> float:
        """How long its present run took to start; 0 if it has not, or holds no devices."""
        took_s = self.ran_from_s - self.started_s
        return 0.0 if math.isnan(took_s) else took_s

    @classmethod
    def of(cls, live: LiveJob) -> Self:
        """Read a job's history from its beginning."""
        past = cls(waiting_since_s=live.submitted_s)
        resumes = live.spec.requeue and not live.spec.service
        for step in live.history:
            past = past._after(step.at_s, step.state, resumes)
        return past

    def _after(self, at_s: float, state: JobState, resumes: bool) -> Self:
        holding = not math.isnan(self.started_s)
        if state is JobState.STARTING:
            return self._replace(started_s=at_s, ran_from_s=math.nan)
        if state in HOLDING:
            runs = state in (JobState.PROFILING, JobState.RUNNING)
            first = runs and math.isnan(self.ran_from_s)
            return self._replace(ran_from_s=at_s) if first else self
        if not holding:
            return self
        ran_s = 0.0 if math.isnan(self.ran_from_s) else at_s - self.ran_from_s
        return self._replace(
            started_s=math.nan,
            last_ran_s=ran_s,
            held_s=self.held_s + at_s - self.started_s,
            done_s=self.done_s + ran_s if resumes else 0.0,
            waiting_since_s=at_s if state in QUEUED else self.waiting_since_s,
        )


class WorkEstimates:
    """The work of jobs in seconds alone: as the owner says, or as long as equal jobs took.

    Parameters
    ----------
    jobs : iterable of LiveJob
        The jobs so far.
    """

    def __init__(self, jobs: Iterable[LiveJob]) -> None:
        # The number of finished jobs of each workload, and their total seconds.
        self._lasted: dict[WorkloadKey, tuple[int, float]] = {}
        for live in jobs:
            self.note(live)

    def note(self, live: LiveJob) -> bool:
        """Note how long a job took if it finished; return whether it did."""
        if live.state is not JobState.FINISHED:
            return False
        count, lasted_s = self._lasted.get(live.spec.key, (0, 0.0))
        self._lasted[live.spec.key] = count + 1, lasted_s + RunHistory.of(live).last_ran_s
        return True

    def of(self, live: LiveJob) -> float:
        """Return the estimated total work of a job."""
        if live.spec.estimate_s is not None:
            return live.spec.estimate_s
        count, lasted_s = self._lasted.get(live.spec.key, (0, 0.0))
        return lasted_s / count if count else UNKNOWN_WORK_S


@dataclass
class TrackedJob:
    """A job that is not over, with its record in a policy's state.

    Attributes
    ----------
    live : LiveJob
        The job.
    spec : JobSpec
        Its specification when the track was made; an edited job gets a new track.
    job : Job
        Its record in the policy's state.
    key : WorkloadKey
        Its user and workload.
    category : Category
        Its workload in the policy's state.
    past : RunHistory
        Its runs.
    steps : int
        Length of the history from which ``past`` was read.
    alone_only : str
        The value of ``live.alone_only`` from which ``category`` was derived.
    """

    live: LiveJob
    spec: JobSpec
    job: Job
    key: WorkloadKey
    category: Category = ALONE
    past: RunHistory = RunHistory()  # noqa: RUF009 - immutable
    steps: int = 0
    alone_only: str = ""

    @classmethod
    def of(cls, live: LiveJob) -> Self:
        """Return a track of a job whose history has not been read."""
        spec = live.spec
        job = Job(
            number=live.sequence,
            id=live.id,
            workload=0,
            workers=spec.workers,
            together=spec.together,
            one_each=spec.workers_per_node is not None,
            work_s=UNKNOWN_WORK_S,
            arrival_s=live.submitted_s,
            gsla=math.inf if spec.gsla is None else spec.gsla,
            weight=spec.weight,
            latency=spec.priority == "latency",
            tenant=spec.owner.name,
            waiting_since_s=live.submitted_s,
            replica_of=live.service,
        )
        return cls(live, spec, job, spec.key)

    @property
    def name(self) -> str:
        """The name of its workload in the repository."""
        return workload_name(self.spec)

    @property
    def changed(self) -> bool:
        """Whether its devices or its category may have changed since it was read."""
        live = self.live
        read = self.steps == len(live.history) and self.alone_only == live.alone_only
        return not read or self.job.phase == "running"

    def read_history(self, work_s: float, now_s: float) -> None:
        """Bring the policy's record up to date with the history.

        Parameters
        ----------
        work_s : float
            Estimated work of the whole job alone, in seconds.
        now_s : float
            The service's clock.
        """
        live, job = self.live, self.job
        if self.steps == len(live.history):
            return
        past = RunHistory.of(live)
        began = live.state in HOLDING and past.ran_from_s != self.past.ran_from_s
        self.steps, self.past = len(live.history), past
        job.started_s, job.held_s, job.starts = past.started_s, past.held_s, live.runs
        job.waiting_since_s = max(past.waiting_since_s, live.competes_since_s)
        if live.state not in HOLDING or began:
            job.done_s = past.done_s
            job.since_s = now_s if math.isnan(past.ran_from_s) else past.ran_from_s
            job.work_s = work_s


MEMORY_STEP_MIB: Final = 64.0
"""Memory given by owners is rounded up to a multiple of this, so that categories stay few;
percentages to two decimals."""

_KEPT_ALONE: Final = frozenset(
    {JobState.PROFILING, JobState.PAUSED, JobState.STOPPING, JobState.LOST}
)


class PolicyView:
    """Keeps a policy's state up to date with the state machine, and makes instances of it.

    Parameters
    ----------
    beliefs : JobBeliefs
        Jobs, devices, and beliefs about them; only the table of the present workloads is changed.

    """

    def __init__(self, beliefs: JobBeliefs) -> None:
        self.beliefs, self.machine = beliefs, beliefs.machine
        self._tracked: dict[str, TrackedJob] = {}
        self._estimates = WorkEstimates(self.machine.jobs.values())
        self._sizes: dict[str, int] = {}
        # What the state depends on as a whole: it is made again if this, or a category, changes.
        self._basis: tuple[object, ...] = ()
        self._stale = True
        self._sizes_mib: list[float] = []
        self._made: CategoryState
        self.renew(self.machine.now_s)

    @property
    def state(self) -> State:
        """The state that policies decide on; ``renew`` returns True when it is a new object."""
        return self._made.state

    def instance(self) -> Instance:
        """Return ``state`` as an instance, with its jobs and all beliefs, by category.

        Devices that take no jobs and hold none are left out.
        """
        return self._made.instance()

    # Input.

    def note_progress(self, job: str, iterations: float, total: float | None, now_s: float) -> None:
        """Update a job's completed and total work from its iterations in this run.

        Ignored unless the job runs and its rate alone is known.
        """
        track = self._tracked.get(job)
        known = self.beliefs.workload(track.name) if track else None
        rate = known.throughput.get(WHOLE) if known else None
        if track is None or rate is None or track.job.phase != "running":
            return
        if track.job.replica_of:
            return
        seen = track.job
        track.read_history(self._estimates.of(track.live), self.state.now)
        seen.done_s = track.past.done_s + iterations / rate
        seen.since_s = max(seen.since_s, now_s)
        if total is not None:
            seen.work_s = track.past.done_s + total / rate

    def renew(self, now_s: float) -> bool:
        """Bring ``state`` up to date with the state machine.

        Policies must forget everything they remember by GPU or by workload when the state is a new
        object. Jobs keep their numbers and their objects until they are over.

        Parameters
        ----------
        now_s : float
            The service's clock; it becomes ``state.now``.

        Returns
        -------
        bool
            True if ``state`` is a new object, because devices, workloads or beliefs have changed.
        """
        # Add the work done until now at the previous rates; a service always has as much left.
        for job in (track.job for track in self._tracked.values()):
            if job.phase == "running":
                done_s = 0.0 if job.replica_of else job.done(now_s)
                job.done_s, job.since_s = done_s, max(job.since_s, now_s)
        finished = self._follow()
        machine, beliefs = self.machine, self.beliefs
        layout = Layout.of(machine.devices, beliefs.devices.models, machine.holding.values())
        basis = (
            beliefs.of_workloads,
            beliefs.cluster,
            layout.troubled,
            machine.apart,
            machine.broken,
        )
        if basis != self._basis:
            self._basis, self._stale = basis, True
            self._sizes_mib = _usable_mib(beliefs.cluster)
        # Most waiting jobs have not changed.
        changed = [t for t in self._tracked.values() if self._stale or t.changed]
        for track in changed:
            track.category = self._category(track, layout)
        replaced = self._rebuild_where_needed(layout, changed)
        self.state.now = now_s
        self._estimate_anew(finished)
        self._fill(list(self._tracked.values()) if replaced else changed, layout)
        return replaced

    # Starts.

    def enter(self, start: Start) -> None:
        """Enter a start into the state as if it were carried out."""
        state, job = self.state, start.job
        del state.pending[job.number]
        state.reserved.pop(job.number, None)
        state.running[job.number] = job
        job.phase, job.gpus, job.shares = "running", start.gpus, start.shares
        job.started_s = job.since_s = state.now
        job.done_s = self._tracked[job.id].past.done_s
        for gpu in start.gpus:
            state.residents[gpu].append(job)
        self._count_idle()
        for gpu in start.gpus:
            self._isolate(gpu)
            for resident in state.residents[gpu]:
                resident.done_s, resident.since_s = resident.done(state.now), state.now
                resident.rate = self._rate(resident)

    def _isolate(self, gpu: int) -> None:
        """Let isolated best-effort jobs without a cap run behind a latency-critical one."""
        residents = [job for job in self.state.residents[gpu] if job.share_on(gpu) is None]
        roles = [self._tracked[job.id].category.isolation for job in residents]
        for job, role in zip(residents, roles, strict=True):
            if role == "best-effort" and "latency" in roles:
                shares = job.shares or (None,) * len(job.gpus)
                job.shares = tuple(
                    IDLE if each == gpu else share
                    for each, share in zip(job.gpus, shares, strict=True)
                )

    # Categories.

    def _follow(self) -> set[WorkloadKey]:
        """Track new jobs and drop ended ones; return the workloads of the jobs that finished."""
        finished: set[WorkloadKey] = set()
        queued = self.machine.queued
        part = taking_part(queued, self.machine.reserved, most_of(len(self.beliefs.devices.models)))
        left = (
            t
            for t in self._tracked.values()
            if t.live.state in OVER
            or t.live.barred
            or t.spec is not t.live.spec
            or (t.live.id in queued and t.live.id not in part)
        )
        for track in [*left]:
            del self._tracked[track.live.id]
            track.job.phase = "finished"
            self.state.pending.pop(track.job.number, None)
            if self._estimates.note(track.live):
                finished.add(track.key)
        new = {*part, *self.machine.holding} - self._tracked.keys()
        # In the order of submission: that of a set is another one in each process.
        for live in sorted((self.machine.jobs[name] for name in new), key=_sequence):
            self._tracked[live.id] = track = TrackedJob.of(live)
            self._stale |= track.job.workers > self._sizes.get(track.name, 0)
        return finished

    def _estimate_anew(self, finished: Collection[WorkloadKey]) -> None:
        """Update the estimated work of waiting jobs whose workload had a job finish."""
        for track in self._tracked.values() if finished else ():
            if track.key in finished and track.job.phase == "pending":
                track.job.work_s = self._estimates.of(track.live)

    def _category(self, track: TrackedJob, layout: Layout) -> Category:
        live, name = track.live, track.name
        known = self.beliefs.workload(name)
        need, percent = self._needs(live.spec, known)
        shares = (
            self.machine.may_share(live)
            and live.state not in _KEPT_ALONE
            and live.id not in layout.closed
        )
        if shares and known and (need or percent):
            separated = any(live.id in pair for pair in self.machine.apart)
            only = live.id if separated else ""
            promised = live.spec.gsla is not None
            role = self.beliefs.isolation(live)
            of = live.spec.owner.uid, name, need, percent, only, role, promised, live.service
            return Category(*of)
        return Category(-1, "", self._least_device_mib(need))

    def _needs(self, spec: JobSpec, known: Workload | None) -> tuple[float, float]:
        """Return the memory of a worker in MiB, or 0 and that in per cent of what a device offers.

        Both are 0 if it is unknown. A percentage fits every device alone.
        """
        if spec.memory_percent is not None:
            return 0.0, math.ceil(round(100 * spec.memory_percent, 6)) / 100
        if spec.memory_mib is not None:
            return math.ceil(spec.memory_mib / MEMORY_STEP_MIB) * MEMORY_STEP_MIB, 0.0
        # A workload that ran once fits, however large the bound on its next run is.
        most = max(self._sizes_mib, default=0.0)
        return min((known and known.memory_mib) or 0.0, most), 0.0

    def _least_device_mib(self, need_mib: float) -> float:
        """Return the largest memory need that fits on the same devices as this one.

        This is all that distinguishes jobs that run alone.
        """
        enough = [size for size in self._sizes_mib if size >= need_mib]
        if need_mib == 0 or len(enough) == len(self._sizes_mib):
            return 0.0
        return min(enough, default=need_mib)

    def _rebuild_where_needed(self, layout: Layout, changed: Sequence[TrackedJob]) -> bool:
        categories = (track.category for track in changed if track.live.id not in layout.hidden)
        if not self._stale and self._made.serves(categories):
            return False
        shown = [t for name, t in self._tracked.items() if name not in layout.hidden]
        self._stale, self._sizes = False, _gang_sizes(shown)
        specs = {track.category: track.live.spec for track in shown}
        self._made = CategoryState(self.beliefs, specs, self._sizes, layout)
        return True

    # Jobs in a state.

    def _fill(self, changed: Sequence[TrackedJob], layout: Layout) -> None:
        """Enter changed jobs, which include all jobs that hold devices, into the state."""
        state = self.state
        shown = [track for track in changed if track.live.id not in layout.hidden]
        for track in changed:
            state.pending.pop(track.job.number, None)
        for track in shown:
            self._read_job(track)
        self._line_up([track.job for track in shown if track.job.phase == "pending"])
        holding = [track.job for track in shown if track.job.phase == "running"]
        by_start = sorted(holding, key=lambda job: (job.started_s, job.number))
        state.running.clear()
        state.running.update((job.number, job) for job in by_start)
        for residents in state.residents:
            residents.clear()
        for job in by_start:
            for gpu in job.gpus:
                state.residents[gpu].append(job)
        self._count_idle()
        for job in by_start:
            job.rate = self._rate(job)
        state.reserved = self._reserved()

    def _reserved(self) -> dict[int, Reservation]:
        """Return the reservations whose jobs and devices are in the state."""
        place = self._made.gpu_place
        return {
            number: Reservation(tuple(place[gpu] for gpu in kept.gpus), kept.until_s)
            for job, kept in self.machine.reserved.items()
            if (number := self.machine.jobs[job].sequence) in self.state.pending
            and all(gpu in place for gpu in kept.gpus)
        }

    def _line_up(self, waiting: Sequence[Job]) -> None:
        """Insert jobs into the queue, in the order in which they began to wait."""
        pending = self.state.pending
        come = sorted(waiting, key=_wait)
        if come and pending and _wait(pending[next(reversed(pending))]) > _wait(come[0]):
            come = sorted([*pending.values(), *come], key=_wait)
            pending.clear()
        pending.update((job.number, job) for job in come)

    def _count_idle(self) -> None:
        state = self.state
        for node, gpus in enumerate(state.machines.node_gpus):
            idle = sum(not state.residents[gpu] for gpu in gpus)
            state.idle_count[node] = 0 if node in state.down else idle

    def _read_job(self, track: TrackedJob) -> None:
        live, job, now = track.live, track.job, self.state.now
        job.workload, track.alone_only = self._made.place[track.category], live.alone_only
        track.read_history(self._estimates.of(track.live), self.state.now)
        if live.state not in HOLDING or live.run is None:
            job.phase, job.gpus, job.shares, job.rate = "pending", (), None, 0.0
            job.work_s, job.checkpoint_s = self._estimates.of(live), math.inf
            return
        place = self._made.gpu_place
        job.phase = "running"
        job.gpus = tuple(place[seat.gpu] for seat in live.run.seats)
        shares = tuple(seat.share for seat in live.run.seats)
        job.shares = shares if any(shares) else None
        if live.state is JobState.STARTING:
            job.since_s = now
        if live.state is JobState.STOPPING:
            # Its devices are idle soon, so no other job has to be stopped for them.
            job.work_s = job.done(now) + live.grace_s
        job.resumed_s, job.checkpoint_s = track.past.done_s, math.inf
        if live.state is JobState.RUNNING and live.spec.requeue:
            job.checkpoint_s = _or(live.spec.checkpoint_s, math.inf)
        job.stops_apart_s = _or(live.spec.stops_apart_s, STOPS_APART_S)
        job.restart_s = live.spec.grace_s + max(LEAST_START_S, track.past.start_up_s)

    def _rate(self, job: Job) -> float:
        """Return the believed rate of a running job, in seconds of work per second."""
        state = self.state
        speed = state.speed[state.machines.model[job.gpus[0]]][job.workload]
        return speed / max(self._slowdown(job, gpu) for gpu in job.gpus)

    def _slowdown(self, job: Job, gpu: int) -> float:
        """Return a job's slowdown on one GPU; if unknown, as if the jobs there took turns."""
        residents = self.state.residents[gpu]
        in_turn, found = float(len(residents)), math.nan
        if in_turn == 1:
            return slowdown_alone(self.state.workloads[job.workload], job.share_on(gpu)) or 1.0
        pairs = [[self._beside(a, b, gpu) for b in residents] for a in residents]
        shares = [other.share_on(gpu) for other in residents]
        if self.state.products and not any(shares):
            found = float(product_slowdown(pairs)[residents.index(job)])
        elif in_turn <= LARGEST:
            alone = [
                slowdown_at_last(self.state.workloads[other.workload], share)
                for other, share in zip(residents, shares, strict=True)
            ]
            found = float(slowdown_at(pairs, shares, alone=alone)[residents.index(job)])
        return in_turn if math.isnan(found) else found

    def _beside(self, job: Job, other: Job, gpu: int) -> float:
        machines = self.state.machines
        found = self.beliefs.pair(
            self.machine.jobs[job.id],
            self.machine.jobs[other.id],
            (job.share_on(gpu), other.share_on(gpu)),
            machines.models[machines.model[gpu]],
        )
        return found.slowdown if found else math.nan


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _sequence(live: LiveJob) -> int:
    return live.sequence


def _wait(job: Job) -> tuple[float, int]:
    return job.waiting_since_s, job.number


def _gang_sizes(tracks: Sequence[TrackedJob]) -> dict[str, int]:
    """Return the workers of the largest job of each workload."""
    sizes: dict[str, int] = {}
    for track in tracks:
        sizes[track.name] = max(track.job.workers, sizes.get(track.name, 0))
    return sizes


def _usable_mib(cluster: Cluster) -> list[float]:
    """Return the memory of each device that jobs may use."""
    taken = cluster.reserve_mib + cluster.per_process_mib
    return [gpu.memory_mib - taken for node in cluster.nodes for gpu in node.devices]
