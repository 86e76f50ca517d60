"""The round problem compiled: jobs as columns, GPUs in classes, and the known slowdowns.

An instance and a policy's state are compiled into the same ``Round``, so that a plan, a simulation
and the live service solve the same problem. A *variant* of a job is the job at one of its
sub-batches. Interchangeable GPUs (same model, memory, residents and time until which they are free,
and the same node if its host may fall short) form a *class*; formulations count GPUs of a class and
never name one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.hosts import KnownHosts, RoundHosts
from dovetail.formulations.rules import Mode, modes, most_bound, room_mib, slowdown_alone
from dovetail.formulations.slowdowns import InstanceSlowdowns, KnownSlowdowns, Sharing
from dovetail.instances._record import AnyShare
from dovetail.instances.instance import Batch, Cluster, Instance, Workload
from dovetail.instances.slowdowns.shares import share_code, share_total


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
    memory_mib : list of float
        Memory of each GPU without the reserved part.
    most_jobs : list of int
        How many jobs may be on each GPU.
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
        self.memory_mib = [gpu.memory_mib - rules.reserve_mib for _, _, gpu in devices]
        most = rules.most_jobs()
        self.most_jobs = [most[gpu.model] for _, _, gpu in devices]
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
        found = zip(self.model, self.memory_mib, strict=True)
        return [index[self.models[model], memory] for model, memory in found]

    @cached_property
    def gpu_types(self) -> tuple[tuple[str, float], ...]:
        """The distinct models and memories of GPUs."""
        found = zip(self.model, self.memory_mib, strict=True)
        return tuple(dict.fromkeys((self.models[model], memory) for model, memory in found))

    @cached_property
    def gpu_room_mib(self) -> list[float]:
        """The most memory that jobs may need on each GPU, in MiB."""
        return list(map(room_mib, self.memory_mib))

    @cached_property
    def memory_by_model(self) -> list[tuple[float, float]]:
        """The least and the most memory that jobs may need on a GPU of each model, in MiB."""
        held: list[list[float]] = [[] for _ in self.models]
        for model, memory in zip(self.model, self.memory_mib, strict=True):
            held[model].append(memory)
        return [(room_mib(min(memory)), room_mib(max(memory))) for memory in held]


class Variant(NamedTuple):
    """A job at one sub-batch.

    Attributes
    ----------
    job : int
        Index of the job in the round.
    sub_batch : int or None
        Samples per accumulation step; None if the workload has no batch model.
    memory_mib : float
        Memory of one worker, including the per-process overhead.
    slowdown_factor : float
        t(k) / t(0) of Castor's eq. 3: the factor on every slowdown of the job.
    """

    job: int
    sub_batch: int | None
    memory_mib: float
    slowdown_factor: float


class Resident(NamedTuple):
    """A running job on a GPU: its variant and its share there."""

    variant: Variant
    share: AnyShare


class GpuClass(NamedTuple):
    """GPUs that are interchangeable except for their location.

    Attributes
    ----------
    model : str
        The GPU model.
    memory_mib : float
        Memory that the jobs on one such GPU may use together (without the reserve).
    residents : tuple of Resident
        The running jobs on each of these GPUs, in the order of the round.
    gpus : tuple of int
        The numbers of the GPUs, ascending.
    open : bool
        Whether a job may start here (constraint 5 of the round problem).
    until_s : float
        Seconds from now by which a job that starts here must have ended; inf for no limit.
    """

    model: str
    memory_mib: float
    residents: tuple[Resident, ...]
    gpus: tuple[int, ...]
    open: bool
    until_s: float = np.inf


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
    weight, gsla, remaining_s, arrival_s : (n,) float
        As in an instance; ``gsla`` is inf and ``remaining_s`` NaN if there is none.
    latency, running : (n,) bool
        Whether each is of priority ``latency``, and whether it runs.
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
    weight: Floats
    gsla: Floats
    remaining_s: Floats
    arrival_s: Floats
    latency: Bools
    running: Bools
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
            weight=np.array([job.weight for job in jobs], dtype=np.float64),
            gsla=np.array([np.inf if j.gsla is None else j.gsla for j in jobs], dtype=np.float64),
            remaining_s=np.array([job.remaining_s for job in jobs], dtype=np.float64),
            arrival_s=np.array([job.arrival_s for job in jobs], dtype=np.float64),
            latency=np.array([job.priority == "latency" for job in jobs], dtype=bool),
            running=np.array([job.running for job in jobs], dtype=bool),
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
        on_hosts = KnownHosts.of(instance.cluster.nodes, workloads)
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

    @cached_property
    def modes(self) -> Mapping[int, tuple[Mode, ...]]:
        """The modes of each workload that a job has."""
        overhead = self.machines.rules.per_process_mib
        return {k: modes(self.workloads[k], overhead) for k in set(self.jobs.workload.tolist())}

    @cached_property
    def variants(self) -> tuple[tuple[Variant, ...], ...]:
        """The variants of each job; for a running job, only the variant in which it runs."""
        held = self.jobs.held
        found = []
        for k, workload in enumerate(self.jobs.workload.tolist()):
            ways: Sequence[Mode] = self.modes[workload]
            if k in held:
                ways = _running_in(ways, self.workloads[workload].batch, held[k][2])
            found.append(tuple(Variant(k, *mode) for mode in ways))
        return tuple(found)

    @cached_property
    def first_variant(self) -> Ints:
        """The index of the first variant of each job among all variants, job by job, (n,)."""
        sizes = np.array([len(variants) for variants in self.variants], dtype=np.int64)
        return np.asarray(np.cumsum(sizes) - sizes)

    @cached_property
    def variant_job(self) -> Ints:
        """The job of all variants, job by job."""
        return np.array([v.job for variants in self.variants for v in variants], dtype=np.int64)

    @cached_property
    def variant_factor(self) -> Floats:
        """``slowdown_factor`` of all variants, job by job."""
        return np.array([v.slowdown_factor for variants in self.variants for v in variants])

    @cached_property
    def resident_sets(self) -> tuple[Sequence[tuple[Resident, ...]], Ints]:
        """The distinct sets of running jobs on a GPU, the empty set first, and each GPU's set."""
        on: dict[int, list[tuple[int, AnyShare]]] = defaultdict(list)
        for k, (gpus, shares, _) in self.jobs.held.items():
            for gpu, share in zip(gpus, shares, strict=True):
                on[gpu].append((k, share))
        number: dict[tuple[tuple[int, AnyShare], ...], int] = {(): 0}
        of = np.zeros(len(self.machines), dtype=np.int64)
        for gpu, held in on.items():
            of[gpu] = number.setdefault(tuple(held), len(number))
        sets = [tuple([Resident(self.variants[k][0], share) for k, share in s]) for s in number]
        return sets, of

    @cached_property
    def residents(self) -> Mapping[int, tuple[Resident, ...]]:
        """The running jobs on each GPU that has some."""
        sets, of = self.resident_sets
        return {gpu: sets[of[gpu]] for gpu in np.flatnonzero(of).tolist()}

    @cached_property
    def classes(self) -> tuple[GpuClass, ...]:
        """The classes of interchangeable GPUs, in the order of their first GPU."""
        machines, residents = self.machines, self.residents
        gpus = np.arange(len(machines)) if self.gpus is None else np.array(self.gpus, np.int64)
        _, held = self.resident_sets
        until_s = np.full(len(machines), np.inf)
        for gpu, moment_s in self.until_s.items():
            until_s[gpu] = moment_s
        columns: list[NDArray[Any]] = [held[gpus]]
        if len(machines.gpu_types) > 1:
            columns.append(np.array(machines.gpu_type, np.int64)[gpus])
        if self.until_s:
            columns.append(until_s[gpus])
        if self.hosts:
            node = np.array(machines.node, np.int64)
            columns.append(np.where(self.hosts.tight[node], node, -1)[gpus])
        alike = _alike(*columns)
        members: list[tuple[int, ...]] = [tuple(gpus[run].tolist()) for run in alike]
        closed = closed_gpus(self, [part[0] for part in members if part[0] in residents])
        return tuple(
            GpuClass(
                *machines.gpu_types[machines.gpu_type[part[0]]],
                residents.get(part[0], ()),
                part,
                part[0] not in residents or closed.isdisjoint(part),
                float(until_s[part[0]]),
            )
            for part in members
        )

    @cached_property
    def gpu_types(self) -> set[tuple[str, float]]:
        """The models and memories of the GPUs."""
        return {(c.model, c.memory_mib) for c in self.classes}

    @cached_property
    def interchangeable(self) -> bool:
        """Whether all GPUs without residents are equal for a starting job."""
        lent_s = {c.until_s for c in self.classes if not c.residents}
        return len(self.gpu_types) <= 1 and len(lent_s) <= 1 and self.hosts is None

    @cached_property
    def class_sizes(self) -> Ints:
        """The number of GPUs of each class."""
        return np.array([len(c.gpus) for c in self.classes], dtype=np.int64)

    @cached_property
    def class_alike(self) -> Ints:
        """The number of GPUs equal to those of each class, on any node."""
        alike = [(c.model, c.memory_mib, c.residents, c.until_s) for c in self.classes]
        count: Counter[object] = Counter()
        for key, gpus in zip(alike, self.class_sizes.tolist(), strict=True):
            count[key] += gpus
        return np.array([count[key] for key in alike], dtype=np.int64)

    @cached_property
    def class_residents(self) -> Ints:
        """The number of running jobs on each GPU of each class."""
        return np.array([len(c.residents) for c in self.classes], dtype=np.int64)

    @cached_property
    def class_model(self) -> Ints:
        """The index of the GPU model of each class."""
        return np.array([self.models.index(c.model) for c in self.classes], dtype=np.int64)

    @cached_property
    def class_until(self) -> Floats:
        """``until_s`` of each class."""
        return np.array([c.until_s for c in self.classes], dtype=np.float64)

    @cached_property
    def slowdown_now(self) -> Mapping[int, float]:
        """The slowdown of each running job: the measured one, or the largest known on its GPUs."""
        measured = {k: float(self.jobs.slowdown[k]) for k in self.jobs.held}
        if not np.isnan(list(measured.values())).any():
            return measured
        of: dict[int, float] = defaultdict(float)
        for gpu, residents in self.residents.items():
            for resident, slowdown in zip(residents, resident_slowdowns(self, gpu), strict=True):
                of[resident.variant.job] = max(of[resident.variant.job], slowdown)
        return of

    def bound_now(self, job: int) -> float:
        """Return the bound that a running job's gSLA is checked against, infinity if unknown."""
        return bound_now(self, job)

    def slowdowns_alone(self, job: Ints, variant: Ints, share: Ints) -> Floats:
        """Return the slowdown of jobs in groups once the others have ended.

        It keeps its share and its sub-batch. A share without a known throughput is assumed to cost
        nothing.
        """
        factor = self.variant_factor.take(variant, mode="clip")
        return np.asarray(self.at_last[self.jobs.workload[job], share] * factor)

    @cached_property
    def least_alone(self) -> Floats:
        """The least slowdown of each job alone at any share, (n,)."""
        slowdown_factor = [min(v.slowdown_factor for v in variants) for variants in self.variants]
        return np.asarray(self.at_last.min(axis=1)[self.jobs.workload] * slowdown_factor)

    @property
    def at_last(self) -> Floats:
        """The slowdown of each workload after its co-runners have ended, by share.

        The shape is (workloads, shares); ``NO_CAP`` is the first share and ``idle`` the last.
        """
        return self.slowdowns.at_last

    @cached_property
    def shares_alone(self) -> tuple[AnyShare, ...]:
        """The shares at which a job may start alone on a GPU."""
        rules = self.machines.rules
        caps = rules.shares if rules.start_capped else ()
        return (None, *(share for share in caps if share_total([share]) <= rules.share_sum))

    def alone(self, variant: Variant, share: AnyShare) -> float | None:
        """Return the slowdown of a job that runs alone at a share, or None if it is unknown."""
        alone = slowdown_alone(self.workload(variant.job), share)
        return None if alone is None else alone * variant.slowdown_factor


