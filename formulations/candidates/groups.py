"""Every group of jobs that may hold one GPU together, as arrays.

A *group* is a set of (job variant, share) on a GPU of one class, with the slowdown of each job
there. The module ``listing`` creates them from a round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints, packed, products, ranges, ways
from dovetail.formulations.budget import require_room
from dovetail.formulations.rounds import Round, Variants, resident_slowdowns
from dovetail.formulations.values import JobValues
from dovetail.instances.slowdowns.entry import GpuKind

_APART_BYTES = 200
"""Memory of matchings for each member of the groups of single jobs."""


class Ceiling(NamedTuple):
    """Upper bounds on every choice of groups, including groups that are not listed.

    ``weight`` bounds the placed weight, ``gain - per_weight * w`` the gain of every choice that
    places a weight w.
    """

    gain: float
    weight: float
    per_weight: float


@dataclass(frozen=True, eq=False)
class Kinds:
    """The kinds of the n jobs of a round: jobs that may take each other's place.

    Candidate groups count them instead of naming them. Pending jobs of one GPU are of one *kind* if
    they are equal in all that a round reads: they have the same workload, gSLA, weight, priority
    and sharing, and the same remaining time if the objective reads it. With n kinds, there are
    C(n + k - 1, k) different sets of k jobs, however many jobs there are. Gangs and running jobs
    are kinds of their own: the co-runner of a gang also binds its other GPUs, and a running job
    stays where it is.

    Attributes
    ----------
    first : (n,) int
        The representative of each job in candidate groups: the job of its kind that gains most.
    rank : (n,) int
        The number of jobs of its kind that are placed before each.
    less : (n,) float
        How much less each gains than its representative, in any group; it increases with the rank.
        0 except under ``completion``, where a job that would start later loses less by waiting.
    """

    first: Ints
    rank: Ints
    less: Floats

    @classmethod
    def apart(cls, jobs: int) -> Kinds:
        """Return kinds of one job each, for this number of jobs."""
        return cls(np.arange(jobs), np.zeros(jobs, dtype=np.int64), np.zeros(jobs))

    @classmethod
    def of(cls, compiled: Round, values: JobValues) -> Kinds:
        """Return the kinds of a round's jobs under an objective.

        Under an objective that may read any other field every job is a kind of its own.
        """
        jobs, number = compiled.jobs, np.arange(len(compiled))
        if not values.by_kind:
            return cls.apart(len(number))
        own = (jobs.workers > 1) | jobs.running
        columns = [
            np.where(own, number + 1, 0),
            jobs.workload,
            jobs.latency.astype(np.int64),
            jobs.sharing + 1,
            _codes(jobs.gsla),
            _codes(jobs.weight),
        ]
        if values.reads_remaining:
            columns.append(_codes(jobs.remaining_s))
        _, kind = np.unique(packed(np.column_stack(columns)), return_inverse=True)
        by_itself = values.by_itself
        order = np.lexsort((number, jobs.arrival_s, -by_itself, kind))
        begins = np.flatnonzero(np.diff(kind[order], prepend=-1))
        of = np.cumsum(np.diff(kind[order], prepend=-1) != 0) - 1
        first, rank = np.empty((2, len(number)), dtype=np.int64)
        first[order] = order[begins[of]] if len(order) else order
        rank[order] = np.arange(len(order)) - begins[of] if len(order) else order
        return cls(first, rank, by_itself[first] - by_itself)

    def without(self, job: int) -> Kinds:
        """Return the same kinds, except that this job is a kind of its own."""
        first, rank, less = self.first.copy(), self.rank.copy(), self.less.copy()
        others = np.flatnonzero((self.first == self.first[job]) & (np.arange(len(first)) != job))
        rank[others] -= self.rank[others] > self.rank[job]
        if len(others):
            first[others] = others[np.argmin(rank[others])]
            less[others] -= less[others].min()
        first[job], rank[job], less[job] = job, 0, 0.0
        return Kinds(first, rank, less)

    @cached_property
    def copies(self) -> Ints:
        """How many jobs each represents, including itself; 0 if another job represents it, (n,)."""
        return np.bincount(self.first, minlength=len(self.first)).astype(np.int64)

    @cached_property
    def alone(self) -> bool:
        """Whether every job is a kind of its own."""
        return len(self.first) == 0 or int(self.copies.max()) == 1

    @cached_property
    def in_order(self) -> Ints:
        """All jobs, kind by kind in the order in which they are placed; see ``start``."""
        return np.lexsort((self.rank, self.first))

    @cached_property
    def start(self) -> Ints:
        """The index in ``in_order`` at which each kind begins, by its representative, (n,)."""
        return np.asarray(np.cumsum(self.copies) - self.copies)

    def placed(self, number: Ints) -> Bools:
        """Return which jobs are placed, given the number of each kind by representative, (n,)."""
        return np.asarray(self.rank < number[self.first])


@dataclass(frozen=True)
class Groups:
    """All candidate groups, a row each; their members flattened and ordered by job.

    Attributes
    ----------
    values : JobValues
        The objective, with the round of the groups.
    gpu_class : (n,) int
        Index of the class of GPUs that the group can be on.
    start : (n + 1,) int
        The members of group g are at ``start[g]:start[g + 1]`` of the following arrays.
    variant : (m,) int
        Index into ``variants``.
    job : (m,) int
        Index of the job.
    share : (m,) int
        The cap, ``NO_CAP`` if there is none.
    slowdown : (m,) float
        Slowdown of the job on this GPU, the sub-batch's slowdown factor included.
    cost : (n,) float
        What the GPU costs (``JobValues.cost``); NaN where unknown.
    gain : (m,) float
        Gain of the job there under the objective; a gang counts its smallest gain over its GPUs.
    value : (n,) float
        Additional value of each GPU with the group.
    node : (n,) int
        The node of the GPU; -1 for any. Groups with gangs whose workers stay together on nodes are
        listed for each node (``nodes``).
    variants : Variants
        The variants that ``variant`` indexes.
    kinds : Kinds
        The jobs that each job in ``job`` represents; a group with several jobs of a kind names the
        representative that many times.
    complete : bool
        Whether every group that some best plan may need is listed; False if the time was up. Then
        the best choice of these groups is a plan, but no bound.
    ceiling : Ceiling, optional
        The bound on all choices if groups are missing.
    anywhere : bool
        Whether workers that must stay together on nodes are treated as if they need not.
    """

    values: JobValues
    gpu_class: Ints
    start: Ints
    variant: Ints
    job: Ints
    share: Ints
    slowdown: Floats
    cost: Floats
    gain: Floats
    value: Floats
    node: Ints
    variants: Variants
    kinds: Kinds
    complete: bool = True
    ceiling: Ceiling | None = None
    anywhere: bool = False

    def __len__(self) -> int:
        return len(self.gpu_class)

    @property
    def round(self) -> Round:
        """The round of the groups."""
        return self.values.round

    @cached_property
    def sizes(self) -> Ints:
        """The number of jobs of each group, (n,)."""
        return np.diff(self.start)

    @cached_property
    def group_of_member(self) -> Ints:
        """The group that each member belongs to, (m,)."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def model(self) -> Ints:
        """The index of the GPU model that each member would be on, (m,)."""
        return np.asarray(self.round.classes.model[self.gpu_class[self.group_of_member]])

    @property
    def times(self) -> Ints:
        """How many members of its group name the same job as each member, (m,)."""
        key = self.group_of_member * len(self.round) + self.job
        _, place, count = np.unique(key, return_inverse=True, return_counts=True)
        return np.asarray(count[place])

    @property
    def most(self) -> Ints:
        """The maximum number of times that each group can be taken, (n,)."""
        most = self.available
        jobs = np.maximum(self.round.jobs.workers, self.kinds.copies)[self.job]
        np.minimum.at(most, self.group_of_member, jobs // self.times)
        return np.asarray(most)

    @property
    def by_node(self) -> bool:
        """Whether workers of some gang must stay together on nodes."""
        return not self.anywhere and bool(self.round.on_nodes.any())

    @property
    def available(self) -> Ints:
        """The number of GPUs that each group can be on, (n,)."""
        number = self.round.classes.size[self.gpu_class]
        tied = np.flatnonzero(self.node >= 0)
        number[tied] = self.round.gpus_by_node[self.gpu_class[tied], self.node[tied]]
        return np.asarray(number)

    def take(self, which: Bools | Ints) -> Groups:
        """Return the groups selected by a mask or by numbers, which may repeat."""
        number = np.flatnonzero(which) if which.dtype == bool else which
        sizes = self.sizes[number]
        member = ranges(self.start[number], sizes)
        return replace(
            self,
            gpu_class=self.gpu_class[number],
            start=np.append(0, np.cumsum(sizes)),
            variant=self.variant[member],
            job=self.job[member],
            share=self.share[member],
            slowdown=self.slowdown[member],
            cost=self.cost[number],
            gain=self.gain[member],
            value=self.value[number],
            node=self.node[number],
        )

    def chosen(self, counts: Ints) -> tuple[Groups, Ints, Ints]:
        """Return the taken groups with individual jobs, and how often each is taken.

        Of every kind, the jobs that are placed first are named. The third array has the group from
        which each was made.
        """
        shared = self._of_several
        number = np.repeat(np.arange(len(self)), np.where(shared, counts, counts > 0))
        groups = self.take(number)
        order = np.argsort(groups.job, kind="stable")
        nth = np.empty(len(order), dtype=np.int64)
        nth[order] = np.arange(len(order)) - np.searchsorted(groups.job[order], groups.job[order])
        named = groups._named(np.where(groups._several, nth, 0))
        return named, np.where(shared, 1, counts)[number], number

    @property
    def members_apart(self) -> float:
        """The number of members of the groups of ``apart``."""
        several = self._of_several
        ways_of_size = (ways(count, twin) * count.shape[1] for _, count, twin in self._by_size())
        return float(self.sizes[~several].sum() + sum(each.sum() for each in ways_of_size))

    def placed(self, counts: Ints) -> Bools:
        """Return which jobs are placed if each group is taken ``counts[g]`` times, (jobs,).

        In each kind these are the jobs that gain most.
        """
        taken, jobs = counts[self.group_of_member], len(self.round)
        return self.kinds.placed(np.bincount(self.job, taken, jobs).astype(np.int64))

    @property
    def apart(self) -> Groups:
        """The same groups of individual jobs.

        Raises
        ------
        UnsupportedError
            If they would not fit in memory.
        """
        return self if self.kinds.alone else self._parted[0]

    def merged(self, counts: Ints) -> Ints:
        """Return how often each group is taken, given the counts of the groups of ``apart``."""
        if self.kinds.alone:
            return counts
        return np.bincount(self._parted[1], counts, len(self)).astype(np.int64)

    @cached_property
    def _parted(self) -> tuple[Groups, Ints]:
        """Every group of individual jobs, and the group from which each was made."""
        require_room(_APART_BYTES * self.members_apart, "the groups of single jobs")
        alone = np.flatnonzero(~self._of_several)
        origin, nth = [alone], [np.zeros(int(self.sizes[alone].sum()), dtype=np.int64)]
        for group, count, twin in self._by_size():
            row, places = products(count, twin)
            before = np.zeros(twin.shape, dtype=np.int64)
            for k in range(1, count.shape[1]):
                before[:, k] = np.where(twin[:, k], before[:, k - 1] + 1, 0)
            places += before[row]  # jobs of one kind in one group differ
            origin.append(group[row])
            nth.append(places.ravel())
        made_of = np.concatenate(origin)
        order = np.argsort(made_of, kind="stable")
        groups = self.take(made_of)._named(np.concatenate(nth))
        return groups.take(order), made_of[order]

    def _by_size(self) -> Iterator[tuple[Ints, Ints, Bools]]:
        """Yield the groups of each size that name a kind of several jobs, and ways to fill them.

        These are the number of jobs that can take each place (jobs of one kind in the order of
        their ranks), and whether a place is of the same kind as the place before it (see
        ``products``).
        """
        several = self._of_several
        for size in np.unique(self.sizes[several]).tolist():
            group = np.flatnonzero(several & (self.sizes == size))
            job = self.job[self.start[group][:, None] + np.arange(size)]
            twin = np.diff(job, axis=1, prepend=-1) == 0
            times = (job[:, :, None] == job[:, None, :]).sum(axis=2)
            yield group, np.maximum(self.kinds.copies[job] - times + 1, 1), twin

    def _named(self, nth: Ints) -> Groups:
        """Return the groups with each member replaced by the job of this rank of its kind, (m,)."""
        job = self.kinds.in_order[self.kinds.start[self.job] + nth]
        first = self.round.first_variant
        named = replace(
            self,
            variant=self.variant + first[job] - first[self.job],
            job=job,
            gain=self.gain - self.kinds.less[job],
            kinds=Kinds.apart(len(self.round)),
        )
        return named._ordered()

    def _ordered(self) -> Groups:
        """Return the groups with their members in the order of the jobs."""
        key = self.group_of_member * len(self.round) + self.job
        if (np.diff(key) >= 0).all():
            return self
        order = np.argsort(key, kind="stable")
        columns = ("variant", "job", "share", "slowdown", "gain")
        return replace(self, **{name: getattr(self, name)[order] for name in columns})

    @cached_property
    def _of_several(self) -> Bools:
        """Which groups name a job that represents others too, (n,)."""
        return np.bincount(self.group_of_member, self._several, len(self)) > 0

    @property
    def _several(self) -> Bools:
        """Return which members name a job that represents others too, (m,)."""
        return np.asarray(self.kinds.copies[self.job] > 1)

    def members(self, group: int) -> range:
        """Return the positions of the members of one group."""
        return range(int(self.start[group]), int(self.start[group + 1]))


def idle_counts(groups: Groups) -> Ints:
    """Return the choice in which running jobs stay and no job starts, (n,)."""
    compiled = groups.round
    untouched = compiled.classes.residents[groups.gpu_class] == groups.sizes
    return np.where(untouched, compiled.classes.size[groups.gpu_class], 0)


@dataclass(frozen=True)
class Score:
    """Value of a choice of groups.

    Attributes
    ----------
    weight : float
        Total weight of the placed jobs.
    gain : float
        Sum of their gains (see ``JobValues``).
    cost : float
        Cost of the GPUs in use; NaN if it is unknown.
    """

    weight: float
    gain: float
    cost: float

    def value(self, values: JobValues) -> float:
        """Return the value under an objective: the gain, the gain per cost, or minus the cost."""
        if values.cheapest:
            return -self.cost
        if not values.ratio:
            return self.gain
        return self.gain / self.cost if self.cost else 0.0


def score(groups: Groups, counts: Ints) -> Score:
    """Return the value of taking each group ``counts[g]`` times."""
    taken, used = counts[groups.group_of_member], counts > 0
    single = groups.round.jobs.workers[groups.job] == 1
    of_singles = groups.gain[single & (taken > 0)] @ taken[single & (taken > 0)]
    gang = np.flatnonzero(~single & (taken > 0))
    least = np.full(len(groups.round), np.inf)
    np.minimum.at(least, groups.job[gang], groups.gain[gang])
    placed = groups.placed(counts)
    of_jobs = least[np.isfinite(least)].sum() - groups.kinds.less[placed].sum()
    return Score(
        weight=float(groups.values.weight[placed].sum()),
        gain=float(of_singles + of_jobs + groups.value[used] @ counts[used]),
        cost=float((groups.cost[used] * counts[used]).sum()),
    )


def open_weight(groups: Groups) -> Floats:
    """Return the weight of each job whose placement is to be decided, (jobs,).

    The weight is 0 for running jobs and for jobs in no group.
    """
    running = groups.round.jobs.running
    weight = np.zeros(len(running))
    weight[groups.job] = groups.values.weight[groups.job]
    return np.where(running, 0.0, weight[groups.kinds.first])


def ceiling(groups: Groups) -> Score:
    """Return upper bounds on every choice.

    *Weight*: that of every job that is in some group. *Gain*: a Lagrangean bound. A worker in a
    group of s jobs takes at least 1/s of a GPU, so with M GPUs and a price t >= 0 for one, no plan
    gains more than t M + sum over jobs of the largest G[s] - t W / s (0 if that is negative and the
    job may wait), where G[s] is the job's best gain in groups of s jobs or more and W its workers.
    *Cost*: a lower bound on that of the GPUs in use, if the objective needs it; under one that
    minimises the cost, on that of choices that place all of this weight.
    """
    best, values = best_gains(groups), groups.values
    possible = np.isfinite(best).any(axis=1)
    return Score(
        weight=float(values.weight[possible].sum()),
        gain=_lagrangean_bound(groups.round, best[possible], np.flatnonzero(possible)),
        cost=_bound_on_cost(groups),
    )


def places_all(groups: Groups, counts: Ints) -> bool:
    """Return whether a choice places every job of some weight that is in a group."""
    return bool(groups.placed(counts)[open_weight(groups) > 0].all())


def best_gains(groups: Groups) -> Floats:
    """Return G[j, s - 1]: the best gain of job j in groups of s or more; -inf for none."""
    best = np.full((len(groups.round), int(groups.sizes.max(initial=1))), -np.inf)
    size = groups.sizes[groups.group_of_member]
    # Each job has its part of a group's value; a gang has the parts of all its workers.
    part = groups.value[groups.group_of_member] / size * groups.round.jobs.workers[groups.job]
    np.maximum.at(best, (groups.job, size - 1), groups.gain + part)
    best = best[groups.kinds.first] - groups.kinds.less[:, None]
    return np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]


