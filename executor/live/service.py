"""The service: it connects the journal, the state machine, a pool and a policy, and loses no job.

One thread serves (``Service.run``); any thread may make requests (``Service.api``). Events are
written to the journal and applied by the state machine, and the policy decides. All of this is
durable before requests are answered or commands carried out. While the journal cannot be written,
requests are refused and no command is carried out; jobs keep running, and their events are kept in
memory until they can be written.

The work is done by three parts (``live.py``); this module makes them and runs the loop.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dovetail.executor.jobs import events
from dovetail.executor.jobs.commands import Release
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.journal import Journal
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.live.devices import Devices
from dovetail.executor.live.ledger import AGAIN_S
from dovetail.executor.live.live import Live
from dovetail.executor.live.observation.learning import Learner
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.observation.watch import RunWatch
from dovetail.executor.live.requests.admission import AdmissionLimits
from dovetail.executor.live.requests.notifying import Notifier
from dovetail.executor.live.requests.service_api import ServiceApi
from dovetail.executor.live.rounds.deciding import Decider, GuardedPolicy
from dovetail.executor.live.rounds.gathering import Gatherer, GatherOptions
from dovetail.executor.live.rounds.previews import Previews
from dovetail.executor.pools.pool import SAMPLE_S, NodePool
from dovetail.executor.pools.runs.files import KEEP_S, ROOM_S
from dovetail.executor.rounds import run_rounds
from dovetail.executor.system.clock import boot_id, boot_s
from dovetail.instances._version import VERSION
from dovetail.instances.datasets.repository import Repository
from dovetail.instances.instance import Assumed
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


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """How a service serves.

    Attributes
    ----------
    policy : str
        Name and options, as in ``policy_named``.
    model : TrainedPredictor, optional
        Predicts slowdowns that were not measured. Default: the law of MPS.
    watching : WatchOptions
        How long runs are watched before conclusions are drawn.
    sample_s : float
        Seconds between two samples of the runs.
    directory : path
        The state directory; empty = none.
    dry_run : bool
        Start and stop no job; ``plan`` shows the jobs that would start.
    limits : AdmissionLimits
        The limits for users.
    keep_s : float
        Seconds for which events and logs of ended jobs are kept.
    max_jobs_per_gpu : int, optional
        Number of jobs that may share a device; by default the pool's number.
    uncapped : bool
        Let jobs share without caps on an estimate (``Cluster.uncapped``), whatever the pool says.
    assumed : Assumed, optional
        Slowdowns that are declared for jobs without caps; by default those of the pool's cluster.
    boot_s : callable
        Returns seconds since the machine booted; the pool uses the same clock.
    notify : sequence of str, optional
        Command to run for each job that is over (``Notifier``).
    private : bool
        Show a job's details only to its user and to administrators.
    gathering : GatherOptions, optional
        How shares without evidence are measured on idle devices; None: they are not.
    """

    policy: str = "dovetail"
    model: TrainedPredictor | None = None
    watching: WatchOptions = field(default_factory=WatchOptions)
    sample_s: float = SAMPLE_S
    directory: str | Path = ""
    dry_run: bool = False
    limits: AdmissionLimits = field(default_factory=AdmissionLimits)
    keep_s: float = KEEP_S
    max_jobs_per_gpu: int | None = None
    uncapped: bool = False
    assumed: Assumed | None = None
    boot_s: Callable[[], float] = boot_s
    notify: Sequence[str] | None = None
    private: bool = False
    gathering: GatherOptions | None = None


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
    options : ServiceOptions
        How it serves.

    Attributes
    ----------
    live : Live
        What its parts share.
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
        options: ServiceOptions | None = None,
    ) -> None:
        chosen = options or ServiceOptions()
        self.ready = threading.Event()
        self._closing = threading.Event()
        self._keep_s = chosen.keep_s
        self._policy = GuardedPolicy(chosen.policy)
        devices = Devices(pool, chosen.max_jobs_per_gpu, chosen.uncapped, chosen.assumed)
        self.live = live = Live.of(
            journal, pool, devices, chosen.boot_s, os.fspath(chosen.directory), chosen.dry_run
        )
        # An earlier service has sent notifications for these, and counted them.
        live.machine.ended.clear()
        live.machine.tally.clear()
        self._notifier = None if chosen.notify is None or live.dry_run else Notifier(chosen.notify)
        into = Path(live.directory) / _MODEL if live.directory and not live.dry_run else None
        self._learner = Learner(live, repository, chosen.model, into)
        self._watch = RunWatch(live, chosen.watching, chosen.sample_s)
        self._gatherer = Gatherer(live, None if live.dry_run else chosen.gathering)
        self._decider = Decider(live, self._policy, self._gatherer, chosen.watching.profile_most_s)
        troubled = (self._policy, self._notifier, pool, self._learner)
        self.api = ServiceApi(
            live,
            Previews(live, self._decider),
            [part for part in troubled if part is not None],
            policy=chosen.policy,
            limits=chosen.limits,
            private=chosen.private,
        )
        self._prune_s = math.inf if live.dry_run else live.now_s + PRUNE_FIRST_S

    @property
    def state(self) -> State:
        """The state that the policy sees."""
        return self._decider.view.state

    # The life of a service.

    def run(self) -> None:
        """Serve until ``stop`` is called; jobs keep running afterwards."""
        live = self.live
        try:
            self._take_up()
            if not live.dry_run:
                threading.Thread(target=self._make_room, name="room", daemon=True).start()
            run_rounds(self, self._policy)
            # A checkpoint, so that the next start reads no events.
            live.ledger.checkpoint(every=1)
        finally:
            self._closing.set()
            live.requests.abandon()
            self._gatherer.close()
            live.pool.close()
            if self._notifier is not None:
                self._notifier.close()
            self._learner.close()

    def stop(self) -> None:
        """Make ``run`` return; thread-safe."""
        self.live.requests.close()

    def _take_up(self) -> None:
        """Recover the runs of an earlier service; carry out no command before all are known."""
        live = self.live
        held = list(live.machine.holding.values())
        beyond = live.pool.resume([job.run for job in held if job.run is not None])
        adopted = live.left.adopted(beyond, live.now_s)
        measured = self._gatherer.left_over(live.now_s)
        if not self._is_durable([self._attached(), *adopted, *measured]):
            return
        strays = live.left.end_strays(beyond)
        live.left.await_ranks([job.id for job in held], live.now_s)
        happened = self._of_jobs(self._stamped(live.pool.poll()))
        known = live.beliefs.newly_known(live.now_s)
        if not self._is_durable([*self._others(), *happened, *known]):
            return
        releases = [command for command in live.ledger.commands if isinstance(command, Release)]
        live.ledger.commands = [*releases, *strays, *live.machine.outstanding()]
        live.pool.attach(live.requests.ring)
        if not live.dry_run:
            self._learner.record()
        self.ready.set()

    def _is_durable(self, happened: Sequence[AnyEvent]) -> bool:
        """Commit events of the recovery, retrying as needed; return False if the service stops."""
        ledger, requests = self.live.ledger, self.live.requests
        ledger.news = [*happened]
        while not ledger.commit_news() and not requests.closed:
            self.ready.set()
            requests.wait(AGAIN_S)
            ledger.answer(requests.take())
        return not ledger.news

    def _attached(self) -> AnyEvent:
        return events.ServiceStarted(
            at_s=self.live.now_s,
            boot=boot_id(),
            pool=self.live.pool.name,
            gpus=tuple(self.live.devices.models),
            version=VERSION,
        )

    # The round loop (``rounds.Pool``).

    def advance(self) -> bool:
        """Serve until a decision is due; return False if the service stops."""
        live = self.live
        while not live.requests.closed:
            live.troubles.try_again()
            self._serve()
            due = not live.ledger.news and self._decider.next_s() <= live.now_s
            if due and self._prepared():
                return True
            self._execute_commands()
            live.requests.wait(self._idle_s())
        return False

    def _prepared(self) -> bool:
        """Prepare a decision; return whether the policy should decide."""
        if not self._decider.prepare():
            return False
        if not self.live.dry_run:
            if not self._decider.begin():
                return False
            self._execute_urgent_commands()
        return True

    def carry_out(self, decision: Decision, decide_s: float) -> None:
        """Place and stop jobs as decided, except starts that the checker refuses."""
        self._decider.note(decision, decide_s)
        if not self.live.dry_run:
            self._decider.carry_out(decision)
            self._execute_commands()

    def _idle_s(self) -> float:
        """Return the seconds until something is due, unless a request or a report comes."""
        live = self.live
        moments = [live.troubles.again_s, self._prune_s]
        if not live.ledger.news:
            moments += [self._decider.next_s(), live.left.lost_s, self._gatherer.next_s]
            moments += map(_deadline_s, live.machine.holding.values())
            moments += [job.again_s or 0.0 for job in live.machine.resting.values()]
            if not live.dry_run:
                moments.append(self._watch.next_s)
        return min(max(0.0, min(moments) - live.now_s), _LONGEST_IDLE_S)

    # One turn: new events, requests, and commands.

    def _serve(self) -> None:
        ledger, requests = self.live.ledger, self.live.requests.take()
        happened = self._of_jobs(self._polled())
        try:
            self._watch.note_ends(happened)
        except Exception as error:
            self.live.troubles.report("watch", error)
        ledger.news += happened
        if not ledger.news:
            ledger.news = [
                *self.live.left.lost(self.live.now_s),
                *self._overdue(),
                *self._rested(),
                *self._measured(),
                *self._learner.recorded(),
                *self._gathered(),
            ]
        ledger.commit_news()
        if requests:
            ledger.answer(requests)
        if not self.live.dry_run:
            self._learner.record()
        self._execute_urgent_commands()
        if self.live.now_s >= self._prune_s:
            self._prune()

    def _prune(self) -> None:
        """Remove old events from the journal."""
        now_s = self.live.now_s
        more = self.live.ledger.compact(now_s - self._keep_s)
        self._prune_s = now_s + (PRUNE_FIRST_S if more else PRUNE_S)

    def _make_room(self) -> None:
        """Remove files of ended runs, by age and when the disk fills, until the service ends."""
        while not self._closing.wait(ROOM_S):
            try:
                self.live.pool.prune(self._keep_s)
            except Exception:
                _LOG.exception("old runs are not removed")

    def _polled(self) -> list[AnyEvent]:
        reported: list[AnyEvent] = []
        try:
            reported = self._stamped(self.live.pool.poll())
            # Devices are read after the reports and committed before them: reports may be about new
            # devices.
            return [*self._others(), *reported]
        except Exception as error:
            self.live.troubles.report("pool", error)
            return reported

    def _stamped(self, reported: Sequence[AnyEvent]) -> list[AnyEvent]:
        at_s, found = self.live.now_s, []
        for event in reported:
            known: dict[str, object] = {"at_s": at_s}
            if isinstance(event, events.RankEnded) and event.ended_s is not None:
                known["ended_s"] = min(self.live.clock.at(event.ended_s), at_s)
            found.append(event.model_copy(update=known))
        return found

    def _of_jobs(self, reported: Sequence[AnyEvent]) -> list[AnyEvent]:
        """Return the events of jobs; strays are released as they end."""
        found, over = self.live.left.sort(self._gatherer.sort(reported))
        self.live.ledger.commands += over
        if over:
            self._decider.decide_now()
        return found

    def _others(self) -> list[AnyEvent]:
        """Return the events of changed devices, if any, and of workloads known on them."""
        news = self.live.devices.news(self.live.now_s)
        return [*news, *self.live.beliefs.newly_known(self.live.now_s)] if news else []

    def _overdue(self) -> list[AnyEvent]:
        """Return stops of the runs whose walltime is over."""
        at_s = self.live.now_s
        return [
            events.StopDecided(
                at_s=at_s,
                run=job.run.id,
                reason=f"its walltime of {job.spec.walltime_s:.15g} s is over",
                then="fail",
            )
            for job in self.live.machine.holding.values()
            if job.run is not None and _deadline_s(job) <= at_s
        ]

    def _rested(self) -> list[AnyEvent]:
        """Return the restarts of services that have rested for long enough."""
        at_s, resting = self.live.now_s, self.live.machine.resting.values()
        due = [job.id for job in resting if job.again_s is not None and job.again_s <= at_s]
        return [events.RestartDue(at_s=at_s, job=job) for job in due]

    def _measured(self) -> list[AnyEvent]:
        """Sample the runs if a sample is due, and return the resulting events."""
        live, now_s = self.live, self.live.now_s
        if live.dry_run or now_s < self._watch.next_s:
            return []
        try:
            found = self._watch.sample(now_s, live.clock.boot_s())
            self._decider.note_progress(now_s)
        except Exception as error:
            live.troubles.report("watch", error)
            return []
        live.troubles.clear("watch")
        return found

    def _gathered(self) -> list[AnyEvent]:
        """Return the events of shares that the service measures itself."""
        try:
            found = self._gatherer.due(self.live.now_s)
        except Exception as error:
            self.live.troubles.report("shares", error)
            return []
        self.live.troubles.clear("shares")
        return found

    def _execute_urgent_commands(self) -> None:
        """Carry out all commands if any is urgent; only releases can wait for a decision."""
        ledger = self.live.ledger
        ledger.commands += self._gatherer.commands()
        if any(not isinstance(command, Release) for command in ledger.commands):
            self._execute_commands()

    def _execute_commands(self) -> None:
        live = self.live
        live.ledger.commands += self._gatherer.commands()
        if live.ledger.execute(None if live.dry_run else live.pool):
            while live.machine.ended:
                job = live.machine.ended.popleft()
                if self._notifier is not None:
                    self._notifier.notify(job)


def _deadline_s(job: LiveJob) -> float:
    """Return when a job's walltime is over; infinity if it has none, or is being stopped.

    It counts from the first process: after a restart, a run may be launched long after its start.
    """
    if job.spec.walltime_s is None or job.stop_then:
        return math.inf
    started = (rank.started_s for rank in job.ranks if rank.started_s is not None)
    return min(started, default=math.inf) + job.spec.walltime_s
