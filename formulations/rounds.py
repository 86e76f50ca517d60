"""The round problem compiled: jobs as columns, GPUs in classes, and the known slowdowns.

An instance and a policy's state are compiled into the same ``Round``, so that a plan, a simulation
and the live service solve the same problem. A *variant* of a job is the job at one of its
sub-batches. Interchangeable GPUs (same model, memory, residents and time until which they are free,
and the same node if its host may fall short) form a *class*; formulations count GPUs of a class and
never name one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Bools, Floats, Ints, RowColumns, across, ranges
from dovetail.formulations.hosts import KnownHosts, RoundHosts
from dovetail.formulations.instance_slowdowns import InstanceSlowdowns
from dovetail.formulations.rules import (
    Mode,
    fit_together,
    modes,
    most_bound,
    room_mib,
    slowdown_alone,
)
from dovetail.formulations.slowdowns import KnownSlowdowns, Sharing
from dovetail.instances._record import AnyShare
from dovetail.instances.instance import Cluster, Instance, Workload
from dovetail.instances.slowdowns.entry import MODES, GpuKind
from dovetail.instances.slowdowns.shares import (
    BEST_EFFORT,
    NO_CAP,
    percent,
    share_code,
    share_of,
    share_total,
)


class Machines:
    """A cluster with its GPUs numbered in the order of the file.

    Attributes
    ----------
    rules : Cluster
        The record: jobs per GPU, shares, reserves.
    gpu_ids, node_ids : tuple of str
        Names of the G GPUs and N nodes.
    node, rack, model : list of int
        The index of each GPU's node, rack and model.
    models : tuple of str
        Names of the GPU models.
    kind : list of int
        The index in ``kinds`` of each GPU.
    kinds : tuple of GpuKind
        The GPU models, each with how jobs share it.
    memory_mib : list of float
        Memory of each GPU without the reserved part.
    most_jobs : list of int
        How many jobs may be on each GPU.
    model_cost : (models,) float
        The cost of a GPU of each model; 1 if the cluster gives none.
    node_gpus : list of list of int
        The GPUs of each node; the list may be empty.
    rack_of_node : (N,) int
        The index of the rack of each node; nodes without a rack form one together.
    """

    def __init__(self, rules: Cluster) -> None:
        self.rules = rules
        devices = [(n, node, gpu) for n, node in enumerate(rules.nodes) for gpu in node.devices]
        racks: dict[str | None, int] = {}
        self.node_ids = tuple(node.id for node in rules.nodes)
        self.gpu_ids = tuple(gpu.id for _, _, gpu in devices)
        self.models = tuple(dict.fromkeys(gpu.model for _, _, gpu in devices))
        self.node = [n for n, _, _ in devices]
        of_node = [racks.setdefault(node.rack, len(racks)) for node in rules.nodes]
        self.rack_of_node = np.array(of_node, dtype=np.int64)
        self.rack = [of_node[n] for n in self.node]
        self.model = [self.models.index(gpu.model) for _, _, gpu in devices]
        kinds = [rules.kind_of(gpu) for _, _, gpu in devices]
        self.kinds = tuple(dict.fromkeys(kinds))
        self.kind = [self.kinds.index(kind) for kind in kinds]
        self.memory_mib = [gpu.memory_mib - rules.reserve_mib for _, _, gpu in devices]
        most = rules.most_jobs()
        self.most_jobs = [most[gpu.model] for _, _, gpu in devices]
        cost = {gpu.model: gpu.cost_per_hour or 1.0 for _, _, gpu in devices}
        self.model_cost = np.array([cost[model] for model in self.models], dtype=np.float64)
        self.node_gpus: list[list[int]] = [[] for _ in rules.nodes]
        for gpu, node in enumerate(self.node):
            self.node_gpus[node].append(gpu)

    @property
    def fewest_jobs(self) -> int:
        """The number of jobs that every GPU may hold."""
        return min(self.most_jobs, default=self.rules.max_jobs_per_gpu)

    def __len__(self) -> int:
        return len(self.gpu_ids)

    @cached_property
    def number(self) -> Mapping[str, int]:
        """The number of each GPU by its id."""
        return {gpu: k for k, gpu in enumerate(self.gpu_ids)}

    def names(self, gpus: Iterable[int]) -> tuple[str, ...]:
        """Return the ids of GPUs."""
        return tuple([self.gpu_ids[gpu] for gpu in gpus])

    @cached_property
    def gpu_type(self) -> list[int]:
        """The index in ``gpu_types`` of each GPU."""
        index = {each: k for k, each in enumerate(self.gpu_types)}
        found = zip(self.kind, self.memory_mib, strict=True)
        return [index[self.kinds[kind], memory] for kind, memory in found]

    @cached_property
    def gpu_types(self) -> tuple[tuple[GpuKind, float], ...]:
        """The distinct kinds and memories of GPUs."""
        found = zip(self.kind, self.memory_mib, strict=True)
        return tuple(dict.fromkeys((self.kinds[kind], memory) for kind, memory in found))

    @cached_property
    def gpu_room_mib(self) -> list[float]:
        """The most memory that jobs may need on each GPU, in MiB."""
        return list(map(room_mib, self.memory_mib))

    @cached_property
    def memory_by_model(self) -> list[tuple[float, float]]:
        """The memory of the smallest and of the largest GPU of each model, without the reserve."""
        held: list[list[float]] = [[] for _ in self.models]
        for model, memory in zip(self.model, self.memory_mib, strict=True):
            held[model].append(memory)
        return [(min(memory), max(memory)) for memory in held]

    def all_hold(self, model: int, ways: Sequence[Mode]) -> bool:
        """Return whether every GPU of a model has the memory for workers in these modes.

        If the smallest GPU has it, all have: percentages leave more MiB on a larger one.
        """
        return fit_together(ways, self.memory_by_model[model][0])

    def some_hold(self, model: int, ways: Sequence[Mode]) -> bool:
        """Return whether some GPU of a model has the memory for workers in these modes."""
        return fit_together(ways, self.memory_by_model[model][1])


@dataclass(frozen=True)
class Variants(RowColumns):
    """The variants of the jobs of a round as columns, a row each.

    Attributes
    ----------
    job : (v,) int
        Index of the job in the round.
    sub_batch : (v,) int
        Samples per accumulation step; 0 if the workload has no batch model.
    memory_mib : (v,) float
        Memory of one worker, including the per-process overhead; see ``memory_part``.
    memory_part : (v,) float
        The part of a GPU's memory that one worker needs instead; 0 for those that need MiB.
    slowdown_factor : (v,) float
        t(k) / t(0) of Castor's eq. 3: the factor on every slowdown of the job.
    """

    job: Ints
    sub_batch: Ints
    memory_mib: Floats
    memory_part: Floats
    slowdown_factor: Floats

    def __len__(self) -> int:
        return len(self.job)

    def need_mib(self, variant: Ints, offered_mib: Floats) -> Floats:
        """Return the memory that the variants in each place need, in MiB.

        Parameters
        ----------
        variant : (n, size) int
            The variants.
        offered_mib : (n,) float
            The memory that each GPU offers to jobs.
        """
        need = self.memory_mib[variant]
        if self._in_parts:
            need += self.memory_part[variant] * np.maximum(offered_mib, 0.0)[:, None]
        return np.asarray(need)

    @cached_property
    def _in_parts(self) -> bool:
        return bool(self.memory_part.any())


class Resident(NamedTuple):
    """A job on a GPU, with its variant and the code of its share there."""

    job: int
    variant: int
    share: int


class ResidentSets(NamedTuple):
    """The distinct sets of running jobs on a GPU, the empty set first.

    Attributes
    ----------
    sets : sequence of tuple of Resident
        The sets, each in the order of the round.
    of : (G,) int
        The set on each GPU.
    """

    sets: Sequence[tuple[Resident, ...]]
    of: Ints

    def column(self, of: Ints, figure: Callable[[Resident], int]) -> Ints:
        """Return a figure of each resident of these sets, -1 beyond the last, (k, most)."""
        number = np.array([len(residents) for residents in self.sets], dtype=np.int64)
        table = np.full((len(number), int(number.max())), -1, dtype=np.int64)
        there = np.arange(table.shape[1]) < number[:, None]
        table[there] = [figure(resident) for residents in self.sets for resident in residents]
        return table[of]


@dataclass(frozen=True, eq=False)
class Classes:
    """The classes of GPUs that are interchangeable except for their location, as columns.

    Attributes
    ----------
    gpus : sequence of tuple of int
        The numbers of the GPUs of each, ascending.
    model, kind : (c,) int
        The index of the GPU model, and that of the model with how jobs share it.
    memory_mib : (c,) float
        Memory that the jobs on one such GPU may use together (without the reserve).
    on : sequence of tuple of Resident
        The running jobs on each of these GPUs, in the order of the round.
    variant, share : (c, most) int
        Their variants and the codes of their shares; -1 beyond the last.
    open : (c,) bool
        Whether a job may start here (constraint 5 of the round problem).
    until_s : (c,) float
        Seconds from now by which a job that starts here must have ended; inf for no limit.
    """

    gpus: Sequence[tuple[int, ...]]
    model: Ints
    kind: Ints
    memory_mib: Floats
    on: Sequence[tuple[Resident, ...]]
    variant: Ints
    share: Ints
    open: Bools
    until_s: Floats

    def __len__(self) -> int:
        return len(self.gpus)

    @cached_property
    def size(self) -> Ints:
        """The number of GPUs of each class."""
        return np.array([len(gpus) for gpus in self.gpus], dtype=np.int64)

    @cached_property
    def residents(self) -> Ints:
        """The number of running jobs on each GPU of each class."""
        return np.asarray((self.variant >= 0).sum(axis=1))

    @cached_property
    def alike(self) -> Ints:
        """The number of GPUs equal to those of each class, on any node."""
        columns = [self.kind, self.memory_mib, self.until_s, *self.variant.T, *self.share.T]
        of = _codes(*columns)
        return np.bincount(of, self.size).astype(np.int64)[of]


@dataclass(frozen=True, eq=False)
class Jobs:
    """The n jobs of a round as columns.

    Attributes
    ----------
    ids : sequence of str
        The names of the jobs.
    workload : (n,) int
        Index into the workloads of the round.
    workers : (n,) int
        Number of GPUs that each needs, all at the same time.
    together : (n,) int
        Number of workers that must be on one node together, a divisor of ``workers``; 1 if none.
    one_each : (n,) bool
        Whether no node may have more than one such group of workers (``workers_per_node``).
    weight, gsla, remaining_s, arrival_s : (n,) float
        As in an instance; ``gsla`` is inf and ``remaining_s`` NaN if there is none.
    latency, running : (n,) bool
        Whether each is of priority ``latency``, and whether it runs.
    sharing : (n,) int
        Position in ``MODES`` of the only way in which each may share a GPU, -1 for any.
    slowdown : (n,) float
        The measured slowdown of a running job; NaN if only the table has one.
    held : mapping of int to (tuple of int, tuple of (int or None), int or None)
        GPUs, shares and sub-batch of each running job.
    holds : (n,) int
        Number of GPUs that a running job holds, including those outside of the round; 0 for others.
    """

    ids: Sequence[str]
    workload: Ints
    workers: Ints
    together: Ints
    one_each: Bools
    weight: Floats
    gsla: Floats
    remaining_s: Floats
    arrival_s: Floats
    latency: Bools
    running: Bools
    sharing: Ints
    slowdown: Floats
    held: Mapping[int, tuple[tuple[int, ...], tuple[AnyShare, ...], int | None]]
    holds: Ints

    @classmethod
    def of(cls, instance: Instance, machines: Machines) -> Jobs:
        """Return the jobs of an instance."""
        jobs = instance.jobs
        number = {name: k for k, name in enumerate(instance.workloads)}
        gpu = machines.number
        return cls(
            ids=[job.id for job in jobs],
            workload=np.array([number[job.workload] for job in jobs], dtype=np.int64),
            workers=np.array([job.workers for job in jobs], dtype=np.int64),
            together=np.array([job.together for job in jobs], dtype=np.int64),
            one_each=np.array([job.workers_per_node is not None for job in jobs], dtype=bool),
            weight=np.array([job.weight for job in jobs], dtype=np.float64),
            gsla=np.array([np.inf if j.gsla is None else j.gsla for j in jobs], dtype=np.float64),
            remaining_s=np.array([job.remaining_s for job in jobs], dtype=np.float64),
            arrival_s=np.array([job.arrival_s for job in jobs], dtype=np.float64),
            latency=np.array([job.priority == "latency" for job in jobs], dtype=bool),
            running=np.array([job.running for job in jobs], dtype=bool),
            sharing=np.array(
                [-1 if j.sharing is None else MODES.index(j.sharing) for j in jobs], dtype=np.int64
            ),
            slowdown=np.full(len(jobs), np.nan),
            held={
                k: (tuple(gpu[name] for name in job.gpus or ()), job.shares, job.sub_batch)
                for k, job in enumerate(jobs)
                if job.running
            },
            holds=np.array([len(job.gpus or ()) for job in jobs], dtype=np.int64),
        )


@dataclass(frozen=True, eq=False)
class Round:
    """A round compiled for the formulations.

    Attributes
    ----------
    jobs : Jobs
        The n jobs. Running jobs stay where they are.
    machines : Machines
        The GPUs.
    workloads : sequence of Workload
        The workloads that ``Jobs.workload`` indexes.
    slowdowns : KnownSlowdowns
        The known combinations of workloads.
    source : Instance or None
        The instance that it was compiled from; None for a policy's state.
    gpus : sequence of int, optional
        The GPUs that take part; all by default.
    until_s : mapping of int to float
        Seconds from now by which a job that starts on a GPU must have ended, for GPUs with a limit.
    on_hosts : KnownHosts, optional
        The hosts and what is in use of them; None if none are known.
    """

    jobs: Jobs
    machines: Machines
    workloads: Sequence[Workload]
    slowdowns: KnownSlowdowns
    source: Instance | None = None
    gpus: Sequence[int] | None = None
    until_s: Mapping[int, float] = field(default_factory=dict)
    on_hosts: KnownHosts | None = None

    @classmethod
    def of(cls, instance: Instance, book: KnownSlowdowns | None = None) -> Round:
        """Return the round of an instance.

        Parameters
        ----------
        instance : Instance
            Running jobs stay where they are; preempt them first if they should not.
        book : KnownSlowdowns, optional
            The combinations of an earlier round; used again if they apply to this one too.
        """
        known = book.of(instance) if isinstance(book, InstanceSlowdowns) else None
        slowdowns = known or InstanceSlowdowns(instance)
        machines = Machines(instance.cluster)
        workloads = tuple(instance.workloads.values())
        jobs = Jobs.of(instance, machines)
        nodes = instance.cluster.nodes
        known_hosts = any(node.host for node in nodes)
        on_hosts = KnownHosts.of(nodes, workloads) if known_hosts else None
        return cls(jobs, machines, workloads, slowdowns, instance, on_hosts=on_hosts)

    def __len__(self) -> int:
        return len(self.jobs.ids)

    @property
    def instance(self) -> Instance:
        """The instance that it was compiled from."""
        if self.source is None:
            raise AssertionError("the round was not compiled from an instance")
        return self.source

    @property
    def instance_slowdowns(self) -> InstanceSlowdowns:
        """The known slowdowns of the instance."""
        if self.source is None:
            raise AssertionError("the round was not compiled from an instance")
        return cast(InstanceSlowdowns, self.slowdowns)

    def workload(self, job: int) -> Workload:
        """Return the workload of the job with this index."""
        return self.workloads[int(self.jobs.workload[job])]

    @cached_property
    def hosts(self) -> RoundHosts | None:
        """The hosts, or None if none can fall short."""
        found = None if self.on_hosts is None else RoundHosts(self, self.on_hosts)
        return found if found is not None and found.tight.any() else None

    @cached_property
    def on_nodes(self) -> Bools:
        """Which waiting gangs have a rule on how many workers a node has, (n,)."""
        jobs = self.jobs
        return ~jobs.running & (jobs.workers > 1) & ((jobs.together > 1) | jobs.one_each)

    @cached_property
    def gangs_wait(self) -> bool:
        """Whether a waiting job needs several GPUs."""
        return bool((self.jobs.workers[~self.jobs.running] > 1).any())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each workload in the known slowdowns."""
        return self.slowdowns.workloads

    @cached_property
    def speed(self) -> Mapping[str, Floats]:
        """The (n,) relative speed of each job by GPU model."""
        return {
            model: np.array([w.speed.get(model, 1.0) for w in self.workloads])[self.jobs.workload]
            for model in self.models
        }

    @property
    def models(self) -> tuple[str, ...]:
        """The GPU models of the cluster, in the order of the file."""
        return self.machines.models

    @property
    def kinds(self) -> tuple[GpuKind, ...]:
        """The GPU models of the cluster, each with how jobs share it."""
        return self.machines.kinds

    @cached_property
    def modes(self) -> Mapping[int, tuple[Mode, ...]]:
        """The modes of each workload that a job has."""
        overhead = self.machines.rules.per_process_mib
        return {k: modes(self.workloads[k], overhead) for k in set(self.jobs.workload.tolist())}

    @cached_property
    def variants(self) -> Variants:
        """The variants of all jobs, job by job; of a running job only that in which it runs."""
        jobs = self.jobs
        modes = [self.modes.get(k, ()) for k in range(len(self.workloads))]
        number = np.array([len(each) for each in modes], dtype=np.int64)
        each = [mode for of_workload in modes for mode in of_workload]
        first, count = (np.cumsum(number) - number)[jobs.workload], number[jobs.workload]
        for k in np.flatnonzero(jobs.running & (count > 1)).tolist():
            batch, held = self.workload(k).batch, jobs.held[k][2]
            assert batch is not None
            sizes = [mode.sub_batch for mode in self.modes[int(jobs.workload[k])]]
            first[k] += sizes.index(batch.size if held is None else held)
        count = np.where(jobs.running, 1, count)
        job = np.repeat(np.arange(len(count)), count)
        row = ranges(first, count)
        return Variants(
            job,
            np.array([mode.sub_batch or 0 for mode in each], dtype=np.int64)[row],
            np.array([mode.memory_mib for mode in each], dtype=np.float64)[row],
            np.array([mode.memory_part for mode in each], dtype=np.float64)[row],
            np.array([mode.slowdown_factor for mode in each], dtype=np.float64)[row],
        )

    @cached_property
    def first_variant(self) -> Ints:
        """The index of the first variant of each job, and the number of all variants, (n + 1,)."""
        return np.searchsorted(self.variants.job, np.arange(len(self) + 1))

    def variants_of(self, job: int) -> range:
        """Return the indices of the variants of a job."""
        return range(int(self.first_variant[job]), int(self.first_variant[job + 1]))

    @cached_property
    def resident_sets(self) -> ResidentSets:
        """The distinct sets of running jobs on a GPU, and the set on each."""
        on: dict[int, list[Resident]] = defaultdict(list)
        first = self.first_variant.tolist()
        for k, (gpus, shares, _) in self.jobs.held.items():
            for gpu, share in zip(gpus, shares, strict=True):
                on[gpu].append(Resident(k, first[k], share_code(share)))
        number: dict[tuple[Resident, ...], int] = {(): 0}
        of = np.zeros(len(self.machines), dtype=np.int64)
        for gpu, held in on.items():
            of[gpu] = number.setdefault(tuple(held), len(number))
        return ResidentSets(tuple(number), of)

    def residents(self, gpu: int) -> tuple[Resident, ...]:
        """Return the running jobs on a GPU, in the order of the round."""
        return self.resident_sets.sets[int(self.resident_sets.of[gpu])]

    @cached_property
    def classes(self) -> Classes:
        """The classes of interchangeable GPUs, in the order of their first GPU."""
        machines, there = self.machines, self.resident_sets
        gpus = np.arange(len(machines)) if self.gpus is None else np.array(self.gpus, np.int64)
        until_s = np.full(len(machines), np.inf)
        until_s[list(self.until_s)] = list(self.until_s.values())
        columns: list[NDArray[Any]] = [there.of[gpus]]
        if len(machines.gpu_types) > 1:
            columns.append(np.array(machines.gpu_type, np.int64)[gpus])
        if self.until_s:
            columns.append(until_s[gpus])
        if self.hosts:
            node = np.array(machines.node, np.int64)
            columns.append(np.where(self.hosts.tight[node], node, -1)[gpus])
        members = [tuple(gpus[run].tolist()) for run in _alike(*columns)]
        first = np.array([part[0] for part in members], dtype=np.int64)
        of = there.of[first]
        variant = there.column(of, lambda resident: resident.variant)
        share = there.column(of, lambda resident: resident.share)
        return Classes(
            members,
            np.array(machines.model, np.int64)[first],
            np.array(machines.kind, np.int64)[first],
            np.array(machines.memory_mib, np.float64)[first],
            [there.sets[k] for k in of.tolist()],
            variant,
            share,
            ~_closed(self, first, variant, share),
            until_s[first],
        )

    @cached_property
    def gpus_by_node(self) -> Ints:
        """How many GPUs each class has on each node, (classes, nodes)."""
        node = np.array(self.machines.node, dtype=np.int64)
        found = np.zeros((len(self.classes), len(self.machines.node_ids)), dtype=np.int64)
        for k, gpus in enumerate(self.classes.gpus):
            np.add.at(found[k], node[list(gpus)], 1)
        return found

    @cached_property
    def gpu_types(self) -> set[tuple[GpuKind, float]]:
        """The kinds and memories of the GPUs."""
        of, memory = self.classes.kind.tolist(), self.classes.memory_mib.tolist()
        return {(self.kinds[kind], memory) for kind, memory in zip(of, memory, strict=True)}

    @cached_property
    def interchangeable(self) -> bool:
        """Whether all GPUs without residents are equal for a starting job."""
        by_node = self.hosts is not None or bool(self.on_nodes.any())
        return len(self.gpu_types) <= 1 and self.lent_alike and not by_node

    @property
    def lent_alike(self) -> bool:
        """Whether all GPUs without residents are free for the same time."""
        return len(set(self.classes.until_s[self.classes.residents == 0].tolist())) <= 1

    @cached_property
    def slowdown_now(self) -> Mapping[int, float]:
        """The slowdown of each running job: the measured one, or the largest known on its GPUs."""
        measured = {k: float(self.jobs.slowdown[k]) for k in self.jobs.held}
        if not np.isnan(list(measured.values())).any():
            return measured
        of: dict[int, float] = defaultdict(float)
        for gpu in np.flatnonzero(self.resident_sets.of).tolist():
            there = zip(self.residents(gpu), resident_slowdowns(self, gpu), strict=True)
            for resident, slowdown in there:
                of[resident.job] = max(of[resident.job], slowdown)
        return of

    def bound_now(self, job: int) -> float:
        """Return the bound that a running job's gSLA is checked against, infinity if unknown."""
        return bound_now(self, job)

    def slowdowns_alone(self, job: Ints, variant: Ints, share: Ints) -> Floats:
        """Return the slowdown of jobs in groups once the others have ended.

        It keeps its share and its sub-batch. A share without a known throughput is assumed to cost
        nothing.
        """
        factor = self.variants.slowdown_factor.take(variant, mode="clip")
        return np.asarray(self.at_last[self.jobs.workload[job], share] * factor)

    @cached_property
    def least_alone(self) -> Floats:
        """The least slowdown of each job alone at any share, (n,)."""
        return np.asarray(self.at_last.min(axis=1)[self.jobs.workload] * self.least_factor)

    @cached_property
    def least_factor(self) -> Floats:
        """The least ``slowdown_factor`` of each job, (n,)."""
        return np.minimum.reduceat(self.variants.slowdown_factor, self.first_variant[:-1])

    @property
    def at_last(self) -> Floats:
        """The slowdown of each workload after its co-runners have ended, by share.

        The shape is (workloads, shares); ``NO_CAP`` is the first share and ``idle`` the last.
        """
        return self.slowdowns.at_last

    @property
    def only_kind(self) -> GpuKind:
        """The kind of the GPUs, if they are all of one."""
        return self.kinds[int(self.classes.kind[0])]

    @cached_property
    def may_share(self) -> Bools:
        """Which jobs may share a GPU of each kind, (kinds, n)."""
        modes = np.array([MODES.index(kind.sharing) for kind in self.kinds], dtype=np.int64)
        needed = self.jobs.sharing
        return np.asarray((needed < 0) | (needed == modes[:, None]))

    @cached_property
    def bound_to_mode(self) -> bool:
        """Whether some job may not share some GPU because of how jobs share it."""
        return not self.may_share.all()

    def shares_alone_on(self, kind: GpuKind) -> tuple[int, ...]:
        """Return the codes of the shares at which a job may start alone on a GPU of a kind."""
        capped = kind.sharing == "mps"
        return tuple(s for s in self.shares_alone if capped or s in (NO_CAP, BEST_EFFORT))

    @cached_property
    def shares_alone(self) -> tuple[int, ...]:
        """The codes of the shares at which a job may start alone on some GPU; caps under MPS."""
        rules = self.machines.rules
        caps = rules.shares if rules.start_capped else ()
        within = [share_code(share) for share in caps if share_total([share]) <= rules.share_sum]
        return (NO_CAP, *within)

    @cached_property
    def starts_alone(self) -> Floats:
        """The slowdown of each workload alone at ``shares_alone``, NaN if unknown, (W, shares)."""
        shares = list(map(share_of, self.shares_alone))
        known = [[slowdown_alone(each, share) for share in shares] for each in self.workloads]
        return np.array(known, dtype=np.float64).reshape(-1, len(shares))

    @cached_property
    def power_alone(self) -> Floats:
        """The power of a worker of each job alone in watts, NaN if unknown, (n,)."""
        known = np.array([workload.power_w for workload in self.workloads], dtype=np.float64)
        return known[self.jobs.workload]

    def alone(self, variant: int, share: int) -> float | None:
        """Return the slowdown of a job that runs alone at a share, or None if it is unknown."""
        alone = slowdown_alone(self.workload(int(self.variants.job[variant])), share_of(share))
        return None if alone is None else alone * float(self.variants.slowdown_factor[variant])


