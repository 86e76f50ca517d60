"""The sparse working graph of a class of jobs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.pairing.compilation import KernelCompiler, kernel

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Graph:
    """A graph in compressed rows, with every edge in the rows of both its ends.

    Attributes
    ----------
    start : (nodes + 1,) int
        The index at which each node's edges start in ``head`` and ``weight``.
    head : (2 edges,) int
        The other end of each edge.
    weight : (2 edges,) int
        The fixed-point value of each pair.
    first, second, once : (edges,) int
        Every edge once, in order: its ends (the smaller first) and its weight.
    """

    start: Ints
    head: Ints
    weight: Ints
    first: Ints
    second: Ints
    once: Ints

    @classmethod
    def of(cls, nodes: int, first: Ints, second: Ints, weight: Ints, run: KernelCompiler) -> Graph:
        """Return the graph of these edges (first < second), each given once, in order."""
        start = np.zeros(nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(first, minlength=nodes), out=start[1:])
        start[1:] += np.cumsum(np.bincount(second, minlength=nodes))
        head = np.empty(2 * len(first), dtype=np.int64)
        both = np.empty(2 * len(first), dtype=np.int64)
        run(fill_rows)(first, second, weight, start[:-1].copy(), head, both)
        return cls(start, head, both, first, second, weight)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.start) - 1

    def extended(
        self, first: Ints, second: Ints, value: NDArray[np.int32], run: KernelCompiler
    ) -> Graph:
        """Return the graph with these edges added; it may already have some of them.

        Parameters
        ----------
        first, second : (e,) int
            The ends of the edges, first < second.
        value : (nodes, nodes) int
            The table of weights.
        """
        old = self.first * self.nodes + self.second
        new = np.unique(first * self.nodes + second)
        place = np.searchsorted(old, new)
        fresh = np.append(old, -1)[place] != new
        new, place = new[fresh], place[fresh]
        first, second = new // self.nodes, new % self.nodes
        weight = value[first, second].astype(np.int64)
        return Graph.of(
            self.nodes,
            np.insert(self.first, place, first),
            np.insert(self.second, place, second),
            np.insert(self.once, place, weight),
            run,
        )

    def reweighted(self, weight: Ints, run: KernelCompiler) -> Graph:
        """Return the graph with other weights, (edges,)."""
        return Graph.of(self.nodes, self.first, self.second, weight, run)


@kernel
def fill_rows(first: Ints, second: Ints, weight: Ints, place: Ints, head: Ints, both: Ints) -> None:
    """Write every edge to the rows of both its ends, starting at ``place``."""
    for e in range(first.size):
        i = first[e]
        j = second[e]
        head[place[i]] = j
        both[place[i]] = weight[e]
        place[i] += 1
        head[place[j]] = i
        both[place[j]] = weight[e]
        place[j] += 1
