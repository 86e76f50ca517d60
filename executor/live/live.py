"""What all parts of the live service share.

The service has three parts, which do not know each other's modules: ``requests`` (what users ask),
``rounds`` (decisions and starts) and ``observation`` (progress, profiles, measurements). They meet
here: ``service.py`` makes one `Live`, gives it to each of them, and runs the loop.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from dovetail.executor.jobs import events
from dovetail.executor.jobs.commands import Command, Release, StopRun
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.journal import Journal
from dovetail.executor.jobs.specs import Run
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import HOLDING, QUEUED, UNDER_WAY
from dovetail.executor.live.devices import Devices
from dovetail.executor.live.job_beliefs import JobBeliefs
from dovetail.executor.live.ledger import EventLedger, RequestQueue, Troubles
from dovetail.executor.live.views import DECISION_BOUNDS_S, PartView
from dovetail.executor.pools.pool import NodePool, Progress, Usage
from dovetail.executor.system.clock import ServiceClock

MOST_READINGS: Final = 10_000
"""Number of runs whose readings are kept; the oldest are forgotten first."""


class RunReading(NamedTuple):
    """The present figures of a run; None if unknown.

    Attributes
    ----------
    iterations, total : float or None
        Iterations that its slowest rank has done in this run, and all iterations if the job reports
        them.
    rate, solo_rate : float or None
        Iterations per second now, and alone and uncapped according to its workload's profile.
    slowdown : float or None
        ``solo_rate / rate``; of a service, ``p99_s / p99_alone_s``.
    predicted, upper : float or None
        The largest slowdown believed with its present co-runners, and its upper bound.
    predicted_by : str
        The source of ``predicted``, in words.
    memory_used_mib : float or None
        The most memory that one of its ranks was seen to use.
    memory_held_by : str
        What makes it keep to its memory limit on its devices, in words; empty without a limit.
    launches, escapes : mapping
        As in ``Usage``, of the devices on which it is isolated.
    ready : bool or None
        Whether a service has answered a probe just now; None if it has no probe.
    p99_s, p99_alone_s : float or None
        The 99th percentile of its latencies in about the last window, and alone according to its
        workload's profile.
    requests_per_s : float or None
        Latencies that it reported per second of the last window; None if it never reported one.
    energy_j : float or None
        The energy of its devices that it answers for.
    device_s : float or None
        The time of its devices that it answers for, summed over them.
    """

    iterations: float | None = None
    total: float | None = None
    rate: float | None = None
    solo_rate: float | None = None
    slowdown: float | None = None
    predicted: float | None = None
    upper: float | None = None
    predicted_by: str = ""
    memory_used_mib: float | None = None
    memory_held_by: str = ""
    launches: Mapping[str, int] = {}
    escapes: Mapping[str, str] = {}
    ready: bool | None = None
    p99_s: float | None = None
    p99_alone_s: float | None = None
    requests_per_s: float | None = None
    energy_j: float | None = None
    device_s: float | None = None


NOTHING: Final = RunReading()


class LastReading:
    """The last reading of each run, only in memory: lost when the service ends.

    Attributes
    ----------
    now : mapping of str to RunReading
        The last sample of each watched run.
    readings : dict of str to RunReading
        By run, without rates; ``slowdown`` and ``predicted`` are the last values while it shared.
    usage : mapping of str to Usage
        The last usage of each device.
    power_w : mapping of str to float
        Power of each device for which it is known.
    parts : mapping of str to tuple of PartView
        What the jobs on each device answer for.
    """

    def __init__(self, most: int = MOST_READINGS) -> None:
        self.now: Mapping[str, RunReading] = {}
        self.readings: dict[str, RunReading] = {}
        self.usage: Mapping[str, Usage] = {}
        self.power_w: Mapping[str, float] = {}
        self.parts: Mapping[str, tuple[PartView, ...]] = {}
        self._most = most

    def note(self, run: str, now: RunReading, shares: bool) -> None:
        """Record the reading of a run; ``shares`` says whether it has co-runners."""
        before = self.readings.get(run, NOTHING)
        slowed = now if shares and now.slowdown is not None else before
        self._keep(
            run,
            before._replace(
                iterations=before.iterations if now.iterations is None else now.iterations,
                total=before.total if now.total is None else now.total,
                slowdown=slowed.slowdown,
                predicted=slowed.predicted,
                predicted_by=slowed.predicted_by,
                memory_used_mib=now.memory_used_mib,
                energy_j=now.energy_j,
                device_s=now.device_s,
            ),
        )

    def note_end(self, run: str, ranks: Iterable[Progress | None]) -> None:
        """Record the final progress of a run from the last reports of its ranks."""
        reporting = [rank for rank in ranks if rank is not None]
        if reporting:
            slowest = min(reporting, key=lambda rank: rank.iterations)
            before = self.readings.get(run, NOTHING)
            total = before.total if slowest.total is None else slowest.total
            self._keep(run, before._replace(iterations=slowest.iterations, total=total))

    def _keep(self, run: str, reading: RunReading) -> None:
        self.readings.pop(run, None)
        self.readings[run] = reading
        if len(self.readings) > self._most:
            del self.readings[next(iter(self.readings))]


@dataclass
class JobCounts:
    """Counts since the service started, only in memory.

    Attributes
    ----------
    decisions : Counter of float
        As in ``Statistics``.
    decisions_s : float
        Seconds that all decisions took.
    broken : int
        How often a run was found over its gSLA.
    """

    decisions: Counter[float] = field(default_factory=Counter)
    decisions_s: float = 0.0
    broken: int = 0

    def note_decision(self, took_s: float) -> None:
        """Count a decision."""
        bounds = (*DECISION_BOUNDS_S, math.inf)
        self.decisions[bounds[bisect_left(DECISION_BOUNDS_S, took_s)]] += 1
        self.decisions_s += took_s


TRACE_S: Final = 60.0
"""Seconds within which a pool must report an expected run after the start."""

_ENDS: Final = frozenset({"rank_ended", "rank_gone", "rank_refused"})


class LeftBehind:
    """Keeps track of runs left by an earlier service until all of them are accounted for.

    A *stray* is a run without a job. No job starts on its devices until it has ended.

    Parameters
    ----------
    machine : StateMachine
        Jobs and devices; only read.
    """

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._unseen: set[tuple[str, int]] = set()
        self._lost_s = math.inf
        # The runs, and their ranks that may still run.
        self._strays: dict[str, tuple[Run, set[int]]] = {}

    @property
    def lost_s(self) -> float:
        """When ranks that were not reported become lost; infinity if all were reported."""
        return self._lost_s if self._unseen else math.inf

    @property
    def held(self) -> Mapping[str, str]:
        """The devices of strays, with the id of the run."""
        return {seat.gpu: run.id for run, _ in self._strays.values() for seat in run.seats}

    def adopted(self, beyond: Iterable[Run], at_s: float) -> list[AnyEvent]:
        """Return starts that the journal has lost: of unknown runs that fit their jobs."""
        return [
            events.Placed(
                at_s=at_s,
                run=run,
                profiling=run.spec.key not in self._machine.profiled,
            )
            for run in beyond
            if (job := self._machine.jobs.get(run.job)) is not None
            and job.state in QUEUED
            and job.spec == run.spec
            and run.id == f"{job.id}.{job.runs + 1}"
        ]

    def await_ranks(self, runs: Sequence[str], at_s: float) -> None:
        """Expect the pool to report every rank of these runs, within `TRACE_S`."""
        self._lost_s = at_s + TRACE_S
        self._unseen = {
            (job.run.id, rank)
            for name in runs
            if (job := self._machine.jobs[name]).run is not None and job.state in UNDER_WAY
            for rank in range(len(job.ranks))
        }

    def end_strays(self, beyond: Iterable[Run]) -> list[Command]:
        """Return commands that stop strays, and that release runs of ended jobs."""
        found: list[Command] = []
        for run in beyond:
            job = self._machine.jobs.get(run.job)
            if job is not None and job.run is not None and job.run.id == run.id:
                found += [] if job.state in HOLDING else [Release(run.id)]
            else:
                self._strays[run.id] = run, set(range(len(run.seats)))
                found.append(StopRun(run.id, run.spec.grace_s))
        return found

    def sort(self, reported: Iterable[AnyEvent]) -> tuple[list[AnyEvent], list[Command]]:
        """Return the events of jobs, and the releases of strays that have ended."""
        ours: list[AnyEvent] = []
        over: list[Command] = []
        for event in reported:
            run, rank = getattr(event, "run", ""), getattr(event, "rank", -1)
            self._unseen.discard((run, rank))
            if run not in self._strays:
                ours.append(event)
            elif event.kind in _ENDS:
                _, left = self._strays[run]
                left.discard(rank)
                if not left:
                    del self._strays[run]
                    over.append(Release(run))
        return ours, over

    def lost(self, at_s: float) -> list[AnyEvent]:
        """Return the loss events of ranks that the pool has not reported in time."""
        if at_s < self.lost_s:
            return []
        unseen, self._unseen = sorted(self._unseen), set()
        return [
            events.RankLost(at_s=at_s, run=run, rank=rank, reason="the pool has no trace of it")
            for run, rank in unseen
            if (job := self._machine.jobs[run.rpartition(".")[0]]).state in UNDER_WAY
            and job.run is not None
            and job.run.id == run
        ]


@dataclass(kw_only=True)
class Live:
    """The shared state of a service. Only the service's thread changes it.

    Attributes
    ----------
    machine : StateMachine
        Jobs and devices. It changes only as the ledger applies events, with ``lock`` held; other
        threads hold the lock to read it.
    lock : threading.RLock
        Held while the state machine or the devices change.
    clock : ServiceClock
        The service's clock.
    pool : NodePool
        The pool that runs the jobs.
    devices : Devices
        The devices of the pool that the service knows.
    troubles : Troubles
        Where failures are reported, and when what failed is tried again.
    ledger : EventLedger
        Writes events to the journal, applies them, and carries out the resulting commands.
    requests : RequestQueue
        The waiting requests; ``ring`` wakes the service's thread from any other.
    left : LeftBehind
        Runs left by an earlier service.
    beliefs : JobBeliefs
        What is believed about jobs; the observation keeps it up to date.
    readings : LastReading
        What the observation last saw of runs and devices.
    counted : JobCounts
        Counts since the start of the service.
    directory : str
        The state directory; empty = none.
    dry_run : bool
        Whether no job is started or stopped.
    """

    machine: StateMachine
    lock: threading.RLock
    clock: ServiceClock
    pool: NodePool
    devices: Devices
    troubles: Troubles
    ledger: EventLedger
    requests: RequestQueue
    left: LeftBehind
    beliefs: JobBeliefs
    readings: LastReading = field(default_factory=LastReading)
    counted: JobCounts = field(default_factory=JobCounts)
    directory: str = ""
    dry_run: bool = False

    @classmethod
    def of(
        cls,
        journal: Journal,
        pool: NodePool,
        devices: Devices,
        boot_s: Callable[[], float],
        directory: str = "",
        dry_run: bool = False,
    ) -> Self:
        """Return the shared state as the journal of an earlier service has it."""
        machine, lock = journal.replay(), threading.RLock()
        clock = ServiceClock(machine.now_s, boot_s)
        troubles = Troubles(clock.now_s)
        return cls(
            machine=machine,
            lock=lock,
            clock=clock,
            pool=pool,
            devices=devices,
            troubles=troubles,
            ledger=EventLedger(journal, machine, lock, troubles, devices),
            requests=RequestQueue(),
            left=LeftBehind(machine),
            beliefs=JobBeliefs(machine, pool, devices),
            directory=directory,
            dry_run=dry_run,
        )

    @property
    def now_s(self) -> float:
        """The moment on the service's clock."""
        return self.clock.now_s()
