"""The service: it joins the journal, the brain, a pool and a policy, and loses no job.

One thread serves (``Service.run``); any thread may ask (``Desk``). What happens is made durable,
then told to the brain, then carried out. While the journal cannot be written, requests are
refused and nothing is carried out; jobs run on, and what happens to them is kept until it can be
written.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from dovetail.executor.live import events
from dovetail.executor.live.admission import (
    MOST_WAITING,
    is_administrator,
    refuse_after,
    refuse_another,
    refuse_edit,
    refuse_hopeless,
    refuse_long_grace,
    refuse_others,
    refuse_too_many,
)
from dovetail.executor.live.brain import Brain, LiveJob, TransitionError, WorkloadKey
from dovetail.executor.live.clock import ServiceClock, boot_id, boot_s
from dovetail.executor.live.commands import Command, Launch, Pause, Release, Stop
from dovetail.executor.live.desk import EVERY, BusyError, Chosen, RefusedError, UnknownJobError
from dovetail.executor.live.devices import Devices
from dovetail.executor.live.events import AnyEvent
from dovetail.executor.live.fair_share import Precedence, turns, without_unfair_stops
from dovetail.executor.live.first_looks import FirstLooks
from dovetail.executor.live.jobs import JobSpec, Owner, Run
from dovetail.executor.live.journal import JournalError
from dovetail.executor.live.last_seen import LastSeen
from dovetail.executor.live.learning import Learner
from dovetail.executor.live.library import Library
from dovetail.executor.live.loaded import LoadedLibraries
from dovetail.executor.live.mailbox import Mailbox, Request
from dovetail.executor.live.notifying import Notifier
from dovetail.executor.live.planning import Lacks, of_job, of_round, plan_of
from dovetail.executor.live.pools.pool import SAMPLE_S, NodePool, Usage, told_awaited
from dovetail.executor.live.pools.run_files import KEEP_S, PRUNE_S, RunFiles
from dovetail.executor.live.presenting import device_views, job_views, listed, powers
from dovetail.executor.live.recorder import Recorder
from dovetail.executor.live.room import DiskFullError, require_room
from dovetail.executor.live.states import HOLDING, OVER, QUEUED, JobState
from dovetail.executor.live.unfailing import AGAIN_S as POLICY_AGAIN_S
from dovetail.executor.live.unfailing import UnfailingPolicy, asked
from dovetail.executor.live.views import JobView, ServiceView
from dovetail.executor.live.watch import WATCHED, Reading, Watch, WatchOptions, watched
from dovetail.executor.live.world import CannotStartError, World, in_groups
from dovetail.executor.rounds import run_rounds
from dovetail.instances._record import shown
from dovetail.instances._version import VERSION
from dovetail.instances.datasets import Repository
from dovetail.instances.errors import DovetailError, InputError
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan
from dovetail.predictors import TrainedPredictor
from dovetail.solver.policies import Decision, Start, State, objective_of, policy_named

_LOG: Final = logging.getLogger("dovetail.live")

AGAIN_S: Final = 2.0
"""Seconds after which what the disk, a pool or a policy refused is tried again."""

MOST_GRACE_S: Final = 3600.0
"""The longest grace that a job may have, unless the administrator allows more."""

PRUNE_FIRST_S: Final = 60.0
"""Seconds after the start that what is old is removed for the first time."""

_SOONEST_S: Final = 0.1
_LONGEST_IDLE_S: Final = 3600.0
_COSTLY_S: Final = 0.1
_MODEL: Final = "fitted.dovetail"
_ENDS: Final = frozenset({"rank_ended", "rank_gone", "rank_refused"})
_QUIET: Final = frozenset({"recorded", "rank_started", "rank_ready", "placed", "reserved"})
_PATIENT: Final = _QUIET | {"submitted"}

_UNDER_WAY: Final = WATCHED | {JobState.PAUSED}

TRACE_S: Final = 60.0
"""Seconds that a pool has at the start to tell of a run that should be there."""

REST: Final = 4.0
"""How many times as long as the last decision took the next one waits, if only jobs came."""


class Journal(Protocol):
    """Where events are durable (``journal.Journal``)."""

    def replay(self) -> Brain:
        """Return the brain after all events."""
        ...

    def append(self, events: Sequence[AnyEvent]) -> int:
        """Make events durable, all or none, and return the number of the last."""
        ...

    def checkpoint(self, brain: Brain) -> bool:
        """Store the brain now and then, so that the next start is quick."""
        ...

    def compact(self, brain: Brain, before_s: float) -> None:
        """Remove events before a moment, and the environments of jobs that are over."""
        ...


class Service:
    """Runs the jobs of a journal on a pool (a ``Desk`` and a ``rounds.Pool``).

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
        self._any_user = os.geteuid() == 0 if any_user is None else any_user
        self._most_grace_s = most_grace_s
        self._most_waiting = most_waiting
        self._keep_s = keep_s
        self._sample_every_s = sample_s
        self._lock = threading.RLock()
        self._mailbox = Mailbox()
        self._troubles: dict[str, str] = {}
        self._policy = UnfailingPolicy(policy, self._troubles)
        self._brain = journal.replay()
        # Of what was over before, somebody has been told.
        self._brain.ended.clear()
        self._notifier = None if notify is None or dry_run else Notifier(notify)
        self._clock = ServiceClock(self._brain.now_s, boot_s)
        self._started_s = self._clock.now_s()
        self._prune_s = math.inf if dry_run else self._started_s + PRUNE_FIRST_S
        self._devices = Devices(pool, max_jobs_per_gpu)
        self._recorder = Recorder(repository, self._mailbox.ring)
        into = Path(directory) / _MODEL if directory and not dry_run else None
        models = self._devices.models
        self._learner = Learner(repository, models.values(), model, into, self._mailbox.ring)
        self._loaded = LoadedLibraries(self._brain, pool, self._devices)
        beliefs = self._learner.beliefs
        cluster = self._devices.cluster
        self._world = World(
            self._brain, cluster, beliefs, pool.sharing, self._allowed, self._held_by_strays
        )
        self._knowledge = Library(self._world)
        watching = watching or WatchOptions()
        self._watch = Watch(models, self._knowledge, watching)
        self._looks = FirstLooks(self._brain, watching.profile_most_s)
        # What has happened and is not durable yet, and what is to be done for what is.
        self._news: list[AnyEvent] = []
        self._commands: list[Command] = []
        self._strays: dict[str, _Stray] = {}
        self._unseen: set[tuple[str, int]] = set()
        # When to do what again, on the service's clock.
        self._again_s = self._wake_s = math.inf
        self._rest_until_s = self._sampled_s = -math.inf
        self._changed = self._urgent = True
        self._first_s = 0.0
        self._planned: _Planned | None = None
        # What faces are shown.
        self._decide_s: float | None = None
        self._gap: float | None = None
        self._usage: Mapping[str, Usage] = {}
        self._readings: Mapping[str, Reading] = {}
        self._uppers: Mapping[str, float | None] = {}
        self._last_seen = LastSeen()
        self._power_w: Mapping[str, float] = {}
        self._learn()

    @property
    def state(self) -> State:
        """What the policy sees."""
        return self._world.state

    # The life of a service.

    def run(self) -> None:
        """Serve until ``stop``; every job runs on afterwards."""
        try:
            self._take_up()
            run_rounds(self, self._policy)
        finally:
            self._mailbox.abandon()
            self._pool.close()
            if self._notifier is not None:
                self._notifier.close()
            self._recorder.close()
            self._learner.close()

    def stop(self) -> None:
        """Let ``run`` return; from any thread."""
        self._mailbox.close()

    def _take_up(self) -> None:
        """Take up what an earlier service left; nothing is done before it is all known."""
        held = list(self._brain.holding.values())
        beyond = self._pool.resume([job.run for job in held if job.run is not None])
        adopted = [event for run in beyond for event in self._adopted(run)]
        if not self._is_durable([self._attached(), *adopted]):
            return
        strays = self._of_strays(beyond)
        self._unseen = {
            (job.run.id, rank)
            for job in held
            if job.run is not None and job.state in _UNDER_WAY
            for rank in range(len(job.ranks))
        }
        told = self._of_jobs(self._stamped(self._pool.poll()))
        if not self._is_durable([*self._others(), *told, *self._newly_known()]):
            return
        releases = [command for command in self._commands if isinstance(command, Release)]
        self._commands = [*releases, *strays, *self._brain.outstanding()]
        self._pool.attach(self._mailbox.ring)
        self._record_what_was_measured()
        self.ready.set()

    def _is_durable(self, happened: Sequence[AnyEvent]) -> bool:
        """Record what a start rests on, however long that takes; False: the service stops first."""
        self._news = [*happened]
        self._record(())
        while self._news and not self._mailbox.closed:
            self.ready.set()
            self._mailbox.wait(AGAIN_S)
            self._record(self._mailbox.take())
        return not self._news

    def _attached(self) -> AnyEvent:
        return events.ServiceStarted(
            at_s=self._clock.now_s(),
            boot=boot_id(),
            pool=self._pool.name,
            gpus=tuple(self._devices.models),
            version=VERSION,
        )

    def _adopted(self, run: Run) -> list[AnyEvent]:
        """Return what makes a run known whose start the journal has lost."""
        job = self._brain.jobs.get(run.job)
        lost = (
            job is not None
            and job.state in QUEUED
            and job.spec == run.spec
            and run.id == f"{job.id}.{job.runs + 1}"
        )
        if not lost:
            return []
        known = (run.spec.owner.uid, run.spec.workload) in self._brain.profiled
        return [events.Placed(at_s=self._clock.now_s(), run=run, profiling=not known)]

    def _untraced(self) -> list[AnyEvent]:
        """Return that the ranks are lost of which the pool has told nothing for long enough."""
        if not self._unseen or self._clock.now_s() < self._started_s + TRACE_S:
            return []
        unseen, self._unseen = sorted(self._unseen), set()
        at_s = self._clock.now_s()
        return [
            events.RankLost(at_s=at_s, run=run, rank=rank, reason="the pool has no trace of it")
            for run, rank in unseen
            if (job := self._brain.jobs[run.rpartition(".")[0]]).state in _UNDER_WAY
            and job.run is not None
            and job.run.id == run
        ]

    def _of_strays(self, beyond: Sequence[Run]) -> list[Command]:
        """Return what ends the runs that no job has: nobody would wait for them."""
        found: list[Command] = []
        for run in beyond:
            job = self._brain.jobs.get(run.job)
            if job is not None and job.run is not None and job.run.id == run.id:
                found += [] if job.state in HOLDING else [Release(run.id)]
            else:
                self._strays[run.id] = _Stray(run)
                found.append(Stop(run.id, run.spec.grace_s))
        return found

    # The round loop (``rounds.Pool``).

    def advance(self) -> bool:
        """Serve until a decision is called for; False once the service stops."""
        while not self._mailbox.closed:
            self._serve()
            if self._decision_is_due() and self._prepared():
                return True
            self._mailbox.wait(self._idle_s())
        return False

    def _prepared(self) -> bool:
        """Bring the policy's state up to date; False where that fails, until it is tried again."""
        self._changed = self._urgent = False
        self._wake_s = math.inf
        try:
            self._world.renew(self._clock.now_s())
        except Exception as error:
            self._be_in_trouble("world", error)
            self._wake_s = self._clock.now_s() + POLICY_AGAIN_S
            return False
        self._troubles.pop("world", None)
        return self._dry_run or (self._has_room() and self._began_first())

    def _has_room(self) -> bool:
        """Tell whether the disk has room for what starts write; where not, nothing is decided."""
        try:
            require_room(self._directory)
        except (DiskFullError, OSError) as error:
            self._be_in_trouble("disk", error)
            self._changed, self._rest_until_s = True, self._again_s
            return False
        self._troubles.pop("disk", None)
        return True

    def _began_first(self) -> bool:
        """Start what comes before the policy's choice; False where the journal is full."""
        began = time.perf_counter()
        try:
            with closing(self._first()) as first:
                for starts, looks in first:
                    begun = self._start_all(starts)
                    if looks and begun:
                        self._looks.note(begun[0], self.state)
        except JournalError as error:
            self._wait_for_journal(error)
            return False
        self._first_s = time.perf_counter() - began
        self._obey()
        return True

    def _first(self) -> Generator[tuple[Sequence[Start], bool]]:
        """Yield what is started first, and whether that is so that it is measured.

        All starts are to be entered into the state before the next are asked for.
        """
        looks: list[Start] = []

        def chosen(state: State) -> Sequence[Start]:
            looks[:] = self._looks.due(state)
            return looks or self._policy.starts(state)

        competed = False
        for starts in turns(self._brain, self.state, chosen):
            competed = True
            yield starts, bool(looks)
        if not competed:
            yield list(self._looks.due(self.state)), True

    def _wait_for_journal(self, error: JournalError) -> None:
        self._be_in_trouble("journal", error)
        self._changed, self._rest_until_s = True, self._again_s

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
            self._wait_for_journal(error)
        self._obey()

    def _decide(self, decision: Decision) -> None:
        decision = without_unfair_stops(decision, self._brain)
        for job in decision.stops:
            run = self._brain.jobs[job.id].run
            if run is not None and run.spec.requeue:
                self._commit([self._stop_decided(run, "the policy gives its devices to others")])
        self._start_all(decision.starts)
        self._commit(self._world.reservations(decision.reserved))
        self._pool.lack(sum(job.spec.workers for job in self._brain.queued.values()))

    def _start_all(self, starts: Sequence[Start]) -> list[Start]:
        """Place jobs, and return the starts that became some."""
        begun: list[Start] = []
        for group in in_groups(starts):
            if self._start(group):
                begun += group
            elif len(group) > 1 or group[0].shares:
                # A policy that was refused would decide the same again: nobody would ever start.
                alone = (start._replace(shares=None) for start in group)
                begun += [one for one in alone if self._world.is_fresh(one) and self._start([one])]
        return begun

    def _start(self, group: Sequence[Start]) -> bool:
        """Place jobs that start together unless a rule is broken; tell whether they were placed."""
        try:
            placed = self._world.place(*group)
        except CannotStartError as error:
            _LOG.warning("%s", error, exc_info=error.__cause__)
            return False
        self._commit([one.replace(at_s=self._clock.now_s()) for one in placed])
        self._looks.begin(self._brain.jobs[start.job.id] for start in group)
        return True

    def _stop_decided(self, run: Run, reason: str) -> AnyEvent:
        at_s = self._clock.now_s()
        return events.StopDecided(at_s=at_s, run=run.id, reason=reason, then="wait")

    def _held_by_strays(self) -> Mapping[str, str]:
        return {s.gpu: stray.run.id for stray in self._strays.values() for s in stray.run.seats}

    def _allowed(self, spec: JobSpec, model: str) -> Collection[int]:
        """Return the shares that a job may have: those that compute right with its library."""
        return self._pool.allowed(self._brain.library(spec), model)

    def _decision_is_due(self) -> bool:
        if self._news:
            return False
        now_s = self._clock.now_s()
        rested = self._urgent or now_s >= self._rest_until_s
        return now_s >= self._wake_s or (self._changed and rested)

    def _idle_s(self) -> float:
        """Return for how long nothing is to be done unless somebody rings, an hour at most."""
        moments = [self._wake_s, self._again_s, self._prune_s]
        moments += map(_deadline_s, self._brain.holding.values())
        if self._watched() or self._readings:
            moments.append(self._sampled_s + self._sample_every_s)
        if self._unseen:
            moments.append(self._started_s + TRACE_S)
        if self._changed and not self._news:
            moments.append(self._rest_until_s)
        return min(max(0.0, min(moments) - self._clock.now_s()), _LONGEST_IDLE_S)

    # One turn: what has happened, what is asked, and what is to be done for it.

    def _serve(self) -> None:
        requests = self._mailbox.take()
        happened = self._of_jobs(self._polled())
        self._see_ends(happened)
        self._news += happened
        if not self._news:
            self._news = [*self._untraced(), *self._overdue(), *self._measured(), *self._recorded()]
        if self._news or requests:
            self._record(requests)
        self._record_what_was_measured()
        self._obey()
        if self._clock.now_s() >= self._prune_s:
            self._prune()

    def _prune(self) -> None:
        """Remove what is old from the journal, and from the pool, which is not waited for."""
        now_s = self._clock.now_s()
        self._prune_s = now_s + PRUNE_S
        try:
            self._journal.compact(self._brain, now_s - self._keep_s)
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
            self._be_in_trouble("pool", error)
            return told

    def _see_ends(self, happened: Sequence[AnyEvent]) -> None:
        """Look once more how far those came that have ended, before their runs are released."""
        for run in {_rank_of(event)[0] for event in happened if event.kind == "rank_ended"}:
            try:
                self._last_seen.note_end(run, self._pool.progress(run))
            except Exception as error:
                self._be_in_trouble("watch", error)

    def _stamped(self, told: Sequence[AnyEvent]) -> list[AnyEvent]:
        at_s, found = self._clock.now_s(), []
        for event in told:
            if isinstance(event, events.RankEnded) and event.ended_s is not None:
                event = event.replace(ended_s=min(self._clock.at(event.ended_s), at_s))
            found.append(event.replace(at_s=at_s))
        return found

    def _of_jobs(self, told: Sequence[AnyEvent]) -> list[AnyEvent]:
        """Return the events but those of strays, which are let go of as they end."""
        found = []
        for event in told:
            run, rank = _rank_of(event)
            self._unseen.discard((run, rank))
            stray = self._strays.get(run)
            if stray is None:
                found.append(event)
            elif event.kind in _ENDS:
                stray.left.discard(rank)
                if not stray.left:
                    del self._strays[run]
                    self._commands.append(Release(run))
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
            for job in self._brain.holding.values()
            if job.run is not None and _deadline_s(job) <= at_s
        ]

    def _watched(self) -> list[str]:
        return [] if self._dry_run else watched(self._brain)

    def _measured(self) -> list[AnyEvent]:
        """Look at what runs, if it is time to, and return what follows from it."""
        now_s, runs = self._clock.now_s(), self._watched()
        # Once more after the last has ended: of what it showed, something may follow.
        if not (runs or self._readings) or now_s < self._sampled_s + self._sample_every_s:
            return []
        self._sampled_s = now_s
        try:
            progress = {run: self._pool.progress(run) for run in runs}
            before, self._usage = self._usage, self._pool.usage()
            self._power_w = powers(before, self._usage)
            found: Sequence[AnyEvent] = self._watch.observe(
                self._brain, progress, self._usage, now_s, self._clock.boot_s()
            )
            found = (*found, *self._loaded.news(runs, now_s))
        except Exception as error:
            self._be_in_trouble("watch", error)
            return []
        self._troubles.pop("watch", None)
        self._readings = {run: self._watch.reading(run) for run in runs}
        self._uppers = {run: self._knowledge.upper(self._brain, run) for run in runs}
        shared = {
            job.run.id
            for jobs in self._brain.residents().values()
            for job in jobs
            if job.run is not None and len(jobs) > 1
        }
        for run, reading in self._readings.items():
            self._last_seen.note(run, reading, run in shared)
            if reading.iterations is not None:
                job = run.rpartition(".")[0]
                self._world.note_progress(job, reading.iterations, reading.total, now_s)
        return list(found)

    def _record_what_was_measured(self) -> None:
        if not self._dry_run:
            self._recorder.offer(self._brain.unrecorded)

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
            self._be_in_trouble("repository", error)
            return
        self._troubles.pop("repository", None)
        if beliefs is not None:
            self._world.learn(beliefs)
            self._changed = self._urgent = True

    def _newly_known(self) -> list[AnyEvent]:
        """Return which workloads that wait for a profile have one in the repository."""
        unknown = {
            (job.spec.owner.uid, job.spec.workload): job.spec
            for job in self._brain.queued.values()
            if job.state is JobState.SUBMITTED and not job.alone_only
        }
        return self._known_of(unknown.values())

    def _known_of(self, specs: Iterable[JobSpec]) -> list[AnyEvent]:
        """Return which workloads the repository has the profile of, and the journal does not."""
        at_s, models = self._clock.now_s(), self._devices.told_models
        keys = {
            _key(spec)
            for spec in specs
            if any(self._knowledge.alone(spec, model) for model in models)
        }
        new = sorted(keys - self._brain.profiled)
        return [events.WorkloadKnown(at_s=at_s, uid=uid, workload=name) for uid, name in new]

    def _record(self, requests: Sequence[Request]) -> None:
        """Make what has happened and what is asked durable, together; answer who asked."""
        granted = []
        jobs = self._brain.submitted
        for request in self._mailbox.each_once(requests):
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
        except JournalError as error:
            self._be_in_trouble("journal", error)
            for request, asked in granted:
                request.reply(asked) if not asked else request.refuse(BusyError(str(error)))
            return
        self._news = []
        for request, asked in granted:
            request.reply(asked)

    def _commit(self, happened: Sequence[AnyEvent]) -> None:
        """Make events durable, then tell the brain.

        Raises
        ------
        JournalError
            When they are not durable; the brain does not know of them then.
        """
        if not happened:
            return
        self._journal.append(happened)
        self._troubles.pop("journal", None)
        for event in happened:
            try:
                with self._lock:
                    self._commands += self._brain.apply(event)
            except TransitionError as error:
                _LOG.warning("%s is passed over: %s", event.kind, error)
        while self._brain.ended:
            job = self._brain.ended.popleft()
            if self._notifier is not None:
                self._notifier.tell(job)
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
            self._world.equip(self._devices.cluster)
            self._watch.equip(models)
            self._learner.equip(models.values())

    def _checkpoint(self) -> None:
        try:
            self._journal.checkpoint(self._brain)
        except JournalError as error:
            _LOG.warning("no checkpoint: %s", error)

    def _obey(self) -> None:
        """Carry out what is to be done; what a pool fails to do is tried again."""
        if self._again_s <= self._clock.now_s():
            self._again_s = math.inf
        commands, self._commands = self._commands, []
        if self._dry_run:
            return
        for command in commands:
            try:
                self._carry_out(command)
            except Exception as error:
                self._be_in_trouble("pool", error)
                self._commands.append(command)
        if commands and not self._commands:
            self._troubles.pop("pool", None)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Launch(run):
                job = self._brain.jobs.get(run.job)
                if job is not None and _is_to_run(job, run):
                    self._pool.launch(run)
            case Stop(run, grace_s):
                self._pool.stop(run, grace_s)
            case Pause(run, on):
                self._pool.pause(run, on)
            case Release(run):
                self._pool.release(run)

    def _be_in_trouble(self, what: str, error: Exception) -> None:
        """Show what went wrong, and see that it is tried again."""
        told = str(error) or type(error).__name__
        if self._troubles.get(what) != told:
            unforeseen = None if isinstance(error, DovetailError) else error
            _LOG.error("%s: %s", what, told, exc_info=unforeseen)
        self._troubles[what] = told
        self._again_s = min(self._again_s, self._clock.now_s() + AGAIN_S)

    # What people ask for (``Desk``).

    def submit(self, specs: Sequence[JobSpec], by: Owner, key: str = "") -> tuple[str, ...]:
        """Accept jobs, all or none, and return their ids; what was accepted before, as it is."""
        cluster = None if self._pool.awaited else self._devices.cluster
        for k, spec in enumerate(specs):
            path = f"jobs[{k}]." if len(specs) > 1 else ""
            refuse_hopeless(spec, by, cluster, self._any_user, path)
            refuse_long_grace(spec, self._most_grace_s, path)

        request = f"{by.uid} {key}" if key else ""

        def submitted(jobs: int) -> list[AnyEvent]:
            if request in self._brain.requests:
                refuse_another(specs, self._jobs_of(request))
                return []
            for k, spec in enumerate(specs):
                refuse_after(spec, self._brain, f"jobs[{k}]." if len(specs) > 1 else "")
            refuse_too_many(len(specs), by, self._brain, self._most_waiting)
            at_s = self._clock.now_s()
            made = [
                events.Submitted(at_s=at_s, job=f"j{k}", spec=spec, request=request)
                for k, spec in enumerate(specs, jobs + 1)
            ]
            return [*made, *self._known_of(specs)]

        def ids(asked: Sequence[AnyEvent]) -> tuple[str, ...]:
            made = [event.job for event in asked if isinstance(event, events.Submitted)]
            return tuple(made or self._brain.requests.get(request, ()))

        found: tuple[str, ...] = self._mailbox.ask(Request(submitted, ids, request))
        return found

    def _jobs_of(self, request: str) -> list[LiveJob]:
        return [self._brain.jobs[job] for job in self._brain.requests[request]]

    def cancel(self, job: str, by: Owner, grace_s: float | None = None) -> JobView:
        """Begin to end a job, or end it sooner; one that is over stays as it is."""

        def cancelled(_: int) -> list[AnyEvent]:
            live = self._job(job)
            refuse_others(live, by, "cancel")
            if live.state in OVER:
                return []
            at_s = self._clock.now_s()
            return [events.CancelRequested(at_s=at_s, job=job, by=by.name, grace_s=grace_s)]

        self._mailbox.ask(Request(cancelled, _nothing))
        return self.job(job)

    def hold(self, job: str, on: bool, by: Owner) -> JobView:
        """Let a job that waits not start before it is released, or release it."""

        def changed(_: int) -> list[AnyEvent]:
            live = self._job(job)
            refuse_others(live, by, "hold" if on else "release")
            if live.state not in QUEUED:
                told = "may be held while it waits" if on else "is held only while it waits"
                raise RefusedError(f"{job} is {live.state}: a job {told}")
            if on == bool(live.held):
                return []
            return [events.HoldChanged(at_s=self._clock.now_s(), job=job, on=on, by=by.name)]

        self._mailbox.ask(Request(changed, _nothing))
        return self.job(job)

    def edit(self, job: str, changes: Mapping[str, Any], by: Owner) -> JobView:
        """Change fields of the specification of a job that waits."""

        def edited(_: int) -> list[AnyEvent]:
            live = self._job(job)
            refuse_edit(live, changes, by)
            fields = {name: getattr(live.spec, name) for name in JobSpec.model_fields}
            spec = JobSpec.from_data({**fields, **changes})
            cluster = None if self._pool.awaited else self._devices.cluster
            refuse_hopeless(spec, by, cluster, self._any_user, "")
            refuse_long_grace(spec, self._most_grace_s, "")
            if spec == live.spec:
                return []
            at_s = self._clock.now_s()
            change = events.Edited(at_s=at_s, job=job, spec=spec, by=by.name)
            return [change, *self._known_of([spec])]

        self._mailbox.ask(Request(edited, _nothing))
        return self.job(job)

    def pause(self, job: str, on: bool, by: Owner) -> JobView:
        """Let the processes of a job that runs stand still, or go on."""

        def changed(_: int) -> list[AnyEvent]:
            live = self._job(job)
            refuse_others(live, by, "pause" if on else "resume")
            if live.state not in _UNDER_WAY:
                what = "be paused while it runs" if on else "be resumed while it is paused"
                raise RefusedError(f"{job} is {live.state}: a job may {what}")
            if on is (live.state is JobState.PAUSED):
                return []
            return [events.PauseChanged(at_s=self._clock.now_s(), job=job, on=on, by=by.name)]

        self._mailbox.ask(Request(changed, _nothing))
        return self.job(job)

    def requeue(self, job: str, by: Owner, hold: bool = False) -> JobView:
        """Stop a job's run, so that it waits for devices again, or for its release."""

        def stopped(_: int) -> list[AnyEvent]:
            live = self._job(job)
            refuse_others(live, by, "requeue")
            if live.state in OVER:
                raise RefusedError(f"{job} is {live.state}: submit it anew")
            at_s, held = self._clock.now_s(), hold and not live.held
            holds = events.HoldChanged(at_s=at_s, job=job, on=True, by=by.name)
            found: list[AnyEvent] = [holds] if held else []
            if live.run is None or live.state in QUEUED or live.state is JobState.STOPPING:
                return found
            if not live.spec.requeue:
                raise RefusedError(f"{job} was submitted with --no-requeue")
            return [*found, self._stop_decided(live.run, f"requeued by {by.name}")]

        self._mailbox.ask(Request(stopped, _nothing))
        return self.job(job)

    def drain(self, gpus: Sequence[str], on: bool, by: Owner) -> ServiceView:
        """Let devices, or all of a node (none named: all), take no new jobs, or take them again."""
        if not is_administrator(by):
            raise RefusedError("only an administrator may drain devices")
        chosen = self._devices.named(gpus)

        def drained(_: int) -> list[AnyEvent]:
            at_s = self._clock.now_s()
            return [events.DrainChanged(at_s=at_s, gpus=chosen, on=on, by=by.name)]

        self._mailbox.ask(Request(drained, _nothing))
        return self.service()

    def jobs(self, over: bool = False, chosen: Chosen = EVERY) -> Sequence[JobView]:
        """Return the jobs that are not over, or all, in the order of submission."""
        with self._lock:
            found = listed(self._brain, over, chosen, self._clock.now_s())
            return job_views(
                self._lacks(), found, self._readings, self._uppers, self._last_seen.readings
            )

    def job(self, job: str) -> JobView:
        """Return one job with its history."""
        with self._lock:
            (view,) = job_views(
                self._lacks(),
                [self._job(job)],
                self._readings,
                self._uppers,
                self._last_seen.readings,
                history=True,
            )
        return replace(view, log=self._log_file(view.run))

    def _log_file(self, run: str | None) -> str:
        """Return where the output of a run's first rank is on this machine; empty: it is not."""
        if run is None or not self._directory:
            return ""
        log = RunFiles(Path(self._directory), run).rank(0).log
        return str(log) if log.exists() else ""

    def is_over(self, job: str) -> bool:
        """Return whether a job is over."""
        return self._job(job).state in OVER

    def service(self) -> ServiceView:
        """Return the service and its devices."""
        awaited = told_awaited(self._pool)
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
                sequence=self._brain.sequence,
                jobs=Counter(job.state.value for job in self._brain.jobs.values()),
                decide_s=self._decide_s,
                gap=self._gap,
                dry_run=self._dry_run,
                trouble="; ".join(filter(None, self._all_troubles())),
                devices=device_views(
                    self._brain, self._devices.cluster, self._usage, self._power_w
                ),
            )

    def _all_troubles(self) -> list[str]:
        own = self._troubles.copy().values()
        notifier = self._notifier.trouble if self._notifier is not None else ""
        return [*own, notifier, self._pool.trouble, self._recorder.trouble, self._learner.trouble]

    def log_path(self, job: str, rank: int, by: Owner, run: int | None = None) -> str | None:
        """Return the newest log file of a rank of its present or last run, or of another."""
        with self._lock:
            live = self._job(job)
            if not live.spec.public_log:
                refuse_others(live, by, "read the log of")
            if not 0 <= rank < live.spec.workers:
                raise InputError(f"must be < {live.spec.workers}, got {rank}", "rank")
            if run is not None and not 1 <= run <= live.runs:
                rule = f"must be from 1 to {live.runs}" if live.runs else "must wait for the first"
                raise InputError(f"{rule}, got {run}", "run")
            number = run or live.runs
        return self._pool.log_path(f"{job}.{number}", rank) if number else None

    def instance(self) -> Instance:
        """Return the round that the service would solve now."""
        recent = self._recent("")
        if recent is not None:
            return recent.instance
        found: Instance = self._mailbox.ask(Request(_no_events, lambda _: self._round()))
        return found

    def plan(self) -> Plan:
        """Return what the service's policy would do now, without doing it."""
        return self._round_and_plan().plan

    def explain(self, job: str) -> str:
        """Say why a job waits and what would let it start."""
        with self._lock:
            live = self._job(job)
            told, over = of_job(live, self._brain), live.state in OVER
            alone = not self._brain.may_share(live)
            # What would let it start beside others or later is of no use while nobody may.
            waits = live.state in QUEUED
            lacks = self._lacks()
            closed, before = waits and lacks.closed, lacks.before.told(live)
        if waits and not live.barred:
            told = "\n".join(filter(None, [told, told_awaited(self._pool)]))
        if over or closed or live.barred:
            return told
        lines = [told, of_round(job, alone, before, *self._round_and_plan(job)[:2])]
        if waits and self._dry_run:
            lines.append("this is a dry run: nothing is started")
        return "\n".join(lines)

    def _lacks(self) -> Lacks:
        return Lacks.of(self._brain, self._dry_run)

    def _recent(self, job: str) -> _Planned | None:
        """Return the last plan, if it took long and is not old; it has to know a job."""
        found = self._planned
        if found is None or self._clock.now_s() > found.until_s:
            return None
        return found if not job or job in found.instance.jobs_by_id else None

    def _round_and_plan(self, job: str = "") -> _Planned:
        """Return what the policy would do; a look that costs much is not taken for each who asks.

        It takes the time of the thread that serves, of which it has one part in ``REST``.
        """

        def decided(_: Sequence[AnyEvent]) -> _Planned:
            # Several may have asked at the same time.
            recent = self._recent(job)
            if recent is not None:
                return recent
            began = time.thread_time()
            instance, before = self._round(), Precedence.of(self._brain)
            first = [start for starts, _ in self._first() for start in self._entered(starts)]
            policy = policy_named(self._policy.name)
            decision = asked(policy, self.state)
            decision = without_unfair_stops(decision, self._brain)
            groups = (self._world.with_cap(*group) for group in in_groups(decision.starts))
            decision = decision._replace(starts=(*first, *chain.from_iterable(groups)))
            plan = plan_of(
                instance,
                self.state,
                decision,
                self._policy.name,
                objective_of(policy),
                self._alone,
                lambda job: before.told(self._brain.jobs[job]),
                self._pool.notice,
            )
            took_s = time.thread_time() - began
            kept_s = REST * took_s if took_s > _COSTLY_S else -1.0
            self._planned = _Planned(instance, plan, self._clock.now_s() + kept_s)
            return self._planned

        found = self._recent(job) or self._mailbox.ask(Request(_no_events, decided))
        assert isinstance(found, _Planned)
        return found

    def _entered(self, starts: Sequence[Start]) -> list[Start]:
        """Enter starts into the state, and return those that break no rule."""
        found: list[Start] = []
        for group in in_groups(starts):
            with suppress(CannotStartError):
                capped = self._world.with_cap(*group)
                self._world.place(*capped)
                found += capped
        return found

    def _alone(self, job: str) -> bool:
        return not self._brain.may_share(self._brain.jobs[job])

    def _round(self) -> Instance:
        self._world.renew(self._clock.now_s())
        return self._world.instance()

    def _job(self, name: str) -> LiveJob:
        job = self._brain.jobs.get(name)
        if job is None:
            raise UnknownJobError(f"no job {shown(name)}")
        return job


