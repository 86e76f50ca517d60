"""The requests that a service answers, independent of the transport."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import JobSpec, Owner
from dovetail.executor.jobs.states import OVER, QUEUED, UNDER_WAY, JobState
from dovetail.executor.jobs.words import SharedEnvironments
from dovetail.executor.live.errors import RefusedError, UnknownJobError
from dovetail.executor.live.live import Live
from dovetail.executor.live.parts import RoundsForUsers, Troubled
from dovetail.executor.live.requests.admission import (
    AdmissionLimits,
    is_administrator,
    refuse_after,
    refuse_another,
    refuse_edit,
    refuse_hopeless,
    refuse_others,
    refuse_too_many,
    refuse_too_much,
    refuse_values,
)
from dovetail.executor.live.requests.presenting import (
    device_views,
    for_others,
    job_views,
    listed,
)
from dovetail.executor.live.views import EVERY, Chosen, JobView, ServiceView
from dovetail.executor.pools.pool import awaited_text
from dovetail.executor.pools.runs.files import RunFiles
from dovetail.instances._record import shown
from dovetail.instances._version import VERSION
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan


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

        Raises
        ------
        InputError
            If a field breaks a rule, or cannot be changed (any more).
        """

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

    def service(self) -> ServiceView:
        """Return the view of the service and its devices."""
        live, machine = self._live, self._machine
        pool, awaited = live.pool, awaited_text(live.pool)
        with self._lock:
            troubles = (*live.troubles.texts, *(part.trouble for part in self._troubled))
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
                jobs=Counter(job.state.value for job in machine.jobs.values()),
                dry_run=live.dry_run,
                trouble="; ".join(filter(None, troubles)),
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
        return self._live.pool.log_path(f"{job}.{number}", rank) if number else None

    # Plans.

    def instance(self, by: Owner | None = None) -> Instance:
        """Return the round that the service would solve now."""
        return self._rounds.instance(self._audience(by))

    def plan(self, by: Owner | None = None) -> Plan:
        """Return a plan of the policy's present decision, without carrying it out."""
        return self._rounds.plan(self._audience(by))

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
