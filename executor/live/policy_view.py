"""The pool as policies and plans see it: made of the state machine and of what is believed.

A policy's ``State`` knows workloads, not what is special about a job. So jobs are sorted into
*kinds* (``kinds.Kind``): those of one user's workload that need equal memory, and those that run
alone, whatever they run. No slowdown is believed of the latter, so nobody is put beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Final, Self

from dovetail.executor.jobs import events
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import JobSpec, Run, Seat, WorkloadKey
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import HOLDING, OVER, JobState
from dovetail.executor.live.beliefs import WHOLE, Belief, Beliefs
from dovetail.executor.live.device_check import why_not_free
from dovetail.executor.live.policy_state import KindState, useful_caps
from dovetail.executor.live.run_history import RunHistory
from dovetail.executor.live.sharing_classes import Kind, Layout, workload_name
from dovetail.executor.second_opinion import malformed, violations
from dovetail.executor.state_instance import instance_of
from dovetail.formulations.rules import slowdown_alone
from dovetail.instances.errors import DovetailError
from dovetail.instances.instance import Cluster, Instance, Workload
from dovetail.instances.sets import LARGEST, set_slowdown
from dovetail.solver.policies import Job, Start, State
from dovetail.solver.policies.state import Reservation

__all__ = [
    "UNKNOWN_WORK_S",
    "Allowed",
    "CannotStartError",
    "PolicyView",
    "Sharing",
    "workload_name",
]

Sharing = Callable[[Run, Run], str | None]
"""Why two runs may never share a device; None where they may (``NodePool.sharing``)."""

Allowed = Callable[[JobSpec, str], Collection[int]]
"""The shares that a job may have on a device model: those that compute right with its library."""

UNKNOWN_WORK_S: Final = 3600.0
"""What a job is believed to need of which neither its owner nor an earlier run tells anything."""

MEMORY_STEP_MIB: Final = 64.0
"""To a multiple of which the memory that owners name is rounded up, so that kinds are few."""

_UNREAD: Final = Kind(-1, "", 0.0)
_KEPT_ALONE: Final = frozenset(
    {JobState.PROFILING, JobState.PAUSED, JobState.STOPPING, JobState.LOST}
)


class CannotStartError(DovetailError):
    """Starts break a rule: nothing was changed, and the jobs wait."""


_Shares = Mapping[tuple[Kind, str], Collection[int]]


@dataclass
class _Track:
    """What is kept of a job that is not over, beside what policies see of it.

    ``steps`` of its history and ``alone_only`` are what was read of it last; ``kind`` is what
    that made it.
    """

    live: LiveJob
    spec: JobSpec
    job: Job
    key: WorkloadKey
    name: str
    kind: Kind
    steps: int = 0
    alone_only: str = ""
    past: RunHistory = field(default_factory=RunHistory)

    @classmethod
    def of(cls, live: LiveJob) -> Self:
        """Begin with a job of which nothing has been read."""
        name = workload_name(live.spec)
        return cls(live, live.spec, _seen_as(live), live.spec.key, name, _UNREAD)

    @property
    def changed(self) -> bool:
        """Whether it may be somewhere else, or of another kind, than when it was read."""
        live = self.live
        read = self.steps == len(live.history) and self.alone_only == live.alone_only
        return not read or self.job.phase == "running"


@dataclass
class _Mean:
    """The mean of the seconds that a workload's jobs ran until they had finished."""

    seconds: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += (seconds - self.seconds) / self.count


