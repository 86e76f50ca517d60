"""The input of a policy's decision: jobs, GPUs, where each job runs, and predictions.

Only the pool that keeps this state (simulated or real) changes it; a policy reads it and answers
with a ``Decision``. It does not contain the true values of a simulation: durations and slowdowns
are estimates, progress and rates are what any monitor would measure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Floats
from dovetail.formulations.assumed import ProductSets
from dovetail.formulations.budget import WALL, Clock
from dovetail.formulations.rounds import Machines
from dovetail.formulations.rules import Mode, modes, most_bound, slowdown_at_last, tail_bounds
from dovetail.formulations.slowdowns import KnownSets
from dovetail.instances._record import IDLE, AnyShare
from dovetail.instances.hosts import Hosts
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.slowdowns.sets import slowdown_at
from dovetail.instances.slowdowns.shares import share_code
from dovetail.instances.slowdowns.slowdown_table import Cell, SlowdownTable

LEAST_REMAINING_S = 1.0
"""The assumed remaining seconds of a job that has exceeded its estimate."""

NEVER_S = 1e9
"""The expected remaining seconds of a job that has no end: 31 years."""

STOPS_APART_S = 3600.0
"""Least seconds between two stops of a job whose owner allows nothing else."""


@dataclass(slots=True, eq=False)
class Job:
    """A job as known to its pool.

    Attributes
    ----------
    number : int
        Its position in the order of arrival, which is its key in ``State``.
    id, tenant : str
        Its name and user.
    workload : int
        Index into ``State.workloads``.
    workers : int
        Number of GPUs that it needs, all at the same time.
    together : int
        Number of workers that must be on one node together, a divisor of ``workers``; 1 if none.
    one_each : bool
        Whether no node may have more than one such group of workers (``workers_per_node``).
    work_s : float
        Expected total seconds of running alone on a GPU of speed 1.
    arrival_s, gsla, weight : float
        As in a trace; ``gsla`` is infinite if the owner set none.
    latency : bool
        Whether it is latency-critical.
    phase : str
        ``pending``, ``running`` or ``finished``.
    done_s : float
        Seconds of work that were done at ``since_s``.
    rate : float
        Present seconds of work done per second; 0 unless it runs.
    since_s : float
        The time of ``done_s``; in the future while the job is being restarted.
    gpus : tuple of int
        The GPUs it holds, empty unless it runs.
    shares : tuple of (int or None), or None
        Its cap on each of them; None for no caps.
    mode : int
        Its mode, an index into ``State.modes`` of its workload: how often its batch is halved.
    started_s : float
        When its present stay on GPUs began; NaN unless it runs.
    held_s : float
        Seconds for which it held GPUs in earlier stays.
    starts : int
        How many times it was started.
    waiting_since_s : float
        When it last began to wait: its arrival, or when it was last taken off its GPUs.
    resumed_s : float
        Seconds of work that were done when its present stay on GPUs began.
    restart_s : float
        Seconds without progress at the start of each stay after the first.
    checkpoint_s : float
        Seconds of work between its checkpoints, which a stop may cost at most; 0 if it writes one
        when it is stopped. Infinite if it does not resume, so that no rule of ``stops`` allows to
        stop it.
    stops_apart_s : float
        Least seconds between two of its stops, as its owner allows.
    replica_of : str
        The service of which it is a replica: it never ends, and shares no GPU with another replica.
        Empty for a job with an end.
    """

    number: int
    id: str
    workload: int
    workers: int
    work_s: float
    arrival_s: float
    together: int = 1
    one_each: bool = False
    gsla: float = math.inf
    weight: float = 1.0
    latency: bool = False
    tenant: str = ""
    phase: Literal["pending", "running", "finished"] = "pending"
    done_s: float = 0.0
    rate: float = 0.0
    since_s: float = 0.0
    gpus: tuple[int, ...] = ()
    shares: tuple[AnyShare, ...] | None = None
    mode: int = 0
    started_s: float = math.nan
    held_s: float = 0.0
    starts: int = 0
    waiting_since_s: float = 0.0
    resumed_s: float = 0.0
    restart_s: float = 0.0
    checkpoint_s: float = math.inf
    stops_apart_s: float = STOPS_APART_S
    replica_of: str = ""

    @property
    def by_node(self) -> bool:
        """Whether it has several workers and a rule on how many of them a node has."""
        return self.workers > 1 and (self.together > 1 or self.one_each)

    def groups_on(self, gpus: int) -> int:
        """Return how many groups of workers a node can have on this many GPUs."""
        return min(1, gpus // self.together) if self.one_each else gpus // self.together

    @property
    def tail_limit(self) -> float:
        """The largest growth of its tail latency: the gSLA of a latency-critical job."""
        return most_bound(self.gsla) if self.latency else math.inf

    def done(self, now: float) -> float:
        """Return the seconds of work done by ``now``."""
        return self.done_s + self.rate * max(0.0, now - self.since_s)

    def remaining(self, now: float) -> float:
        """Return the expected remaining seconds of work, at least one."""
        return max(LEAST_REMAINING_S, self.work_s - self.done(now))

    def lost(self, now: float) -> float:
        """Return the seconds of work that a stop may cost: those since its last checkpoint."""
        return min(self.checkpoint_s, self.done(now) - self.resumed_s)

    def held(self, now: float) -> float:
        """Return the seconds for which it has held GPUs by ``now``."""
        return self.held_s + (now - self.started_s if self.phase == "running" else 0.0)

    def attained(self, now: float) -> float:
        """Return its attained service in GPU seconds: GPUs times the time it held them."""
        return self.workers * self.held(now)

    def waited(self, now: float) -> float:
        """Return how long it has been waiting since it arrived or was last stopped."""
        return now - self.waiting_since_s if self.phase == "pending" else 0.0

    def share_on(self, gpu: int) -> AnyShare:
        """Return its cap on one of its GPUs."""
        return None if self.shares is None else self.shares[self.gpus.index(gpu)]


class Sharer(NamedTuple):
    """The properties of a job on a shared GPU that matter for the limits of tail latencies.

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
    share: AnyShare = None
    slowdown_factor: float = 1.0