def resident_slowdowns(compiled: Round, gpu: int) -> tuple[float, ...]:
    """Return the slowdown of each resident of a GPU that no job joins.

    Measured slowdowns come first, then those of the residents' combination. Residents without a
    known combination are treated as if each were alone; the checker warns about them, and no
    job may join them.
    """
    measured = tuple(float(compiled.jobs.slowdown[r.variant.job]) for r in compiled.residents[gpu])
    if not np.isnan(measured).any():
        return measured
    known = _known_together(compiled, gpu)
    return _on_host(compiled, gpu, known.slowdown if known else _each_alone(compiled, gpu))


def resident_power(compiled: Round, gpu: int) -> float | None:
    """Return the power of a GPU that no job joins, or None if it is unknown.

    If the power of its jobs together is unknown, it is the sum of their powers alone.
    """
    residents = compiled.residents[gpu]
    known = _known_together(compiled, gpu) if len(residents) > 1 else None
    if known is not None and not math.isnan(known.power_w):
        return known.power_w
    alone = [compiled.workload(resident.variant.job).power_w for resident in residents]
    return None if None in alone else math.fsum(filter(None, alone))


def measured_slowdowns(compiled: Round) -> tuple[Floats, Floats]:
    """Return the least slowdown of each job, and the factor on its known slowdowns, (n,) each.

    Both come from the measured slowdowns of running jobs, at their sub-batch; empty arrays if
    there are none.
    """
    jobs = compiled.jobs
    if np.isnan(jobs.slowdown).all():
        return np.empty(0), np.empty(0)
    least, factor = np.zeros(len(compiled)), np.ones(len(compiled))
    known: dict[int, float] = defaultdict(float)
    for gpu_class in compiled.classes:
        for resident, slowdown in _expected(compiled, gpu_class):
            known[resident.variant.job] = max(known[resident.variant.job], slowdown)
    for job in jobs.held:
        if jobs.holds[job] > jobs.workers[job]:
            least[job] = jobs.slowdown[job] / compiled.variants[job][0].slowdown_factor
        elif job in known:
            factor[job] = max(1.0, float(jobs.slowdown[job]) / known[job])
    return least, factor


