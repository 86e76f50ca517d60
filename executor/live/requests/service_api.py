"""The requests that a service answers, independent of the transport, and the views in the answers.

Requests ask rounds what `RoundsForUsers` lists; all other data that they share is in `Live`. Rounds
and observation ask nothing of each other.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Protocol

from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import JobSpec, Owner, SharedEnvironments, brief
from dovetail.executor.jobs.state_machine import RESTARTED, StateMachine
from dovetail.executor.jobs.states import HOLDING, OVER, QUEUED, UNDER_WAY, WATCHED, JobState
from dovetail.executor.live.errors import RefusedError, UnknownJobError
from dovetail.executor.live.live import NOTHING, Live, RunReading
from dovetail.executor.live.requests.admission import (
    AdmissionLimits,
    is_administrator,
    refuse_after,
    refuse_another,
    refuse_edit,
    refuse_hopeless,
    refuse_others,
    refuse_scaling,
    refuse_too_many,
    refuse_too_much,
    refuse_values,
)
from dovetail.executor.live.views import (
    EVERY,
    LISTED_CHARACTERS,
    Chosen,
    DeviceView,
    HourAhead,
    JobView,
    ServiceView,
    Statistics,
    StepView,
    Wait,
)
from dovetail.executor.pools.pool import awaited_text
from dovetail.executor.pools.runs.files import RunFiles
from dovetail.instances._record import shown
from dovetail.instances._version import VERSION
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan


def listed(
    machine: StateMachine,
    over: bool,
    chosen: Chosen,
    now_s: float,
    named: Callable[[LiveJob], str | None],
) -> list[LiveJob]:
    """Return the chosen jobs: only jobs that are not over, or all.

    ``named`` returns the name of a job if it may be shown.

    Raises
    ------
    InputError
        If ``before`` names a job that never existed.
    """
    before = math.inf
    if chosen.before is not None:
        said = re.fullmatch(r"j([1-9]\d{0,17})", chosen.before, re.ASCII)
        if said is None or int(said[1]) > machine.submitted:
            raise InputError(f"must be the id of a job, got {shown(chosen.before)}", "before")
        before = int(said[1])

    def fits(job: LiveJob) -> bool:
        return (
            chosen.user in (None, job.spec.owner.name)
            and chosen.name in (None, named(job))
            and chosen.state in (None, job.state)
            and int(job.id[1:]) < before
        )

    last = islice(filter(fits, _last_first(machine, over, chosen, now_s)), chosen.limit)
    return [*last][::-1]


def _last_first(
    machine: StateMachine, over: bool, chosen: Chosen, now_s: float
) -> Iterable[LiveJob]:
    """Return the jobs among which a list chooses; jobs that are over can be many times as many."""
    if chosen.within_s is not None:
        since_s = now_s - chosen.within_s
        found = [machine.jobs[job] for ended_s, _, job in machine.over if ended_s >= since_s]
    elif over or chosen.state in OVER:
        return reversed(machine.jobs.values())
    else:
        found = machine.live()
    return sorted(found, key=attrgetter("sequence"), reverse=True)


def job_views(
    live: Live, rounds: RoundsForUsers, jobs: Iterable[LiveJob], history: bool = False
) -> list[JobView]:
    """Return the views of jobs; with ``history``, they include the jobs' histories."""
    machine = live.machine
    residents = machine.residents()
    replicas = Counter(job.service for job in machine.live() if job.service)
    found = []
    for job in jobs:
        seen = NOTHING
        if job.run is not None and job.state not in QUEUED:
            of_runs = live.readings.now if job.state in HOLDING else live.readings.readings
            seen = of_runs.get(job.run.id, NOTHING)
        capped = rounds.why_capped(job) if job.state in HOLDING else ""
        waiting_for = rounds.waiting_for(job) if job.state in QUEUED else ""
        view = _job_view(job, residents, seen, waiting_for, capped, history)
        found.append(_with_service(view, job, live, replicas) if job.service else view)
    return found


