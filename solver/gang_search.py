"""Exact solving of rounds with partial sharing: branch and bound on gangs.

``WorkerGraph`` splits gangs into workers; ``match_pairs`` then bounds every plan of a box. The
bound is off only where gangs are placed in part, or run at their slowest worker's pace while
the others count as faster. There are few such gangs at a time. One of them is chosen, its
possibilities are split in two (placed or not; worth at least so much or less; this sub-batch or
that one), and the two boxes are bounded again, the most promising box first (Land & Doig 1960).

Settling every gang as a box's matching has it (placed if most of its workers are, at the pace
of the slowest) gives plans, and settling those again better ones: a *dive*.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.worker_graph import ANY, Box, Seats, WorkerGraph
from dovetail.instances.plan import Stopped
from dovetail.solver.answers import Limits, relative_gap
from dovetail.solver.pairing import Prices, match_pairs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_CLOSED = 2e-7
"""The relative gap at which a box is done with; plans are called optimal up to five times it."""

_DIVE_EVERY = 10
"""Boxes between two dives."""

_DIVE_STEPS = 8

_ROUNDING = 1e-12

_PART = 0.3
"""What part of a gang's worth its partial placement counts for in the choice of a gang."""


@dataclass(frozen=True)
class Found:
    """The best plan of a search, and what is proven.

    Attributes
    ----------
    counts : (groups,) int
        How often the plan takes each group.
    value, bound : float
        Its value; a bound on the value of every plan.
    stopped : str
        Why the search ended.
    """

    counts: Ints
    value: float
    bound: float
    stopped: Stopped


@dataclass(order=True)
class _Bounded:
    """A box that was bounded, in the order of its bound."""

    key: tuple[float, int]
    box: Box = field(compare=False)
    seats: Seats = field(compare=False)
    prices: Prices = field(compare=False)

    @property
    def bound(self) -> float:
        return -self.key[0]


