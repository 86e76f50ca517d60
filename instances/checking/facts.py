"""The checker's view of placed jobs and their GPUs.

It follows the definitions of the formats only, independent of the planning code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Literal

from dovetail.instances._record import IDLE, AnyShare, Confidence, Record, Text
from dovetail.instances.checking.hosts import HostLoads
from dovetail.instances.instance import Batch, Instance, Job, Place, Workload
from dovetail.instances.slowdowns.entry import SlowdownEntry, Source
from dovetail.instances.slowdowns.shares import share_code

RuleName = Literal[
    "gang",
    "share",
    "sub_batch",
    "capacity",
    "entry",
    "memory",
    "gsla",
    "host",
    "jct",
    "completion",
    "whole",
    "running",
    "claim",
]


_Members = tuple[tuple[str, int], ...]
"""Workloads and shares (0: none), sorted."""


class Violation(Record):
    """A rule that a plan breaks, where, and by how much."""

    rule: RuleName
    where: Text
    message: Text

    def __str__(self) -> str:
        return f"{self.where}: {self.rule}: {self.message}"


@dataclass(frozen=True, eq=False)
class JobOnGpus:
    """A job on its GPUs: the share on each, and the sub-batch (None without ``batch``)."""

    job: Job
    workload: Workload
    share: Mapping[str, AnyShare]
    sub_batch: int | None

    @property
    def starting(self) -> bool:
        """Whether the plan starts the job; otherwise it runs already."""
        return not self.job.running

    @cached_property
    def growth(self) -> float:
        """The factor of its sub-batch on slowdowns: t(k) / t(0)."""
        batch = self.workload.batch
        if batch is None or self.sub_batch is None:
            return 1.0
        return iteration_s(batch, self.sub_batch) / iteration_s(batch, batch.size)

    @cached_property
    def memory_mib(self) -> float:
        """Memory of one worker, in MiB."""
        batch = self.workload.batch
        if batch is None or self.sub_batch is None or self.sub_batch == batch.size:
            return self.workload.memory_mib
        return batch.fixed_mib + batch.mib_per_sample * self.sub_batch


def iteration_s(batch: Batch, sub_batch: int) -> float:
    """Return the seconds of an iteration that accumulates gradients over sub-batches.

    Castor, eq. 3. The larger of the two times is factored out of the norm, as a power of a small
    time underflows.
    """
    steps = batch.size / sub_batch
    compute = batch.step_s.fixed + batch.step_s.per_sample * sub_batch
    longest = max(compute, batch.comm_s)
    parts = (compute / longest) ** batch.overlap + (batch.comm_s / longest) ** batch.overlap
    norm: float = parts ** (1 / batch.overlap)
    return (steps - 1) * compute + longest * norm


@dataclass(frozen=True)
class Effect:
    """The slowdown of a job on one GPU.

    Its gSLA is compared with ``bound``. With ``later``, the bound applies after other jobs have
    ended.
    """

    slowdown: float
    bound: float
    later: bool = False

    def times(self, factor: float) -> Effect:
        """Return the effect slowed down by a further factor."""
        if factor == 1.0:
            return self
        return replace(self, slowdown=self.slowdown * factor, bound=self.bound * factor)

    def then(self, bound: float) -> Effect:
        """Return the effect with the bound of a later time, if it is larger."""
        return replace(self, bound=bound, later=True) if bound > self.bound else self


class Origin(Record):
    """The origin of a job's slowdown.

    Attributes
    ----------
    source : Source
        The weakest source among its workers.
    confidence : float or None
        The confidence of a bound by a model, the lowest among its workers.
    """

    source: Source
    confidence: Confidence | None = None

    def __str__(self) -> str:
        """Return the origin in words: ``model, 90 % bound``."""
        if self.confidence is not None:
            return f"{self.source}, {100 * self.confidence:g} % bound"
        return f"{self.source}, no bound" if self.source == "estimate" else self.source

    @property
    def rank(self) -> tuple[int, float]:
        """A sort key; the lower, the less is known about the error of the slowdown."""
        return _WEAKEST_FIRST.index(self.source), self.confidence or 0.0


_WEAKEST_FIRST: tuple[Source, ...] = ("estimate", "model", "measured")


@dataclass(frozen=True, eq=False)
class GpuOccupants:
    """The jobs on one GPU and their slowdowns, None if these are not known."""

    place: Place
    jobs: tuple[JobOnGpus, ...]
    effects: tuple[Effect, ...] | None
    power_w: float | None

    @property
    def name(self) -> str:
        """The id of the GPU."""
        return self.place.gpu.id

    @property
    def shares(self) -> tuple[AnyShare, ...]:
        """The share of each job on this GPU."""
        return tuple(placed.share[self.name] for placed in self.jobs)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the jobs."""
        return tuple(placed.job.id for placed in self.jobs)

    @property
    def joined(self) -> bool:
        """Whether the plan starts a job here."""
        return any(placed.starting for placed in self.jobs)

    @property
    def share_sum(self) -> int:
        """The sum of the caps, in percent."""
        return sum(share for share in self.shares if share is not None and share != IDLE)