def resident_slowdowns(compiled: Round, gpu: int) -> tuple[float, ...]:
    """Return the slowdown of each resident of a GPU that no job joins.

    Measured slowdowns come first, then those of the residents' combination. Residents without a
    known combination are treated as if each were alone; the checker warns about them, and no
    job may join them.
    """
    there = compiled.residents(gpu)
    measured = tuple([float(compiled.jobs.slowdown[r.job]) for r in there])
    if not np.isnan(measured).any():
        return measured
    known = _known_together(compiled, gpu)
    slowdown = known.slowdown if known else tuple(_each_alone(compiled, gpu))
    return _on_host(compiled, gpu, slowdown)


def resident_power(compiled: Round, gpu: int) -> float:
    """Return the power of a GPU that no job joins, NaN if it is unknown.

    If the power of its jobs together is unknown, it is the sum of their powers alone.
    """
    residents = compiled.residents(gpu)
    known = _known_together(compiled, gpu) if len(residents) > 1 else None
    if known is not None and not math.isnan(known.power_w):
        return known.power_w
    return math.fsum(compiled.power_alone[[resident.job for resident in residents]].tolist())


def measured_slowdowns(compiled: Round) -> tuple[Floats, Floats]:
    """Return the least slowdown of each job, and the factor on its known slowdowns, (n,) each.

    Both come from the measured slowdowns of running jobs, at their sub-batch; empty arrays if
    there are none.
    """
    jobs, classes = compiled.jobs, compiled.classes
    if np.isnan(jobs.slowdown).all():
        return np.empty(0), np.empty(0)
    factor, known = compiled.variants.slowdown_factor, np.zeros(len(compiled))
    one = classes.residents == 1
    variant, share = classes.variant[one, 0], classes.share[one, 0]
    alone = factor[variant]
    for k in np.flatnonzero(share != NO_CAP).tolist():
        alone[k] = compiled.alone(int(variant[k]), int(share[k])) or 0.0
    np.maximum.at(known, compiled.variants.job[variant], alone)
    for k in np.flatnonzero(classes.residents > 1).tolist():
        if together := _known_together(compiled, classes.gpus[k][0]):
            for resident, slowdown in zip(classes.on[k], together.slowdown, strict=True):
                known[resident.job] = max(known[resident.job], slowdown)
    outside = jobs.running & (jobs.holds > jobs.workers)
    least = np.where(outside, jobs.slowdown / factor[compiled.first_variant[:-1]], 0.0)
    of_known = np.divide(jobs.slowdown, known, out=np.ones(len(known)), where=known > 0)
    return least, np.where(jobs.running & ~outside, np.fmax(1.0, of_known), 1.0)