@dataclass
class PolicyView:
    """Keeps a policy's state up to date with the state machine, and makes instances of it.

    Parameters
    ----------
    machine : StateMachine
        Is read only.
    cluster : Cluster
        The pool's devices and the shares that may be used on them (``NodePool.cluster``).
    beliefs : Beliefs
        Replaced by ``learn``.
    sharing : callable, optional
        Why two runs may never share a device; it may look at their owners only. Default: all may.
    allowed : callable, optional
        The shares that a job may have on a device model; jobs of one user's workload may have the
        same. Default: the cluster's.
    strays : callable, optional
        The devices that runs of no job may still hold, and which. Default: none.

    Attributes
    ----------
    state : State
        What policies decide on; ``renew`` says when it is another object.
    """

    machine: StateMachine
    cluster: Cluster
    beliefs: Beliefs
    sharing: Sharing = lambda first, second: None
    allowed: Allowed | None = None
    strays: Callable[[], Mapping[str, str]] = dict
    state: State = field(init=False)
    _made: KindState = field(init=False)

    def __post_init__(self) -> None:
        self.equip(self.cluster)
        self._tracks: dict[str, _Track] = {}
        self._lasted: dict[WorkloadKey, _Mean] = {}
        self._place: dict[Kind, int] = {}
        self._sizes: dict[str, int] = {}
        self._specs: dict[Kind, JobSpec] = {}
        self._basis: tuple[object, ...] = ()
        for live in self.machine.jobs.values():
            self._note_duration(live)
        self.renew(self.machine.now_s)

    # What comes in.

    def equip(self, cluster: Cluster) -> None:
        """Use the devices that the pool has now, from the next ``renew`` on."""
        self.cluster = cluster
        self._gpus = {gpu.id: gpu for node in cluster.nodes for gpu in node.devices}
        self._models = tuple(dict.fromkeys(gpu.model for gpu in self._gpus.values()))
        taken = cluster.reserve_mib + cluster.per_process_mib
        self._sizes_mib = [gpu.memory_mib - taken for gpu in self._gpus.values()]
        self._most_mib = max(self._sizes_mib, default=0.0)
        self._profiles: dict[str, Workload | None] = {}
        self._stale = True

    def learn(self, beliefs: Beliefs) -> None:
        """Believe something newer from the next ``renew`` on."""
        self.beliefs = beliefs
        self._profiles = {}
        self._stale = True

    def note_progress(self, job: str, iterations: float, total: float | None, now_s: float) -> None:
        """Note how many iterations the present run of a job has done by now, and of how many.

        Nothing is learned from it where the job does not run, or its rate alone is not known.
        """
        track = self._tracks.get(job)
        known = self._known(workload_name(self.machine.jobs[job].spec)) if track else None
        rate = known.throughput.get(WHOLE) if known else None
        if track is None or rate is None or track.job.phase != "running":
            return
        seen = track.job
        self._read_history(track)
        seen.done_s = track.past.done_s + iterations / rate
        seen.since_s = max(seen.since_s, now_s)
        if total is not None:
            seen.work_s = track.past.done_s + total / rate

    def renew(self, now_s: float) -> bool:
        """Bring ``state`` up to date with the state machine.

        Policies that remember something by GPU or by workload must forget it when the state is
        another object. Jobs keep their numbers, and the objects that they are, for life.

        Parameters
        ----------
        now_s : float
            The service's clock; it becomes ``state.now``.

        Returns
        -------
        bool
            Whether ``state`` is another object now: devices, workloads or beliefs have changed.
        """
        # Up to now at the rates they have had, whatever they are from now on.
        for job in [track.job for track in self._tracks.values()]:
            if job.phase == "running":
                job.done_s, job.since_s = job.done(now_s), max(job.since_s, now_s)
        finished = self._follow()
        layout = Layout.of(self.machine, self._gpus, self.machine.holding.values())
        self._note_basis(layout)
        # Most jobs wait, and of most of those nothing is new.
        changed = [t for t in self._tracks.values() if self._stale or t.changed]
        for track in changed:
            track.kind = self._kind(track, layout)
        replaced = self._rebuild_where_needed(layout, changed)
        self.state.now = now_s
        self._estimate_anew(finished)
        self._fill(list(self._tracks.values()) if replaced else changed, layout)
        return replaced

    # What goes out.

    def place(self, *starts: Start) -> list[events.Placed]:
        """Return the events for starts of one group, and enter the starts into ``state``.

        ``renew`` takes back what the state machine never hears of.

        Parameters
        ----------
        *starts : Start
            Of the present ``state``; as ``in_groups`` has them.

        Raises
        ------
        CannotStartError
            When one of them would break a rule (``refusal``), or cannot even be checked.
        """
        names = ", ".join(start.job.id for start in starts)
        try:
            refusal = self.refusal(*starts)
        except Exception as error:
            told = f"{names} cannot start, as the check failed: {type(error).__name__}"
            raise CannotStartError(told) from error
        if refusal:
            raise CannotStartError(f"{names} cannot start: {refusal}")
        placed = []
        for start in starts:
            live = self.machine.jobs[start.job.id]
            profiling = not live.alone_only and not self.machine.may_share(live)
            run = self._run(start)
            placed.append(events.Placed(at_s=self.state.now, run=run, profiling=profiling))
            self._enter(start)
        return placed

    def reservations(self, wanted: Mapping[int, Reservation]) -> list[events.Reserved]:
        """Return the events for what a decision reserves, of the present ``state``."""
        jobs, ids = self.state.pending, self.state.machines.gpu_ids
        kept = {
            jobs[number].id: (tuple(ids[gpu] for gpu in one.gpus), one.until_s)
            for number, one in wanted.items()
            if number in jobs and all(0 <= gpu < len(ids) for gpu in one.gpus)
        }
        known = {job: (one.gpus, one.until_s) for job, one in self.machine.reserved.items()}
        gone = {job: ((), 0.0) for job in known if job not in kept}
        return [
            events.Reserved(at_s=self.state.now, job=job, gpus=gpus, until_s=until_s)
            for job, (gpus, until_s) in (gone | kept).items()
            if known.get(job) != (gpus, until_s)
        ]

    def is_fresh(self, start: Start) -> bool:
        """Tell whether nobody is on the devices of a start."""
        residents = self.state.residents
        return all(0 <= gpu < len(residents) and not residents[gpu] for gpu in start.gpus)

    def refusal(self, *starts: Start) -> str | None:
        """Return which rule starts of one group would break; None where they break none.

        Rules of the round problem are the checker's (``second_opinion``), on what ``state`` says;
        what no plan tells is asked of the state machine and of the pool.
        """
        told = [why for start in starts for why in malformed(self.state, start)]
        if told:
            return told[0]
        residents, strays = self.machine.residents(), self.strays()
        for run in map(self._run, starts):
            busy = why_not_free(run, self.machine, residents, strays)
            refused = busy or self._refused_by_pool(run, residents)
            if refused:
                return refused
        return next(iter(violations(self.state, starts)), None)

    def _refused_by_pool(self, run: Run, residents: Mapping[str, Sequence[LiveJob]]) -> str | None:
        """Return why the pool cannot run a job at its shares, or beside whom it would be."""
        for seat in run.seats:
            allowed = self._allowed_for(run.spec, self._gpus[seat.gpu].model)
            if seat.share is not None and seat.share not in allowed:
                return f"a share of {seat.share} % is not known to compute right on {seat.gpu}"
            for other in residents[seat.gpu]:
                apart = other.run and self.sharing(run, other.run)
                if apart:
                    return f"{run.job} and {other.id} may not share: {apart}"
        return None

    def _run(self, start: Start) -> Run:
        """Return the run that a start would begin."""
        live, gpu_ids = self.machine.jobs[start.job.id], self.state.machines.gpu_ids
        shares = start.shares or (None,) * start.job.workers
        seats = tuple(
            Seat(gpu=gpu_ids[gpu], share=share, memory_mib=live.spec.memory_mib)
            for gpu, share in zip(start.gpus, shares, strict=True)
        )
        return Run(id=f"{live.id}.{live.runs + 1}", job=live.id, spec=live.spec, seats=seats)

    def believed(self, first: str, second: str, gpu: str) -> tuple[Belief, Belief] | None:
        """Return what is believed of two jobs that share a device, None where nothing is.

        Parameters
        ----------
        first, second : str
            Jobs that hold the device.
        gpu : str
            Its id.
        """
        jobs = [self.machine.jobs[name] for name in (first, second)]
        shares = [job.run.share_on(gpu) if job.run else None for job in jobs]
        names = [workload_name(job.spec) for job in jobs]
        model = self._gpus[gpu].model
        mine = self._made.table.belief(model, (shares[0], shares[1]), names[0], names[1])
        theirs = self._made.table.belief(model, (shares[1], shares[0]), names[1], names[0])
        return None if mine is None or theirs is None else (mine, theirs)

    def instance(self) -> Instance:
        """Return the round that ``state`` poses: all jobs that are not over, all beliefs.

        Kinds are its workloads. Devices that take nobody and hold nobody are left out.
        """
        alone = [k for k, kind in enumerate(self._made.kinds) if kind.alone]
        return instance_of(self.state, self.cluster, self._troubled, alone)

    # Which devices and kinds there are.

    def _follow(self) -> set[WorkloadKey]:
        """Take up new jobs and let go of ended ones; return the workloads of which one finished."""
        finished: set[WorkloadKey] = set()
        left = (
            t
            for t in self._tracks.values()
            if t.live.state in OVER or t.live.barred or t.spec is not t.live.spec
        )
        for track in [*left]:
            del self._tracks[track.live.id]
            track.job.phase = "finished"
            self.state.pending.pop(track.job.number, None)
            if self._note_duration(track.live):
                finished.add(track.key)
        for jobs in (self.machine.queued, self.machine.holding):
            for name in jobs.keys() - self._tracks.keys():
                self._tracks[name] = track = _Track.of(jobs[name])
                self._stale |= track.job.workers > self._sizes.get(track.name, 0)
        return finished

    def _note_duration(self, live: LiveJob) -> bool:
        """Note for how long a job ran, and tell whether it finished."""
        if live.state is not JobState.FINISHED:
            return False
        lasted = self._lasted.setdefault(live.spec.key, _Mean())
        lasted.add(RunHistory.of(live).last_ran_s)
        return True

    def _note_basis(self, layout: Layout) -> None:
        """See whether that has changed on which all kinds and beliefs rest."""
        basis = (layout.troubled, self.machine.apart, self.machine.broken)
        if basis != self._basis:
            self._basis, self._stale = basis, True

    def _estimate_anew(self, finished: Collection[WorkloadKey]) -> None:
        """Believe something newer of how long the jobs take of which one has finished."""
        for key in finished:
            work_s = self._lasted[key].seconds
            for track in self._tracks.values():
                waits = track.key == key and track.job.phase == "pending"
                if waits and track.live.spec.estimate_s is None:
                    track.job.work_s = work_s

    def _kind(self, track: _Track, layout: Layout) -> Kind:
        live, name = track.live, track.name
        given, known = live.spec.memory_mib, self._known(name)
        if given is None:
            # What ran once fits, however wide the bound on its next run is.
            need = min(known.memory_mib, self._most_mib) if known else 0.0
        else:
            need = math.ceil(given / MEMORY_STEP_MIB) * MEMORY_STEP_MIB
        shares = (
            self.machine.may_share(live)
            and live.state not in _KEPT_ALONE
            and live.id not in layout.closed
        )
        if shares and known and need:
            separated = any(live.id in pair for pair in self.machine.apart)
            return Kind(live.spec.owner.uid, name, need, live.id if separated else "")
        return Kind(-1, "", self._least_device_mib(need))

    def _known(self, name: str) -> Workload | None:
        """Return what is known of a workload that was profiled on one of the pool's models."""
        if name not in self._profiles:
            self._profiles[name] = self.beliefs.workload(name, self._models)
        return self._profiles[name]

    def _least_device_mib(self, need_mib: float) -> float:
        """Return the most that a job may need that fits on the same devices as this one.

        Who runs alone is told apart by the devices that hold him, and by nothing else.
        """
        enough = [size for size in self._sizes_mib if size >= need_mib]
        if need_mib == 0 or len(enough) == len(self._sizes_mib):
            return 0.0
        return min(enough, default=need_mib)

    def _rebuild_where_needed(self, layout: Layout, changed: Sequence[_Track]) -> bool:
        shown = [track for track in changed if track.live.id not in layout.hidden]
        known = not self._stale and all(track.kind in self._place for track in shown)
        if known and self._made.allowed == self._shares_of(self._specs):
            return False
        shown = [t for name, t in self._tracks.items() if name not in layout.hidden]
        self._stale, self._troubled = False, layout.troubled
        self._sizes = _gang_sizes(shown)
        self._specs = {track.kind: track.live.spec for track in shown}
        self._made = self._kind_state(shown)
        self._place = {kind: k for k, kind in enumerate(self._made.kinds)}
        self.state = self._made.state(self.cluster, layout)
        self._gpu_place = {gpu: k for k, gpu in enumerate(self.state.machines.gpu_ids)}
        return True

    def _kind_state(self, shown: Sequence[_Track]) -> KindState:
        known = [name for name in self._sizes if self._known(name) is not None]
        caps = useful_caps(self.cluster, self.beliefs.measured_caps)
        return KindState(
            kinds=tuple(self._specs),
            table=self.beliefs.table(known, self._models, caps, self._sizes).after(
                self.machine.broken
            ),
            profile=self._known,
            apart=self._who_keeps_apart(shown),
            separated=frozenset(self.machine.apart),
            allowed=self._shares_of(self._specs),
        )

    def _shares_of(self, specs: Mapping[Kind, JobSpec]) -> _Shares:
        """Return the shares that jobs of each kind, such as these, may have on each model."""
        return {
            (kind, model): set() if kind.alone else self._allowed_for(spec, model)
            for kind, spec in specs.items()
            for model in self._models
        }

    def _allowed_for(self, spec: JobSpec, model: str) -> Collection[int]:
        shares = set(self.cluster.shares)
        return shares.intersection(self.allowed(spec, model)) if self.allowed and shares else shares

    def _who_keeps_apart(self, shown: Sequence[_Track]) -> set[tuple[int, int]]:
        """Return the pairs of users, both ways, that may not share a device."""
        of_user = {track.live.spec.owner.uid: track.live for track in shown}
        runs = {uid: self._example(live) for uid, live in of_user.items()}
        return {
            (a, b)
            for (a, first), (b, second) in product(runs.items(), repeat=2)
            if self.sharing(first, second) is not None
        }

    def _example(self, live: LiveJob) -> Run:
        """Return a run that a job has, or could have."""
        if live.run is not None:
            return live.run
        gpus = [*self._gpus, *(f"none {k}" for k in range(live.spec.workers))]
        seats = tuple(Seat(gpu=gpu) for gpu in gpus[: live.spec.workers])
        return Run(id=f"{live.id}.1", job=live.id, spec=live.spec, seats=seats)

    # Jobs in a state.

    def _fill(self, changed: Sequence[_Track], layout: Layout) -> None:
        """Put the jobs that have changed, all that hold devices among them, where they are."""
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
        """Return what is kept for the waiting jobs that policies see, on devices that are there."""
        place = self._gpu_place
        return {
            number: Reservation(tuple(place[gpu] for gpu in kept.gpus), kept.until_s)
            for job, kept in self.machine.reserved.items()
            if (number := self.machine.jobs[job].sequence) in self.state.pending
            and all(gpu in place for gpu in kept.gpus)
        }

    def _line_up(self, waiting: Sequence[Job]) -> None:
        """Put jobs into the queue, which is in the order in which they began to wait."""
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

    def _read_job(self, track: _Track) -> None:
        live, job, now = track.live, track.job, self.state.now
        job.workload, track.alone_only = self._place[track.kind], live.alone_only
        self._read_history(track)
        if live.state not in HOLDING or live.run is None:
            job.phase, job.gpus, job.shares, job.rate = "pending", (), None, 0.0
            job.work_s = self._work_s(live)
            return
        place = self._gpu_place
        job.phase = "running"
        job.gpus = tuple(place[seat.gpu] for seat in live.run.seats)
        shares = tuple(seat.share for seat in live.run.seats)
        job.shares = shares if any(shares) else None
        if live.state is JobState.STARTING:
            job.since_s = now

    def _read_history(self, track: _Track) -> None:
        live, job = track.live, track.job
        if track.steps == len(live.history):
            return
        past = RunHistory.of(live)
        began = live.state in HOLDING and past.ran_from_s != track.past.ran_from_s
        track.steps, track.past = len(live.history), past
        job.started_s, job.held_s, job.starts = past.started_s, past.held_s, live.runs
        job.waiting_since_s = max(past.waiting_since_s, live.competes_since_s)
        if live.state not in HOLDING or began:
            job.done_s = past.done_s
            job.since_s = self.state.now if math.isnan(past.ran_from_s) else past.ran_from_s
            job.work_s = self._work_s(live)

    def _work_s(self, live: LiveJob) -> float:
        """Return what a job is believed to need alone, in all."""
        if live.spec.estimate_s is not None:
            return live.spec.estimate_s
        lasted = self._lasted.get(live.spec.key)
        return lasted.seconds if lasted else UNKNOWN_WORK_S

    def _rate(self, job: Job) -> float:
        """Return the seconds of work that a running job is believed to do in a second."""
        state = self.state
        speed = state.speed[state.machines.model[job.gpus[0]]][job.workload]
        return speed / max(self._slowdown(job, gpu) for gpu in job.gpus)

    def _slowdown(self, job: Job, gpu: int) -> float:
        """Return a slowdown on one GPU; where nothing is known, as if its jobs took turns."""
        residents = self.state.residents[gpu]
        in_turn, found = float(len(residents)), math.nan
        if in_turn == 1:
            return slowdown_alone(self.state.workloads[job.workload], job.share_on(gpu)) or 1.0
        if in_turn <= LARGEST:
            pairs = [[self._beside(a, b, gpu) for b in residents] for a in residents]
            found = float(set_slowdown(pairs)[residents.index(job)])
        return in_turn if math.isnan(found) else found

    def _beside(self, job: Job, other: Job, gpu: int) -> float:
        live, their = self.machine.jobs[job.id], self.machine.jobs[other.id]
        caps = (job.share_on(gpu), other.share_on(gpu))
        model = self.state.machines.models[self.state.machines.model[gpu]]
        names = workload_name(live.spec), workload_name(their.spec)
        found = self._made.table.belief(model, caps, *names)
        return found.slowdown if found else math.nan

    def _enter(self, start: Start) -> None:
        state, job = self.state, start.job
        del state.pending[job.number]
        state.reserved.pop(job.number, None)
        state.running[job.number] = job
        job.phase, job.gpus, job.shares = "running", start.gpus, start.shares
        job.started_s = job.since_s = state.now
        job.done_s = self._tracks[job.id].past.done_s
        for gpu in start.gpus:
            state.residents[gpu].append(job)
        self._count_idle()
        for gpu in start.gpus:
            for resident in state.residents[gpu]:
                resident.done_s, resident.since_s = resident.done(state.now), state.now
                resident.rate = self._rate(resident)


