"""The round problem as arrays of an integer program.

Variables, all integer:

=======  ===========================================================================
z[g]     GPUs on which group g runs, 0..min(workers of its pending gangs, GPUs of its class, how
         often there are as many jobs of its kinds)
u[m,l]   1 if gang mode m (a gang at one sub-batch on one GPU model) gains at most its
         l-th largest gain; u[m,0] is 1 if the mode is chosen at all
f[m,l]   GPUs on which the mode is at its l-th largest gain or less
x[i,j]   1 if gangs i and j share their GPUs (``gang_sharing: whole`` only)
d[k,l]   placed jobs of kind k that gain less by the l-th difference (``Kinds.less``)
w[j,n]   groups of workers of gang j on node n, if its workers stay together on nodes; at most 1
         with ``workers_per_node``
=======  ===========================================================================

Rows (W = workers of a gang, N = GPUs of a class, m = jobs of the kind in the group):

    sum of z[g] over groups of class c      <= N, = N where residents hold them   every class
    sum of m z[g] - sum of d[k,l]           <= jobs of k that gain most    every kind of 1-GPU jobs
    sum of u[m,0] over the modes of j       <= 1                           every pending gang
    f[m,l] - f[m,l+1] - sum of z[g] at l     = 0                           every level
    f[m,0] - W u[m,0]                        = 0                           every mode
    f[m,l] - W u[m,l]                       <= 0                           every level l > 0
    u[m,l] - u[m,l-1]                       <= 0                           every level l > 0
    z[g] - ub[g] u[m,l]                     <= 0                           g with m at level l > 0
    sum of z[g] with i and j - W x[i,j]      = 0                           every pair of gangs

and if workers stay together on nodes (``candidates.nodes``), with T of them in a group of workers
and N the GPUs that a class has on a node:

    sum of z[g] with j on n - T w[j,n]       = 0                           every such gang and node
    sum of z[g] of class c on n             <= N                           every class and node

and if a host may fall short (``hosts``), for every resource of its node with N GPUs, with a the
part that a group adds, and b = 1 for groups that go beyond what is left:

    sum of a[g] z[g]                        <= what running jobs leave
    sum of z[g] that touch it + N b[g] z[g] <= N + 1 where any goes beyond

The gain of a 1-GPU job is the coefficient of z, minus the differences of its kind those of d, and
the gain of a gang is in the coefficients of u: the (negative) increments from one level to the
next, so that a gang's gain is the gain of its slowest worker. The value of a group is the
coefficient of its z. A running job's modes have u[m,0] fixed to 1. With f, the rows that bound
u[m,l] from below are nested and have a number of entries linear, not quadratic, in the levels; the
rows per group close most of the relaxation's gap if partners use one GPU each.

The plan with the best value that spans the fewest nodes is a further stage (``node_program``).
Its additional variables:

    p[g,n]   GPUs of node n that group g gets (groups with a starting gang only)
    s[j,n]   1 if the starting gang j is on node n
    t[j,r]   1 if it is in rack r

Rows, with N the GPUs that a class has on a node:

    sum over n of p[g,n] - z[g]              = 0                  every such group
    sum of p[g,n] over groups of class c    <= N                  every class and node
    sum of p[g,n] over groups with j        <= min(W, N) s[j,n]   every starting gang and node
    s[j,n] - t[j,r(n)]                      <= 0                  every starting gang and node

Nodes are minimised, then racks, then GPUs in use; a job on one GPU spans one node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack, vstack

from dovetail.formulations.arrays import Bools, Floats, Ints, joined_ints, ranges
from dovetail.formulations.candidates.groups import Groups, Kinds
from dovetail.formulations.hosts import HostUse
from dovetail.formulations.programs.program import IntegerProgram, RowBuilder


@dataclass(frozen=True)
class RoundProgram:
    """The integer program of a round and the linear objectives of its stages.

    Attributes
    ----------
    program : IntegerProgram
        Its ``cost`` is the gain.
    gain, cost : (n,) float
        Sum of gains, and cost of the GPUs in use. The contributions of running jobs are
        coefficients of fixed variables, so no constant is needed.
    job_weight : (jobs,) float
        The weight of each job.
    groups : Groups
        The groups that the first ``len(groups)`` variables count.
    """

    program: IntegerProgram
    gain: Floats
    cost: Floats
    job_weight: Floats
    groups: Groups
    _levels: _Levels
    _pairs: _GangPairs
    _later: _Later
    _together: _Together

    @property
    def weight(self) -> Floats:
        """The placed weight, (n,)."""
        return self.per_variable(self.job_weight)

    def per_variable(self, of_job: Floats) -> Floats:
        """Return coefficients that add up to the sum over the placed jobs, (n,).

        Parameters
        ----------
        of_job : (jobs,) float
            The contribution of each job.
        """
        groups = self.groups
        single = np.flatnonzero(~_is_gang(groups))
        of_groups = _sums(groups.group_of_member[single], of_job[groups.job[single]], len(groups))
        of_levels = np.where(self._levels.first, of_job[self._levels.job], 0.0)
        further = len(self._pairs) + len(self._later) + len(self._together)
        nothing = np.zeros(len(self._levels) + further)
        return np.concatenate([of_groups, of_levels, nothing])

    def counts(self, x: Ints) -> Ints:
        """Return how often each group is taken in a solution."""
        return np.asarray(x[: len(self.groups)])

    def solution(self, counts: Ints) -> Ints:
        """Return the values of all variables for a choice of groups."""
        at_least = self._levels.gpus_at_least(counts)
        shared = self._pairs.shared(counts)
        later = self._later.placed(self.groups.placed(counts))
        used = (at_least > 0).astype(np.int64)
        together = self._together.on_nodes(counts)
        return np.concatenate([counts, used, at_least, shared, later, together])


def build(groups: Groups) -> RoundProgram:
    """Formulate the round problem as an integer program (see the module's text)."""
    levels = _Levels.of(groups)
    pairs = _GangPairs.of(groups)
    later = _Later.of(groups.kinds)
    together = _Together.of(groups)
    first_later = len(groups) + 2 * len(levels) + len(pairs)
    size = first_later + len(later) + len(together)
    rows = RowBuilder(size)
    _add_class_rows(rows, groups)
    _add_single_rows(rows, groups, later, first_later)
    _add_host_rows(rows, groups)
    levels.add_rows(rows, groups)
    pairs.add_rows(rows, first_column=len(groups) + 2 * len(levels))
    together.add_rows(rows, groups, first_column=first_later + len(later))
    fixed = levels.fixed()
    ones = np.ones(len(pairs))
    upper = [groups.most, np.ones(len(levels)), levels.workers, ones, later.jobs, together.most]
    lower = [np.zeros(len(groups)), fixed, np.zeros(size - len(groups) - len(levels))]
    zeros = np.zeros(len(levels) + len(pairs))
    none = np.zeros(len(together))
    gain = np.concatenate([_single_gains(groups), levels.gains(groups), zeros, -later.less, none])
    cost = np.concatenate([np.nan_to_num(groups.cost), np.zeros(size - len(groups))])
    program = IntegerProgram(
        *rows.arrays(),
        np.concatenate(lower).astype(np.int64),
        np.concatenate(upper).astype(np.int64),
        gain,
    )
    parts = (levels, pairs, later, together)
    return RoundProgram(program, gain, cost, groups.values.weight, groups, *parts)


def _add_class_rows(rows: RowBuilder, groups: Groups) -> None:
    """No class has more groups than GPUs; GPUs with residents have exactly one group each."""
    available = groups.round.classes.size.astype(np.float64)
    held = groups.round.classes.residents > 0
    column = np.arange(len(groups))
    rows.add([(groups.gpu_class, column, 1.0)], np.where(held, available, -np.inf), available)


def _add_single_rows(rows: RowBuilder, groups: Groups, later: _Later, first_later: int) -> None:
    """Groups have at most as many pending one-worker jobs of a kind as there are."""
    member = ~_is_gang(groups) & ~_is_running(groups)
    jobs, row = np.unique(groups.job[member], return_inverse=True)
    at = np.flatnonzero(np.isin(later.first, jobs))
    rows.add(
        [
            (row, groups.group_of_member[member], 1.0),
            (np.searchsorted(jobs, later.first[at]), first_later + at, -1.0),
        ],
        np.full(len(jobs), -np.inf),
        _sums(later.first, -later.jobs.astype(np.float64), len(groups.round))[jobs]
        + groups.kinds.copies[jobs],
    )


def _add_host_rows(rows: RowBuilder, groups: Groups) -> None:
    """The starts on a node stay within what is left of a resource, or one alone goes beyond."""
    hosts = groups.round.hosts
    use = None if hosts is None else HostUse.of(groups, hosts)
    if use is None:
        return
    gpus = np.bincount(groups.round.machines.node).astype(np.float64)
    for node in np.unique(use.node[use.node >= 0]).tolist():
        here = np.flatnonzero(use.node == node)
        for k in range(use.units.shape[1]):
            adds = here[use.units[here, k] > 0]
            if use.units[adds, k].any():
                row = np.zeros(len(adds), dtype=np.int64)
                left = np.array([float(use.left[node, k])])
                rows.add([(row, adds, use.units[adds, k])], np.array([-np.inf]), left)
            if use.beyond[here, k].any():
                touches = here[use.touches[here, k]]
                row = np.zeros(len(touches), dtype=np.int64)
                value = 1 + gpus[node] * use.beyond[touches, k]
                most = np.array([1 + gpus[node]])
                rows.add([(row, touches, value)], np.array([-np.inf]), most)


def _single_gains(groups: Groups) -> Floats:
    member = np.flatnonzero(~_is_gang(groups))
    gain = groups.gain[member]
    return groups.value + _sums(groups.group_of_member[member], gain, len(groups))


@dataclass(frozen=True)
class _Levels:
    """The distinct gains of every gang mode, mode by mode, descending within a mode.

    Attributes
    ----------
    group_of_member, level_of_member : (k,) int
        For every member that is a gang: its group and its level.
    first : (n,) bool
        Whether the level is its mode's first.
    sample : (n,) int
        A member at each level, which has its gain.
    job, workers : (n,) int
        The gang and its workers.
    running : (n,) bool
        Whether the gang runs already.
    """

    group_of_member: Ints
    level_of_member: Ints
    first: Bools
    sample: Ints
    job: Ints
    workers: Ints
    running: Bools

    @classmethod
    def of(cls, groups: Groups) -> Self:
        member = np.flatnonzero(_is_gang(groups))
        mode = groups.variant[member] * len(groups.round.models) + groups.model[member]
        order = np.lexsort((-groups.gain[member], mode))
        member, mode = member[order], mode[order]
        gain = groups.gain[member]
        new_mode = _changes(mode)
        new_level = new_mode | _changes(gain)
        sample = member[new_level]
        jobs = groups.round.jobs
        job = groups.job[sample]
        return cls(
            group_of_member=groups.group_of_member[member],
            level_of_member=np.cumsum(new_level) - 1,
            first=new_mode[new_level],
            sample=sample,
            job=job,
            workers=jobs.workers[job],
            running=jobs.running[job],
        )

    def __len__(self) -> int:
        return len(self.first)

    def fixed(self) -> Bools:
        """Return which levels' u are fixed to 1: the first of running gangs, (n,)."""
        return self.first & self.running

    def gains(self, groups: Groups) -> Floats:
        """Return the coefficients of u: the gain of the first level, then the increments, (n,)."""
        gain = groups.gain[self.sample]
        return np.where(self.first, gain, gain - np.r_[0.0, gain[:-1]])

    def gpus_at_least(self, counts: Ints) -> Ints:
        """Return f: on how many GPUs each mode is at the level or slower, (n,)."""
        at_level = np.zeros(len(self), dtype=np.int64)
        np.add.at(at_level, self.level_of_member, counts[self.group_of_member])
        from_here = np.append(np.cumsum(at_level[::-1])[::-1], 0)
        mode = np.cumsum(self.first)
        next_mode = np.append(np.flatnonzero(self.first), len(self))[mode]
        return np.asarray(from_here[:-1] - from_here[next_mode])

    def add_rows(self, rows: RowBuilder, groups: Groups) -> None:
        """Add all rows of the gangs."""
        level = np.arange(len(self))
        u, f = len(groups) + level, len(groups) + len(self) + level
        group = self.group_of_member
        zero = np.zeros(len(self))
        last = np.r_[self.first[1:], True] if len(self) else self.first
        rows.add(
            [
                (level, f, 1.0),
                (level[~last], f[~last] + 1, -1.0),
                (self.level_of_member, group, -1.0),
            ],
            zero,
            zero,
        )
        rows.add(
            [(level, f, 1.0), (level, u, -self.workers.astype(np.float64))],
            np.where(self.first, 0.0, -np.inf),
            zero,
        )
        later = np.flatnonzero(~self.first)
        row = np.arange(len(later))
        rows.add(
            [(row, u[later], 1.0), (row, u[later] - 1, -1.0)],
            np.full(len(later), -np.inf),
            np.zeros(len(later)),
        )
        slower = ~self.first[self.level_of_member]
        row = np.arange(int(slower.sum()))
        most = groups.most[group[slower]].astype(np.float64)
        rows.add(
            [(row, group[slower], 1.0), (row, u[self.level_of_member[slower]], -most)],
            np.full(len(row), -np.inf),
            np.zeros(len(row)),
        )
        jobs, row = np.unique(self.job[self.first], return_inverse=True)
        rows.add([(row, u[self.first], 1.0)], np.full(len(jobs), -np.inf), np.ones(len(jobs)))


@dataclass(frozen=True)
class _GangPairs:
    """The pairs of gangs that may share whole: the pair and the group of each occurrence."""

    pair: Ints
    group: Ints
    workers: Ints

    @classmethod
    def of(cls, groups: Groups) -> Self:
        if groups.round.machines.rules.gang_sharing == "partial":
            nothing = np.empty(0, dtype=np.int64)
            return cls(nothing, nothing, nothing)
        first, second, group = _job_pairs(groups)
        jobs = groups.round.jobs
        keep = (jobs.workers[first] > 1) & ~(jobs.running[first] & jobs.running[second])
        count = max(1, len(groups.round))
        key, pair = np.unique(first[keep] * count + second[keep], return_inverse=True)
        return cls(pair, group[keep], jobs.workers[key // count])

    def __len__(self) -> int:
        return len(self.workers)

    def shared(self, counts: Ints) -> Ints:
        """Return x: whether each pair shares its GPUs, (n,)."""
        together = np.zeros(len(self), dtype=np.int64)
        np.maximum.at(together, self.pair, (counts[self.group] > 0).astype(np.int64))
        return together

    def add_rows(self, rows: RowBuilder, first_column: int) -> None:
        """A pair of gangs shares all GPUs or none."""
        x = np.arange(len(self))
        rows.add(
            [
                (self.pair, self.group, 1.0),
                (x, first_column + x, -self.workers.astype(np.float64)),
            ],
            np.zeros(len(self)),
            np.zeros(len(self)),
        )


@dataclass(frozen=True)
class _Later:
    """The jobs that gain less than their representative, grouped by the difference.

    ``first``, ``less``, ``jobs`` (n,): the representative, how much less they gain, and the number
    of jobs; ``of_job``: the entry of each job of the round, -1 for none.
    """

    first: Ints
    less: Floats
    jobs: Ints
    of_job: Ints

    @classmethod
    def of(cls, kinds: Kinds) -> Self:
        later = np.flatnonzero(kinds.less > 0)
        found, entry, count = np.unique(
            np.column_stack([kinds.first[later], kinds.less[later]]),
            axis=0,
            return_inverse=True,
            return_counts=True,
        )
        of_job = np.full(len(kinds.first), -1)
        of_job[later] = entry.reshape(-1)
        return cls(found[:, 0].astype(np.int64), found[:, 1], count.astype(np.int64), of_job)

    def __len__(self) -> int:
        return len(self.first)

    def placed(self, jobs: Bools) -> Ints:
        """Return how many jobs of each entry are placed, (n,)."""
        return np.bincount(self.of_job[jobs & (self.of_job >= 0)], minlength=len(self))


@dataclass(frozen=True)
class _Together:
    """The gangs whose workers stay together, on each node of their groups.

    Attributes
    ----------
    group_of_member, place : (k,) int
        For every member that is such a gang: its group, and the gang's place on the group's node.
    workers, most : (n,) int
        The workers of each place that are together, and the most such groups of workers there.
    """

    group_of_member: Ints
    place: Ints
    workers: Ints
    most: Ints

    @classmethod
    def of(cls, groups: Groups) -> Self:
        jobs, group = groups.round.jobs, groups.group_of_member
        member = np.flatnonzero(groups.round.on_nodes[groups.job] & (groups.node[group] >= 0))
        nodes = max(1, len(groups.round.machines.node_ids))
        key, place = np.unique(
            groups.job[member] * nodes + groups.node[group[member]], return_inverse=True
        )
        job = key // nodes
        workers = jobs.together[job]
        most = np.where(jobs.one_each[job], 1, jobs.workers[job] // workers)
        return cls(group[member], place, workers, most)

    def __len__(self) -> int:
        return len(self.workers)

    def on_nodes(self, counts: Ints) -> Ints:
        """Return w: the groups of workers of each gang on each node, (n,)."""
        workers = np.zeros(len(self), dtype=np.int64)
        np.add.at(workers, self.place, counts[self.group_of_member])
        return np.asarray(workers // self.workers)

    def add_rows(self, rows: RowBuilder, groups: Groups, first_column: int) -> None:
        """A node has whole groups of workers, on the GPUs that its classes have there."""
        every, zeros = np.arange(len(self)), np.zeros(len(self))
        rows.add(
            [
                (self.place, self.group_of_member, 1.0),
                (every, first_column + every, -self.workers.astype(np.float64)),
            ],
            zeros,
            zeros,
        )
        tied = np.flatnonzero(groups.node >= 0)
        available, nodes = groups.round.gpus_by_node, groups.round.gpus_by_node.shape[1]
        key, row = np.unique(
            groups.gpu_class[tied] * nodes + groups.node[tied], return_inverse=True
        )
        most = available.ravel()[key].astype(np.float64)
        rows.add([(row, tied, 1.0)], np.full(len(key), -np.inf), most)


def _job_pairs(groups: Groups) -> tuple[Ints, Ints, Ints]:
    """Return every two jobs of every group (the smaller index first), and the group."""
    found: list[tuple[Ints, Ints, Ints]] = []
    for size in np.unique(groups.sizes).tolist():
        group = np.flatnonzero(groups.sizes == size)
        for a, b in combinations(range(size), 2):
            start = groups.start[group]
            found.append((groups.job[start + a], groups.job[start + b], group.astype(np.int64)))
    first, second, group = (joined_ints([f[k] for f in found]) for k in range(3))
    return first, second, group


def _is_gang(groups: Groups) -> Bools:
    """Return which members' jobs have several workers, (m,)."""
    return np.asarray(groups.round.jobs.workers[groups.job] > 1)


def _is_running(groups: Groups) -> Bools:
    """Return which members' jobs run already, (m,)."""
    return np.asarray(groups.round.jobs.running[groups.job])


def _sums(place: Ints, value: Floats, size: int) -> Floats:
    """Return the sum of the values at each place, (size,)."""
    return np.bincount(place, weights=value, minlength=size).astype(np.float64)


def _changes(values: NDArray[np.generic]) -> Bools:
    """Return where a value differs from the one before it; the first always does."""
    changed = np.ones(len(values), dtype=bool)
    changed[1:] = values[1:] != values[:-1]
    return changed


@dataclass(frozen=True)
class NodeProgram:
    """The program, and the meaning of its variables p.

    Attributes
    ----------
    program : IntegerProgram
        Its ``cost``, to be maximised, is minus the nodes, racks and GPUs.
    group, node : (k,) int
        Group and node of each p.
    first : int
        Column of the first p.
    """

    program: IntegerProgram
    group: Ints
    node: Ints
    first: int
    _groups: Groups

    def settled(self, x: Ints) -> Mapping[int, int]:
        """Return the group on each GPU that a solution gives to a group with a starting gang."""
        node_of = self._groups.round.machines.node
        free = list(map(list, self._groups.round.classes.gpus))
        found = {}
        for k in np.flatnonzero(x[self.first : self.first + len(self.group)]).tolist():
            group, node = int(self.group[k]), int(self.node[k])
            gpus = free[int(self._groups.gpu_class[group])]
            here = [gpu for gpu in gpus if node_of[gpu] == node][: int(x[self.first + k])]
            for gpu in here:
                gpus.remove(gpu)
                found[gpu] = group
        return found


def node_program(program: IntegerProgram, groups: Groups) -> NodeProgram:
    """Return the round's program with the nodes of the starting gangs.

    Parameters
    ----------
    program : IntegerProgram
        The round's program; it must have rows that keep the value at its best.
    groups : Groups
        The candidate groups.
    """
    return _NodeRows(program, groups).built()


class _NodeRows:
    """The additional variables: their columns, and the rows that tie them to the round's."""

    def __init__(self, program: IntegerProgram, groups: Groups) -> None:
        self.program = program
        self.groups = groups
        self.member = np.flatnonzero(_is_gang(groups) & ~_is_running(groups))
        self.gpus = groups.round.gpus_by_node.astype(np.float64)
        self.nodes = self.gpus.shape[1]
        self.rack = groups.round.machines.rack_of_node
        self.gang, self.gang_of_member = np.unique(groups.job[self.member], return_inverse=True)
        group, node = np.nonzero(self.gpus[groups.gpu_class])
        wanted = np.isin(group, groups.group_of_member[self.member])
        wanted &= (groups.node[group] < 0) | (groups.node[group] == node)
        self.group, self.node = group[wanted].astype(np.int64), node[wanted].astype(np.int64)
        self.p = program.size + np.arange(len(self.group))
        self.s = program.size + len(self.p) + np.arange(len(self.gang) * self.nodes)
        racks = int(self.rack.max(initial=-1)) + 1
        self.racks = racks
        self.t = program.size + len(self.p) + len(self.s) + np.arange(len(self.gang) * racks)
        self.size = program.size + len(self.p) + len(self.s) + len(self.t)

    def built(self) -> NodeProgram:
        rows = RowBuilder(self.size)
        self._link_counts(rows)
        self._keep_to_gpus(rows)
        self._span_nodes(rows)
        self._span_racks(rows)
        further, row_lower, row_upper = rows.arrays()
        program, own = self.program, self.size - self.program.size
        padding = csr_array((program.rows.shape[0], own))
        most = np.minimum(
            self.groups.most[self.group],
            self.gpus[self.groups.gpu_class[self.group], self.node].astype(np.int64),
        )
        ones = np.ones(own - len(self.p), dtype=np.int64)
        wide = IntegerProgram(
            csr_array(vstack([hstack([program.rows, padding]), further])),
            np.append(program.row_lower, row_lower),
            np.append(program.row_upper, row_upper),
            np.append(program.lower, np.zeros(own, dtype=np.int64)),
            np.concatenate([program.upper, most, ones]),
            self._cost(),
        )
        return NodeProgram(wide, self.group, self.node, program.size, self.groups)

    def _link_counts(self, rows: RowBuilder) -> None:
        """The GPUs of a group on all nodes add up to how often it is taken."""
        linked, row = np.unique(self.group, return_inverse=True)
        zeros = np.zeros(len(linked))
        rows.add([(row, self.p, 1.0), (np.arange(len(linked)), linked, -1.0)], zeros, zeros)

    def _keep_to_gpus(self, rows: RowBuilder) -> None:
        """A class has a limited number of GPUs on a node."""
        place = self.groups.gpu_class[self.group] * self.nodes + self.node
        no_lower = np.full(self.gpus.size, -np.inf)
        rows.add([(place, self.p, 1.0)], no_lower, self.gpus.ravel())

    def _span_nodes(self, rows: RowBuilder) -> None:
        """A gang is on every node on which one of its groups gets a GPU."""
        group = self.groups.group_of_member[self.member]
        start = np.searchsorted(self.group, group, side="left")
        stop = np.searchsorted(self.group, group, side="right")
        which = ranges(start, stop - start)
        row = np.repeat(self.gang_of_member, stop - start) * self.nodes + self.node[which]
        workers = self.groups.round.jobs.workers[self.gang].astype(np.float64)
        most = np.minimum(workers[:, None], self.gpus.sum(axis=0)[None, :]).ravel()
        every = np.arange(len(self.s))
        no_lower = np.full(len(self.s), -np.inf)
        rows.add(
            [(row, self.p[which], 1.0), (every, self.s, -most)], no_lower, np.zeros(len(self.s))
        )

    def _span_racks(self, rows: RowBuilder) -> None:
        """A gang is in the rack of every node that it is on."""
        gang = np.arange(len(self.gang)).repeat(self.nodes)
        above = self.t[gang * self.racks + np.tile(self.rack, len(self.gang))]
        every = np.arange(len(self.s))
        no_lower = np.full(len(self.s), -np.inf)
        rows.add([(every, self.s, 1.0), (every, above, -1.0)], no_lower, np.zeros(len(self.s)))

    def _cost(self) -> Floats:
        """Return minus nodes, racks and GPUs in use, weighted so that each outranks the next."""
        groups = self.groups
        gpus = len(groups.round.machines) + 1
        per_rack, per_node = float(gpus), float(gpus * gpus * len(groups.round) + gpus)
        alone = ~_is_gang(groups) & ~_is_running(groups)
        jobs = np.bincount(groups.group_of_member[alone], minlength=len(groups))
        held = groups.round.classes.residents > 0
        cost = np.zeros(self.size)
        cost[: len(groups)] = -(per_node + per_rack) * jobs - ~held[groups.gpu_class]
        cost[self.s] = -per_node
        cost[self.t] = -per_rack
        return cost