def _each_alone(compiled: Round, gpu: int) -> list[float]:
    """Return the slowdown of each resident as if it were alone; 1 if that is unknown."""
    variant = [resident.variant for resident in compiled.residents(gpu)]
    share = [resident.share for resident in compiled.residents(gpu)]
    job = compiled.variants.job[variant]
    found: list[float] = compiled.slowdowns_alone(job, np.array(variant), np.array(share)).tolist()
    return found


def _known_together(compiled: Round, gpu: int) -> Sharing | None:
    """Return the residents' combination, with values multiplied by their sub-batch factors."""
    residents = compiled.residents(gpu)
    members = [(int(compiled.jobs.workload[r.job]), r.share) for r in residents]
    known = compiled.slowdowns.find(compiled.kinds[compiled.machines.kind[gpu]], members)
    factor = compiled.variants.slowdown_factor[[r.variant for r in residents]].tolist()
    return known.times(factor) if known else None


def _on_host(compiled: Round, gpu: int, figures: Sequence[float]) -> tuple[float, ...]:
    """Return figures of a GPU's residents times the slowdown by the host's load."""
    if compiled.hosts is None:
        return tuple(figures)
    job = [resident.job for resident in compiled.residents(gpu)]
    of_job = compiled.hosts.slowdown[compiled.machines.node[gpu], job].tolist()
    return tuple([figure * more for figure, more in zip(figures, of_job, strict=True)])


