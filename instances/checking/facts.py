"""The checker's view of placed jobs, their GPUs and their hosts.

It follows the definitions of the formats only, independent of the planning code.

A worker asks for a fraction of a resource of its node, at most 1/k if the node's GPUs can hold k
workers of its job. If the fractions on a node sum to more than 1, jobs that ask for the resource
are slowed down by the sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import combinations
from math import fsum
from typing import Literal, NamedTuple

import numpy as np

from dovetail.instances._record import IDLE, AnyShare, Confidence, Record, Text
from dovetail.instances.instance import (
    Batch,
    Cluster,
    GpuModel,
    HostResources,
    Instance,
    Job,
    Node,
    Place,
    Workload,
    jobs_of,
)
from dovetail.instances.slowdowns.entry import SOURCES, GpuKind, Members, SlowdownEntry, Source
from dovetail.instances.slowdowns.shares import NO_CAP, share_code

RuleName = Literal[
    "gang",
    "nodes",
    "share",
    "sub_batch",
    "capacity",
    "entry",
    "sharing",
    "memory",
    "gsla",
    "host",
    "jct",
    "completion",
    "whole",
    "running",
    "claim",
]


_Key = tuple[GpuKind, Members]
"""The model of a GPU, how jobs share it, and the jobs on it, sorted."""

MOST_SLOWDOWN = 1e15
"""The largest slowdown that is a number; jobs that are slowed down more may not share."""

FULL = 1.001
"""The sum of fractions of a host's resource above which jobs are slowed down."""


class Violation(Record):
    """A rule that a plan breaks, where, and by how much."""

    rule: RuleName
    where: Text
    message: Text

    def __str__(self) -> str:
        return f"{self.where}: {self.rule}: {self.message}"


@dataclass(eq=False, slots=True)
class JobOnGpus:
    """A job on its GPUs: the share on each, and the sub-batch (None without ``batch``).

    Attributes
    ----------
    starting : bool
        Whether the plan starts the job; otherwise it runs already.
    growth : float
        The factor of its sub-batch on slowdowns: t(k) / t(0).
    """

    job: Job
    workload: Workload
    share: Mapping[str, AnyShare]
    sub_batch: int | None
    starting: bool = field(init=False)
    growth: float = field(init=False, default=1.0)
    _memory_mib: float = field(init=False)

    def __post_init__(self) -> None:
        self.starting = not self.job.running
        self._memory_mib = self.workload.memory_mib or 0.0
        batch, size = self.workload.batch, self.sub_batch
        if batch is not None and size is not None and size != batch.size:
            self.growth = iteration_s(batch, size) / iteration_s(batch, batch.size)
            self._memory_mib = batch.fixed_mib + batch.mib_per_sample * size

    def memory_mib(self, cluster: Cluster, gpu: GpuModel) -> float:
        """Return the memory of one worker on a GPU in MiB, its process included.

        A percentage is of what the GPU offers to jobs, and the process is part of it.
        """
        percent = self.workload.memory_percent
        if percent is not None:
            return percent / 100 * max(0.0, gpu.memory_mib - cluster.reserve_mib)
        return self._memory_mib + cluster.per_process_mib


def running_jobs(instance: Instance) -> list[JobOnGpus]:
    """Return the running jobs on the GPUs that they hold."""
    return [
        on_gpus(instance, job, dict(zip(job.gpus or (), job.shares, strict=True)), job.sub_batch)
        for job in jobs_of(instance, "running")
    ]


def on_gpus(
    instance: Instance, job: Job, share: Mapping[str, AnyShare], sub_batch: int | None
) -> JobOnGpus:
    """Return a job with its share on each of some GPUs, at full batch if no other is given."""
    workload = instance.workloads[job.workload]
    if sub_batch is None and workload.batch is not None:
        sub_batch = workload.batch.size
    return JobOnGpus(job, workload, share, sub_batch)


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


