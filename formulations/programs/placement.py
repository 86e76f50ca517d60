"""From counted groups to GPUs on nodes.

Formulations count GPUs of a class; the choice among them decides how many nodes and racks a gang
spans. ``place`` packs gangs by a simple rule; ``node_program`` chooses exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from dovetail.formulations.arrays import Ints
from dovetail.formulations.candidates.groups import Groups


def place(
    groups: Groups, counts: Ints, settled: Mapping[int, int] | None = None
) -> Mapping[int, int]:
    """Return the group on each GPU in use, with gangs on few nodes (not proven fewest).

    Groups with a node go there. Then large gangs choose first. Each fills the nodes that it is
    already on, then the nodes that have most of the GPUs it still needs, preferring a rack that it
    is already in, then the nodes with the fewest free GPUs.

    Parameters
    ----------
    groups : Groups
        The candidate groups.
    counts : (n,) int
        How often each group is taken.
    settled : mapping, optional
        The group on GPUs that are already decided.
    """
    return _Packer(groups, counts, settled or {}).pack()


def seat(
    groups: Groups, counts: Ints, settled: Mapping[int, int] | None = None
) -> tuple[Groups, Mapping[int, int]]:
    """Return the taken groups with individual jobs, and which of them is on each GPU in use.

    For the arguments see ``place``.
    """
    named, number, made_of = groups.chosen(counts)
    rows: dict[int, list[int]] = defaultdict(list)
    for row in np.repeat(np.arange(len(named)), number)[::-1].tolist():
        rows[int(made_of[row])].append(row)
    own = {gpu: rows[group].pop() for gpu, group in (settled or {}).items()}
    return named, place(named, number, own)


class _Packer:
    def __init__(self, groups: Groups, counts: Ints, settled: Mapping[int, int]) -> None:
        self._groups = groups
        self._left = {int(g): int(counts[g]) for g in np.flatnonzero(counts)}
        self._placed = dict(settled)
        for group in settled.values():
            self._left[group] -= 1
        self._machines = groups.round.machines
        self._nodes_of: dict[int, set[int]] = defaultdict(set)
        for gpu, group in self._placed.items():
            self._nodes_of[group].add(self._machines.node[gpu])
        self._free: dict[int, _Free] = {}
        for index in dict.fromkeys(groups.gpu_class[np.flatnonzero(counts)].tolist()):
            gpus = groups.round.classes.gpus[index]
            free = [gpu for gpu in gpus if gpu not in settled] if settled else gpus
            self._free[index] = _Free(free, self._machines.node)

    def pack(self) -> Mapping[int, int]:
        for group in self._left:
            if (node := int(self._groups.node[group])) >= 0:
                self._take(group, node)
        workers = self._groups.round.jobs.workers
        of_gang: dict[int, list[int]] = defaultdict(list)
        for group in self._left:
            for member in self._groups.members(group):
                job = int(self._groups.job[member])
                if workers[job] > 1:
                    of_gang[job].append(group)
        for job in sorted(of_gang, key=lambda k: -workers[k]):
            self._pack(of_gang[job])
        self._pack_singles()
        return self._placed

    def _pack_singles(self) -> None:
        """Place the groups of single-GPU jobs, on the nodes with the fewest free GPUs first."""
        spare = {index: free.tightest_first() for index, free in self._free.items()}
        for group, left in self._left.items():
            if left:
                self._placed[next(spare[int(self._groups.gpu_class[group])])] = group

    def _pack(self, wanted: Sequence[int]) -> None:
        """Place the groups of one gang, in addition to the GPUs that some already have."""
        nodes = set().union(*(self._nodes_of[group] for group in wanted))
        while needed := self._needed(wanted):
            node = self._best_node(needed, nodes)
            nodes.add(node)
            for group in wanted:
                self._take(group, node)

    def _needed(self, wanted: Sequence[int]) -> Mapping[int, int]:
        """Return the number of GPUs of each class that are still needed."""
        needed: dict[int, int] = defaultdict(int)
        for group in wanted:
            if self._left[group]:
                needed[int(self._groups.gpu_class[group])] += self._left[group]
        return needed

    def _best_node(self, needed: Mapping[int, int], held: set[int]) -> int:
        rack = self._machines.rack_of_node
        free, fitting, is_held = (np.zeros(len(rack), dtype=np.int64) for _ in range(3))
        for index, number in needed.items():
            of_class = self._free[index]
            free[of_class.node] += of_class.number
            fitting[of_class.node] += np.minimum(of_class.number, number)
        is_held[list(held)] = 1
        in_rack = np.isin(rack, rack[list(held)])
        best = np.flatnonzero(free)
        for rank in (is_held, fitting, in_rack, -free):
            best = best[rank[best] == rank[best].max()]
        return int(best[0])

    def _take(self, group: int, node: int) -> None:
        taken = self._free[int(self._groups.gpu_class[group])].taken(node, self._left[group])
        self._placed.update(dict.fromkeys(taken, group))
        self._left[group] -= len(taken)
        if taken:
            self._nodes_of[group].add(node)


class _Free:
    """The free GPUs of one class, by node.

    Attributes
    ----------
    node, number : (k,) int
        The nodes that have such GPUs, ascending, and the number of free ones.
    """

    def __init__(self, gpus: Sequence[int], node: Sequence[int]) -> None:
        self._gpus: dict[int, list[int]] = defaultdict(list)
        for gpu in gpus:
            self._gpus[node[gpu]].append(gpu)
        self.node = np.array(sorted(self._gpus), dtype=np.int64)
        self.number = np.array([len(self._gpus[node]) for node in sorted(self._gpus)])
        self._place = {node: k for k, node in enumerate(sorted(self._gpus))}

    def taken(self, node: int, most: int) -> Sequence[int]:
        """Take the first free GPUs of a node, at most ``most``."""
        if node not in self._place:
            return ()
        free = self._gpus[node]
        found, free[:most] = free[:most], ()
        self.number[self._place[node]] = len(free)
        return found

    def tightest_first(self) -> Iterator[int]:
        """Return the free GPUs, starting with the nodes that have the fewest."""
        nodes: list[list[int]] = sorted(self._gpus.values(), key=len)
        return chain.from_iterable(nodes)


def tightest_first(gpus: Sequence[int], node: Sequence[int]) -> Iterator[int]:
    """Return GPUs, starting with those of the nodes that have the fewest of them."""
    if len(gpus) == 1:
        return iter(gpus)
    return _Free(gpus, node).tightest_first()
