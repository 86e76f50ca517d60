"""The service: it connects the journal, the state machine, a pool and a policy, and loses no job.

One thread serves (``Service.run``); any thread may make requests (``Service.api``). Events are
written to the journal and applied by the state machine, and the policy decides. All of this is
durable before requests are answered or commands carried out. While the journal cannot be written,
requests are refused and no command is carried out; jobs keep running, and their events are kept in
memory until they can be written.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dovetail.executor.jobs import events
from dovetail.executor.jobs.commands import Release
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.journal import Journal
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.live.devices import Devices
from dovetail.executor.live.left_behind import LeftBehind
from dovetail.executor.live.observation.knowledge import Knowledge
from dovetail.executor.live.observation.learning import Learner
from dovetail.executor.live.observation.recorder import Recorder
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.observation.watch import RunWatch
from dovetail.executor.live.requests.admission import AdmissionLimits
from dovetail.executor.live.requests.ledger import EventLedger
from dovetail.executor.live.requests.notifying import Notifier
from dovetail.executor.live.requests.presenting import device_views
from dovetail.executor.live.requests.request_queue import RequestQueue
from dovetail.executor.live.requests.service_api import ServiceApi
from dovetail.executor.live.requests.views import ServiceView
from dovetail.executor.live.rounds.deciding import Decider
from dovetail.executor.live.rounds.gathering import Gatherer, GatherOptions
from dovetail.executor.live.rounds.guarded_policy import GuardedPolicy
from dovetail.executor.live.rounds.policy_view import PolicyView
from dovetail.executor.live.rounds.profiling_queue import ProfilingQueue
from dovetail.executor.live.troubles import AGAIN_S, Troubles
from dovetail.executor.pools.pool import SAMPLE_S, NodePool, awaited_text
from dovetail.executor.pools.runs.files import KEEP_S, ROOM_S
from dovetail.executor.rounds import run_rounds
from dovetail.executor.system.clock import ServiceClock, boot_id, boot_s
from dovetail.instances._version import VERSION
from dovetail.instances.datasets.repository import Repository
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.solver.policies.policy import Decision
from dovetail.solver.policies.state import State

_LOG: Final = logging.getLogger("dovetail.live")

PRUNE_FIRST_S: Final = 60.0
"""Seconds from the start to the first removal of old events from the journal, and to the next
removal if more are left."""

PRUNE_S: Final = 3600.0
"""Seconds between removals of old events otherwise."""

_LONGEST_IDLE_S: Final = 3600.0
_MODEL: Final = "fitted.dovetail"


class Service:
    """Runs the jobs of a journal on a pool (a ``rounds.Pool``).

    Parameters
    ----------
    journal : Journal
        The journal, used by this service only.
    pool : NodePool
        The pool that runs the jobs; not resumed yet.
    repository : Repository
        Profiles and measurements; new ones are added.
    policy : str
        Name and options, as in ``policy_named``.
    model : TrainedPredictor, optional
        Predicts slowdowns that were not measured. Default: the law of MPS.
    watching : WatchOptions, optional
        How long runs are watched before conclusions are drawn.
    sample_s : float
        Seconds between two samples of the runs.
    directory : path
        The state directory; empty = none.
    dry_run : bool
        Start and stop no job; ``plan`` shows the jobs that would start.
    limits : AdmissionLimits, optional
        The limits for users.
    keep_s : float
        Seconds for which events and logs of ended jobs are kept.
    max_jobs_per_gpu : int, optional
        Number of jobs that may share a device; by default the pool's number.
    uncapped : bool
        Let jobs share without caps on an estimate (``Cluster.uncapped``), whatever the pool says.
    boot_s : callable
        Returns seconds since the machine booted; the pool uses the same clock.
    notify : sequence of str, optional
        Command to run for each job that is over (``Notifier``).
    private : bool
        Show a job's details only to its user and to administrators.
    gathering : GatherOptions, optional
        How shares without evidence are measured on idle devices; None: they are not.

    Attributes
    ----------
    api : ServiceApi
        Answers requests; thread-safe.
    ready : threading.Event
        Set once ``run`` has recovered the jobs of an earlier service. If the journal cannot be
        written yet, it is also set, and requests are refused until it can.

    Raises
    ------
    UnsupportedError
        If there is no such policy.
    JournalError
        If the journal cannot be read. A repository that cannot be read is tried again while the
        service runs; until then nothing is known about any pair.
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
        limits: AdmissionLimits | None = None,
        keep_s: float = KEEP_S,
        max_jobs_per_gpu: int | None = None,
        uncapped: bool = False,
        boot_s: Callable[[], float] = boot_s,
        notify: Sequence[str] | None = None,
        private: bool = False,
        gathering: GatherOptions | None = None,
    ) -> None:
        self.ready = threading.Event()
        self._closing = threading.Event()
        self._pool = pool
        self._directory = os.fspath(directory)
        self._dry_run = dry_run
        self._keep_s = keep_s
        self._lock = threading.RLock()
        self._requests = RequestQueue()
        self._policy = GuardedPolicy(policy)
        self._machine = machine = journal.replay()
        # An earlier service has sent notifications for these.
        machine.ended.clear()
        self._notifier = None if notify is None or dry_run else Notifier(notify)
        self._clock = ServiceClock(machine.now_s, boot_s)
        self._started_s = self._clock.now_s()
        self._troubles = Troubles(self._clock.now_s)
        self._ledger = EventLedger(journal, machine, self._lock, self._troubles, self._applied)
        self._devices = Devices(pool, max_jobs_per_gpu, uncapped)
        self._left = LeftBehind(machine)
        self._gatherer = Gatherer(
            machine,
            pool,
            self._devices,
            self._directory,
            None if dry_run else gathering,
            self._requests.ring,
            lambda: self._left.held,
        )
        recorder = Recorder(repository, self._requests.ring)
        into = Path(directory) / _MODEL if directory and not dry_run else None
        models = self._devices.models.values()
        learner = Learner(
            repository,
            models,
            model,
            into,
            self._requests.ring,
            sharing=lambda: self._devices.cluster.sharing,
        )
        self._view = PolicyView(
            machine, self._devices.cluster, learner.beliefs, pool.sharing, pool.allowed
        )
        self._knowledge = Knowledge(
            machine,
            self._clock,
            self._devices,
            self._view,
            self._troubles,
            recorder,
            learner,
            lambda: self._decider.decide_now(),
        )
        watching = watching or WatchOptions()
        self._watch = RunWatch(machine, pool, self._devices.models, self._view, watching, sample_s)
        self._decider = Decider(
            machine,
            self._clock,
            pool,
            self._ledger,
            self._troubles,
            self._view,
            self._policy,
            ProfilingQueue(machine, watching.profile_most_s),
            self._left,
            self._gatherer,
            self._directory,
        )
        self.api = ServiceApi(
            machine=machine,
            lock=self._lock,
            clock=self._clock,
            requests=self._requests,
            pool=pool,
            devices=self._devices,
            seen=self._watch.readings,
            view=self._view,
            decider=self._decider,
            known=self._knowledge.known,
            show=self._shown,
            stalled=self._stalled,
            limits=limits or AdmissionLimits(),
            directory=self._directory,
            dry_run=dry_run,
            private=private,
        )
        self._prune_s = math.inf if dry_run else self._started_s + PRUNE_FIRST_S
        self._knowledge.learn()

    @property
    def state(self) -> State:
        """The state that the policy sees."""
        return self._view.state

    # The life of a service.

    def run(self) -> None:
        """Serve until ``stop`` is called; jobs keep running afterwards."""
        try:
            self._take_up()
            if not self._dry_run:
                threading.Thread(target=self._make_room, name="room", daemon=True).start()
            run_rounds(self, self._policy)
            # A checkpoint, so that the next start reads no events.
            self._ledger.checkpoint(every=1)
        finally:
            self._closing.set()
            self._requests.abandon()
            self._gatherer.close()
            self._pool.close()
            if self._notifier is not None:
                self._notifier.close()
            self._knowledge.close()

    def stop(self) -> None:
        """Make ``run`` return; thread-safe."""
        self._requests.close()

    def _take_up(self) -> None:
        """Recover the runs of an earlier service; carry out no command before all are known."""
        held = list(self._machine.holding.values())
        beyond = self._pool.resume([job.run for job in held if job.run is not None])
        adopted = self._left.adopted(beyond, self._clock.now_s())
        measured = self._gatherer.left_over(self._clock.now_s())
        if not self._is_durable([self._attached(), *adopted, *measured]):
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
        """Commit events of the recovery, retrying as needed; return False if the service stops."""
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
        """Serve until a decision is due; return False if the service stops."""
        while not self._requests.closed:
            self._troubles.try_again()
            self._serve()
            due = not self._ledger.news and self._decider.due_s <= self._clock.now_s()
            if due and self._prepared():
                return True
            self._execute_commands()
            self._requests.wait(self._idle_s())
        return False

    def _prepared(self) -> bool:
        """Prepare a decision; return whether the policy should decide."""
        if not self._decider.prepare():
            return False
        if not self._dry_run:
            if not self._decider.begin():
                return False
            self._execute_urgent_commands()
        return True

    def carry_out(self, decision: Decision, decide_s: float) -> None:
        """Place and stop jobs as decided, except starts that the checker refuses."""
        self._decider.note(decision, decide_s)
        if not self._dry_run:
            self._decider.carry_out(decision)
            self._execute_commands()

    def _idle_s(self) -> float:
        """Return the seconds until something is due, unless a request or a report comes."""
        moments = [self._troubles.again_s, self._prune_s]
        if not self._ledger.news:
            moments += [self._decider.due_s, self._left.lost_s, self._gatherer.next_s]
            moments += map(_deadline_s, self._machine.holding.values())
            if not self._dry_run:
                moments.append(self._watch.next_s)
        return min(max(0.0, min(moments) - self._clock.now_s()), _LONGEST_IDLE_S)

    # One turn: new events, requests, and commands.

    def _serve(self) -> None:
        requests = self._requests.take()
        happened = self._of_jobs(self._polled())
        try:
            self._watch.note_ends(happened)
        except Exception as error:
            self._troubles.report("watch", error)
        self._ledger.news += happened
        if not self._ledger.news:
            self._ledger.news = [
                *self._left.lost(self._clock.now_s()),
                *self._overdue(),
                *self._measured(),
                *self._knowledge.recorded(),
                *self._gathered(),
            ]
        self._ledger.commit_news()
        if requests:
            self._ledger.answer(requests)
        if not self._dry_run:
            self._knowledge.record()
        self._execute_urgent_commands()
        if self._clock.now_s() >= self._prune_s:
            self._prune()

    def _prune(self) -> None:
        """Remove old events from the journal."""
        now_s = self._clock.now_s()
        more = self._ledger.compact(now_s - self._keep_s)
        self._prune_s = now_s + (PRUNE_FIRST_S if more else PRUNE_S)

    def _make_room(self) -> None:
        """Remove files of ended runs, by age and when the disk fills, until the service ends."""
        while not self._closing.wait(ROOM_S):
            try:
                self._pool.prune(self._keep_s)
            except Exception:
                _LOG.exception("old runs are not removed")

    def _polled(self) -> list[AnyEvent]:
        reported: list[AnyEvent] = []
        try:
            reported = self._stamped(self._pool.poll())
            # Devices are read after the reports and committed before them: reports may be about new
            # devices.
            return [*self._others(), *reported]
        except Exception as error:
            self._troubles.report("pool", error)
            return reported

    def _stamped(self, reported: Sequence[AnyEvent]) -> list[AnyEvent]:
        at_s, found = self._clock.now_s(), []
        for event in reported:
            known: dict[str, object] = {"at_s": at_s}
            if isinstance(event, events.RankEnded) and event.ended_s is not None:
                known["ended_s"] = min(self._clock.at(event.ended_s), at_s)
            found.append(event.model_copy(update=known))
        return found

    def _of_jobs(self, reported: Sequence[AnyEvent]) -> list[AnyEvent]:
        """Return the events of jobs; strays are released as they end."""
        found, over = self._left.sort(self._gatherer.sort(reported))
        self._ledger.commands += over
        if over:
            self._decider.decide_now()
        return found

    def _overdue(self) -> list[AnyEvent]:
        """Return stops of the runs whose walltime is over."""
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
        """Sample the runs if a sample is due, and return the resulting events."""
        now_s = self._clock.now_s()
        if self._dry_run or now_s < self._watch.next_s:
            return []
        try:
            found = self._watch.sample(now_s, self._clock.boot_s())
        except Exception as error:
            self._troubles.report("watch", error)
            return []
        self._troubles.clear("watch")
        return found

    def _gathered(self) -> list[AnyEvent]:
        """Return the events of shares that the service measures itself."""
        try:
            found = self._gatherer.due(self._clock.now_s())
        except Exception as error:
            self._troubles.report("shares", error)
            return []
        self._troubles.clear("shares")
        return found

    def _applied(self, happened: Sequence[AnyEvent]) -> None:
        """React to applied events: use new devices, and request a decision if needed."""
        kinds = {event.kind for event in happened}
        if "devices_changed" in kinds:
            with self._lock:
                self._devices.take_up()
                self._view.equip(self._devices.cluster)
        self._decider.decide_after(kinds)

    def _others(self) -> list[AnyEvent]:
        """Return the events of changed devices, if any, and of workloads known on them."""
        news = self._devices.news(self._clock.now_s())
        return [*news, *self._knowledge.newly_known()] if news else []

    def _execute_urgent_commands(self) -> None:
        """Carry out all commands if any is urgent; only releases can wait for a decision."""
        self._ledger.commands += self._gatherer.commands()
        if any(not isinstance(command, Release) for command in self._ledger.commands):
            self._execute_commands()

    def _execute_commands(self) -> None:
        self._ledger.commands += self._gatherer.commands()
        if self._ledger.execute(None if self._dry_run else self._pool):
            while self._machine.ended:
                job = self._machine.ended.popleft()
                if self._notifier is not None:
                    self._notifier.notify(job)

    def _shown(self) -> ServiceView:
        """Return the view of the service and its devices."""
        awaited, seen = awaited_text(self._pool), self._watch.readings
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
                decide_s=self._decider.took_s,
                gap=self._decider.gap,
                dry_run=self._dry_run,
                trouble="; ".join(filter(None, self._all_troubles())),
                evidence=self._gatherer.view(),
                devices=device_views(
                    self._machine, self._devices.cluster, seen.usage, seen.power_w
                ),
            )

    def _stalled(self) -> str:
        """Return what prevents any start, even on idle devices; empty if nothing."""
        if "disk" in self._troubles:
            return "room on the disk of the service, which is full"
        if "journal" in self._troubles:
            return "the journal of the service, which cannot be written"
        if "world" in self._troubles or self._policy.trouble:
            return "a decision of the policy, which fails"
        return ""

    def _all_troubles(self) -> list[str]:
        parts = (self._policy, self._notifier, self._pool, self._knowledge)
        return [*self._troubles.texts, *(part.trouble for part in parts if part is not None)]


def _deadline_s(job: LiveJob) -> float:
    """Return when a job's walltime is over; infinity if it has none, or is being stopped.

    It counts from the first process: after a restart, a run may be launched long after its start.
    """
    if job.spec.walltime_s is None or job.stop_then:
        return math.inf
    started = (rank.started_s for rank in job.ranks if rank.started_s is not None)
    return min(started, default=math.inf) + job.spec.walltime_s