class Occupancy:
    """The jobs on each GPU, and the resulting slowdown of every job.

    Parameters
    ----------
    instance : Instance
        The round.
    placed : Iterable of JobOnGpus
        The jobs that hold GPUs.
    before : Occupancy, optional
        The same round with some of these jobs. GPUs on which nothing changed are as there.
    """

    def __init__(
        self,
        instance: Instance,
        placed: Iterable[JobOnGpus],
        before: Occupancy | None = None,
    ) -> None:
        self.instance = instance
        self.placed = {each.job.id: each for each in placed}
        self._entries = instance.entries
        self._left: dict[tuple[str, _Members], tuple[SlowdownEntry, ...]] = {}
        self.hosts = HostLoads(instance, self.placed.values())
        residents: dict[str, list[JobOnGpus]] = {}
        for each in self.placed.values():
            for gpu in each.share:
                residents.setdefault(gpu, []).append(each)
        # The load of a host changes what happens on all of its GPUs.
        known = None if before is None or self.hosts.load else before.gpus
        self.gpus: dict[str, GpuOccupants] = {}
        for gpu, jobs in residents.items():
            there = known.get(gpu) if known else None
            if there is None or there.jobs != tuple(jobs):
                there = self._occupants(gpu, jobs)
            self.gpus[gpu] = there

    @cached_property
    def effects(self) -> Mapping[str, Effect]:
        """The largest slowdown and bound of each job, without jobs whose slowdown is not known."""
        seen: dict[str, list[Effect]] = {name: [] for name in self.placed}
        for on_gpu in self.gpus.values():
            for name, effect in zip(on_gpu.ids, on_gpu.effects or (), strict=False):
                seen[name].append(effect)
        return {
            name: replace(
                max(effects, key=lambda each: each.bound),
                slowdown=max(each.slowdown for each in effects),
            )
            for name, effects in seen.items()
            if len(effects) == len(self.placed[name].share)
        }

    @cached_property
    def origins(self) -> Mapping[str, Origin]:
        """The origin of each job's slowdown, without jobs alone or without a stated source."""
        found: dict[str, Origin] = {}
        for on_gpu in self.gpus.values():
            entry = self.entry(on_gpu) if len(on_gpu.jobs) > 1 else None
            if entry is None or entry.source is None:
                continue
            origin = Origin(source=entry.source, confidence=entry.confidence)
            for name in on_gpu.ids:
                found[name] = min(found.get(name, origin), origin, key=lambda each: each.rank)
        return found

    def memory_mib(self, on_gpu: GpuOccupants) -> float:
        """Return the memory in use on a GPU, including the cluster's reserve."""
        cluster = self.instance.cluster
        resident = sum(placed.memory_mib + cluster.per_process_mib for placed in on_gpu.jobs)
        return cluster.reserve_mib + resident

    def entry(self, on_gpu: GpuOccupants) -> SlowdownEntry | None:
        """Return the entry for two or more jobs on a GPU, or None if they may not share."""
        return self._entry(on_gpu.place, on_gpu.name, on_gpu.jobs)

    def _entry(self, place: Place, gpu: str, jobs: Sequence[JobOnGpus]) -> SlowdownEntry | None:
        key = tuple(sorted((placed.job.workload, share_code(placed.share[gpu])) for placed in jobs))
        return self._known(place.gpu.model, key)

    def _known(self, model: str, key: _Members) -> SlowdownEntry | None:
        entry = self._entries.get((model, key), self._entries.get((None, key)))
        if entry is None or entry.slowdown is None:
            return None
        return entry if entry.mode == self.instance.cluster.sharing else None

    def _left_of(self, model: str, key: _Members) -> tuple[SlowdownEntry, ...]:
        """Return the entries of all smaller sets that may remain when other jobs have ended."""
        if len(key) < 3:
            return ()
        if (model, key) not in self._left:
            there = Counter(key)
            pairs = set(combinations(key, 2))
            named = pairs | {
                smaller
                for first_two in pairs
                for smaller in self._by_first_two.get(first_two, ())
                if len(smaller) < len(key) and Counter(smaller) <= there
            }
            found = (self._known(model, smaller) for smaller in sorted(named))
            self._left[model, key] = tuple(entry for entry in found if entry is not None)
        return self._left[model, key]

    @cached_property
    def _by_first_two(self) -> Mapping[_Members, list[_Members]]:
        """The members of all sets on any model, by their first two members."""
        found: dict[_Members, list[_Members]] = {}
        for entry in self.instance.slowdowns.sets.values():
            _, key = entry.key
            found.setdefault(key[:2], []).append(key)
        return found

    def _occupants(self, gpu: str, residents: Sequence[JobOnGpus]) -> GpuOccupants:
        on_gpu = self._on_gpu(gpu, residents)
        if on_gpu.effects is None or not self.hosts.load:
            return on_gpu
        factors = (self.hosts.slowdown(placed, gpu) for placed in residents)
        effects = zip(on_gpu.effects, factors, strict=False)
        return replace(on_gpu, effects=tuple(effect.times(f) for effect, f in effects))

    def _on_gpu(self, gpu: str, residents: Sequence[JobOnGpus]) -> GpuOccupants:
        place, jobs = self.instance.places[gpu], tuple(residents)
        if len(jobs) == 1:
            return GpuOccupants(place, jobs, _alone(jobs[0], gpu), jobs[0].workload.power_w)
        entry = self._entry(place, gpu, jobs)
        if entry is not None:
            left = [entry, *self._left_of(place.gpu.model, entry.key[1])]
            effects = tuple(_until_it_ends(placed, left, placed.share[gpu]) for placed in jobs)
            return GpuOccupants(place, jobs, effects, entry.power_w)
        if any(placed.starting for placed in jobs):
            return GpuOccupants(place, jobs, None, None)
        # Running jobs are accepted as they are: without an entry each is treated as if alone.
        return GpuOccupants(place, jobs, sum((_alone(each, gpu) or () for each in jobs), ()), None)