def _with_service(view: JobView, job: LiveJob, live: Live, replicas: Mapping[str, int]) -> JobView:
    """Return the view of a job with what only a service has."""
    spec, run = job.spec, job.run if job.state in HOLDING else None
    node = live.devices.node_of(run.seats[0].gpu) if run is not None else None
    port = run.port if run is not None else None
    up = view.ready if job.state in UNDER_WAY else False
    return replace(
        view,
        service=True,
        replica=spec.index,
        replicas=replicas.get(job.service, 0),
        ready=None if spec.probe is None else bool(up),
        restarts=max(0, job.runs - 1),
        quick_ends=job.quick_ends,
        again_s=job.again_s,
        node=node,
        port=port,
        address=f"{node}:{port}" if node and port else "",
        probe=spec.probe,
    )


def _job_view(
    job: LiveJob,
    residents: Mapping[str, list[LiveJob]],
    seen: RunReading,
    waiting_for: str,
    capped: str,
    history: bool,
) -> JobView:
    spec, run = job.spec, job.run
    seats = run.seats if run is not None else ()
    others = [
        tuple(other.id for other in residents.get(seat.gpu, ()) if other is not job)
        for seat in seats
        if job.state in HOLDING
    ]
    return JobView(
        id=job.id,
        name=spec.name,
        owner=spec.owner.name,
        uid=spec.owner.uid,
        command=spec.command if history else brief(spec.command, LISTED_CHARACTERS),
        cwd=spec.cwd,
        workload=spec.workload,
        workers=spec.workers,
        workers_per_node=spec.workers_per_node,
        workers_together=spec.workers_together,
        priority=spec.priority,
        nice=spec.nice,
        gsla=spec.gsla,
        isolation=spec.isolation,
        unisolated=job.unisolated,
        state=job.state,
        why=job.why,
        waiting_for=waiting_for,
        submitted_s=job.submitted_s,
        since_s=job.since_s,
        started_s=next((step.at_s for step in job.history if step.state in WATCHED), None),
        ended_s=job.since_s if job.state in OVER else None,
        runs=job.runs,
        run=run.id if run is not None else None,
        gpus=tuple(seat.gpu for seat in seats),
        shares=tuple(seat.share for seat in seats),
        capped=capped,
        co_runners=tuple(others),
        pids=tuple(rank.pid for rank in job.ranks),
        statuses=tuple(rank.status for rank in job.ranks),
        estimate_s=spec.estimate_s,
        walltime_s=spec.walltime_s,
        retries=spec.retries,
        requeue=spec.requeue,
        grace_s=spec.grace_s,
        checkpoint_s=spec.checkpoint_s,
        stops_apart_s=spec.stops_apart_s,
        public_log=spec.public_log,
        output=spec.output,
        error=spec.error,
        held=job.held,
        awaits=tuple(job.awaits),
        index=spec.index,
        history=tuple(StepView(**step._asdict()) for step in job.history) if history else (),
        memory_mib=spec.memory_mib,
        memory_percent=spec.memory_percent,
        memory_limit_mib=min((seat.memory_mib for seat in seats if seat.memory_mib), default=None),
        p99_promised_s=seen.p99_alone_s and spec.gsla and seen.p99_alone_s * spec.gsla,
        **seen._asdict(),
    )


def _last_to_serve(replicas: Sequence[LiveJob], number: int) -> list[LiveJob]:
    """Return the replicas to cancel: those that hold no device first, then the highest numbers."""
    order = sorted(replicas, key=lambda one: (one.state in HOLDING, -(one.spec.index or 0)))
    return order[:number]


