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
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from dovetail.executor.jobs import events
from dovetail.executor.jobs.commands import Release
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.journal import Journal, JournalError
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.live.admission import MOST_WAITING
from dovetail.executor.live.devices import Devices
from dovetail.executor.live.fair_share import without_unfair_stops
from dovetail.executor.live.guarded_policy import AGAIN_S as POLICY_AGAIN_S
from dovetail.executor.live.guarded_policy import GuardedPolicy
from dovetail.executor.live.knowledge import Knowledge
from dovetail.executor.live.learning import Learner
from dovetail.executor.live.ledger import Ledger
from dovetail.executor.live.left_behind import LeftBehind
from dovetail.executor.live.notifying import Notifier
from dovetail.executor.live.observing import Observer
from dovetail.executor.live.policy_view import PolicyView
from dovetail.executor.live.presenting import device_views
from dovetail.executor.live.preview import REST, Preview
from dovetail.executor.live.profiling_queue import ProfilingQueue, first_starts
from dovetail.executor.live.recorder import Recorder
from dovetail.executor.live.request_queue import RequestQueue
from dovetail.executor.live.room import DiskFullError, require_room
from dovetail.executor.live.service_api import Limits, ServiceApi
from dovetail.executor.live.starts import CannotStartError, in_groups, is_fresh, place, reservations
from dovetail.executor.live.troubles import AGAIN_S, Troubles
from dovetail.executor.live.views import ServiceView
from dovetail.executor.live.watch import WatchOptions
from dovetail.executor.pools.pool import SAMPLE_S, NodePool, told_awaited
from dovetail.executor.pools.run_files import KEEP_S, PRUNE_S
from dovetail.executor.rounds import run_rounds
from dovetail.executor.system.clock import ServiceClock, boot_id, boot_s
from dovetail.instances._version import VERSION
from dovetail.instances.datasets import Repository
from dovetail.predictors import TrainedPredictor
from dovetail.solver.policies import Decision, Start, State