class Effect(NamedTuple):
    """The slowdown of a job on one GPU, or the largest on all.

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
        return Effect(self.slowdown * factor, self.bound * factor, self.later)

    def then(self, bound: float) -> Effect:
        """Return the effect with the bound of a later time, if it is larger."""
        return Effect(self.slowdown, bound, True) if bound > self.bound else self

    def beside(self, other: Effect) -> Effect:
        """Return the largest slowdown and bound of workers of one job."""
        worse = other if other.bound > self.bound else self
        return worse._replace(slowdown=max(self.slowdown, other.slowdown))


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


_WEAKEST_FIRST: tuple[Source, ...] = ("assumed", "estimate", "model", "measured")


class Together(NamedTuple):
    """What the instance knows of jobs that may share a GPU.

    Attributes
    ----------
    members : tuple
        Workload and code of the share of each.
    slowdown, bound, tail : tuple of float
        The slowdown of each at full batch, and what its gSLA is compared with, for jobs of
        priority ``batch`` and ``latency``.
    power_w : float or None
        The power of the GPU.
    source, confidence
        The origin of the slowdowns.
    """

    members: Members
    slowdown: Sequence[float]
    bound: Sequence[float]
    tail: Sequence[float]
    power_w: float | None
    source: Source | None
    confidence: float | None

    def of(self, member: tuple[str, int], latency: bool) -> Effect:
        """Return the effect on one of the members."""
        k = self.members.index(member)
        return Effect(self.slowdown[k], (self.tail if latency else self.bound)[k])


class GpuOccupants(NamedTuple):
    """The jobs on one GPU.

    Attributes
    ----------
    place : Place
        The GPU.
    jobs : tuple of JobOnGpus
        The jobs.
    ids : tuple of str
        Their ids.
    joined : bool
        Whether the plan starts one of them.
    memory_mib : float
        Memory in use, with the cluster's reserve.
    together : Together or None
        What is known of two or more jobs; None if they may not share.
    effects : tuple of Effect or None
        The slowdown of each job, None if these are not known.
    power_w : float or None
        The power of the GPU, if it is known.
    """

    place: Place
    jobs: tuple[JobOnGpus, ...]
    ids: tuple[str, ...]
    joined: bool
    memory_mib: float
    together: Together | None = None
    effects: tuple[Effect, ...] | None = None
    power_w: float | None = None

    @property
    def name(self) -> str:
        """The id of the GPU."""
        return self.place.gpu.id

    @property
    def shares(self) -> tuple[AnyShare, ...]:
        """The share of each job on this GPU."""
        name = self.place.gpu.id
        return tuple([placed.share[name] for placed in self.jobs])

    @property
    def share_sum(self) -> int:
        """The sum of the caps, in percent."""
        return sum([share for share in self.shares if share is not None and share != IDLE])


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
        self.hosts = HostLoads(instance, self.placed.values())
        residents: dict[str, list[JobOnGpus]] = {}
        for each in self.placed.values():
            for gpu in each.share:
                residents.setdefault(gpu, []).append(each)
        # The load of a host changes what happens on all of its GPUs.
        known = {} if before is None or self.hosts.load else before.gpus
        self._known = KnownTogether(instance)
        together = {
            gpu: (instance.cluster.kind_of(instance.places[gpu].gpu), _members(gpu, jobs))
            for gpu, jobs in residents.items()
            if len(jobs) > 1
        }
        self._known.read(together.values())
        self.gpus: dict[str, GpuOccupants] = {}
        for gpu, jobs in residents.items():
            there = known.get(gpu)
            if there is None or there.jobs != tuple(jobs):
                there = self._occupants(gpu, tuple(jobs), together.get(gpu))
            self.gpus[gpu] = there

    @cached_property
    def effects(self) -> Mapping[str, Effect]:
        """The largest slowdown and bound of each job, without jobs whose slowdown is not known."""
        found: dict[str, Effect] = {}
        unknown: set[str] = set()
        for on_gpu in self.gpus.values():
            if on_gpu.effects is None:
                unknown.update(on_gpu.ids)
                continue
            for placed, effect in zip(on_gpu.jobs, on_gpu.effects, strict=True):
                name = placed.job.id
                seen = found.get(name)
                found[name] = effect if seen is None else seen.beside(effect)
        return {name: found[name] for name in self.placed if name not in unknown}

    @cached_property
    def origins(self) -> Mapping[str, Origin]:
        """The origin of each job's slowdown, without jobs alone or without a stated source."""
        found: dict[str, Origin] = {}
        for on_gpu in self.gpus.values():
            known = on_gpu.together
            if known is None or known.source is None:
                continue
            origin = _origin(known.source, known.confidence)
            for name in on_gpu.ids:
                found[name] = min(found.get(name, origin), origin, key=lambda each: each.rank)
        return found

    def _occupants(self, gpu: str, jobs: tuple[JobOnGpus, ...], key: _Key | None) -> GpuOccupants:
        cluster = self.instance.cluster
        on_gpu = GpuOccupants(
            place=self.instance.places[gpu],
            jobs=jobs,
            ids=tuple([placed.job.id for placed in jobs]),
            joined=any(placed.starting for placed in jobs),
            memory_mib=cluster.reserve_mib
            + sum([p.memory_mib(cluster, self.instance.places[gpu].gpu) for p in jobs]),
        )
        effects, together, power_w = self._effects(on_gpu, key)
        if effects is not None and self.hosts.load:
            factors = (self.hosts.slowdown(placed, gpu) for placed in jobs)
            effects = tuple(each.times(f) for each, f in zip(effects, factors, strict=True))
        return on_gpu._replace(effects=effects, together=together, power_w=power_w)

    def _effects(
        self, on_gpu: GpuOccupants, key: _Key | None
    ) -> tuple[tuple[Effect, ...] | None, Together | None, float | None]:
        """Return the effects on the jobs of a GPU, what is known of them, and the power."""
        jobs, gpu = on_gpu.jobs, on_gpu.name
        if key is None:
            (placed,) = jobs
            alone = _alone(placed, gpu)
            return None if alone is None else (alone,), None, placed.workload.power_w
        together = self._known.of(key)
        if together is not None:
            left = self._known.left_of(key)
            effects = tuple([_until_it_ends(placed, together, left, gpu) for placed in jobs])
            return effects, together, together.power_w
        if on_gpu.joined:
            return None, None, None
        # Running jobs are accepted as they are: without an entry each is treated as if alone.
        each = (_alone(placed, gpu) for placed in jobs)
        return tuple(effect for effect in each if effect is not None), None, None