_FOR_OTHERS: Final = (
    *(
        "id",
        "owner",
        "uid",
        "workers",
        "workers_per_node",
        "workers_together",
        "priority",
        "nice",
        "gsla",
        "isolation",
        "state",
    ),
    *("waiting_for", "submitted_s", "since_s", "started_s", "ended_s", "runs", "run", "gpus"),
    *("shares", "co_runners", "slowdown", "predicted", "upper", "predicted_by", "memory_mib"),
    *("memory_percent", "memory_limit_mib", "memory_used_mib", "memory_held_by", "walltime_s"),
    *("retries", "grace_s", "checkpoint_s", "stops_apart_s", "public_log", "held", "awaits"),
    *("service", "replica", "replicas", "ready", "restarts", "quick_ends", "again_s", "p99_s"),
    *("p99_alone_s", "p99_promised_s", "estimate_s", "requeue", "energy_j", "device_s"),
)


_FOR_ADMINISTRATORS: Final = "something is wrong, and administrators see what"
"""The trouble of a private service, as other users see it."""


def for_others(job: JobView) -> JobView:
    """Return the view of a job for other users of a private service.

    It has only the fields of ``_FOR_OTHERS``, which show why devices are busy and for how long. It
    does not show what the job is, nor texts that might say so.
    """
    kept = {name: getattr(job, name) for name in _FOR_OTHERS}
    history = tuple(replace(step, why=step.state.value) for step in job.history)
    return JobView(command=(), workload="", why=job.state.value, history=history, **kept)


def device_views(live: Live) -> tuple[DeviceView, ...]:
    """Return the views of a pool's devices."""
    machine, seen = live.machine, live.readings
    residents, present = machine.residents(), machine.shares.present
    found = []
    for node, gpu in ((at, gpu) for at in live.devices.cluster.nodes for gpu in at.devices):
        used = seen.usage.get(gpu.id)
        found.append(
            DeviceView(
                id=gpu.id,
                node=node.id,
                rack=node.rack,
                model=gpu.model,
                memory_mib=gpu.memory_mib,
                jobs=tuple(job.id for job in residents.get(gpu.id, ())),
                measuring=present.share if present and present.gpu == gpu.id else None,
                used_mib=used.memory_mib if used else None,
                power_w=seen.power_w.get(gpu.id),
                energy_j=used.energy_j if used else None,
                metrics=used.metrics if used else {},
                source=used.source if used else "",
                uuid=used.uuid if used else "",
                number=used.number if used else None,
                parts=seen.parts.get(gpu.id, ()),
                trouble=machine.devices[gpu.id].trouble if gpu.id in machine.devices else "",
            )
        )
    return tuple(found)


class RoundsForUsers(Protocol):
    """What requests ask of rounds; thread-safe.

    ``audience`` is the only user whose workloads may be named; empty: all users' may.
    """

    def noted(self, service: ServiceView) -> ServiceView:
        """Return the view of the service with the last decision and the evidence for shares."""

    def waiting_for(self, job: LiveJob) -> str:
        """Return what a waiting job lacks; empty for other jobs."""

    def waits(self) -> Mapping[Wait, int]:
        """Return the number of waiting jobs by what they lack."""

    def why_capped(self, job: LiveJob) -> str:
        """Return why a run has an SM share, if a co-runner is the reason; empty if none is."""

    def explain(self, job: LiveJob, audience: str = "") -> str:
        """Return why a job waits and what would let it start, or where it runs."""

    def instance(self, audience: str = "") -> Instance:
        """Return the present round."""

    def plan(self, audience: str = "") -> Plan:
        """Return a plan of the policy's present decision."""

    def outlook(self, audience: str = "") -> HourAhead:
        """Return what is expected to start and to end within the next hour."""


class Troubled(Protocol):
    """A part that may fail without the service's failing."""

    @property
    def trouble(self) -> str:
        """What is wrong; empty if nothing is."""


