"""What a policy sees when it decides: jobs, GPUs, where each job runs, and what is predicted.

The pool that keeps this state (simulated or real) is the only one to change it; a policy reads
it and answers with a ``Decision``. Nothing here tells the truth of a simulation: durations and
slowdowns are what is believed, progress and rates are what any monitor would measure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.budget import WALL, Clock
from dovetail.formulations.entries import SlowdownIndex
from dovetail.formulations.machines import Machines
from dovetail.formulations.modes import Mode, modes
from dovetail.formulations.rules import most_bound, slowdown_at_last, tail_bounds
from dovetail.instances._record import IDLE
from dovetail.instances.hosts import Hosts
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.sets import slowdown_at
from dovetail.instances.slowdown_table import SlowdownTable

LEAST_REMAINING_S = 1.0
"""What a job that has outlived its estimate is believed to need still."""


@dataclass(slots=True, eq=False)
class Job:
    """A job as its pool knows it.

    Attributes
    ----------
    number : int
        Its place in the order of arrival; what ``State`` finds it by.
    id, tenant : str
        Its name and user.
    workload : int
        Index into ``State.workloads``.
    workers : int
        GPUs it needs, all at once.
    work_s : float
        The seconds it is believed to run alone on a GPU of speed 1, in all.
    arrival_s, gsla, weight : float
        As in a trace; ``gsla`` is infinite where the owner named none.
    latency : bool
        Whether it is latency-critical.
    phase : str
        ``pending``, ``running`` or ``finished``.
    done_s : float
        The part of its work that was done at ``since_s``.
    rate : float
        Seconds of work it does in a second now; 0 unless it runs.
    since_s : float
        When ``done_s`` was taken; lies ahead while the job is being restarted.
    gpus : tuple of int
        The GPUs it holds, empty unless it runs.
    shares : tuple of (int or None), or None
        Its cap on each of them; None = no cap on any.
    mode : int
        Which of ``State.modes`` of its workload it runs in: how often its batch is halved.
    started_s : float
        When its present stay on GPUs began; NaN unless it runs.
    held_s : float
        Seconds it held GPUs in the stays before.
    starts : int
        How many times it was started.
    waiting_since_s : float
        When it last began to wait.
    """

    number: int
    id: str
    workload: int
    workers: int
    work_s: float
    arrival_s: float
    gsla: float = math.inf
    weight: float = 1.0
    latency: bool = False
    tenant: str = ""
    phase: Literal["pending", "running", "finished"] = "pending"
    done_s: float = 0.0
    rate: float = 0.0
    since_s: float = 0.0
    gpus: tuple[int, ...] = ()
    shares: tuple[int | None, ...] | None = None
    mode: int = 0
    started_s: float = math.nan
    held_s: float = 0.0
    starts: int = 0
    waiting_since_s: float = 0.0

    @property
    def tail_limit(self) -> float:
        """The largest growth of its tail latency: the gSLA of a latency-critical job."""
        return most_bound(self.gsla) if self.latency else math.inf

    def done(self, now: float) -> float:
        """Return the seconds of work done by ``now``."""
        return self.done_s + self.rate * max(0.0, now - self.since_s)

    def remaining(self, now: float) -> float:
        """Return the seconds of work it is believed to need still, at least one."""
        return max(LEAST_REMAINING_S, self.work_s - self.done(now))

    def held(self, now: float) -> float:
        """Return the seconds it has held GPUs by ``now``."""
        return self.held_s + (now - self.started_s if self.phase == "running" else 0.0)

    def attained(self, now: float) -> float:
        """Return its attained service in GPU seconds: GPUs times the time it held them."""
        return self.workers * self.held(now)

    def waited(self, now: float) -> float:
        """Return for how long it has been waiting since it arrived or was last stopped."""
        return now - self.waiting_since_s if self.phase == "pending" else 0.0

    def share_on(self, gpu: int) -> int | None:
        """Return its cap on one of its GPUs."""
        return None if self.shares is None else self.shares[self.gpus.index(gpu)]


class Sharer(NamedTuple):
    """What counts of a job on a shared GPU for whether tail latencies stay in their limits.

    Attributes
    ----------
    workload : int
        Index into ``State.workloads``.
    limit : float
        ``Job.tail_limit``.
    share : int or None
        Its cap.
    slowdown_factor : float
        The factor of its sub-batch.
    """

    workload: int
    limit: float
    share: int | None = None
    slowdown_factor: float = 1.0


class Reservation(NamedTuple):
    """GPUs that are kept for a job, and when all of them are believed to be idle."""

    gpus: tuple[int, ...]
    until_s: float


@dataclass
class State:
    """A pool at one moment.

    Attributes
    ----------
    instance : Instance
        Cluster and workloads; its jobs and slowdowns are not read.
    predicted : SlowdownTable
        What is believed of pairs; the one place where a policy may learn of slowdowns that it
        has not seen itself.
    now : float
        Seconds since the pool began.
    pending, running : dict of int to Job
        By ``Job.number``; ``pending`` in the order in which they began to wait.
    residents : list of list of Job
        The jobs on each GPU, in the order in which they came.
    idle_count : list of int
        For each node the number of its GPUs without jobs; 0 where it is down.
    down : set of int
        Nodes that have failed.
    reserved : dict of int to Reservation
        What is kept for waiting jobs, by ``Job.number``: the last ``Decision.reserved``,
        without the jobs that no longer wait. Live mode keeps it over restarts.
    seen : dict
        (model, caps, workload, other) -> slowdown of the first with the other as measured on
        jobs that have run together.
    clashes : set
        (model, workload, other), both ways, that ran out of memory or could not run together.
    seen_upper : dict
        Upper bounds of what is ``seen``, where one measurement is not taken for the truth.
    prior : SlowdownTable or None
        The predictions of pairs before measurement, where ``predicted`` includes the
        measurements; None where it does not.
    clock : Clock
        What limits of searches are measured on: time, or work in a simulation, in which the same
        seed has to give the same history.
    """

    instance: Instance
    predicted: SlowdownTable
    now: float = 0.0
    pending: dict[int, Job] = field(default_factory=dict)
    running: dict[int, Job] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)
    reserved: dict[int, Reservation] = field(default_factory=dict)
    seen: dict[tuple[int, int, int, int], float] = field(default_factory=dict)
    clashes: set[tuple[int, int, int]] = field(default_factory=set)
    seen_upper: dict[tuple[int, int, int, int], float] = field(default_factory=dict)
    prior: SlowdownTable | None = None
    clock: Clock = WALL

    def __post_init__(self) -> None:
        self.machines = Machines(self.instance.cluster)
        self.names: tuple[str, ...] = tuple(self.instance.workloads)
        self.workloads: tuple[Workload, ...] = tuple(self.instance.workloads.values())
        self.residents: list[list[Job]] = [[] for _ in range(len(self.machines))]
        self.idle_count = [len(gpus) for gpus in self.machines.node_gpus]
        self._tails: tuple[SlowdownTable, int, NDArray[np.float64]] | None = None
        self._sets: tuple[SlowdownTable, SlowdownIndex] | None = None

    @property
    def reserved_gpus(self) -> frozenset[int]:
        """The GPUs that are kept for waiting jobs."""
        return frozenset(gpu for kept in self.reserved.values() for gpu in kept.gpus)

    @property
    def tails(self) -> NDArray[np.float64]:
        """What the gSLAs of latency-critical jobs are checked against, shaped as ``predicted``.

        The growth of the tail latency where it is known. Elsewhere the upper bound of the
        slowdown, as predicted, or as measured on jobs that have run together. NaN = they may not
        share.
        """
        known = self._tails
        if known is None or known[0] is not self.predicted or known[1] != len(self.seen):
            upper = self.predicted.upper.copy()
            for cell, slowdown in self.seen.items():
                upper[cell] = self.seen_upper.get(cell, slowdown)
            known = self.predicted, len(self.seen), tail_bounds(upper, self.predicted.p99)
            self._tails = known
        return known[2]

    @property
    def sets(self) -> SlowdownIndex:
        """The entries of three and more in ``predicted``."""
        if self._sets is None or self._sets[0] is not self.predicted:
            self._sets = self.predicted, SlowdownIndex.of_sets(self.instance, self.predicted)
        return self._sets[1]

    def sharer(self, job: Job, share: int | None, mode: int) -> Sharer:
        """Return what counts of a job at a cap in one of its modes."""
        return Sharer(
            job.workload, job.tail_limit, share, self.modes[job.workload][mode].slowdown_factor
        )

    def tails_kept(self, model: int, sharers: Sequence[Sharer]) -> bool:
        """Tell whether jobs that share a GPU keep every latency-critical one in its limit.

        The rule of every policy, whatever it thinks of slowdowns otherwise.
        """
        if len(sharers) < 2 or all(math.isinf(one.limit) for one in sharers):
            return True
        return all(
            math.isinf(one.limit) or tail * one.slowdown_factor <= one.limit
            for one, tail in zip(sharers, self._tails_of(model, sharers), strict=True)
        )

    def _tails_of(self, model: int, sharers: Sequence[Sharer]) -> Sequence[float]:
        """Return what each latency-critical job on a GPU would be held against; NaN: unknown.

        With two others or more, that is known where an entry of the set says so, and of a job
        that all others run behind (share ``idle``).
        """
        pairs = np.array([[self._tail(model, one, other) for other in sharers] for one in sharers])
        if len(sharers) == 2:
            return [float(pairs[0, 1]), float(pairs[1, 0])]
        members = [(self.names[one.workload], one.share) for one in sharers]
        on = self.machines.models[model]
        if self.sets.settles(on, members):
            given = self.sets.find(on, members)
            if given is None:
                return [math.nan] * len(sharers)
            np.fill_diagonal(pairs, math.nan)
            # Those of pairs count once the others have ended.
            among = np.fmax.reduce(pairs, axis=1)
            return list(map(float, np.fmax(given.bounds([True] * len(sharers)), among)))
        shares = [one.share for one in sharers]
        behind = shares.count(IDLE) == len(sharers) - 1
        return slowdown_at(pairs, shares).tolist() if behind else [math.nan] * len(sharers)

    def _tail(self, model: int, mine: Sharer, other: Sharer) -> float:
        caps = self.predicted.caps_place.get((mine.share, other.share))
        if caps is None:
            return math.nan
        tail = float(self.tails[model, caps, mine.workload, other.workload])
        return max(tail, slowdown_at_last(self.workloads[mine.workload], mine.share))

    @cached_property
    def hosts(self) -> Hosts | None:
        """The needs of workloads in addition to GPUs; None where none is known."""
        nodes = self.machines.rules.nodes
        if not any(node.host for node in nodes):
            return None
        hosts = Hosts(nodes, self.workloads)
        return hosts if hosts.asked else None

    @cached_property
    def speed(self) -> list[list[float]]:
        """Speed of each workload on each GPU model: ``speed[model][workload]``."""
        models = self.machines.models
        return [[w.speed.get(model, 1.0) for w in self.workloads] for model in models]

    @cached_property
    def modes(self) -> list[tuple[Mode, ...]]:
        """The ways to run each workload, the full batch first; ``Job.mode`` is an index."""
        return [modes(w, self.machines.rules.per_process_mib) for w in self.workloads]

    def needs_mib(self, job: Job) -> float:
        """Return the memory of one worker of a running job."""
        return self.modes[job.workload][job.mode].memory_mib