class KnownTogether:
    """What an instance knows of jobs that share a GPU, as far as it was asked for.

    Pairs are read from the columns of its slowdowns, many at a time.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._found: dict[_Key, Together | None] = {}
        self._left: dict[_Key, tuple[Together, ...]] = {}

    def of(self, key: _Key) -> Together | None:
        """Return what is known of two or more jobs, or None if they may not share."""
        if key not in self._found:
            self.read([key])
        return self._found[key]

    def read(self, keys: Iterable[_Key]) -> None:
        """Read what is known of many."""
        pairs = []
        for key in dict.fromkeys(keys):
            if len(key[1]) == 2:
                pairs.append(key)
            else:
                self._found[key] = self._set(*key)
        if pairs:
            self._found.update(dict.fromkeys(pairs))
            self._found.update(self._pairs(pairs))

    def _pairs(self, keys: Sequence[_Key]) -> Iterator[tuple[_Key, Together]]:
        known = self._instance.slowdowns
        row = known.holding(keys)
        declared = self._instance.cluster.assumed
        if declared is not None and declared.pair is not None:
            for k in np.flatnonzero(row < 0).tolist():
                if _uncapped(keys[k][1]):
                    yield keys[k], _declared(keys[k][1], [declared.pair] * 2)
        may = np.flatnonzero(row >= 0)
        may = may[known.may_share[row[may]]]
        row = row[may]
        first = [known.number[keys[k][1][0][0]] for k in may.tolist()]
        code = [keys[k][1][0][1] for k in may.tolist()]
        turned = (known.workload[row, 0] != first) | (known.share[row, 0] != code)
        order = np.where(turned[:, None], [1, 0], [0, 1])
        slowdown, upper, p99 = (
            np.take_along_axis(column[row], order, axis=1)
            for column in (known.slowdown, known.upper, known.p99)
        )
        bound = np.where(np.isnan(upper), slowdown, upper)
        tail = np.where(np.isnan(p99), bound, p99)
        figures = (slowdown, bound, tail, known.power_w[row], known.confidence[row])
        columns = (column.tolist() for column in (may, known.source[row], *figures))
        for k, source, slow, most, late, power_w, confidence in zip(*columns, strict=True):
            yield (
                keys[k],
                Together(
                    members=keys[k][1],
                    slowdown=slow,
                    bound=most,
                    tail=late,
                    power_w=None if power_w != power_w else power_w,
                    source=None if source < 0 else SOURCES[source],
                    confidence=None if confidence != confidence else confidence,
                ),
            )

    def _set(self, kind: GpuKind, members: Members) -> Together | None:
        entry = self._entry_of_set(kind, members)
        if entry is None:
            return self._product(kind, members)
        if entry.slowdown is None:
            return None
        bound = entry.upper or entry.slowdown
        codes = map(share_code, entry.shares)
        return Together(
            tuple(zip(entry.workloads, codes, strict=True)),
            entry.slowdown,
            bound,
            entry.p99 or bound,
            entry.power_w,
            entry.source,
            entry.confidence,
        )

    def _entry_of_set(self, kind: GpuKind, members: Members) -> SlowdownEntry | None:
        known, (model, mode) = self._instance.entries, kind
        return known.get((model, members, mode), known.get((None, members, mode)))

    def _product(self, kind: GpuKind, members: Members) -> Together | None:
        """Return three or more jobs without an entry, if their pairs decide (``Cluster.assumed``).

        Each job has the product of its slowdowns with each other one; in its bounds a factor is at
        least 1, so they also hold when some of the others have ended.
        """
        declared = self._instance.cluster.assumed
        if declared is None or declared.sets is None or not _uncapped(members):
            return None
        named = [self._entry_of_set(kind, each) for each in self._named_within(members)]
        if any(entry is not None and entry.slowdown is None for entry in named):
            return None
        slowdown, bound, tail = [1.0] * len(members), [1.0] * len(members), [1.0] * len(members)
        for i, j in combinations(range(len(members)), 2):
            pair = self.of((kind, (members[i], members[j])))
            if pair is None:
                return None
            for own in (i, j):
                at = pair.members.index(members[own])
                slowdown[own] *= pair.slowdown[at]
                bound[own] *= max(1.0, pair.bound[at])
                tail[own] *= max(1.0, pair.tail[at])
        if max(slowdown) > MOST_SLOWDOWN:
            return None
        return _declared(members, slowdown, bound, tail)

    def _named_within(self, members: Members) -> set[Members]:
        """Return the sets that are smaller than this one, are part of it and have an entry."""
        there = Counter(members)
        return {
            smaller
            for first_two in combinations(members, 2)
            for smaller in self._by_first_two.get(first_two, ())
            if len(smaller) < len(members) and Counter(smaller) <= there
        }

    def left_of(self, key: _Key) -> tuple[Together, ...]:
        """Return all smaller sets that may remain when other jobs have ended."""
        kind, members = key
        if len(members) < 3:
            return ()
        if key not in self._left:
            named = {*combinations(members, 2), *self._named_within(members)}
            if self._instance.cluster.assumed is not None:
                named |= self._products_within(kind, members)
            found = (self.of((kind, smaller)) for smaller in sorted(named))
            self._left[key] = tuple(known for known in found if known is not None)
        return self._left[key]

    def _products_within(self, kind: GpuKind, members: Members) -> set[Members]:
        """Return the largest sets without an entry that may remain of a set with one.

        A set without an entry needs no smaller ones: its own bounds hold for them.
        """
        if self._entry_of_set(kind, members) is None:
            return set()
        found: set[Members] = set()
        level = {members}
        while level and len(next(iter(level))) > 3:
            smaller = {m[:k] + m[k + 1 :] for m in level for k in range(len(m))}
            products = {
                each
                for each in smaller
                if self._entry_of_set(kind, each) is None and self.of((kind, each)) is not None
            }
            found |= products
            level = smaller - products
        return found

    @cached_property
    def _by_first_two(self) -> Mapping[Members, list[Members]]:
        """The members of all sets on any model, by their first two members."""
        found: dict[Members, list[Members]] = {}
        for entry in self._instance.slowdowns.sets.values():
            _, key, _ = entry.key
            found.setdefault(key[:2], []).append(key)
        return found


def _uncapped(members: Members) -> bool:
    return all(code == NO_CAP for _, code in members)


def _declared(
    members: Members,
    slowdown: Sequence[float],
    bound: Sequence[float] | None = None,
    tail: Sequence[float] | None = None,
) -> Together:
    """Return slowdowns that the cluster's owner declares; the bounds are the same by default."""
    bound = slowdown if bound is None else bound
    tail = bound if tail is None else tail
    return Together(members, slowdown, bound, tail, power_w=None, source="assumed", confidence=None)