def bound_now(compiled: Round, job: int) -> float:
    """Return the bound that a running job's gSLA is checked against, infinity if unknown."""
    first = np.array(compiled.jobs.held[job][0])
    there = compiled.resident_sets
    of = there.of[first]
    variant = there.column(of, lambda resident: resident.variant)
    share = there.column(of, lambda resident: resident.share)
    bound, known = _bounds(compiled, first, variant, share)
    own = variant == compiled.first_variant[job]
    return float(bound[own].max()) if known.all() else np.inf


def _bounds(compiled: Round, gpu: Ints, variant: Ints, share: Ints) -> tuple[Floats, Bools]:
    """Return the bound that the gSLA of each resident is checked against, and if it is known.

    Parameters
    ----------
    compiled : Round
        The round.
    gpu : (k,) int
        GPUs with residents, or without.
    variant, share : (k, most) int
        Their residents as in ``Classes``. Those that no entry allows to share are treated as alone.
    """
    job = compiled.variants.job[variant]
    bound = compiled.slowdowns_alone(job, variant, share)
    known = np.ones(len(gpu), dtype=bool)
    latency = compiled.jobs.latency
    for k in np.flatnonzero((variant >= 0).sum(axis=1) > 1).tolist():
        together = _known_together(compiled, int(gpu[k]))
        known[k] = together is not None
        if together:
            held = together.bounds(latency[job[k]].tolist()[: len(together.slowdown)])
            bound[k, : len(held)] = held
    if compiled.hosts is not None:
        node = np.array(compiled.machines.node)[gpu]
        bound = bound * compiled.hosts.slowdown[node[:, None], job]
    return bound, known


