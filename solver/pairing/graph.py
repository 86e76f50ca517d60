"""The sparse working graph of a class of jobs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.pairing.compilation import Run, kernel

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Graph:
    """A graph in compressed rows, every edge in the rows of both its ends.

    Attributes
    ----------
    start : (nodes + 1,) int
        Where each node's edges start in ``head`` and ``weight``.
    head : (2 edges,) int
        The other end.
    weight : (2 edges,) int
        The value of the pair, fixed point.
    """

    start: Ints
    head: Ints
    weight: Ints

    @classmethod
    def of(cls, nodes: int, first: Ints, second: Ints, weight: Ints, run: Run) -> Graph:
        """Return the graph of these edges (first < second), each given once, in their order."""
        start = np.zeros(nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(first, minlength=nodes), out=start[1:])
        start[1:] += np.cumsum(np.bincount(second, minlength=nodes))
        head = np.empty(2 * len(first), dtype=np.int64)
        both = np.empty(2 * len(first), dtype=np.int64)
        run(fill_rows)(first, second, weight, start[:-1].copy(), head, both)
        return cls(start, head, both)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.start) - 1

    def edges(self) -> tuple[Ints, Ints, Ints]:
        """Return every edge once: its ends (the smaller first) and its weight."""
        tail = np.repeat(np.arange(self.nodes), np.diff(self.start))
        once = tail < self.head
        return tail[once], self.head[once], self.weight[once]

    def extended(self, first: Ints, second: Ints, value: NDArray[np.int32], run: Run) -> Graph:
        """Return the graph with these edges too, some of which it may have already.

        Parameters
        ----------
        first, second : (e,) int
            Their ends, first < second.
        value : (nodes, nodes) int
            Where their weights are looked up.
        """
        a, b, _ = self.edges()
        key = np.sort(np.concatenate([a * self.nodes + b, first * self.nodes + second]))
        key = key[np.diff(key, prepend=-1) > 0]
        first, second = key // self.nodes, key % self.nodes
        return Graph.of(self.nodes, first, second, value[first, second].astype(np.int64), run)


@kernel
def fill_rows(first: Ints, second: Ints, weight: Ints, place: Ints, head: Ints, both: Ints) -> None:
    """Write every edge to the rows of both its ends, from ``place`` on."""
    for e in range(first.size):
        i = first[e]
        j = second[e]
        head[place[i]] = j
        both[place[i]] = weight[e]
        place[i] += 1
        head[place[j]] = i
        both[place[j]] = weight[e]
        place[j] += 1
