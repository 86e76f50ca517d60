"""The plan with the best value that spans the fewest nodes: a further stage of the round's program.

Variables in addition to those of the round's program:

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

import numpy as np
from scipy.sparse import csr_array, hstack, vstack

from dovetail.formulations.arrays import Floats, Ints, joined_ints
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.programs.integer_program import (
    IntegerProgram,
    RowBuilder,
    is_gang,
    is_running,
)


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
    return _Builder(program, groups).built()


class _Builder:
    """The additional variables: their columns, and the rows that tie them to the round's."""

    def __init__(self, program: IntegerProgram, groups: Groups) -> None:
        self.program = program
        self.groups = groups
        self.member = np.flatnonzero(is_gang(groups) & ~is_running(groups))
        self.gpus = _gpus_by_node(groups)
        self.nodes = self.gpus.shape[1]
        self.rack = groups.round.machines.rack_of_node
        self.gang, self.gang_of_member = np.unique(groups.job[self.member], return_inverse=True)
        group, node = np.nonzero(self.gpus[groups.gpu_class])
        wanted = np.isin(group, groups.group_of_member[self.member])
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
        which = joined_ints([np.arange(a, b) for a, b in zip(start, stop, strict=True)])
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
        alone = ~is_gang(groups) & ~is_running(groups)
        jobs = np.bincount(groups.group_of_member[alone], minlength=len(groups))
        held = groups.round.classes.residents > 0
        cost = np.zeros(self.size)
        cost[: len(groups)] = -(per_node + per_rack) * jobs - ~held[groups.gpu_class]
        cost[self.s] = -per_node
        cost[self.t] = -per_rack
        return cost


def _gpus_by_node(groups: Groups) -> Floats:
    """Return how many GPUs each class has on each node, (classes, nodes)."""
    machines = groups.round.machines
    found = np.zeros((len(groups.round.classes), len(machines.node_ids)))
    for k, gpus in enumerate(groups.round.classes.gpus):
        for gpu in gpus:
            found[k, machines.node[gpu]] += 1
    return found