class ServiceApi:
    """Answers requests; every method is thread-safe.

    Methods that change something return once the change is durable, and raise BusyError if that
    fails. ``by`` is the requesting user, known from the connection, or None for the service itself;
    root and the service's own user are administrators. Methods that take a job's id raise
    UnknownJobError if there is no such job, and RefusedError if the user lacks the right.

    Parameters
    ----------
    live : Live
        What the parts of the service share.
    rounds : RoundsForUsers
        Answers what concerns decisions.
    troubled : sequence of Troubled
        Parts whose troubles the view of the service names.
    policy : str
        Name and options of the policy.
    limits : AdmissionLimits
        The limits for users.
    private : bool
        Whether users see no details of the jobs of others.
    """

    def __init__(
        self,
        live: Live,
        rounds: RoundsForUsers,
        troubled: Sequence[Troubled],
        *,
        policy: str,
        limits: AdmissionLimits,
        private: bool,
    ) -> None:
        self._live, self._machine, self._lock = live, live.machine, live.lock
        self._rounds, self._troubled, self._policy = rounds, troubled, policy
        self._limits, self._private = limits, private
        self._started_s = live.now_s
        self._environments = SharedEnvironments()

    # Requests that change something.

    def submit(self, specs: Sequence[JobSpec], by: Owner, key: str = "") -> tuple[str, ...]:
        """Accept all jobs or none, and return their ids.

        A key makes it safe to repeat a request that got no answer: the same user's next request
        with the key returns the same ids, as long as the service knows these jobs.

        Raises
        ------
        InputError
            If a job can never run here, or may not run as its owner, or the key was used for other
            jobs.
        """
        paths = [f"jobs[{k}]." if len(specs) > 1 else "" for k in range(len(specs))]
        for spec, path in zip(specs, paths, strict=True):
            self._refuse_impossible(spec, by, path)
        request = f"{by.uid} {key}" if key else ""
        specs = self._environments.in_common(specs)

        def submitted() -> list[AnyEvent]:
            if request in self._machine.requests:
                refuse_another(
                    specs, [self._machine.jobs[job] for job in self._machine.requests[request]]
                )
                return []
            for spec, path in zip(specs, paths, strict=True):
                refuse_after(spec, self._machine, path)
            refuse_too_many(len(specs), by, self._machine, self._limits.waiting)
            more_bytes = self._machine.charges.more(specs)
            refuse_too_much(more_bytes, by, self._machine, self._limits.mib)
            at_s = self._live.now_s
            made = [
                events.Submitted(at_s=at_s, job=f"j{k}", spec=spec, request=request)
                for k, spec in enumerate(specs, self._machine.submitted + 1)
            ]
            return [*made, *self._live.beliefs.known(specs, at_s)]

        def ids(asked: Sequence[AnyEvent]) -> tuple[str, ...]:
            made = [event.job for event in asked if isinstance(event, events.Submitted)]
            return tuple(made or self._machine.requests.get(request, ()))

        return self._live.requests.ask(submitted, ids)

    def _refuse_impossible(self, spec: JobSpec, by: Owner, path: str) -> None:
        live = self._live
        cluster = None if live.pool.awaited else live.devices.cluster
        refuse_hopeless(spec, by, cluster, self._limits, path)

    def cancel(self, job: str, by: Owner, grace_s: float | None = None) -> JobView:
        """Begin to end a job; do nothing if it is over.

        ``grace_s`` (seconds from now to the kill) may shorten the job's own grace period, even
        while the job is being stopped.
        """

        def cancelled(live: LiveJob, at_s: float) -> list[AnyEvent]:
            refuse_others(live, by, "cancel")
            if live.state in OVER:
                return []
            return [events.CancelRequested(at_s=at_s, job=job, by=by.name, grace_s=grace_s)]

        return self._changed(job, cancelled)

    def hold(self, job: str, on: bool, by: Owner) -> JobView:
        """Hold a waiting job, so that it does not start until it is released; or release it."""

        def held(live: LiveJob, at_s: float) -> list[AnyEvent]:
            refuse_others(live, by, "hold" if on else "release")
            if live.state not in QUEUED:
                rule = "may be held while it waits" if on else "is held only while it waits"
                raise RefusedError(f"{job} is {live.state}: a job {rule}")
            if on == bool(live.held):
                return []
            return [events.HoldChanged(at_s=at_s, job=job, on=on, by=by.name)]

        return self._changed(job, held)

    def edit(self, job: str, changes: Mapping[str, Any], by: Owner) -> JobView:
        """Change fields of the ``JobSpec`` of a waiting job.

        Only its owner may, as it runs with the owner's rights; administrators may change ``nice``.
        ``replicas`` is no field of a job: it is the number of replicas of a service, which may run.

        Raises
        ------
        InputError
            If a field breaks a rule, or cannot be changed (any more).
        """
        if "replicas" in changes:
            return self._scale(job, changes, by)

        def edited(live: LiveJob, at_s: float) -> list[AnyEvent]:
            refuse_edit(live, changes, by)
            spec = live.spec.changed(changes)
            refuse_values(live, spec)
            self._refuse_impossible(spec, by, "")
            if spec == live.spec:
                return []
            charges = self._machine.charges
            more_bytes = charges.more([spec]) - charges.more([live.spec])
            refuse_too_much(max(more_bytes, 0), live.spec.owner, self._machine, self._limits.mib)
            change = events.Edited(at_s=at_s, job=job, spec=spec, by=by.name)
            return [change, *self._live.beliefs.known([spec], at_s)]

        return self._changed(job, edited)

    def _scale(self, job: str, changes: Mapping[str, Any], by: Owner) -> JobView:
        """Submit more replicas of a service like this one, or cancel some."""

        def scaled(live: LiveJob, at_s: float) -> list[AnyEvent]:
            refuse_scaling(live, changes, by)
            machine, replicas = self._machine, self._machine.replicas(live.service)
            wanted = changes["replicas"]
            if len(replicas) >= wanted:
                return [
                    events.CancelRequested(at_s=at_s, job=one.id, by=by.name)
                    for one in _last_to_serve(replicas, len(replicas) - wanted)
                ]
            more = wanted - len(replicas)
            refuse_too_many(more, by, machine, self._limits.waiting)
            taken = {one.spec.index or 0 for one in replicas}
            free = [*islice((k for k in count() if k not in taken), more)]
            numbers = range(machine.submitted + 1, machine.submitted + 1 + more)
            first = int(live.service[1:])
            specs = [
                live.spec.model_copy(
                    update={
                        "index": free[k],
                        "place": number - first,
                        "held": False,
                        "after": (),
                        "after_any": (),
                    }
                )
                for k, number in enumerate(numbers)
            ]
            refuse_too_much(machine.charges.more(specs), by, machine, self._limits.mib)
            return [
                events.Submitted(at_s=at_s, job=f"j{number}", spec=spec)
                for number, spec in zip(numbers, specs, strict=True)
            ]

        return self._changed(job, scaled)

    def pause(self, job: str, on: bool, by: Owner) -> JobView:
        """Suspend the processes of a running job, or resume them."""

        def paused(live: LiveJob, at_s: float) -> list[AnyEvent]:
            refuse_others(live, by, "pause" if on else "resume")
            if live.state not in UNDER_WAY:
                what = "be paused while it runs" if on else "be resumed while it is paused"
                raise RefusedError(f"{job} is {live.state}: a job may {what}")
            if on is (live.state is JobState.PAUSED):
                return []
            return [events.PauseChanged(at_s=at_s, job=job, on=on, by=by.name)]

        return self._changed(job, paused)

    def requeue(self, job: str, by: Owner, hold: bool = False) -> JobView:
        """Stop a job's run so that the job waits again; with ``hold``, it is also held."""

        def requeued(live: LiveJob, at_s: float) -> list[AnyEvent]:
            refuse_others(live, by, "requeue")
            if live.state in OVER:
                raise RefusedError(f"{job} is {live.state}: submit it again")
            holds = events.HoldChanged(at_s=at_s, job=job, on=True, by=by.name)
            found: list[AnyEvent] = [holds] if hold and not live.held else []
            if live.again_s is not None:
                found.append(events.RestartDue(at_s=at_s, job=job))
            if live.run is None or live.state in QUEUED or live.state is JobState.STOPPING:
                return found
            if not live.spec.requeue:
                raise RefusedError(f"{job} was submitted with --no-requeue")
            reason = f"requeued by {by.name}"
            stop = events.StopDecided(at_s=at_s, run=live.run.id, reason=reason, then="wait")
            return [*found, stop]

        return self._changed(job, requeued)

    def _changed(self, job: str, change: Callable[[LiveJob, float], Sequence[AnyEvent]]) -> JobView:
        """Make a change of a job durable in the service's thread, and return the job.

        Only its user and administrators may change it, and they see all of it.
        """
        self._live.requests.ask(lambda: change(self._job(job), self._live.now_s), lambda _: None)
        return self.job(job)

    def drain(self, gpus: Sequence[str], on: bool, by: Owner) -> ServiceView:
        """Drain devices, or all devices of nodes (all if none is named), or end the drain.

        Raises
        ------
        InputError
            If there is no such device.
        """
        if not is_administrator(by):
            raise RefusedError("only an administrator may drain devices")
        chosen = self._live.devices.named(gpus)

        def drained() -> list[AnyEvent]:
            at_s = self._live.now_s
            return [events.DrainChanged(at_s=at_s, gpus=chosen, on=on, by=by.name)]

        self._live.requests.ask(drained, lambda _: None)
        return self.service()

    # Views.

    def service(self, by: Owner | None = None) -> ServiceView:
        """Return the view of the service and its devices.

        Troubles may name workloads, such as a pair whose slowdowns drift.
        """
        live, machine = self._live, self._machine
        pool, awaited = live.pool, awaited_text(live.pool)
        with self._lock:
            states = Counter(map(attrgetter("state"), machine.jobs.values()))
            troubles = (*live.troubles.texts, *(part.trouble for part in self._troubled))
            trouble = "; ".join(filter(None, troubles))
            view = ServiceView(
                pool=pool.name,
                notice="; ".join(filter(None, [pool.notice, awaited])),
                policy=self._policy,
                version=VERSION,
                pid=os.getpid(),
                directory=live.directory,
                started_s=self._started_s,
                now_s=live.now_s,
                sequence=machine.sequence,
                jobs={state.value: count for state, count in states.items()},
                dry_run=live.dry_run,
                trouble=_FOR_ADMINISTRATORS if trouble and self._audience(by) else trouble,
                devices=device_views(live),
            )
            return self._rounds.noted(view)

    def jobs(
        self, over: bool = False, chosen: Chosen = EVERY, by: Owner | None = None
    ) -> Sequence[JobView]:
        """Return the jobs that are not over, or all jobs, in the order of submission.

        Jobs that are over are also returned if ``chosen`` selects a state or an end. Views of
        several jobs have no history.

        Raises
        ------
        InputError
            If ``chosen.before`` names a job that never existed.
        """
        with self._lock:
            now_s = self._live.now_s
            found = listed(self._machine, over, chosen, now_s, partial(self._name_for, by))
            return self._views(found, by)

    def holding(self, by: Owner | None = None) -> Sequence[JobView]:
        """Return the jobs that hold devices, in the order of submission."""
        with self._lock:
            held = sorted(self._machine.holding.values(), key=attrgetter("sequence"))
            return self._views(held, by)

    def statistics(self) -> Statistics:
        """Return figures over all jobs."""
        live, machine, counted = self._live, self._machine, self._live.counted
        with self._lock:
            since_s = (job.competes_since_s for job in machine.queued.values())
            return Statistics(
                waiting=self._rounds.waits(),
                oldest_wait_s=max(0.0, live.now_s - min(since_s, default=live.now_s)),
                ended={state: machine.tally[state.value] for state in OVER},
                restarts=machine.tally[RESTARTED],
                broken=counted.broken,
                decisions=dict(counted.decisions),
                decisions_s=counted.decisions_s,
            )

    def job(self, job: str, by: Owner | None = None) -> JobView:
        """Return one job with its history."""
        with self._lock:
            (view,) = self._views([self._job(job)], by, history=True)
        if self._hides(view.uid, by):
            return view
        return replace(view, log=self._log_file(view.run))

    def _views(
        self, jobs: Iterable[LiveJob], by: Owner | None, history: bool = False
    ) -> list[JobView]:
        views = job_views(self._live, self._rounds, jobs, history)
        return [for_others(view) if self._hides(view.uid, by) else view for view in views]

    def _hides(self, uid: int, by: Owner | None) -> bool:
        """Return whether details of the jobs of ``uid`` are hidden from a user."""
        mine = by is None or by.uid == uid or is_administrator(by)
        return self._private and not mine

    def _name_for(self, by: Owner | None, live: LiveJob) -> str | None:
        return None if self._hides(live.spec.owner.uid, by) else live.spec.name

    def _require_shown(self, live: LiveJob, by: Owner | None) -> None:
        if by is not None and self._hides(live.spec.owner.uid, by):
            rule = "a private service explains jobs to their users and to administrators"
            raise RefusedError(f"{live.id} is a job of {live.spec.owner.name}: {rule}")

    def _log_file(self, run: str | None) -> str:
        """Return the path of the output of a run's first rank; empty if it is not here."""
        if run is None or not self._live.directory:
            return ""
        log = RunFiles(Path(self._live.directory), run).rank(0).log
        return str(log) if log.exists() else ""

    @property
    def sequence(self) -> int:
        """Number of the last event; it changes whenever anything has happened (cheap)."""
        return self._machine.sequence

    def is_over(self, job: str) -> bool:
        """Return whether a job is over (cheap)."""
        return self._job(job).state in OVER

    def log_path(self, job: str, rank: int, by: Owner, run: int | None = None) -> str | None:
        """Return the newest log file of a rank in the last run, or in run number ``run``.

        None if there is no log file yet.

        Raises
        ------
        InputError
            If the job has no such rank or run.
        """
        name = self._run_to_read(job, rank, by, run)
        return self._live.pool.log_path(name, rank) if name else None

    def log_lack(self, job: str, rank: int, by: Owner, run: int | None = None) -> str:
        """Return why the file of the last ``log_path`` may lack output; empty if it lacks none.

        Raises
        ------
        InputError
            As ``log_path``.
        """
        name = self._run_to_read(job, rank, by, run)
        return self._live.pool.log_lack(name, rank) if name else ""

    def _run_to_read(self, job: str, rank: int, by: Owner, run: int | None) -> str | None:
        """Return the name of the run whose log a user asks for; None if none has started."""
        with self._lock:
            live = self._job(job)
            if not live.spec.public_log:
                refuse_others(live, by, "read the log of")
            if not 0 <= rank < live.spec.workers:
                raise InputError(f"must be < {live.spec.workers}, got {rank}", "rank")
            if run is not None and not 1 <= run <= live.runs:
                rule = f"must be from 1 to {live.runs}" if live.runs else "no run has started"
                raise InputError(f"{rule}, got {run}", "run")
            number = run or live.runs
        return f"{job}.{number}" if number else None

    # Plans.

    def instance(self, by: Owner | None = None) -> Instance:
        """Return the round that the service would solve now."""
        return self._rounds.instance(self._audience(by))

    def plan(self, by: Owner | None = None) -> Plan:
        """Return a plan of the policy's present decision, without carrying it out."""
        return self._rounds.plan(self._audience(by))

    def outlook(self, by: Owner | None = None) -> HourAhead:
        """Return what is expected to start and to end within the next hour; an estimate."""
        return self._rounds.outlook(self._audience(by))

    def explain(self, job: str, by: Owner | None = None) -> str:
        """Return why a job waits and what would let it start."""
        with self._lock:
            live = self._job(job)
            self._require_shown(live, by)
        return self._rounds.explain(live, self._audience(by))

    def _audience(self, by: Owner | None) -> str:
        """Return the only user whose workloads are named in a round; empty if all are."""
        return by.name if by is not None and self._hides(-1, by) else ""

    def _job(self, name: str) -> LiveJob:
        job = self._machine.jobs.get(name)
        if job is None:
            raise UnknownJobError(f"no job {shown(name)}")
        return job