class _Planned(NamedTuple):
    """A round and its plan, and until when they are good enough for others who ask."""

    instance: Instance
    plan: Plan
    until_s: float


class _Stray:
    """A run that no job has, and those of its ranks that may still run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.left = set(range(len(run.seats)))


def _require_text(asked: Iterable[AnyEvent]) -> None:
    """Raise what the journal would, before it has the events of others, too."""
    for event in asked:
        event.model_dump_json()


def _key(spec: JobSpec) -> WorkloadKey:
    return spec.owner.uid, spec.workload


def _rank_of(event: AnyEvent) -> tuple[str, int]:
    """Return the run and the rank that an event is of; no run where it is of none."""
    return getattr(event, "run", ""), getattr(event, "rank", -1)


def _deadline_s(job: LiveJob) -> float:
    """Return when a run has had its walltime; never where it has none, or is being stopped.

    Nor while nothing of it runs: whoever serves next may launch it much later than it was placed.
    """
    if job.spec.walltime_s is None or job.stop_then:
        return math.inf
    started = (rank.started_s for rank in job.ranks if rank.started_s is not None)
    return min(started, default=math.inf) + job.spec.walltime_s


def _is_to_run(job: LiveJob, run: Run) -> bool:
    """Tell whether a run is still its job's, and not to be ended."""
    present = job.run is not None and job.run.id == run.id
    return present and job.state in HOLDING and job.state is not JobState.STOPPING


def _no_events(_: int) -> list[AnyEvent]:
    return []


def _nothing(_: Sequence[AnyEvent]) -> None:
    return None
