"""Every group of jobs that may hold one GPU together, as arrays.

A *group* is a set of (job variant, share) on a GPU of one class, with the slowdown each job
has there. Module ``listing`` makes them from a round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dovetail.formulations._rows import products, ways
from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.kinds import Kinds
from dovetail.formulations.rounds import Round, Variant

NO_SHARE = 0
"""Stands for "no cap" in share arrays."""


class Ceiling(NamedTuple):
    """What no choice exceeds, of the groups that are not listed too.

    ``weight`` bounds the placed weight, ``gain - per_weight * w`` the gain of every choice that
    places a weight of w.
    """

    gain: float
    weight: float
    per_weight: float


@dataclass(frozen=True)
class Groups:
    """All candidate groups, a row each; their members flattened and ordered by job.

    Attributes
    ----------
    round : Round
        What they were made from.
    gpu_class : (n,) int
        Index of the class of GPUs that the group can be on.
    start : (n + 1,) int
        Members of group g are the positions ``start[g]:start[g + 1]`` of the next arrays.
    variant : (m,) int
        Index into ``variants``.
    job : (m,) int
        Index of the job.
    share : (m,) int
        The cap, ``NO_SHARE`` where there is none.
    slowdown : (m,) float
        Slowdown of the job on this GPU, the sub-batch's stretch included.
    power_w : (n,) float
        Power of the GPU; NaN where unknown.
    gain : (m,) float
        What the job gains there under the objective; the least over a gang's GPUs counts.
    value : (n,) float
        What each GPU with the group is worth in addition.
    variants : tuple of Variant
        What ``variant`` counts.
    kinds : Kinds
        The jobs that each job named in ``job`` stands for; a group of several jobs of a kind
        names it as often.
    complete : bool
        Whether none is missing that some best plan may need; False where the time was up. Then
        the best choice of these groups is a plan, but bounds nothing.
    ceiling : Ceiling, optional
        What bounds all choices where groups are missing.
    """

    round: Round
    gpu_class: Ints
    start: Ints
    variant: Ints
    job: Ints
    share: Ints
    slowdown: Floats
    power_w: Floats
    gain: Floats
    value: Floats
    variants: tuple[Variant, ...]
    kinds: Kinds
    complete: bool = True
    ceiling: Ceiling | None = None

    def __len__(self) -> int:
        return len(self.gpu_class)

    @property
    def sizes(self) -> Ints:
        """The number of jobs of each group, (n,)."""
        return np.diff(self.start)

    @property
    def group_of_member(self) -> Ints:
        """The group that each member belongs to, (m,)."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def model(self) -> Ints:
        """The index of the GPU model that each member would be on, (m,)."""
        return np.asarray(self.round.class_model[self.gpu_class[self.group_of_member]])

    @property
    def times(self) -> Ints:
        """How many members of its group name the same job as each member does, (m,)."""
        key = self.group_of_member * len(self.round) + self.job
        _, place, count = np.unique(key, return_inverse=True, return_counts=True)
        return np.asarray(count[place])

    @property
    def most(self) -> Ints:
        """How often each group can be taken at most, (n,)."""
        most = self.round.class_sizes[self.gpu_class]
        jobs = np.maximum(self.round.jobs.workers, self.kinds.copies)[self.job]
        np.minimum.at(most, self.group_of_member, jobs // self.times)
        return np.asarray(most)

    def take(self, which: Bools | Ints) -> Groups:
        """Return the groups that a mask names, or numbers, with repeats."""
        number = np.flatnonzero(which) if which.dtype == bool else which
        sizes = self.sizes[number]
        start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        member = np.arange(start[-1]) + np.repeat(self.start[number] - start[:-1], sizes)
        return replace(
            self,
            gpu_class=self.gpu_class[number],
            start=start,
            variant=self.variant[member],
            job=self.job[member],
            share=self.share[member],
            slowdown=self.slowdown[member],
            power_w=self.power_w[number],
            gain=self.gain[member],
            value=self.value[number],
        )

    def chosen(self, counts: Ints) -> tuple[Groups, Ints, Ints]:
        """Return the groups that are taken with their jobs named, and how often each is.

        Of every kind those jobs are named that are to be placed first. The third array says from
        which group each was made.
        """
        shared = np.bincount(self.group_of_member, self._several, len(self)) > 0
        number = np.repeat(np.arange(len(self)), np.where(shared, counts, counts > 0))
        groups = self.take(number)
        order = np.argsort(groups.job, kind="stable")
        nth = np.empty(len(order), dtype=np.int64)
        nth[order] = np.arange(len(order)) - np.searchsorted(groups.job[order], groups.job[order])
        named = groups._named(np.where(groups._several, nth, 0))
        return named, np.where(shared, 1, counts)[number], number

    @property
    def members_apart(self) -> float:
        """How many members the groups of single jobs have, see ``apart``."""
        ways_of_size = (ways(count, twin) * count.shape[1] for _, count, twin in self._by_size())
        return float(sum(each.sum() for each in ways_of_size))

    def apart(self) -> tuple[Groups, Ints]:
        """Return every group of single jobs, and from which group each was made."""
        nothing = np.empty(0, dtype=np.int64)
        origin, nth = [nothing], [nothing]
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
        """Yield the groups of each size, and in which ways single jobs can make each.

        That is how many can take each place, those of one kind in the order of their ranks, and
        which place is of the kind of the place before it (see ``products``).
        """
        spare = self.kinds.copies[self.job] - self.times + 1
        for size in np.unique(self.sizes).tolist():
            group = np.flatnonzero(self.sizes == size)
            member = self.start[group][:, None] + np.arange(size)
            twin = np.diff(self.job[member], axis=1, prepend=-1) == 0
            yield group, np.maximum(spare, 1)[member], twin

    def _named(self, nth: Ints) -> Groups:
        """Return the groups with the job of this rank of its kind in the place of each, (m,)."""
        job = self.kinds.in_order[self.kinds.start[self.job] + nth]
        first = np.cumsum([0, *map(len, self.round.variants)])
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
        order = np.lexsort((self.job, self.group_of_member))
        columns = ("variant", "job", "share", "slowdown", "gain")
        return replace(self, **{name: getattr(self, name)[order] for name in columns})

    @property
    def _several(self) -> Bools:
        """Tell which members name a job that stands for others too, (m,)."""
        return np.asarray(self.kinds.copies[self.job] > 1)

    def members(self, group: int) -> range:
        """Return the positions of the members of one group."""
        return range(int(self.start[group]), int(self.start[group + 1]))


def idle_counts(groups: Groups) -> Ints:
    """Return the choice in which running jobs stay and no job starts, (n,)."""
    compiled = groups.round
    untouched = compiled.class_residents[groups.gpu_class] == groups.sizes
    return np.where(untouched, compiled.class_sizes[groups.gpu_class], 0)