class Reservation(NamedTuple):
    """GPUs that are reserved for a job, and when all of them are expected to be idle."""

    gpus: tuple[int, ...]
    until_s: float


@dataclass
class State:
    """A pool at one point in time.

    Attributes
    ----------
    instance : Instance
        Cluster and workloads; its jobs and slowdowns are not read.
    predicted : SlowdownTable
        Predictions for pairs, as the pool began with them (live mode: as it last read them, with
        what was measured until then); what policies read that do not learn.
    now : float
        Seconds since the pool began.
    pending, running : dict of int to Job
        By ``Job.number``; ``pending`` in the order in which they began to wait.
    residents : list of list of Job
        The jobs on each GPU, in the order in which they came.
    idle_count : list of int
        For each node the number of its GPUs without jobs; 0 if it is down.
    down : set of int
        Nodes that have failed.
    reserved : dict of int to Reservation
        The reservations of waiting jobs, by ``Job.number``: the last ``Decision.reserved``, without
        jobs that no longer wait. Live mode keeps them across restarts.
    believed : SlowdownTable
        ``predicted``, with what was measured on jobs that have run together since: ``see`` enters
        it.
    news : int
        How many cells of ``believed`` were measured since.
    clashes : set
        (model, workload, other), both ways, that ran out of memory or could not run together.
    capped_sets : bool
        Whether three and more jobs share a GPU only if each has a cap or runs behind another, if an
        entry names the set, or if ``products`` holds for it.
    clock : Clock
        The clock that limits searches: time, or work in a simulation, in which the same seed must
        give the same history.
    """

    instance: Instance
    predicted: SlowdownTable
    now: float = 0.0
    pending: dict[int, Job] = field(default_factory=dict)
    running: dict[int, Job] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)
    reserved: dict[int, Reservation] = field(default_factory=dict)
    clashes: set[tuple[int, int, int]] = field(default_factory=set)
    capped_sets: bool = False
    clock: Clock = WALL

    def __post_init__(self) -> None:
        self.machines = Machines(self.instance.cluster)
        self.names: tuple[str, ...] = tuple(self.instance.workloads)
        self.workloads: tuple[Workload, ...] = tuple(self.instance.workloads.values())
        self.residents: list[list[Job]] = [[] for _ in range(len(self.machines))]
        self.idle_count = [len(gpus) for gpus in self.machines.node_gpus]
        self.believed, self.news = self.predicted, 0
        self._tails: tuple[SlowdownTable, int, NDArray[np.float64]] | None = None
        self._sets: tuple[SlowdownTable, KnownSets] | None = None

    def see(self, cell: Cell, slowdown: float, upper: float | None = None) -> None:
        """Enter a slowdown that was measured on jobs that have run together.

        Parameters
        ----------
        cell : (int, int, int, int)
            Model, caps, workload and co-runner, as in ``predicted``.
        slowdown : float
            The slowdown of the workload.
        upper : float, optional
            Its upper bound, where a single measurement is not trusted; default: the slowdown.
        """
        if self.believed is self.predicted:
            self.believed = self.predicted.learning()
        self.news += self.believed.see(cell, slowdown, slowdown if upper is None else upper)

    def has_seen(self, cell: Cell) -> bool:
        """Return whether a cell of ``believed`` was measured on jobs that have run together."""
        return self.believed.seen is not None and bool(self.believed.seen[cell])

    @property
    def reserved_gpus(self) -> frozenset[int]:
        """The GPUs that are reserved for waiting jobs."""
        return frozenset(gpu for kept in self.reserved.values() for gpu in kept.gpus)

    @property
    def tails(self) -> NDArray[np.float64]:
        """The bounds for the gSLAs of latency-critical jobs, in the shape of ``predicted``.

        The bound is the growth of the tail latency if it is known, otherwise the upper bound of the
        slowdown, as predicted or as measured on jobs that have run together. NaN if they may not
        share.
        """
        known = self._tails
        table = self.believed
        if known is None or known[0] is not table or known[1] != self.news:
            known = self._tails = table, self.news, tail_bounds(table.upper, table.p99)
        return known[2]

    @property
    def sets(self) -> KnownSets:
        """The entries of three or more jobs in ``predicted``."""
        if self._sets is None or self._sets[0] is not self.predicted:
            self._sets = self.predicted, KnownSets(self.predicted.sets, self.instance.workloads)
        return self._sets[1]

    @cached_property
    def products(self) -> bool:
        """Whether sets without caps that no entry names slow each job by the product of its pairs.

        That is what the cluster's owner may declare (``Cluster.assumed``).
        """
        declared = self.instance.cluster.assumed
        return declared is not None and declared.sets is not None

    def sharer(self, job: Job, share: AnyShare, mode: int) -> Sharer:
        """Return a job as a sharer, at a cap and in one of its modes."""
        return Sharer(
            job.workload, job.tail_limit, share, self.modes[job.workload][mode].slowdown_factor
        )

    def tails_kept(self, model: int, sharers: Sequence[Sharer]) -> bool:
        """Return whether every latency-critical job stays within its limit if these jobs share.

        This rule applies to every policy, however it treats slowdowns otherwise.
        """
        if len(sharers) < 2 or all(math.isinf(one.limit) for one in sharers):
            return True
        return all(
            math.isinf(one.limit) or tail * one.slowdown_factor <= one.limit
            for one, tail in zip(sharers, self._tails_of(model, sharers), strict=True)
        )

    def _tails_of(self, model: int, sharers: Sequence[Sharer]) -> Sequence[float]:
        """Return the bound of each job on a GPU if it is latency-critical; NaN if unknown.

        With two or more others, the bounds are known only if the set has an entry, if all jobs but
        one run behind that one (share ``idle``), or by a declared rule.
        """
        pairs = np.array([[self._tail(model, one, other) for other in sharers] for one in sharers])
        if len(sharers) == 2:
            return [float(pairs[0, 1]), float(pairs[1, 0])]
        members = [(one.workload, share_code(one.share)) for one in sharers]
        on = self.machines.kinds[model]
        if self.sets.settles(on, members):
            given = self.sets.find(on, members)
            if given is None:
                return [math.nan] * len(sharers)
            np.fill_diagonal(pairs, math.nan)
            # The bounds of pairs and smaller sets apply once the others have ended.
            among = np.fmax.reduce(pairs, axis=1)
            for part, left in self._product_sets(model).left_of(members) if self.products else ():
                tail = dict(zip(part, left.tail, strict=True))
                among = np.fmax(among, [tail.get(member, math.nan) for member in members])
            return list(map(float, np.fmax(given.bounds([True] * len(sharers)), among)))
        shares = [one.share for one in sharers]
        if self.products and not any(shares):
            found = self._product_sets(model).find(on, members)
            return [math.nan] * len(sharers) if found is None else list(found.tail)
        behind = shares.count(IDLE) == len(sharers) - 1
        return slowdown_at(pairs, shares).tolist() if behind else [math.nan] * len(sharers)

    def _product_sets(self, model: int) -> ProductSets:
        """Return the sets on a model by the declared rule."""
        table = self.believed
        kind = self.machines.kinds[model]
        tables = (values[model, 0] for values in (table.slowdown, table.upper, self.tails))
        return ProductSets(self.sets, kind, *tables)

    def _tail(self, model: int, mine: Sharer, other: Sharer) -> float:
        caps = self.predicted.caps_place.get((mine.share, other.share))
        if caps is None:
            return math.nan
        tail = float(self.tails[model, caps, mine.workload, other.workload])
        return max(tail, slowdown_at_last(self.workloads[mine.workload], mine.share))

    @cached_property
    def hosts(self) -> Hosts | None:
        """The needs of workloads in addition to GPUs, or None if none are known."""
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
    def best_speed(self) -> Floats:
        """The speed of each workload on the GPU model that suits it best."""
        return np.asarray(np.array(self.speed).max(axis=0))

    @cached_property
    def modes(self) -> list[tuple[Mode, ...]]:
        """The modes of each workload, the full batch first; indexed by ``Job.mode``."""
        return [modes(w, self.machines.rules.per_process_mib) for w in self.workloads]

    def need_mib(self, gpu: int, workload: int, mode: int) -> float:
        """Return the memory of one worker of a workload on a GPU."""
        way = self.modes[workload][mode]
        return way.need_mib(self.machines.memory_mib[gpu]) if way.memory_part else way.memory_mib

    def used_mib(self, gpu: int, jobs: Iterable[Job]) -> float:
        """Return the memory of these running jobs on a GPU."""
        return sum([self.need_mib(gpu, job.workload, job.mode) for job in jobs])