def _expected(compiled: Round, gpu_class: GpuClass) -> Iterator[tuple[Resident, float]]:
    """Yield the residents of a class that have a known slowdown, with it."""
    residents = gpu_class.residents
    if len(residents) == 1:
        alone = compiled.alone(residents[0].variant, residents[0].share)
        if alone is not None:
            yield residents[0], alone
    elif residents and (known := _known_together(compiled, gpu_class.gpus[0])):
        yield from zip(residents, known.slowdown, strict=True)


def _each_alone(compiled: Round, gpu: int) -> tuple[float, ...]:
    found = []
    for resident in compiled.residents[gpu]:
        alone = compiled.alone(resident.variant, resident.share)
        found.append(resident.variant.slowdown_factor if alone is None else alone)
    return tuple(found)


def _known_together(compiled: Round, gpu: int) -> Sharing | None:
    """Return the residents' combination, with values multiplied by their sub-batch factors."""
    residents = compiled.residents[gpu]
    members = [(int(compiled.jobs.workload[r.variant.job]), share_code(r.share)) for r in residents]
    known = compiled.slowdowns.find(compiled.models[compiled.machines.model[gpu]], members)
    return known.times([r.variant.slowdown_factor for r in residents]) if known else None


def _bounds(compiled: Round, gpu: int) -> tuple[float, ...] | None:
    """Return the bound that each resident's gSLA is checked against, or None if unknown."""
    residents = compiled.residents[gpu]
    if len(residents) == 1:
        return _on_host(compiled, gpu, _each_alone(compiled, gpu))
    known = _known_together(compiled, gpu)
    latency = [bool(compiled.jobs.latency[r.variant.job]) for r in residents]
    return _on_host(compiled, gpu, known.bounds(latency)) if known else None