class GangSearch:
    """Searches for the best plan of a round.

    Parameters
    ----------
    graph : WorkerGraph
        The workers of the round.
    limits : Limits
        When to stop.
    start : (groups,) int
        A plan to begin with.
    value : float
        What it is worth.
    """

    def __init__(
        self,
        graph: WorkerGraph,
        limits: Limits,
        start: Ints,
        value: float,
    ) -> None:
        self._graph = graph
        self._limits = limits
        self._gang = graph.workers > 1
        self._counts = start
        self._value = value
        self._left_open = -math.inf
        self._boxes = 0

    def run(self) -> Found:
        """Search until the gap is closed or the time is up."""
        root = self._bounded(self._graph.root, None, math.inf)
        if root is None:
            return self._found(-math.inf)
        self._dive(root)
        waiting = [root]
        while waiting and not self._closed(waiting[0].bound) and not self._limits.passed:
            best = heapq.heappop(waiting)
            for box in self._split(best):
                child = self._bounded(box, best.prices, best.bound)
                if child is None:
                    continue
                if self._boxes % _DIVE_EVERY == 0:
                    self._dive(child)
                if not self._closed(child.bound):
                    heapq.heappush(waiting, child)
        return self._found(waiting[0].bound if waiting else -math.inf)

    def _found(self, open_bound: float) -> Found:
        bound = max(self._value, open_bound, self._left_open)
        complete = relative_gap(bound, self._value) <= max(self._limits.gap, _CLOSED)
        return Found(self._counts, self._value, bound, "complete" if complete else "time_limit")

    def _closed(self, bound: float) -> bool:
        """Tell whether a box of this bound holds nothing worth a search; remember its bound."""
        slack = max(self._limits.gap, _CLOSED) * max(abs(bound), abs(self._value))
        closed = bound - self._value <= slack
        if closed:
            self._left_open = max(self._left_open, bound)
        return closed

    def _bounded(self, box: Box, prices: Prices | None, above: float) -> _Bounded | None:
        """Bound a box and keep its matching if that is a plan; None where there is none."""
        pairs = self._graph.matrices(box)
        found = match_pairs(
            pairs.pair_value,
            pairs.single_value,
            gpus=self._graph.gpus,
            required=pairs.required,
            time_limit=None if self._limits.deadline == math.inf else self._limits.seconds_left,
            seed=self._limits.seed,
            previous=prices,
        )
        self._boxes += 1
        bound = min(above, found.bound + self._graph.constant(box))
        if found.status in ("infeasible", "unknown"):
            if found.status == "unknown":
                self._left_open = max(self._left_open, bound)
            return None
        seats = self._graph.seats(found.mate, box)
        self._keep(seats)
        return _Bounded((-bound, self._boxes), box, seats, found.prices)

    def _keep(self, seats: Seats) -> None:
        """Keep a matching that is a plan, if it is the best so far."""
        in_part = (seats.placed > 0) & (seats.placed < self._graph.workers)
        if (in_part | self._mixed(seats)).any():
            return
        value = math.fsum(seats.least[seats.placed > 0].tolist())
        if value > self._value:
            self._counts, self._value = seats.counts, value

    def _dive(self, start: _Bounded) -> None:
        """Settle all gangs as a matching has them, again and again while plans get better."""
        best = start
        for _ in range(_DIVE_STEPS):
            if self._limits.passed:
                return
            before = self._value
            found = self._bounded(self._settled(best), best.prices, best.bound)
            if found is None or self._value <= before:
                return
            best = found

    def _settled(self, found: _Bounded) -> Box:
        """Return the box of the plans that treat all gangs as a matching does."""
        box, seats, gang = found.box, found.seats, self._gang
        placed = gang & ((2 * seats.placed >= self._graph.workers) | box.required)
        pace = np.where(placed & (seats.placed > 0), seats.least, np.inf)
        return replace(
            box,
            floor=np.where(pace < np.inf, np.minimum(pace, box.cap), box.floor),
            cap=np.minimum(box.cap, pace),
            variant=np.where(placed, np.maximum(box.variant, seats.variants), box.variant),
            required=box.required | placed,
            excluded=box.excluded | (gang & ~placed),
        )

    def _split(self, found: _Bounded) -> Iterator[Box]:
        """Yield boxes that part the possibilities of the gang whose worth is furthest from true."""
        box, seats, workers = found.box, found.seats, self._graph.workers
        placed = seats.placed / workers
        least = np.minimum(np.where(seats.placed > 0, seats.least, 0.0), box.cap)
        excess = np.where(placed == 1, seats.mean - least, 0.0)
        in_part = (placed > 0) & (placed < 1)
        excess[in_part] = (_PART * np.minimum(placed, 1 - placed) * np.abs(seats.mean))[in_part]
        excess[~self._gang] = 0.0
        job = int(np.argmax(excess))
        mixed = np.flatnonzero(self._mixed(seats))
        if excess[job] > _ROUNDING * abs(seats.mean[job]):
            if in_part[job]:
                yield box.settled(job, excluded=True)
                yield box.settled(job, required=True)
            else:
                yield from self._by_worth(box, job, (seats.mean[job] + least[job]) / 2)
        elif len(mixed):
            for variant in self._graph.variants(mixed[0]).tolist():
                yield box.settled(mixed[0], variant=variant)
        else:  # the matching is a plan, and only the time kept it from being proven the best
            self._left_open = max(self._left_open, found.bound)

    def _by_worth(self, box: Box, job: int, between: float) -> Iterator[Box]:
        """Yield the boxes in which a gang is worth at least so much, and less."""
        worths = self._graph.worths(job)
        at = int(np.searchsorted(worths, between))
        yield box.settled(job, floor=worths[at])
        yield box.settled(job, cap=worths[at - 1])

    def _mixed(self, seats: Seats) -> NDArray[np.bool_]:
        """Tell which gangs have workers at different sub-batches."""
        return self._gang & (seats.placed > 0) & (seats.variants == ANY)