def _alone(placed: JobOnGpus, gpu: str) -> tuple[Effect, ...] | None:
    slowdown = _capped(placed.workload, placed.share[gpu])
    if slowdown is None and placed.starting:
        return None
    alone = (1.0 if slowdown is None else slowdown) * placed.growth
    return (Effect(alone, alone),)


def _capped(workload: Workload, share: AnyShare) -> float | None:
    if share in (None, IDLE):
        return 1.0
    full, capped = workload.throughput.get(100), workload.throughput.get(share)
    return full / capped if full is not None and capped is not None else None


def _until_it_ends(placed: JobOnGpus, left: Sequence[SlowdownEntry], share: AnyShare) -> Effect:
    """Return a job's slowdown with all others, and the worst case after some of them have ended.

    The entry of all jobs comes first. The job keeps its share and its sub-batch.
    """
    me = placed.job.workload, share
    among = [
        _beside(placed, entry, members.index(me))
        for entry in left
        if me in (members := _members(entry))
    ]
    alone = _capped(placed.workload, share)
    effect = among[0]
    for bound in (*(each.bound for each in among[1:]), 1.0 if alone is None else alone):
        effect = effect.then(bound)
    return effect.times(placed.growth)


def _members(entry: SlowdownEntry) -> list[tuple[str, AnyShare]]:
    return list(zip(entry.workloads, entry.shares, strict=True))


def _beside(placed: JobOnGpus, entry: SlowdownEntry, k: int) -> Effect:
    """Return the slowdown of the job as the k-th member of an entry, at full batch."""
    slowdown = entry.slowdown or ()
    bound = entry.upper or slowdown
    if placed.job.priority == "latency" and entry.p99 is not None:
        bound = entry.p99
    return Effect(slowdown[k], bound[k])