def _members(gpu: str, jobs: Sequence[JobOnGpus]) -> Members:
    return tuple(sorted([(each.job.workload, share_code(each.share[gpu])) for each in jobs]))


@cache
def _origin(source: Source, confidence: float | None) -> Origin:
    return Origin(source=source, confidence=confidence)


def _alone(placed: JobOnGpus, gpu: str) -> Effect | None:
    slowdown = _capped(placed.workload, placed.share[gpu])
    if slowdown is None and placed.starting:
        return None
    alone = (1.0 if slowdown is None else slowdown) * placed.growth
    return Effect(alone, alone)


def _capped(workload: Workload, share: AnyShare) -> float | None:
    if share is None or share == IDLE:
        return 1.0
    full, capped = workload.throughput.get(100), workload.throughput.get(share)
    return full / capped if full is not None and capped is not None else None


def _until_it_ends(
    placed: JobOnGpus, together: Together, left: Sequence[Together], gpu: str
) -> Effect:
    """Return a job's slowdown with all others, and the worst case after some of them have ended.

    The job keeps its share and its sub-batch.
    """
    share, latency = placed.share[gpu], placed.job.priority == "latency"
    me = placed.job.workload, share_code(share)
    effect = together.of(me, latency)
    for known in left:
        if me in known.members:
            effect = effect.then(known.of(me, latency).bound)
    alone = _capped(placed.workload, share)
    return effect.then(1.0 if alone is None else alone).times(placed.growth)