def gain_ceiling(values: JobValues) -> float:
    """Return a bound on the gain of every choice from slowdowns alone, without listing groups.

    This is the Lagrangean bound of ``ceiling`` if every job has the least slowdown of its workload
    with any co-runners of that number.
    """
    compiled = values.round
    least = _least_slowdowns(compiled)
    if values.grouped:
        # Once the others have ended, each may be as fast as alone at any share.
        alone = compiled.least_alone[:, None]
        for kind, slowdown in least.items():
            fastest = np.minimum.accumulate(np.minimum(slowdown, alone), axis=1)
            least[kind] = np.where(np.isfinite(slowdown), fastest, np.inf)
    best = np.full((len(compiled), compiled.machines.rules.max_jobs_per_gpu), -np.inf)
    for kind, slowdown in least.items():
        for column in range(best.shape[1]):
            known = np.flatnonzero(np.isfinite(slowdown[:, column]))
            gain = values.gain(known, slowdown[known, column], kind.model)
            best[known, column] = np.maximum(best[known, column], gain)
    best = np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]
    running = compiled.jobs.running
    best[running] = best[running].max(axis=1, keepdims=True)
    possible = np.isfinite(best).any(axis=1)
    return _lagrangean_bound(compiled, best[possible], np.flatnonzero(possible))


