"""What a known plan rules out: places and worths of gangs that no better plan can have.

The prices of a box's matching bound each choice of a gang by itself (see ``gang_options``). Choices
that are no better than the best plan leave the box, and groups that no better plan can take leave
the graph. Plans in several steps are left to the search, which bounds the narrower boxes again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.programs.worker_graph import Box, Seats, WorkerGraph
from dovetail.solver.pairing.compilation import KernelCompiler
from dovetail.solver.pairing.gang_options import options_left
from dovetail.solver.pairing.result import Prices

_ROUNDING = 1e-10
"""Relative error of a sum of prices: what loses this much less than the gap is kept."""


@dataclass(frozen=True)
class KindPrices:
    """Prices of a GPU and of a worker of each kind, and the bound that they prove alone."""

    gpu: float
    worker: Floats
    bound: float

    @classmethod
    def of(cls, graph: WorkerGraph, box: Box, prices: Prices) -> KindPrices:
        """Return the prices of kinds, given those of workers."""
        bound = float(prices.job.sum()) + prices.gpu * graph.gpus + graph.constant(box)
        return cls(prices.gpu, graph.by_kind(prices.job), bound)

    def slack(self, value: float) -> float:
        """Return how much a choice may lose and still be better than a plan of this value."""
        return self.bound - value + _ROUNDING * max(abs(self.bound), abs(value))


class Narrowing:
    """Narrows boxes and the graph of a search by the value of its best plan.

    Parameters
    ----------
    graph : WorkerGraph
        The workers; groups are taken from it.
    """

    def __init__(self, graph: WorkerGraph) -> None:
        self._graph = graph
        self._seats = graph.gang_seats()

    def narrowed(
        self, box: Box, prices: KindPrices, value: float, run: KernelCompiler
    ) -> Box | None:
        """Return the part of a box in which plans may be better than a value, None if empty.

        Parameters
        ----------
        box : Box
            The box, or a part of it.
        prices : KindPrices
            Prices that bound all plans of the box.
        value : float
            The value of a plan.
        run : KernelCompiler
            How to run the kernel.
        """
        graph, seats = self._graph, self._seats
        left = Box(**{field.name: getattr(box, field.name).copy() for field in fields(box)})
        if not len(seats.gang):
            return left
        able = run(options_left)(
            seats.gang,
            seats.start,
            seats.worth,
            seats.variant,
            seats.partner,
            seats.partner_worth,
            seats.partner_variant,
            seats.cost,
            graph.job_of_kind,
            graph.number,
            graph.workers,
            graph.own_kind,
            prices.worker,
            prices.gpu,
            prices.slack(value),
            left.floor,
            left.cap,
            left.variant,
            left.required,
            left.excluded,
        )
        return left if able else None

    def forget(self, box: Box, prices: KindPrices, value: float) -> None:
        """Take the groups from the graph that no better plan of a box, or of its parts, takes."""
        self._graph.keep(box, prices.worker, prices.gpu, prices.slack(value))
        self._seats = self._graph.gang_seats()


def is_outside(seats: Seats, box: Box, narrower: Box, workers: Ints) -> bool:
    """Return whether a matching of a box breaks the bounds of a narrower one."""
    changed: Bools = narrower.differs(box)
    breaks = (seats.placed > 0) & (narrower.excluded | (seats.least < narrower.floor))
    breaks |= narrower.required & (seats.placed < workers)
    breaks |= (seats.placed > 0) & (np.minimum(seats.mean, box.cap) > narrower.cap)
    return bool((changed & breaks).any())
