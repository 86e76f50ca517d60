"""The service: it joins the journal, the state machine, a pool and a policy, and loses no job.

One thread serves (``Service.run``); any thread may ask (``Service.api``). What happens is
journalled, applied by the state machine, and decided on; before anything is answered or carried
out, all of it is durable. While the journal cannot be written, requests are refused and nothing is
carried out; jobs run on, and what happens to them is kept until it can be written.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from dovetail.executor.jobs import events
from dovetail.executor.jobs.commands import Command, Launch, Pause, Release, Stop
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.journal import EVENTS_A_CHECKPOINT, Journal, JournalError
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.jobs.state_machine import TransitionError
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.admission import MOST_WAITING
from dovetail.executor.live.devices import Devices
from dovetail.executor.live.errors import BusyError
from dovetail.executor.live.fair_share import without_unfair_stops
from dovetail.executor.live.guarded_policy import AGAIN_S as POLICY_AGAIN_S
from dovetail.executor.live.guarded_policy import GuardedPolicy
from dovetail.executor.live.learning import Learner
from dovetail.executor.live.left_behind import LeftBehind
from dovetail.executor.live.notifying import Notifier
from dovetail.executor.live.observing import Observer
from dovetail.executor.live.policy_view import PolicyView
from dovetail.executor.live.presenting import device_views
from dovetail.executor.live.preview import REST, Preview
from dovetail.executor.live.profiling_queue import ProfilingQueue, first_starts
from dovetail.executor.live.recorder import Recorder
from dovetail.executor.live.request_queue import Request, RequestQueue
from dovetail.executor.live.room import DiskFullError, require_room
from dovetail.executor.live.service_api import Limits, ServiceApi
from dovetail.executor.live.starts import CannotStartError, in_groups, is_fresh, place, reservations
from dovetail.executor.live.views import ServiceView
from dovetail.executor.live.watch import WatchOptions
from dovetail.executor.pools.pool import SAMPLE_S, NodePool, told_awaited
from dovetail.executor.pools.run_files import KEEP_S, PRUNE_S
from dovetail.executor.rounds import run_rounds
from dovetail.executor.system.clock import ServiceClock, boot_id, boot_s
from dovetail.instances._version import VERSION
from dovetail.instances.datasets import Repository
from dovetail.instances.errors import DovetailError
from dovetail.predictors import TrainedPredictor
from dovetail.solver.policies import Decision, Start, State

_LOG: Final = logging.getLogger("dovetail.live")

AGAIN_S: Final = 2.0
"""Seconds after which what the disk, a pool or a policy refused is tried again."""

MOST_GRACE_S: Final = 3600.0
"""The longest grace that a job may have, unless the administrator allows more."""

PRUNE_FIRST_S: Final = 60.0
"""Seconds after the start that what is old is removed for the first time."""

_SOONEST_S: Final = 0.1
_LONGEST_IDLE_S: Final = 3600.0
_MODEL: Final = "fitted.dovetail"
_QUIET: Final = frozenset({"recorded", "rank_started", "rank_ready", "placed", "reserved"})
_PATIENT: Final = _QUIET | {"submitted"}


class Service:
    """Runs the jobs of a journal on a pool (a ``rounds.Pool``).

    Parameters
    ----------
    journal : Journal
        Held by nobody else.
    pool : NodePool
        Where jobs run; nobody has resumed it yet.
    repository : Repository
        Profiles and measurements: what is believed of workloads, and where new ones go.
    policy : str
        Name and options, as in ``policy_named``.
    model : TrainedPredictor, optional
        Predicts what was not measured; the analytic predictor where there is none.
    watching : WatchOptions, optional
        How long runs are looked at before something is said of them.
    sample_s : float
        Seconds between two looks at what runs.
    directory : path
        The state directory, for people.
    dry_run : bool
        Never start or stop anything; ``plan`` says what would be.
    any_user : bool, optional
        Whether jobs may run as other users than the service's; by default if that is root.
    most_grace_s : float
        The longest grace that a job may have, seconds.
    most_waiting : int
        How many jobs of a user who is no administrator may wait.
    keep_s : float
        Seconds for which events and logs of ended jobs are kept.
    max_jobs_per_gpu : int, optional
        How many jobs may share a device; by default as many as the pool says.
    boot_s : callable
        Returns seconds since the machine booted, also to the pool.
    notify : sequence of str, optional
        What is run for each job that is over (``Notifier``).

    Attributes
    ----------
    api : ServiceApi
        What people may ask, from any thread.
    ready : threading.Event
        Set once ``run`` has taken up what an earlier service left: from then on answers are true.
        Where the journal cannot be written yet, requests are refused until it can.

    Raises
    ------
    UnsupportedError
        When there is no such policy.
    JournalError
        When the journal cannot be read. A repository that cannot be read is tried again while
        the service runs: until then nothing is believed of any pair.
    """

    def __init__(
        self,
        journal: Journal,
        pool: NodePool,
        repository: Repository,
        policy: str = "dovetail",
        *,
        model: TrainedPredictor | None = None,
        watching: WatchOptions | None = None,
        sample_s: float = SAMPLE_S,
        directory: str | Path = "",
        dry_run: bool = False,
        any_user: bool | None = None,
        most_grace_s: float = MOST_GRACE_S,
        most_waiting: int = MOST_WAITING,
        keep_s: float = KEEP_S,
        max_jobs_per_gpu: int | None = None,
        boot_s: Callable[[], float] = boot_s,
        notify: Sequence[str] | None = None,
    ) -> None:
        self.ready = threading.Event()
        self._journal = journal
        self._pool = pool
        self._directory = os.fspath(directory)
        self._dry_run = dry_run
        self._keep_s = keep_s
        self._lock = threading.RLock()
        self._requests = RequestQueue()
        self._troubles: dict[str, str] = {}
        self._policy = GuardedPolicy(policy, self._troubles)
        self._machine = journal.replay()
        # Of what was over before, somebody has been told.
        self._machine.ended.clear()
        self._notifier = None if notify is None or dry_run else Notifier(notify)
        self._clock = ServiceClock(self._machine.now_s, boot_s)
        self._started_s = self._clock.now_s()
        self._prune_s = math.inf if dry_run else self._started_s + PRUNE_FIRST_S
        self._devices = Devices(pool, max_jobs_per_gpu)
        self._recorder = Recorder(repository, self._requests.ring)
        into = Path(directory) / _MODEL if directory and not dry_run else None
        models = self._devices.models
        self._learner = Learner(repository, models.values(), model, into, self._requests.ring)
        beliefs = self._learner.beliefs
        cluster = self._devices.cluster
        self._left = LeftBehind(self._machine)
        self._view = PolicyView(self._machine, cluster, beliefs, pool.sharing, self._allowed)
        watching = watching or WatchOptions()
        self._observer = Observer(
            self._machine, pool, self._devices, self._view, watching, sample_s
        )
        self._profiling = ProfilingQueue(self._machine, watching.profile_most_s)
        self.api = ServiceApi(
            machine=self._machine,
            lock=self._lock,
            clock=self._clock,
            requests=self._requests,
            pool=pool,
            devices=self._devices,
            observer=self._observer,
            preview=Preview(
                self._machine,
                self._clock,
                pool,
                self._view,
                self._policy,
                self._profiling,
                self._left,
            ),
            known=self._known_of,
            show=self._shown,
            limits=Limits(
                os.geteuid() == 0 if any_user is None else any_user, most_grace_s, most_waiting
            ),
            directory=self._directory,
            dry_run=dry_run,
        )
        # What has happened and is not durable yet, and what is to be done for what is.
        self._news: list[AnyEvent] = []
        self._commands: list[Command] = []
        # When to do what again, on the service's clock.
        self._again_s = self._wake_s = math.inf
        self._rest_until_s = -math.inf
        self._changed = self._urgent = True
        self._first_s = 0.0
        self._decide_s: float | None = None
        self._gap: float | None = None
        self._learn()

    @property
    def state(self) -> State:
        """What the policy sees."""
        return self._view.state

    # The life of a service.

    def run(self) -> None:
        """Serve until ``stop``; every job runs on afterwards."""
        try:
            self._take_up()
            run_rounds(self, self._policy)
            # So that the next start reads no events.
            self._checkpoint(every=1)
        finally:
            self._requests.abandon()
            self._pool.close()
            if self._notifier is not None:
                self._notifier.close()
            self._recorder.close()
            self._learner.close()

    def stop(self) -> None:
        """Let ``run`` return; from any thread."""
        self._requests.close()

    def _take_up(self) -> None:
        """Take up what an earlier service left; nothing is done before it is all known."""
        held = list(self._machine.holding.values())
        beyond = self._pool.resume([job.run for job in held if job.run is not None])
        adopted = self._left.adopted(beyond, self._clock.now_s())
        if not self._is_durable([self._attached(), *adopted]):
            return
        strays = self._left.end_strays(beyond)
        self._left.await_ranks([job.id for job in held], self._clock.now_s())
        told = self._of_jobs(self._stamped(self._pool.poll()))
        if not self._is_durable([*self._others(), *told, *self._newly_known()]):
            return
        releases = [command for command in self._commands if isinstance(command, Release)]
        self._commands = [*releases, *strays, *self._machine.outstanding()]
        self._pool.attach(self._requests.ring)
        self._record_what_was_measured()
        self.ready.set()

    def _is_durable(self, happened: Sequence[AnyEvent]) -> bool:
        """Record what a start rests on, however long that takes; False: the service stops first."""
        self._news = [*happened]
        self._record(())
        while self._news and not self._requests.closed:
            self.ready.set()
            self._requests.wait(AGAIN_S)
            self._record(self._requests.take())
        return not self._news

    def _attached(self) -> AnyEvent:
        return events.ServiceStarted(
            at_s=self._clock.now_s(),
            boot=boot_id(),
            pool=self._pool.name,
            gpus=tuple(self._devices.models),
            version=VERSION,
        )

    # The round loop (``rounds.Pool``).

    def advance(self) -> bool:
        """Serve until a decision is called for; False once the service stops."""
        while not self._requests.closed:
            self._serve()
            if self._decision_is_due() and self._prepared():
                return True
            self._execute_commands()
            self._requests.wait(self._idle_s())
        return False

    def _prepared(self) -> bool:
        """Bring the policy's state up to date; False where that fails, until it is tried again."""
        self._changed = self._urgent = False
        self._wake_s = math.inf
        try:
            self._view.renew(self._clock.now_s())
        except Exception as error:
            self._report_error("world", error)
            self._wake_s = self._clock.now_s() + POLICY_AGAIN_S
            return False
        self._troubles.pop("world", None)
        return self._dry_run or (self._has_room() and self._began_first())

    def _has_room(self) -> bool:
        """Tell whether the disk has room for what starts write; where not, nothing is decided."""
        try:
            require_room(self._directory)
        except (DiskFullError, OSError) as error:
            self._report_error("disk", error)
            self._changed, self._rest_until_s = True, self._again_s
            return False
        self._troubles.pop("disk", None)
        return True

    def _began_first(self) -> bool:
        """Start what comes before the policy's choice; False where the journal is full."""
        began = time.perf_counter()
        try:
            chosen = first_starts(self._machine, self.state, self._profiling, self._policy)
            with closing(chosen) as first:
                for starts, looks in first:
                    begun = self._start_all(starts)
                    if looks and begun:
                        self._profiling.note(begun[0], self.state)
        except JournalError as error:
            self._report_error("journal", error)
            self._changed, self._rest_until_s = True, self._again_s
            return False
        self._first_s = time.perf_counter() - began
        self._execute_urgent_commands()
        return True

    def carry_out(self, decision: Decision, decide_s: float) -> None:
        """Place and stop jobs as decided, as far as the check of placements lets them."""
        decide_s += self._first_s
        self._decide_s = decide_s
        self._gap = decision.proof.gap if decision.proof else None
        self._rest_until_s = self._clock.now_s() + REST * decide_s
        # A policy that asks for the past would never let the service rest.
        soonest_s = self._clock.now_s() + _SOONEST_S
        self._wake_s = math.inf if decision.wake_s is None else max(decision.wake_s, soonest_s)
        if self._dry_run:
            return
        try:
            self._decide(decision)
        except JournalError as error:
            self._report_error("journal", error)
            self._changed, self._rest_until_s = True, self._again_s
        self._execute_commands()

    def _decide(self, decision: Decision) -> None:
        decision = without_unfair_stops(decision, self._machine)
        for job in decision.stops:
            run = self._machine.jobs[job.id].run
            if run is not None and run.spec.requeue:
                at_s, why = self._clock.now_s(), "the policy gives its devices to others"
                stop = events.StopDecided(at_s=at_s, run=run.id, reason=why, then="wait")
                self._commit([stop])
        self._start_all(decision.starts)
        self._commit(reservations(self._view, decision.reserved))
        self._pool.lack(sum(job.spec.workers for job in self._machine.queued.values()))

    def _start_all(self, starts: Sequence[Start]) -> list[Start]:
        """Place jobs, and return the starts that became some."""
        begun: list[Start] = []
        for group in in_groups(starts):
            if self._start(group):
                begun += group
            elif len(group) > 1 or group[0].shares:
                # A policy that was refused would decide the same again: nobody would ever start.
                alone = (start._replace(shares=None) for start in group)
                begun += [
                    one for one in alone if is_fresh(self._view.state, one) and self._start([one])
                ]
        return begun

    def _start(self, group: Sequence[Start]) -> bool:
        """Place jobs that start together unless a rule is broken; tell whether they were placed."""
        try:
            placed = place(self._view, group, self._left.held)
        except CannotStartError as error:
            _LOG.warning("%s", error, exc_info=error.__cause__)
            return False
        self._commit([one.replace(at_s=self._clock.now_s()) for one in placed])
        self._profiling.begin(self._machine.jobs[start.job.id] for start in group)
        return True

    def _allowed(self, spec: JobSpec, model: str) -> Collection[int]:
        """Return the shares that a job may have: those that compute right with its library."""
        return self._pool.allowed(self._machine.library(spec), model)

    def _decision_is_due(self) -> bool:
        if self._news:
            return False
        now_s = self._clock.now_s()
        rested = self._urgent or now_s >= self._rest_until_s
        return now_s >= self._wake_s or (self._changed and rested)

    def _idle_s(self) -> float:
        """Return for how long nothing is to be done unless somebody rings, an hour at most."""
        moments = [self._wake_s, self._again_s, self._prune_s]
        moments += map(_deadline_s, self._machine.holding.values())
        if not self._dry_run:
            moments.append(self._observer.next_s)
        moments.append(self._left.lost_s)
        if self._changed and not self._news:
            moments.append(self._rest_until_s)
        return min(max(0.0, min(moments) - self._clock.now_s()), _LONGEST_IDLE_S)

    # One turn: what has happened, what is asked, and what is to be done for it.

    def _serve(self) -> None:
        requests = self._requests.take()
        happened = self._of_jobs(self._polled())
        self._see_ends(happened)
        self._news += happened
        if not self._news:
            self._news = [
                *self._left.lost(self._clock.now_s()),
                *self._overdue(),
                *self._measured(),
                *self._recorded(),
            ]
        if self._news or requests:
            self._record(requests)
        self._record_what_was_measured()
        self._execute_urgent_commands()
        if self._clock.now_s() >= self._prune_s:
            self._prune()

    def _prune(self) -> None:
        """Remove what is old from the journal, and from the pool, which is not waited for."""
        now_s = self._clock.now_s()
        self._prune_s = now_s + PRUNE_S
        try:
            self._journal.compact(self._machine, now_s - self._keep_s)
        except JournalError as error:
            _LOG.warning("the journal is not compacted: %s", error)
        threading.Thread(target=self._pool.prune, args=(self._keep_s,), daemon=True).start()

    def _polled(self) -> list[AnyEvent]:
        told: list[AnyEvent] = []
        try:
            told = self._stamped(self._pool.poll())
            # Asked after what it tells, journalled before: that may be of new devices.
            return [*self._others(), *told]
        except Exception as error:
            self._report_error("pool", error)
            return told

    def _see_ends(self, happened: Sequence[AnyEvent]) -> None:
        """Look once more how far those came that have ended, before their runs are released."""
        for run in {event.run for event in happened if isinstance(event, events.RankEnded)}:
            try:
                self._observer.last.note_end(run, self._pool.progress(run))
            except Exception as error:
                self._report_error("watch", error)

    def _stamped(self, told: Sequence[AnyEvent]) -> list[AnyEvent]:
        at_s, found = self._clock.now_s(), []
        for event in told:
            if isinstance(event, events.RankEnded) and event.ended_s is not None:
                event = event.replace(ended_s=min(self._clock.at(event.ended_s), at_s))
            found.append(event.replace(at_s=at_s))
        return found

    def _of_jobs(self, told: Sequence[AnyEvent]) -> list[AnyEvent]:
        """Return the events but those of strays, which are let go of as they end."""
        found, over = self._left.sort(told)
        self._commands += over
        if over:
            self._changed = self._urgent = True
        return found

    def _overdue(self) -> list[AnyEvent]:
        """Return that the runs are to end which have had their walltime."""
        at_s = self._clock.now_s()
        return [
            events.StopDecided(
                at_s=at_s,
                run=job.run.id,
                reason=f"its walltime of {job.spec.walltime_s:.15g} s is over",
                then="fail",
            )
            for job in self._machine.holding.values()
            if job.run is not None and _deadline_s(job) <= at_s
        ]

    def _measured(self) -> list[AnyEvent]:
        """Look at what runs, if it is time to, and return what follows from it."""
        now_s = self._clock.now_s()
        if self._dry_run or now_s < self._observer.next_s:
            return []
        try:
            found = self._observer.sample(now_s, self._clock.boot_s())
        except Exception as error:
            self._report_error("watch", error)
            return []
        self._troubles.pop("watch", None)
        return found

    def _record_what_was_measured(self) -> None:
        if not self._dry_run:
            self._recorder.offer(self._machine.unrecorded)

    def _recorded(self) -> list[AnyEvent]:
        """Return that what was measured is in the repository, and believe it from now on."""
        sequence = self._recorder.recorded()
        if sequence is None and not self._learner.fitting and "repository" not in self._troubles:
            return []
        self._learn()
        at_s = self._clock.now_s()
        recorded = [] if sequence is None else [events.Recorded(at_s=at_s, sequence=sequence)]
        return [*recorded, *self._newly_known()]

    def _learn(self) -> None:
        try:
            beliefs = self._learner.news()
        except DovetailError as error:
            self._report_error("repository", error)
            return
        self._troubles.pop("repository", None)
        if beliefs is not None:
            self._view.learn(beliefs)
            self._changed = self._urgent = True

    def _newly_known(self) -> list[AnyEvent]:
        """Return which workloads that wait for a profile have one in the repository."""
        unknown = {
            job.spec.key: job.spec
            for job in self._machine.queued.values()
            if job.state is JobState.SUBMITTED and not job.alone_only
        }
        return self._known_of(unknown.values())

    def _known_of(self, specs: Iterable[JobSpec]) -> list[AnyEvent]:
        """Return which workloads the repository has the profile of, and the journal does not."""
        at_s, models = self._clock.now_s(), self._devices.told_models
        keys = {
            spec.key for spec in specs if any(self._view.alone(spec, model) for model in models)
        }
        new = sorted(keys - self._machine.profiled)
        return [events.WorkloadKnown(at_s=at_s, uid=uid, workload=name) for uid, name in new]

    def _record(self, requests: Sequence[Request]) -> None:
        """Make what has happened and what is asked durable, together; answer who asked."""
        granted = []
        jobs = self._machine.submitted
        for request in self._requests.each_once(requests):
            try:
                asked = list(request.events(jobs))
                _require_text(asked)
            except Exception as error:
                # Whatever is wrong with one request, the others are served.
                if not isinstance(error, DovetailError):
                    _LOG.exception("a request is refused")
                request.refuse(error)
            else:
                jobs += sum(isinstance(event, events.Submitted) for event in asked)
                granted.append((request, asked))
        try:
            self._commit([*self._news, *(event for _, asked in granted for event in asked)])
            self._news = []
            if granted:
                self._journal.sync()
        except JournalError as error:
            self._report_error("journal", error)
            for request, asked in granted:
                request.reply(asked) if not asked else request.refuse(BusyError(str(error)))
            return
        for request, asked in granted:
            request.reply(asked)

    def _commit(self, happened: Sequence[AnyEvent]) -> None:
        """Journal events, then tell the state machine.

        Raises
        ------
        JournalError
            When they are not journalled; the state machine does not know of them then.
        """
        if not happened:
            return
        self._journal.append(happened)
        self._troubles.pop("journal", None)
        for event in happened:
            try:
                with self._lock:
                    self._commands += self._machine.apply(event)
            except TransitionError as error:
                _LOG.warning("%s is passed over: %s", event.kind, error)
        if any(isinstance(event, events.DevicesChanged) for event in happened):
            self._take_up_devices()
        self._changed |= any(event.kind not in _QUIET for event in happened)
        self._urgent |= any(event.kind not in _PATIENT for event in happened)
        self._checkpoint()

    def _others(self) -> list[AnyEvent]:
        """Return that the pool has other devices now, and what is known of workloads on them."""
        news = self._devices.news(self._clock.now_s())
        return [*news, *self._newly_known()] if news else []

    def _take_up_devices(self) -> None:
        with self._lock:
            self._devices.take_up()
            models = self._devices.models
            self._view.equip(self._devices.cluster)
            self._observer.equip(models)
            self._learner.equip(models.values())

    def _checkpoint(self, every: int = EVENTS_A_CHECKPOINT) -> None:
        try:
            self._journal.checkpoint(self._machine, every)
        except JournalError as error:
            _LOG.warning("no checkpoint: %s", error)

    def _execute_urgent_commands(self) -> None:
        """Carry out what cannot wait for a decision, as the release of ended runs can."""
        if any(not isinstance(command, Release) for command in self._commands):
            self._execute_commands()

    def _execute_commands(self) -> None:
        """Carry out what is to be done; what a pool fails to do is tried again."""
        if self._again_s <= self._clock.now_s():
            self._again_s = math.inf
        try:
            self._journal.sync()
        except JournalError as error:
            self._report_error("journal", error)
            return
        while self._machine.ended:
            job = self._machine.ended.popleft()
            if self._notifier is not None:
                self._notifier.tell(job)
        commands, self._commands = self._commands, []
        if self._dry_run:
            return
        for command in commands:
            try:
                self._carry_out(command)
            except Exception as error:
                self._report_error("pool", error)
                self._commands.append(command)
        if commands and not self._commands:
            self._troubles.pop("pool", None)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Launch(run):
                job = self._machine.holding.get(run.job)
                # It may have been stopped, or another run have taken its place.
                if job is not None and job.run == run and job.state is not JobState.STOPPING:
                    self._pool.launch(run)
            case Stop(run, grace_s):
                self._pool.stop(run, grace_s)
            case Pause(run, on):
                self._pool.pause(run, on)
            case Release(run):
                self._pool.release(run)

    def _report_error(self, what: str, error: Exception) -> None:
        """Show what went wrong, and see that it is tried again."""
        told = str(error) or type(error).__name__
        if self._troubles.get(what) != told:
            unforeseen = None if isinstance(error, DovetailError) else error
            _LOG.error("%s: %s", what, told, exc_info=unforeseen)
        self._troubles[what] = told
        self._again_s = min(self._again_s, self._clock.now_s() + AGAIN_S)

    # What is shown of the service.

    def _shown(self) -> ServiceView:
        """Return the service and its devices."""
        awaited, seen = told_awaited(self._pool), self._observer
        with self._lock:
            return ServiceView(
                pool=self._pool.name,
                notice="; ".join(filter(None, [self._pool.notice, awaited])),
                policy=self._policy.name,
                version=VERSION,
                pid=os.getpid(),
                directory=self._directory,
                started_s=self._started_s,
                now_s=self._clock.now_s(),
                sequence=self._machine.sequence,
                jobs=Counter(job.state.value for job in self._machine.jobs.values()),
                decide_s=self._decide_s,
                gap=self._gap,
                dry_run=self._dry_run,
                trouble="; ".join(filter(None, self._all_troubles())),
                devices=device_views(
                    self._machine, self._devices.cluster, seen.usage, seen.power_w
                ),
            )

    def _all_troubles(self) -> list[str]:
        own = self._troubles.copy().values()
        notifier = self._notifier.trouble if self._notifier is not None else ""
        return [*own, notifier, self._pool.trouble, self._recorder.trouble, self._learner.trouble]


def _require_text(asked: Iterable[AnyEvent]) -> None:
    """Raise what the journal would, before it has the events of others, too."""
    for event in asked:
        event.model_dump_json()


def _deadline_s(job: LiveJob) -> float:
    """Return when a run has had its walltime; never where it has none, or is being stopped.

    Nor while nothing of it runs: whoever serves next may launch it much later than it was placed.
    """
    if job.spec.walltime_s is None or job.stop_then:
        return math.inf
    started = (rank.started_s for rank in job.ranks if rank.started_s is not None)
    return min(started, default=math.inf) + job.spec.walltime_s