_OF_METRICS = {
    "pcie_bytes_s": ("pcie_rx_bytes_s", "pcie_tx_bytes_s"),
    "net_bytes_s": ("net_rx_bytes_s", "net_tx_bytes_s"),
}


class HostLoads:
    """The load of each resource of all nodes.

    Parameters
    ----------
    instance : Instance
        The round.
    placed : iterable of JobOnGpus
        The jobs that hold GPUs.
    """

    def __init__(self, instance: Instance, placed: Iterable[JobOnGpus]) -> None:
        self._nodes = {node.id: node for node in instance.cluster.nodes if node.host}
        self._places = instance.places
        asked: dict[tuple[str, str], list[float]] = {}
        for each in placed if self._nodes else ():
            for gpu in each.share:
                for name, part in self.parts(each, gpu).items():
                    asked.setdefault((self.node_of(gpu), name), []).append(part)
        self.load = {key: fsum(parts) for key, parts in asked.items()}

    def parts(self, placed: JobOnGpus, gpu: str) -> Mapping[str, float]:
        """Return the fraction of each resource that the worker on a GPU asks for, if any."""
        node = self._nodes.get(self.node_of(gpu))
        if node is None or node.host is None:
            return {}
        most = 1 / min(placed.job.workers, len(node.devices))
        asked = _asked(node, placed.workload)
        return {name: min(part, most) for name, part in asked.items()}

    def slowdown(self, placed: JobOnGpus, gpu: str) -> float:
        """Return how much the host slows the worker of a job on a GPU."""
        node = self.node_of(gpu)
        loads = (self.load[node, name] for name in self.parts(placed, gpu))
        return max((load for load in loads if load > FULL), default=1.0)

    def node_of(self, gpu: str) -> str:
        """Return the id of a GPU's node."""
        return self._places[gpu].node

    def over_capacity(self) -> Iterator[tuple[str, str, float]]:
        """Yield node, resource and load for each overloaded resource."""
        for (node, name), load in self.load.items():
            if load > FULL:
                yield node, name, load


def _asked(node: Node, workload: Workload) -> dict[str, float]:
    found = {}
    for name in HostResources.model_fields:
        has, needs = getattr(node.host, name), _need(workload, name)
        if has and needs:
            found[name] = needs / has
    return found


def _need(workload: Workload, name: str) -> float:
    own = getattr(workload.host, name, None)
    if own is not None:
        return float(own)
    metrics = (getattr(workload.metrics, metric, None) for metric in _OF_METRICS.get(name, ()))
    return max((value for value in metrics if value is not None), default=0.0)