def _least_slowdowns(compiled: Round) -> dict[GpuKind, Floats]:
    """Return by kind of GPU the least slowdown of each job in groups of 1, 2, ..., inf for none.

    Running jobs keep their slowdowns, which may differ from those of all other jobs.
    """
    least_alone = np.nanmin(compiled.starts_alone, axis=1)
    alone = least_alone[compiled.jobs.workload] * compiled.least_factor
    classes = compiled.classes
    for k in np.flatnonzero(classes.residents).tolist():
        kept = resident_slowdowns(compiled, classes.gpus[k][0])
        for resident, slowdown in zip(classes.on[k], kept, strict=True):
            alone[resident.job] = min(alone[resident.job], slowdown)
    found = {}
    for kind in compiled.kinds:
        least = compiled.slowdowns.least_slowdowns(kind)[compiled.jobs.workload]
        found[kind] = least * compiled.least_factor[:, None]
        found[kind][:, 0] = np.minimum(found[kind][:, 0], alone)
    return found


def _lagrangean_bound(compiled: Round, best: Floats, job: Ints) -> float:
    jobs = compiled.jobs
    gpus, running = int(compiled.classes.size.sum()), jobs.running[job]
    workers = jobs.workers[job].astype(np.float64)
    share = workers[:, None] / np.arange(1, best.shape[1] + 1)

    def bound(price: float) -> float:
        worth = (best - price * share).max(axis=1)
        return float(price * gpus + np.where(running, worth, np.maximum(worth, 0.0)).sum())

    low, high = 0.0, float(np.abs(best[np.isfinite(best)]).max(initial=0.0))
    # The bound is convex in the price; any price is valid, so a coarse search is enough.
    for _ in range(60):
        third = (high - low) / 3
        if bound(low + third) <= bound(high - third):
            high -= third
        else:
            low += third
    return min(bound(0.0), bound(low))