_LOG: Final = logging.getLogger("dovetail.live")

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
        self._pool = pool
        self._directory = os.fspath(directory)
        self._dry_run = dry_run
        self._keep_s = keep_s
        self._lock = threading.RLock()
        self._requests = RequestQueue()
        self._policy = GuardedPolicy(policy)
        self._machine = machine = journal.replay()
        # An earlier service has notified of these.
        machine.ended.clear()
        self._notifier = None if notify is None or dry_run else Notifier(notify)
        self._clock = ServiceClock(machine.now_s, boot_s)
        self._started_s = self._clock.now_s()
        self._troubles = Troubles(self._clock.now_s)
        self._ledger = Ledger(journal, machine, self._lock, self._troubles, self._applied)
        self._devices = Devices(pool, max_jobs_per_gpu)
        self._left = LeftBehind(machine)
        self._recorder = Recorder(repository, self._requests.ring)
        into = Path(directory) / _MODEL if directory and not dry_run else None
        models = self._devices.models.values()
        self._learner = Learner(repository, models, model, into, self._requests.ring)
        self._view = PolicyView(
            machine, self._devices.cluster, self._learner.beliefs, pool.sharing, self._allowed
        )
        self._knowledge = Knowledge(
            machine,
            self._clock,
            self._devices,
            self._view,
            self._troubles,
            self._recorder,
            self._learner,
            self._decide_now,
        )
        watching = watching or WatchOptions()
        self._observer = Observer(machine, pool, self._devices, self._view, watching, sample_s)
        self._profiling = ProfilingQueue(machine, watching.profile_most_s)
        self.api = ServiceApi(
            machine=machine,
            lock=self._lock,
            clock=self._clock,
            requests=self._requests,
            pool=pool,
            devices=self._devices,
            observer=self._observer,
            preview=Preview(
                machine,
                self._clock,
                pool,
                self._view,
                self._policy,
                self._profiling,
                self._left,
            ),
            known=self._knowledge.known,
            show=self._shown,
            limits=Limits(
                os.geteuid() == 0 if any_user is None else any_user, most_grace_s, most_waiting
            ),
            directory=self._directory,
            dry_run=dry_run,
        )
        # When the next decision is due, on the service's clock. If only new jobs came, it waits
        # until the thread has rested from the last one.
        self._decide_s = -math.inf
        self._rest_until_s = -math.inf
        self._prune_s = math.inf if dry_run else self._started_s + PRUNE_FIRST_S
        # How long the last decision took, its first starts included, and its proven gap.
        self._first_s = 0.0
        self._took_s: float | None = None
        self._gap: float | None = None
        self._knowledge.learn()

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
            self._ledger.checkpoint(every=1)
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
        """Take up what an earlier service left; nothing is done before all of it is known."""
        held = list(self._machine.holding.values())
        beyond = self._pool.resume([job.run for job in held if job.run is not None])
        adopted = self._left.adopted(beyond, self._clock.now_s())
        if not self._is_durable([self._attached(), *adopted]):
            return
        strays = self._left.end_strays(beyond)
        self._left.await_ranks([job.id for job in held], self._clock.now_s())
        happened = self._of_jobs(self._stamped(self._pool.poll()))
        if not self._is_durable([*self._others(), *happened, *self._knowledge.newly_known()]):
            return
        releases = [command for command in self._ledger.commands if isinstance(command, Release)]
        self._ledger.commands = [*releases, *strays, *self._machine.outstanding()]
        self._pool.attach(self._requests.ring)
        if not self._dry_run:
            self._knowledge.record()
        self.ready.set()

    def _is_durable(self, happened: Sequence[AnyEvent]) -> bool:
        """Journal what a start rests on, however long that takes; False if the service stops."""
        self._ledger.news = [*happened]
        while not self._ledger.commit_news() and not self._requests.closed:
            self.ready.set()
            self._requests.wait(AGAIN_S)
            self._ledger.answer(self._requests.take())
        return not self._ledger.news

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
        """Serve until a decision is due; False once the service stops."""
        while not self._requests.closed:
            self._troubles.try_again()
            self._serve()
            due = not self._ledger.news and self._decide_s <= self._clock.now_s()
            if due and self._prepared():
                return True
            self._execute_commands()
            self._requests.wait(self._idle_s())
        return False

    def _decide_by(self, at_s: float) -> None:
        self._decide_s = min(self._decide_s, at_s)

    def _decide_now(self) -> None:
        self._decide_s = -math.inf

    def _prepared(self) -> bool:
        """Bring the policy's state up to date; False if that fails, until it is tried again."""
        self._decide_s = math.inf
        try:
            self._view.renew(self._clock.now_s())
        except Exception as error:
            self._troubles.report("world", error)
            self._decide_by(self._clock.now_s() + POLICY_AGAIN_S)
            return False
        self._troubles.clear("world")
        return self._dry_run or (self._has_room() and self._began_first())

    def _has_room(self) -> bool:
        """Return whether the disk has room for what starts write; if not, nothing is decided."""
        try:
            require_room(self._directory)
        except (DiskFullError, OSError) as error:
            self._troubles.report("disk", error)
            self._decide_by(self._troubles.again_s)
            return False
        self._troubles.clear("disk")
        return True

    def _began_first(self) -> bool:
        """Start what comes before the policy's choice; False if the journal cannot be written."""
        began = time.perf_counter()
        try:
            chosen = first_starts(self._machine, self.state, self._profiling, self._policy)
            with closing(chosen) as first:
                for starts, looks in first:
                    begun = self._start_all(starts)
                    if looks and begun:
                        self._profiling.note(begun[0], self.state)
        except JournalError as error:
            self._troubles.report("journal", error)
            self._decide_by(self._troubles.again_s)
            return False
        self._first_s = time.perf_counter() - began
        self._execute_urgent_commands()
        return True

    def carry_out(self, decision: Decision, decide_s: float) -> None:
        """Place and stop jobs as decided, as far as the check of starts allows."""
        took_s = self._took_s = decide_s + self._first_s
        self._gap = decision.proof.gap if decision.proof else None
        now_s = self._clock.now_s()
        self._rest_until_s = now_s + REST * took_s
        if decision.wake_s is not None:
            # A policy that asks for the past would never let the service rest.
            self._decide_by(max(decision.wake_s, now_s + _SOONEST_S))
        if self._dry_run:
            return
        try:
            self._decide(decision)
        except JournalError as error:
            self._troubles.report("journal", error)
            self._decide_by(self._troubles.again_s)
        self._execute_commands()

    def _decide(self, decision: Decision) -> None:
        decision = without_unfair_stops(decision, self._machine)
        for job in decision.stops:
            run = self._machine.jobs[job.id].run
            if run is not None and run.spec.requeue:
                at_s, why = self._clock.now_s(), "the policy gives its devices to others"
                stop = events.StopDecided(at_s=at_s, run=run.id, reason=why, then="wait")
                self._ledger.commit([stop])
        self._start_all(decision.starts)
        self._ledger.commit(reservations(self._view, decision.reserved))
        self._pool.lack(sum(job.spec.workers for job in self._machine.queued.values()))

    def _start_all(self, starts: Sequence[Start]) -> list[Start]:
        """Place jobs, and return the starts that were placed."""
        begun: list[Start] = []
        for group in in_groups(starts):
            if self._start(group):
                begun += group
            elif len(group) > 1 or group[0].shares:
                # The policy would decide the same again, and nothing would ever start.
                alone = (start._replace(shares=None) for start in group)
                begun += [
                    one for one in alone if is_fresh(self._view.state, one) and self._start([one])
                ]
        return begun

    def _start(self, group: Sequence[Start]) -> bool:
        """Place jobs that start together unless a rule is broken; return whether they were."""
        try:
            placed = place(self._view, group, self._left.held)
        except CannotStartError as error:
            _LOG.warning("%s", error, exc_info=error.__cause__)
            return False
        self._ledger.commit([one.replace(at_s=self._clock.now_s()) for one in placed])
        self._profiling.begin(self._machine.jobs[start.job.id] for start in group)
        return True

    def _allowed(self, spec: JobSpec, model: str) -> Collection[int]:
        """Return the shares with which a job's library is known to compute right."""
        return self._pool.allowed(self._machine.library(spec), model)

    def _idle_s(self) -> float:
        """Return for how long nothing is due unless a request or a report comes."""
        moments = [self._troubles.again_s, self._prune_s]
        if not self._ledger.news:
            moments += [self._decide_s, self._left.lost_s]
            moments += map(_deadline_s, self._machine.holding.values())
            if not self._dry_run:
                moments.append(self._observer.next_s)
        return min(max(0.0, min(moments) - self._clock.now_s()), _LONGEST_IDLE_S)

    # One turn: what has happened, what is asked, and what follows.

    def _serve(self) -> None:
        requests = self._requests.take()
        happened = self._of_jobs(self._polled())
        self._note_ends(happened)
        self._ledger.news += happened
        if not self._ledger.news:
            self._ledger.news = [
                *self._left.lost(self._clock.now_s()),
                *self._overdue(),
                *self._measured(),
                *self._knowledge.recorded(),
            ]
        self._ledger.commit_news()
        self._ledger.answer(requests)
        if not self._dry_run:
            self._knowledge.record()
        self._execute_urgent_commands()
        if self._clock.now_s() >= self._prune_s:
            self._prune()

    def _prune(self) -> None:
        """Remove what is old from the journal and, in a thread of its own, from the pool."""
        now_s = self._clock.now_s()
        self._prune_s = now_s + PRUNE_S
        self._ledger.compact(now_s - self._keep_s)
        threading.Thread(target=self._pool.prune, args=(self._keep_s,), daemon=True).start()

    def _polled(self) -> list[AnyEvent]:
        reported: list[AnyEvent] = []
        try:
            reported = self._stamped(self._pool.poll())
            # Devices are asked for after the reports and journalled before: these may be of them.
            return [*self._others(), *reported]
        except Exception as error:
            self._troubles.report("pool", error)
            return reported

    def _note_ends(self, happened: Sequence[AnyEvent]) -> None:
        """Note the last progress of runs that have ended, before they are released."""
        for run in {event.run for event in happened if isinstance(event, events.RankEnded)}:
            try:
                self._observer.last.note_end(run, self._pool.progress(run))
            except Exception as error:
                self._troubles.report("watch", error)

    def _stamped(self, reported: Sequence[AnyEvent]) -> list[AnyEvent]:
        at_s, found = self._clock.now_s(), []
        for event in reported:
            if isinstance(event, events.RankEnded) and event.ended_s is not None:
                event = event.replace(ended_s=min(self._clock.at(event.ended_s), at_s))
            found.append(event.replace(at_s=at_s))
        return found

    def _of_jobs(self, reported: Sequence[AnyEvent]) -> list[AnyEvent]:
        """Return the events without those of strays, which are released as they end."""
        found, over = self._left.sort(reported)
        self._ledger.commands += over
        if over:
            self._decide_now()
        return found

    def _overdue(self) -> list[AnyEvent]:
        """Return the stops of runs that have had their walltime."""
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
        """Sample the runs if a sample is due, and return what follows from it."""
        now_s = self._clock.now_s()
        if self._dry_run or now_s < self._observer.next_s:
            return []
        try:
            found = self._observer.sample(now_s, self._clock.boot_s())
        except Exception as error:
            self._troubles.report("watch", error)
            return []
        self._troubles.clear("watch")
        return found

    def _applied(self, happened: Sequence[AnyEvent]) -> None:
        """Follow events that were applied: know new devices, and decide if that may matter."""
        kinds = {event.kind for event in happened}
        if "devices_changed" in kinds:
            self._take_up_devices()
        if kinds - _PATIENT:
            self._decide_now()
        elif kinds - _QUIET:
            self._decide_by(self._rest_until_s)

    def _others(self) -> list[AnyEvent]:
        """Return that the pool's devices have changed, if so, and workloads known on them."""
        news = self._devices.news(self._clock.now_s())
        return [*news, *self._knowledge.newly_known()] if news else []

    def _take_up_devices(self) -> None:
        with self._lock:
            self._devices.take_up()
            models = self._devices.models
            self._view.equip(self._devices.cluster)
            self._observer.equip(models)
            self._learner.equip(models.values())

    def _execute_urgent_commands(self) -> None:
        """Carry out all commands if any cannot wait for a decision; releases of runs can."""
        if any(not isinstance(command, Release) for command in self._ledger.commands):
            self._execute_commands()

    def _execute_commands(self) -> None:
        if self._ledger.execute(None if self._dry_run else self._pool):
            while self._machine.ended:
                job = self._machine.ended.popleft()
                if self._notifier is not None:
                    self._notifier.tell(job)

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
                decide_s=self._took_s,
                gap=self._gap,
                dry_run=self._dry_run,
                trouble="; ".join(filter(None, self._all_troubles())),
                devices=device_views(
                    self._machine, self._devices.cluster, seen.usage, seen.power_w
                ),
            )

    def _all_troubles(self) -> list[str]:
        parts = (self._policy, self._notifier, self._pool, self._recorder, self._learner)
        return [*self._troubles.texts, *(part.trouble for part in parts if part is not None)]


def _deadline_s(job: LiveJob) -> float:
    """Return when a run has had its walltime; never if it has none, or is being stopped.

    It counts from the first process: after a restart, a run may be launched long after its start.
    """
    if job.spec.walltime_s is None or job.stop_then:
        return math.inf
    started = (rank.started_s for rank in job.ranks if rank.started_s is not None)
    return min(started, default=math.inf) + job.spec.walltime_s
