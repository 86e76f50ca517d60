"""Which plan of the best value spans the fewest nodes: a further stage of the round's program.

Variables beside those of the round's program:

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
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack, vstack

from dovetail.formulations._row_builder import RowBuilder
from dovetail.formulations.groups import Groups
from dovetail.formulations.integer_program import (
    IntegerProgram,
    is_gang,
    is_running,
    upper_counts,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class NodeProgram:
    """The program, and what its variables p mean.

    Attributes
    ----------
    program : IntegerProgram
        Its ``cost`` is what to maximise: minus the nodes, racks and GPUs.
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

    def settled(self, x: Ints) -> Mapping[str, int]:
        """Return the group on each GPU that a solution gives to a group with a starting gang."""
        places = self._groups.round.instance.places
        nodes = _nodes(self._groups)
        free = [list(c.gpus) for c in self._groups.round.classes]
        found = {}
        for k in np.flatnonzero(x[self.first : self.first + len(self.group)]).tolist():
            group, node = int(self.group[k]), nodes[int(self.node[k])]
            gpus = free[int(self._groups.gpu_class[group])]
            here = [gpu for gpu in gpus if places[gpu].node == node][: int(x[self.first + k])]
            for gpu in here:
                gpus.remove(gpu)
                found[gpu] = group
        return found


def node_program(program: IntegerProgram, groups: Groups) -> NodeProgram:
    """Return the round's program with the nodes of the starting gangs.

    Parameters
    ----------
    program : IntegerProgram
        The round's program; rows that keep the value at its best belong into it.
    groups : Groups
        The candidate groups.
    """
    member = np.flatnonzero(is_gang(groups) & ~is_running(groups))
    of_class = _gpus_by_node(groups)
    group, node = np.nonzero(of_class[groups.gpu_class])
    wanted = np.isin(group, groups.group_of_member[member])
    group, node = group[wanted], node[wanted]
    nodes = len(of_class.T)
    rack = _rack_of_node(groups)
    gang, job = np.unique(groups.job[member], return_inverse=True)
    spans = len(gang) * nodes
    racks = int(rack.max(initial=-1)) + 1
    first = program.size
    span = first + len(group) + np.arange(spans)
    in_rack = first + len(group) + spans + np.arange(len(gang) * racks)
    rows = RowBuilder(first + len(group) + spans + len(in_rack))
    column = first + np.arange(len(group))

    linked, row = np.unique(group, return_inverse=True)
    everyone = np.arange(len(linked))
    rows.add(
        [(row, column, 1.0), (everyone, linked, -1.0)], np.zeros(len(linked)), np.zeros(len(linked))
    )

    place = groups.gpu_class[group] * nodes + node
    rows.add([(place, column, 1.0)], np.full(of_class.size, -np.inf), of_class.ravel())

    # Every p counts for each starting gang of its group.
    start = np.searchsorted(group, groups.group_of_member[member], side="left")
    stop = np.searchsorted(group, groups.group_of_member[member], side="right")
    which = np.concatenate([np.empty(0, dtype=np.int64), *map(np.arange, start, stop)])
    row = np.repeat(job, stop - start) * nodes + node[which]
    workers = np.array([groups.round.jobs[k].workers for k in gang], dtype=np.float64)
    most = np.minimum(workers[:, None], of_class.sum(axis=0)[None, :]).ravel()
    no_lower = np.full(spans, -np.inf)
    rows.add(
        [(row, column[which], 1.0), (np.arange(spans), span, -most)], no_lower, np.zeros(spans)
    )

    above = np.arange(len(gang)).repeat(nodes) * racks + np.tile(rack, len(gang))
    rows.add(
        [(np.arange(spans), span, 1.0), (np.arange(spans), in_rack[above], -1.0)],
        no_lower,
        np.zeros(spans),
    )

    further, row_lower, row_upper = rows.arrays()
    wide = hstack([program.rows, csr_array((program.rows.shape[0], further.shape[1] - first))])
    upper = np.minimum(upper_counts(groups)[group], of_class[groups.gpu_class[group], node])
    ones = np.ones(spans + len(in_rack), dtype=np.int64)
    return NodeProgram(
        IntegerProgram(
            csr_array(vstack([wide, further])),
            np.append(program.row_lower, row_lower),
            np.append(program.row_upper, row_upper),
            np.append(program.lower, np.zeros(len(group) + len(ones), dtype=np.int64)),
            np.concatenate([program.upper, upper.astype(np.int64), ones]),
            _cost(groups, first, len(group), spans, len(in_rack)),
        ),
        group,
        node,
        first,
        groups,
    )


def _cost(groups: Groups, first: int, choices: int, spans: int, racks: int) -> Floats:
    """Return minus (nodes, racks, GPUs in use) as one number each variable adds to."""
    gpus = len(groups.round.instance.places) + 1
    per_rack, per_node = float(gpus), float(gpus * gpus * len(groups.round.jobs) + gpus)
    alone = ~is_gang(groups) & ~is_running(groups)
    jobs = np.bincount(groups.group_of_member[alone], minlength=len(groups))
    held = np.array([bool(c.residents) for c in groups.round.classes], dtype=bool)
    cost = np.zeros(first + choices + spans + racks)
    cost[: len(groups)] = -(per_node + per_rack) * jobs - ~held[groups.gpu_class]
    cost[first + choices : first + choices + spans] = -per_node
    cost[first + choices + spans :] = -per_rack
    return cost


def _nodes(groups: Groups) -> list[str]:
    return list(dict.fromkeys(p.node for p in groups.round.instance.places.values()))


def _rack_of_node(groups: Groups) -> Ints:
    """Return the number of each node's rack; nodes without one form one rack together."""
    rack = {p.node: p.rack for p in groups.round.instance.places.values()}
    names = list(dict.fromkeys(rack.values()))
    return np.array([names.index(rack[node]) for node in _nodes(groups)], dtype=np.int64)


def _gpus_by_node(groups: Groups) -> Floats:
    """Return how many GPUs each class has on each node, (classes, nodes)."""
    places = groups.round.instance.places
    index = {node: k for k, node in enumerate(_nodes(groups))}
    found = np.zeros((len(groups.round.classes), len(index)))
    for k, gpu_class in enumerate(groups.round.classes):
        for gpu in gpu_class.gpus:
            found[k, index[places[gpu].node]] += 1
    return found