def in_groups(starts: Sequence[Start]) -> list[tuple[Start, ...]]:
    """Return starts in groups that have no device in common."""
    group_of: dict[int, list[Start]] = {}
    for start in starts:
        met = {id(group_of[gpu]): group_of[gpu] for gpu in start.gpus if gpu in group_of}
        group = [*chain.from_iterable(met.values()), start]
        group_of.update((gpu, group) for one in group for gpu in one.gpus)
    return [tuple(group) for group in {id(group): group for group in group_of.values()}.values()]


def _seen_as(live: LiveJob) -> Job:
    spec = live.spec
    return Job(
        number=live.sequence,
        id=live.id,
        workload=0,
        workers=spec.workers,
        work_s=UNKNOWN_WORK_S,
        arrival_s=live.submitted_s,
        gsla=math.inf if spec.gsla is None else spec.gsla,
        weight=spec.weight,
        latency=spec.priority == "latency",
        tenant=spec.owner.name,
        waiting_since_s=live.submitted_s,
    )


def _wait(job: Job) -> tuple[float, int]:
    return job.waiting_since_s, job.number


def _gang_sizes(tracks: Sequence[_Track]) -> dict[str, int]:
    """Return the workers of the largest job of each workload."""
    sizes: dict[str, int] = {}
    for track in tracks:
        sizes[track.name] = max(track.job.workers, sizes.get(track.name, 0))
    return sizes
