"""The round problem as a graph whose matchings are its plans.

If all GPUs are interchangeable, groups have at most two jobs, and jobs that may share use one GPU
each or share as whole gangs of equal size, a plan is a set of disjoint *edges*: two jobs that
share, or one job alone (an edge from a job to itself), each taking as many GPUs as its jobs have
workers. Edges may not take more GPUs than there are; running jobs must be covered. There are no
other constraints, so the largest matching under that capacity is the best plan.

For partial sharing this is wrong: three two-GPU gangs fit on three GPUs by sharing in a
triangle, which no set of disjoint pairs describes (``gang-partial`` in the instance library).
"""

from __future__ import annotations

import numpy as np

from dovetail.formulations.arrays import Bools, Ints
from dovetail.formulations.candidates.groups import Groups
from dovetail.instances.errors import UnsupportedError


class PartialSharingError(UnsupportedError):
    """Plans are not matchings, only because gangs may share some of their GPUs."""


class PairGraph:
    """The graph of a round.

    Parameters
    ----------
    groups : Groups
        All groups of the round.
    restricted : bool
        Leave out groups that matchings do not describe instead of refusing the round: the matchings
        are then plans of the round, but perhaps not the best.

    Attributes
    ----------
    groups : Groups
        The groups.
    first, second : (e,) int
        The jobs of each edge, equal if a job is alone.
    group : (e,) int
        The group of the edge, taken ``size`` times.
    size : (e,) int
        GPUs that the edge takes.
    gain, cost : (e,) float
        The contribution of the edge to the sum of gains and to the cost.
    weight : (jobs,) float
        The contribution of each job to the placed weight.
    required : (jobs,) bool
        The running jobs that edges must cover.
    capacity : int
        The number of GPUs that the edges may take together.
    fixed : (groups,) int
        Counts of the groups of running jobs that no job can join; they have no edges.

    Raises
    ------
    UnsupportedError
        If plans are not matchings, with the reason.
    """

    def __init__(self, groups: Groups, restricted: bool = False) -> None:
        if restricted:
            require_interchangeable(groups)
        else:
            require_matchings(groups)
        self.groups = groups
        workers = groups.round.jobs.workers
        untouched = _untouched(groups)
        paired = _alone_or_equals(groups) & _joins_alike(groups)
        self.fixed = fixed_counts(groups, paired)
        fixed = self.fixed > 0
        available, held = groups.round.classes.size, groups.round.classes.residents > 0
        size = workers[groups.job[groups.start[:-1]]]
        too_large = ~held[groups.gpu_class] & (size > available[~held].sum())
        self.group = np.flatnonzero((untouched | paired) & ~fixed & ~too_large)
        self.first = groups.job[groups.start[self.group]]
        self.second = groups.job[groups.start[self.group + 1] - 1]
        self.size = size[self.group]
        self.required = np.zeros(len(workers), dtype=bool)
        self.required[groups.job[groups.start[:-1][untouched & ~fixed]]] = True
        self.capacity = int(available.sum() - self.fixed.sum())
        gain = np.add.reduceat(np.append(groups.gain, 0.0), groups.start[:-1])
        self.gain = gain[self.group] + groups.value[self.group] * self.size
        self.weight = groups.values.weight
        self.cost = np.nan_to_num(groups.cost[self.group]) * self.size

    @property
    def jobs(self) -> int:
        """The number of jobs of the round."""
        return len(self.required)

    @property
    def most_edges(self) -> int:
        """An upper bound on the number of edges of any plan."""
        return min(self.jobs, self.capacity // int(self.size.min(initial=1)))

    def counts(self, edges: Ints) -> Ints:
        """Return how often each group is taken with these edges."""
        counts = self.fixed.copy()
        counts[self.group[edges]] += self.size[edges]
        return counts


def require_matchings(groups: Groups) -> None:
    """Refuse rounds whose plans are not matchings."""
    require_interchangeable(groups)
    _require_pairs(groups)


def require_interchangeable(groups: Groups) -> None:
    """Refuse rounds in which it matters which GPU a group is on."""
    if len(groups.round.gpu_types) > 1:
        unlike = len(groups.round.kinds) > len(groups.round.models)
        several = "GPUs of several models or memory sizes"
        several = "GPUs that are shared in several ways" if unlike else several
        raise UnsupportedError(f"{several} are not interchangeable")
    if groups.round.hosts is not None:
        raise UnsupportedError("GPUs of nodes whose host may fall short are not interchangeable")
    if groups.by_node:
        rule = "workers_per_node or workers_together"
        raise UnsupportedError(f"GPUs are not interchangeable for gangs with {rule}")
    if not groups.round.lent_alike:
        raise UnsupportedError("GPUs that are lent until several times are not interchangeable")


def fixed_counts(groups: Groups, usable: Bools) -> Ints:
    """Return how often each group is taken in any case: residents that no usable group joins.

    Parameters
    ----------
    groups : Groups
        The candidate groups.
    usable : (n,) bool
        Which of them may be taken.
    """
    available = groups.round.classes.size
    fixed = _untouched(groups) & ~_joinable(groups, usable)[groups.gpu_class]
    return np.where(fixed, available[groups.gpu_class], 0)


def _untouched(groups: Groups) -> Bools:
    """Return which groups are the residents of their class without a newcomer, (n,)."""
    return np.asarray(groups.round.classes.residents[groups.gpu_class] == groups.sizes)


def _alone_or_equals(groups: Groups) -> Bools:
    """Return which groups are one job, or two with the same number of workers, (n,)."""
    workers = groups.round.jobs.workers
    first = workers[groups.job[groups.start[:-1]]]
    last = workers[groups.job[groups.start[1:] - 1]]
    return np.asarray((groups.sizes <= 2) & (first == last))


def _joins_alike(groups: Groups) -> Bools:
    """Return which groups are on free GPUs, or on all the GPUs of their resident, (n,)."""
    workers, classes = groups.round.jobs.workers, groups.round.classes
    held = workers[groups.round.variants.job[classes.variant]] == classes.size[:, None]
    return np.asarray((held | (classes.variant < 0)).all(axis=1)[groups.gpu_class])


def _joinable(groups: Groups, joins: Bools) -> Bools:
    """Return which classes have residents that one of the given groups joins, (classes,)."""
    residents = groups.round.classes.residents
    found = np.zeros(len(residents), dtype=bool)
    found[groups.gpu_class[joins & (residents[groups.gpu_class] > 0) & ~_untouched(groups)]] = True
    return found


def _require_pairs(groups: Groups) -> None:
    """Refuse rounds with a possible group that matchings do not describe."""
    if (groups.sizes > 2).any():
        raise UnsupportedError("groups of three or more jobs are not pairs")
    joint = (groups.sizes == 2) & ~_untouched(groups)
    workers = groups.round.jobs.workers
    gangs = np.maximum.reduceat(np.append(workers[groups.job], 0), groups.start[:-1]) > 1
    whole = groups.round.machines.rules.gang_sharing == "whole"
    if not whole and (joint & gangs).any():
        raise PartialSharingError("gangs may share some of their GPUs (gang_sharing: partial)")
    for group in np.flatnonzero(joint & ~_joins_alike(groups)):
        (resident,) = groups.round.classes.on[groups.gpu_class[group]]
        name = groups.round.jobs.ids[resident.job]
        raise UnsupportedError(f"the GPUs of running gang {name} differ")