def _bound_on_cost(groups: Groups) -> float:
    if groups.values.cheapest:
        return _cost_of_all(groups)
    return _least_cost(groups) if groups.values.ratio else np.nan


def _cost_of_all(groups: Groups) -> float:
    """Return a lower bound on the cost of the GPUs in use if all jobs of some weight are placed.

    Whatever part of its GPU's cost each worker bears, the parts on a GPU add up to its cost, so the
    least part that each may bear is a bound: equal parts, or parts in proportion to the memory.
    GPUs with residents count as a whole, and those who join them bear nothing.
    """
    compiled, member = groups.round, groups.group_of_member
    held = compiled.classes.residents > 0
    counted = ~compiled.jobs.running & (groups.values.weight > 0)
    number = np.where(counted, compiled.jobs.workers * groups.kinds.copies, 0)
    memory = groups.variants.memory_mib[groups.variant]
    parts = [np.ones(len(member)), memory] if (memory > 0).all() else [np.ones(len(member))]
    bounds = []
    for part in parts:
        of_group = np.bincount(member, part, len(groups))[member]
        bears = np.where(held[groups.gpu_class], 0.0, groups.cost)[member] * part / of_group
        least = np.full(len(compiled), np.inf)
        np.minimum.at(least, groups.job, bears)
        taken = (number > 0) & np.isfinite(least)
        bounds.append(float(least[taken] @ number[taken]))
    cost = np.zeros(len(compiled.classes))
    cost[groups.gpu_class] = groups.cost
    return float(cost[held] @ compiled.classes.size[held]) + max(bounds)


def _least_cost(groups: Groups) -> float:
    """Return the least cost of the GPUs with residents, or of one GPU if there are none."""
    compiled = groups.round
    least = np.full(len(compiled.classes), np.inf)
    np.minimum.at(least, groups.gpu_class, groups.cost)
    held = np.where(compiled.classes.residents > 0, compiled.classes.size, 0)
    if held.any():
        return float((least[held > 0] * held[held > 0]).sum())
    return float(least.min(initial=np.inf))


def _codes(values: Floats) -> Ints:
    """Return a whole number for each value, equal exactly if the values are."""
    _, code = np.unique(values, return_inverse=True, equal_nan=True)
    return code.astype(np.int64)
