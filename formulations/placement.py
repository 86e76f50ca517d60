"""From counted groups to GPUs of named nodes.

Formulations count GPUs of a class; which of them a group gets decides how many nodes and racks
a gang spans. ``place`` packs gangs by a simple rule; ``node_program`` chooses exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, groupby

import numpy as np

from dovetail.formulations.arrays import Ints
from dovetail.formulations.groups import Groups


def place(
    groups: Groups, counts: Ints, settled: Mapping[str, int] | None = None
) -> Mapping[str, int]:
    """Return the group on each GPU in use, gangs packed on few nodes (not proven to be fewest).

    Large gangs choose first; each fills the nodes that it is on already, then those that hold
    most of what it still needs, a rack it is in already before others, the tightest of those.

    Parameters
    ----------
    groups : Groups
        The candidate groups.
    counts : (n,) int
        How often each is taken.
    settled : mapping, optional
        The group on GPUs that are decided already.
    """
    return _Packer(groups, counts, settled or {}).pack()


class _Packer:
    def __init__(self, groups: Groups, counts: Ints, settled: Mapping[str, int]) -> None:
        self._groups = groups
        self._left = {int(g): int(counts[g]) for g in np.flatnonzero(counts)}
        self._placed = dict(settled)
        for group in settled.values():
            self._left[group] -= 1
        self._machines = groups.round.machines
        self._free: dict[int, dict[int, list[str]]] = {}
        for index in dict.fromkeys(groups.gpu_class[np.flatnonzero(counts)].tolist()):
            by_node: dict[int, list[str]] = defaultdict(list)
            gpus = groups.round.classes[index].gpus
            free = [gpu for gpu in gpus if gpu not in settled] if settled else gpus
            for node, of_node in groupby(free, self._machines.node_of.__getitem__):
                by_node[node] += of_node
            self._free[index] = by_node

    def pack(self) -> Mapping[str, int]:
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
        """Give the groups of one GPU theirs, the tightest nodes first."""
        spare = {}
        for index, by_node in self._free.items():
            tightest_first: list[list[str]] = sorted(by_node.values(), key=len)
            spare[index] = chain.from_iterable(tightest_first)
        for group, left in self._left.items():
            if left:
                self._placed[next(spare[int(self._groups.gpu_class[group])])] = group

    def _pack(self, wanted: Sequence[int]) -> None:
        """Give the groups of one gang their GPUs, in addition to those that some have already."""
        node_of = self._machines.node_of
        nodes = {node_of[gpu] for gpu, group in self._placed.items() if group in wanted}
        while needed := self._needed(wanted):
            node = self._best_node(needed, nodes)
            nodes.add(node)
            for group in wanted:
                self._take(group, node)

    def _needed(self, wanted: Sequence[int]) -> Mapping[int, int]:
        """Return the GPUs still wanted of each class."""
        needed: dict[int, int] = defaultdict(int)
        for group in wanted:
            if self._left[group]:
                needed[int(self._groups.gpu_class[group])] += self._left[group]
        return needed

    def _best_node(self, needed: Mapping[int, int], held: set[int]) -> int:
        nodes = dict.fromkeys(n for c in needed for n, gpus in self._free[c].items() if gpus)
        rack_of = self._machines.rack_of_node
        racks = {rack_of[node] for node in held}

        def rank(node: int) -> tuple[bool, int, bool, int]:
            free = {c: len(self._free[c].get(node, ())) for c in needed}
            fitting = sum(min(free[c], number) for c, number in needed.items())
            return node in held, fitting, rack_of[node] in racks, -sum(free.values())

        return max(nodes, key=rank)

    def _take(self, group: int, node: int) -> None:
        free = self._free[int(self._groups.gpu_class[group])].get(node, [])
        while self._left[group] and free:
            self._placed[free.pop(0)] = group
            self._left[group] -= 1
