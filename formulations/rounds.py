"""The round problem compiled: jobs in their variants and GPUs in their classes.

A *variant* of a job is the job at one of its sub-batches: what it then needs in memory and by
how much its iterations stretch. GPUs that cannot be told apart (same model, memory and
residents) form a *class*; formulations count GPUs of a class and never name one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dovetail.formulations.entries import Combination, EntryBook
from dovetail.instances.instance import Batch, Instance, Job, Workload

MEMORY_TOLERANCE_MIB = 1e-6
GSLA_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Variant:
    """A job at one sub-batch.

    Attributes
    ----------
    job : int
        Index of the job in the instance.
    sub_batch : int or None
        Samples per accumulation step; None where the workload has no batch model.
    memory_mib : float
        Need of one worker, the per-process overhead included.
    stretch : float
        t(k) / t(0) of Castor's eq. 3: what every slowdown of the job is multiplied by.
    """

    job: int
    sub_batch: int | None
    memory_mib: float
    stretch: float


@dataclass(frozen=True)
class Resident:
    """A running job on a GPU: which variant it is and the share it has there."""

    variant: Variant
    share: int | None


@dataclass(frozen=True)
class GpuClass:
    """GPUs that are interchangeable for everything but their place.

    Attributes
    ----------
    model : str
        The GPU model.
    memory_mib : float
        What the jobs on one such GPU may use together (the reserve taken off).
    residents : tuple of Resident
        The running jobs on each of these GPUs, in the order of the instance.
    gpus : tuple of str
        The ids, in the order of the instance.
    open : bool
        Whether a job may start here (constraint 5 of the round problem).
    """

    model: str
    memory_mib: float
    residents: tuple[Resident, ...]
    gpus: tuple[str, ...]
    open: bool


class Round:
    """An instance compiled for the formulations.

    Parameters
    ----------
    instance : Instance
        Running jobs stay where they are; preempt before if they should not.
    book : EntryBook, optional
        Of an earlier round; used where it holds for this one too, so that nothing of what it
        knows is worked out again.
    """

    def __init__(self, instance: Instance, book: EntryBook | None = None) -> None:
        self.instance = instance
        self.jobs: Sequence[Job] = instance.jobs
        self.entries = book if book and book.holds_for(instance) else EntryBook(instance)
        overhead = instance.cluster.per_process_mib
        used = {job.workload: instance.workloads[job.workload] for job in instance.jobs}
        ways = {name: modes(workload, overhead) for name, workload in used.items()}
        self.variants: tuple[tuple[Variant, ...], ...] = tuple(
            _variants(k, job, used[job.workload].batch, ways[job.workload])
            for k, job in enumerate(instance.jobs)
        )

    def workload(self, job: int) -> Workload:
        """Return the workload of the job with this index."""
        return self.instance.workloads[self.jobs[job].workload]

    def speed(self, job: int, model: str) -> float:
        """Return the job's relative speed on a GPU model."""
        return self.workload(job).speed.get(model, 1.0)

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The GPU models of the cluster, in the order of the instance."""
        return tuple(dict.fromkeys(place.gpu.model for place in self.instance.places.values()))

    @cached_property
    def residents(self) -> Mapping[str, tuple[Resident, ...]]:
        """The running jobs on each GPU that has any."""
        found: dict[str, list[Resident]] = defaultdict(list)
        for k, job in enumerate(self.jobs):
            for gpu, share in zip(job.gpus or (), job.shares, strict=bool(job.gpus)):
                found[gpu].append(Resident(self.variants[k][0], share))
        return {gpu: tuple(residents) for gpu, residents in found.items()}

    @cached_property
    def classes(self) -> tuple[GpuClass, ...]:
        """The classes of interchangeable GPUs, in the order of their first GPU."""
        members: dict[tuple[str, float, tuple[Resident, ...]], list[str]] = defaultdict(list)
        reserve = self.instance.cluster.reserve_mib
        for gpu, place in self.instance.places.items():
            residents = self.residents.get(gpu, ())
            members[place.gpu.model, place.gpu.memory_mib - reserve, residents].append(gpu)
        closed = self._closed_gpus([gpus[0] for (_, _, held), gpus in members.items() if held])
        return tuple(
            GpuClass(model, memory, residents, tuple(gpus), closed.isdisjoint(gpus))
            for (model, memory, residents), gpus in members.items()
        )

    @cached_property
    def shares_alone(self) -> tuple[int | None, ...]:
        """The shares at which a job may start alone on a GPU."""
        cluster = self.instance.cluster
        caps = cluster.shares if cluster.start_capped else ()
        return (None, *(share for share in caps if share <= cluster.share_sum))

    def resident_slowdowns(self, gpu: str) -> tuple[float, ...]:
        """Return the slowdown of each resident of a GPU that nobody joins.

        Residents of whom nothing is known together count as if each were alone; the checker
        warns of them, and nobody may join them.
        """
        known = self._known_together(gpu)
        return known.slowdown if known else self._each_alone(gpu)

    def resident_power(self, gpu: str) -> float | None:
        """Return the power of a GPU that nobody joins, None where it is unknown."""
        residents = self.residents[gpu]
        if len(residents) == 1:
            return self.workload(residents[0].variant.job).power_w
        known = self._known_together(gpu)
        return known.power_w if known else None

    def alone(self, variant: Variant, share: int | None) -> float | None:
        """Return the slowdown of a job that runs alone at a share, None where it is unknown."""
        if share is None:
            return variant.stretch
        throughput = self.workload(variant.job).throughput
        if 100 not in throughput or share not in throughput:
            return None
        return throughput[100] / throughput[share] * variant.stretch

    def _each_alone(self, gpu: str) -> tuple[float, ...]:
        found = []
        for resident in self.residents[gpu]:
            alone = self.alone(resident.variant, resident.share)
            found.append(resident.variant.stretch if alone is None else alone)
        return tuple(found)

    def _known_together(self, gpu: str) -> Combination | None:
        """Return the residents' own combination, values stretched by their sub-batches."""
        residents = self.residents[gpu]
        members = [(self.jobs[r.variant.job].workload, r.share) for r in residents]
        known = self.entries.find(self.instance.places[gpu].gpu.model, members)
        return known.stretched([r.variant.stretch for r in residents]) if known else None

    def _bounds(self, gpu: str) -> tuple[float, ...] | None:
        """Return what the gSLA of each resident is checked against, None where unknown."""
        residents = self.residents[gpu]
        if len(residents) == 1:
            return self._each_alone(gpu)
        known = self._known_together(gpu)
        latency = [self.jobs[r.variant.job].priority == "latency" for r in residents]
        return known.bounds(latency) if known else None

    def _closed_gpus(self, held: Iterable[str]) -> set[str]:
        """Return the GPUs that nobody may join: broken already, or of a job over its gSLA.

        ``held`` has one GPU of each class with residents.
        """
        closed: set[str] = set()
        over: set[int] = set()
        for gpu in held:
            bounds = self._bounds(gpu)
            if bounds is None or self._overfull(gpu):
                closed.add(gpu)
            for resident, bound in zip(self.residents[gpu], bounds or (), strict=False):
                gsla = self.jobs[resident.variant.job].gsla
                if gsla is not None and bound > gsla * (1 + GSLA_TOLERANCE):
                    over.add(resident.variant.job)
        return closed.union(*(self.jobs[k].gpus or () for k in over))

    def _overfull(self, gpu: str) -> bool:
        cluster = self.instance.cluster
        residents = self.residents[gpu]
        memory = sum(r.variant.memory_mib for r in residents) + cluster.reserve_mib
        capped = sum(r.share or 0 for r in residents)
        return (
            memory > self.instance.places[gpu].gpu.memory_mib + MEMORY_TOLERANCE_MIB
            or capped > cluster.share_sum
        )