def _on_host(compiled: Round, gpu: int, figures: Sequence[float]) -> tuple[float, ...]:
    """Return figures of a GPU's residents times the slowdown by the host's load."""
    if compiled.hosts is None:
        return tuple(figures)
    of_job = compiled.hosts.slowdown[compiled.machines.node[gpu]]
    residents = compiled.residents[gpu]
    return tuple(
        figure * float(of_job[resident.variant.job])
        for resident, figure in zip(residents, figures, strict=True)
    )


def bound_now(compiled: Round, job: int) -> float:
    """Return the bound that a running job's gSLA is checked against, infinity if unknown."""
    largest = 0.0
    for gpu in compiled.jobs.held[job][0]:
        bounds = _bounds(compiled, gpu)
        if bounds is None:
            return np.inf
        place = [r.variant.job for r in compiled.residents[gpu]].index(job)
        largest = max(largest, bounds[place])
    return largest


def closed_gpus(compiled: Round, held: Iterable[int]) -> set[int]:
    """Return the GPUs that no job may join: a rule is already broken, or a job over its gSLA.

    ``held`` has one GPU of each class with residents.
    """
    closed: set[int] = set()
    over: set[int] = set()
    most = most_bound(compiled.jobs.gsla).tolist()
    for gpu in held:
        bounds = _bounds(compiled, gpu)
        if bounds is None or _overfull(compiled, gpu):
            closed.add(gpu)
        # Jobs that no entry allows to share are treated as alone, on all GPUs of their gangs.
        each = _on_host(compiled, gpu, _each_alone(compiled, gpu)) if bounds is None else bounds
        for resident, bound in zip(compiled.residents[gpu], each, strict=True):
            if bound > most[resident.variant.job]:
                over.add(resident.variant.job)
    return closed.union(gpu for k in over for gpu in compiled.jobs.held[k][0])


def _overfull(compiled: Round, gpu: int) -> bool:
    residents = compiled.residents[gpu]
    memory = sum(r.variant.memory_mib for r in residents)
    return (
        memory > compiled.machines.gpu_room_mib[gpu]
        or share_total(r.share for r in residents) > compiled.machines.rules.share_sum
    )


def _running_in(ways: Sequence[Mode], batch: Batch | None, sub_batch: int | None) -> Sequence[Mode]:
    """Return the mode in which a running job runs."""
    if batch is None:
        return ways
    held = batch.size if sub_batch is None else sub_batch
    return [mode for mode in ways if mode.sub_batch == held]


def _alike(*columns: NDArray[Any]) -> list[Ints]:
    """Return the sets of positions at which all columns agree, in the order of their first."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, of = np.unique(column, return_inverse=True)
        code = code * len(values) + of
    _, first, of, count = np.unique(
        code, return_index=True, return_inverse=True, return_counts=True
    )
    by_first = np.argsort(first)
    rank = np.empty_like(by_first)
    rank[by_first] = np.arange(len(by_first))
    positions = np.argsort(rank[of], kind="stable")
    return np.split(positions, np.cumsum(count[by_first])[:-1]) if len(positions) else []