def _closed(compiled: Round, gpu: Ints, variant: Ints, share: Ints) -> Bools:
    """Return which GPUs no job may join: a rule is already broken, or a job is over its gSLA.

    A job over its gSLA on one of its GPUs closes all of them. For the arguments see ``_bounds``;
    there is one GPU of each class.
    """
    there = variant >= 0
    if not there.any():
        return np.zeros(len(gpu), dtype=bool)
    bound, known = _bounds(compiled, gpu, variant, share)
    job = compiled.variants.job[variant]
    over = np.zeros(len(compiled), dtype=bool)
    over[job[there & (bound > most_bound(compiled.jobs.gsla)[job])]] = True
    offered = np.array(compiled.machines.memory_mib)[gpu]
    memory = across(np.add, np.where(there, compiled.variants.need_mib(variant, offered), 0.0))
    shares = percent(np.where(there, share, NO_CAP)).sum(axis=1)
    full = memory > np.array(compiled.machines.gpu_room_mib)[gpu]
    full |= shares > compiled.machines.rules.share_sum
    return np.asarray(~known | (full & there[:, 0]) | (over[job] & there).any(axis=1))


def _alike(*columns: NDArray[Any]) -> list[Ints]:
    """Return the sets of positions at which all columns agree, in the order of their first."""
    code = _codes(*columns)
    _, first, of, count = np.unique(
        code, return_index=True, return_inverse=True, return_counts=True
    )
    by_first = np.argsort(first)
    rank = np.empty_like(by_first)
    rank[by_first] = np.arange(len(by_first))
    positions = np.argsort(rank[of], kind="stable")
    return np.split(positions, np.cumsum(count[by_first])[:-1]) if len(positions) else []


def _codes(*columns: NDArray[Any]) -> Ints:
    """Return a number for each row of the columns, equal exactly if all columns are."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, of = np.unique(column, return_inverse=True)
        code = code * len(values) + of
    return code