def iteration_time(batch: Batch, sub_batch: int) -> float:
    """Return the seconds of one iteration at a sub-batch: Castor (2025), eq. 1-3.

    With s = size / sub_batch accumulation steps, of which only the last overlaps with the
    gradient exchange: (s - 1) t_comp(b) + (t_comp(b)^d + t_comm^d)^(1/d).
    """
    compute = batch.step_s.fixed + batch.step_s.per_sample * sub_batch
    longer, shorter = max(compute, batch.comm_s), min(compute, batch.comm_s)
    # Factored by the longer of the two, so that a large overlap exponent cannot overflow.
    last: float = longer * (1 + (shorter / longer) ** batch.overlap) ** (1 / batch.overlap)
    return (batch.size // sub_batch - 1) * compute + last


class Mode(NamedTuple):
    """A way to run a workload: at its full batch, or at a smaller one with accumulation.

    Attributes
    ----------
    sub_batch : int or None
        Samples per accumulation step; None where the workload has no batch model.
    memory_mib : float
        Need of one worker, the per-process overhead included.
    stretch : float
        t(k) / t(0) of Castor's eq. 3.
    """

    sub_batch: int | None
    memory_mib: float
    stretch: float


def modes(workload: Workload, overhead_mib: float) -> tuple[Mode, ...]:
    """Return the ways to run a workload, its full batch first and then each half of the last."""
    batch = workload.batch
    full = Mode(None if batch is None else batch.size, workload.memory_mib + overhead_mib, 1)
    if batch is None:
        return (full,)
    return (full, *(_at_sub_batch(batch, size, overhead_mib) for size in _sub_batches(batch)))


def _variants(
    index: int, job: Job, batch: Batch | None, ways: Sequence[Mode]
) -> tuple[Variant, ...]:
    every = tuple(Variant(index, *mode) for mode in ways)
    if batch is None or not job.running:
        return every
    held = batch.size if job.sub_batch is None else job.sub_batch
    return tuple(variant for variant in every if variant.sub_batch == held)


def _sub_batches(batch: Batch) -> list[int]:
    sizes = []
    size = batch.size
    while size % 2 == 0 and size // 2 >= batch.min:
        size //= 2
        sizes.append(size)
    return sizes


def _at_sub_batch(batch: Batch, sub_batch: int, overhead_mib: float) -> Mode:
    memory = batch.fixed_mib + batch.mib_per_sample * sub_batch + overhead_mib
    stretch = iteration_time(batch, sub_batch) / iteration_time(batch, batch.size)
    return Mode(sub_batch, memory, stretch)
