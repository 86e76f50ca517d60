"""Exact solving of rounds with partial sharing: branch and bound on gangs.

``WorkerGraph`` splits gangs into workers; ``match_pairs`` then bounds every plan of a box. The
bound is loose only if gangs are placed in part, or run at their slowest worker's pace while the
others count as faster. One such gang is chosen, its possibilities are split (left out; or placed,
and worth at least a threshold or less; at one sub-batch or another), and the smaller boxes are
bounded again, the most promising box first (Land & Doig, *Econometrica* 28, 1960).

*Which gang.* Near the root the first few candidates are tried, and the one whose boxes lose most is
taken (strong branching); the losses of a gang's boxes are remembered and decide from then on
(reliability branching: Achterberg, Koch & Martin, *Operations Research Letters* 33, 2005).

*Plans* come from boxes whose matching is a plan, and from *dives*: all gangs are fixed as in a
box's matching (placed if most of their workers are, at the pace of the slowest), which frees the
other workers to pair where they gain most; this repeats until plans get no better. The first plans
are sought by *plunging*: one gang after the other is settled as its boxes lose least, with a dive
from each.

*Narrowing.* The prices of a box's matching bound each choice of a gang by itself (see
``gang_options``). Choices that are no better than the best plan leave the box and its parts before
these are matched, and the box is matched again if its matching made such a choice; groups that no
better plan can take leave the graph. Plans in several steps are left to the search, which bounds
the narrower boxes again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.budget import OutOfTimeError
from dovetail.formulations.programs.worker_graph import Box, Seats, WorkerGraph, WorkerPairs
from dovetail.instances.plan import Stopped
from dovetail.solver.pairing.compilation import KernelCompiler
from dovetail.solver.pairing.gang_options import options_left, pair_values
from dovetail.solver.pairing.matching import quickest_run
from dovetail.solver.pairing.prices import PriceStart
from dovetail.solver.pairing.rematching import Rematching
from dovetail.solver.pairing.result import Prices
from dovetail.solver.types import Limits, Maximum

_CLOSED = 2e-7
"""The relative gap at which a box is closed; plans are called optimal up to five times this gap."""

_DIVE_EVERY = 10
"""Boxes split between two dives."""

_DIVE_STEPS = 8

_NARROWINGS = 3
"""How often a box is narrowed and matched again before it is split."""

_TRIED = 6
"""Maximum number of splits tried for one box."""

_IN_PART = 0.3
"""Weight of partial placement in the order of candidates, as a fraction of the gang's worth."""

_SECOND = 0.3
"""Weight of the second least loss of a split's boxes relative to the least in its score."""

_ROUNDING = 1e-9

_PRICE_ROUNDING = 1e-10
"""Relative error of a sum of prices: what loses this much less than the gap is kept."""

_STEPS_PER_BOX, _STEPS_PER_CELL = 250_000, 10
"""Steps of work to set up a box, and for each pair of workers whose value it changes."""


class _Matcher:
    """Matches the workers of boxes, one after the other."""

    def __init__(self, graph: WorkerGraph, box: Box, limits: Limits, prices: Prices | None) -> None:
        self._graph = graph
        self._box: Box | None = box
        self._spend = limits.budget.spend
        with quickest_run(len(graph.job_of_worker), limits.budget) as run:
            pairs = graph.pairs(box, run(pair_values))
        self._note(pairs)
        self.rematching = Rematching(
            pairs.pair_value,
            pairs.single_value,
            graph.gpus,
            pairs.required,
            limits.budget,
            limits.seed,
            prices,
        )

    def turn_to(self, box: Box) -> bool:
        """Switch to the values of another box; return whether they can be matched well."""
        changed = None if self._box is None else box.differs(self._box)
        pairs = self._graph.pairs(box, self.rematching.run(pair_values), changed)
        self._note(pairs)
        fits = self.rematching.revalue(
            pairs.workers, pairs.pair_value, pairs.single_value, pairs.required
        )
        self._box = box if fits else None
        return fits

    def _note(self, pairs: WorkerPairs) -> None:
        self._spend(_STEPS_PER_BOX + _STEPS_PER_CELL * pairs.pair_value.size)


@dataclass(frozen=True)
class _KindPrices:
    """Prices of a GPU and of a worker of each kind, and the bound that they prove alone."""

    gpu: float
    worker: Floats
    bound: float

    @classmethod
    def of(cls, graph: WorkerGraph, box: Box, prices: Prices) -> _KindPrices:
        """Return the prices of kinds, given those of workers."""
        bound = float(prices.job.sum()) + prices.gpu * graph.gpus + graph.constant(box)
        return cls(prices.gpu, graph.by_kind(prices.job), bound)

    def slack(self, value: float) -> float:
        """Return how much a choice may lose and still be better than a plan of this value."""
        return self.bound - value + _PRICE_ROUNDING * max(abs(self.bound), abs(value))


class _Narrowing:
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
        self, box: Box, prices: _KindPrices, value: float, run: KernelCompiler
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

    def forget(self, box: Box, prices: _KindPrices, value: float) -> None:
        """Take the groups from the graph that no better plan of a box, or of its parts, takes."""
        self._graph.keep(box, prices.worker, prices.gpu, prices.slack(value))
        self._seats = self._graph.gang_seats()


@dataclass(frozen=True, order=True)
class _Bounded:
    """A box with its bound; the most promising box sorts first."""

    key: tuple[float, int]
    box: Box = field(compare=False)
    seats: Seats = field(compare=False)
    start: PriceStart | None = field(compare=False)
    prices: _KindPrices | None = field(compare=False)
    matcher: _Matcher = field(compare=False)

    @property
    def bound(self) -> float:
        return -self.key[0]


@dataclass(frozen=True)
class _Split:
    """A split of a box: the gang, the kind of split, and the resulting boxes."""

    gang: int
    kind: str
    boxes: Sequence[Box]

    @property
    def name(self) -> tuple[int, str]:
        return self.gang, self.kind


@dataclass(frozen=True)
class _Tried:
    """A split with its bounded boxes, without those that have no matching."""

    score: float
    children: Sequence[_Bounded]


@dataclass(frozen=True)
class _Losses:
    """The decrease of the bounds of a split's boxes, summed over its trials."""

    total: Floats
    times: int


class GangSearch:
    """Searches for the best plan of a round.

    Parameters
    ----------
    graph : WorkerGraph
        The workers of the round.
    limits : Limits
        When to stop.
    start : (groups,) int
        An initial plan.
    value : float
        The value of the initial plan.
    scale : float, optional
        The scale of gaps; by default the values themselves.
    unit : float
        All plans' values are multiples of it; 0 if unknown.
    """

    def __init__(
        self,
        graph: WorkerGraph,
        limits: Limits,
        start: Ints,
        value: float,
        scale: float | None = None,
        unit: float = 0.0,
    ) -> None:
        self._graph = graph
        self._limits = limits
        self._counts = start
        self._value = value
        self._scale = scale
        self._unit = unit
        self._gang = graph.workers > 1
        self._bound_left = -math.inf
        self._boxes = 0
        self._narrowing = _Narrowing(graph)
        self._losses: dict[tuple[int, str], _Losses] = {}

    def run(self, prices: Prices | None = None) -> Maximum:
        """Search until the gap is closed or the time is up, starting with these workers' prices.

        Returns
        -------
        Maximum
            The best plan, with the prices of the workers in the box of all plans, or None if that
            has no matching.
        """
        waiting: list[_Bounded] = []
        root = self._bounded_cold(self._graph.root, math.inf, prices)
        if root is not None:
            prices = root.matcher.rematching.first.prices
            self._plunge(root)
            waiting.append(root)
        parted, known = 0, -math.inf
        while waiting and not self._closed(waiting[0].bound) and not self._limits.passed:
            parted += 1
            if root is not None and self._value > known:
                known = self._value
                self._forget(root)
            self._limits.report(self._value, max(self._bound_left, waiting[0].bound))
            for child in self._children(heapq.heappop(waiting)):
                if parted % _DIVE_EVERY == 0:
                    self._dive(child)
                if not self._closed(child.bound):
                    heapq.heappush(waiting, child)
        bound = max(self._value, self._bound_left, waiting[0].bound if waiting else -math.inf)
        # If no box is left open, the remaining gap is the engine's rounding.
        unfinished = self._limits.passed or (waiting and not self._near(waiting[0].bound))
        complete = self._near(bound) or not unfinished
        stopped: Stopped = "complete" if complete else "time_limit"
        return Maximum(
            counts=self._counts,
            bound=bound,
            stopped=stopped,
            prices=None if root is None else prices,
        )

    def _near(self, bound: float) -> bool:
        """Return whether a bound is so near the value that nothing better can be found."""
        scale = max(abs(bound), abs(self._value)) if self._scale is None else self._scale
        return bound - self._value <= max(self._limits.gap, _CLOSED) * scale

    def _closed(self, bound: float) -> bool:
        """Return whether a box of this bound may be closed; if so, keep its bound."""
        closed = self._near(bound)
        if closed:
            self._bound_left = max(self._bound_left, bound)
        return closed

    def _bounded_cold(
        self, box: Box, above: float, prices: Prices | None = None
    ) -> _Bounded | None:
        """Bound a box like ``_bounded``, in its own units and from the last round's prices."""
        matcher = _Matcher(self._graph, box, self._limits, prices)
        found = matcher.rematching.first
        if found.status == "infeasible":
            return None
        bound = self._bound_of(box, found.bound, above)
        if found.status == "unknown":
            self._bound_left = max(self._bound_left, bound)
            return None
        again = matcher.rematching
        return self._kept(box, found.mate, bound, again.start, again.prices, matcher)

    def _bounded(self, box: Box, parent: _Bounded) -> _Bounded | None:
        """Bound a part of a box, and keep its matching if it is a plan.

        Only the part of it in which plans may be better than the best one is bounded; None if there
        is none, or no matching.
        """
        matcher = parent.matcher
        left = self._left(box, parent)
        if left is None:
            return None
        box = left
        if parent.start is None or not matcher.turn_to(box):
            return self._bounded_cold(box, parent.bound)
        try:
            found = matcher.rematching.solve(parent.start)
        except OutOfTimeError:
            self._bound_left = max(self._bound_left, parent.bound)
            return None
        if found is None:
            return None
        bound = self._bound_of(box, found.bound, parent.bound)
        return self._kept(box, found.mate, bound, found.start, found.prices, matcher)

    def _bound_of(self, box: Box, of_matchings: float, above: float) -> float:
        """Return the bound on the plans of a box, at most that of its parent."""
        return min(above, self._whole_units(of_matchings + self._graph.constant(box)))

    def _kept(
        self,
        box: Box,
        mate: Ints,
        bound: float,
        start: PriceStart | None,
        prices: Prices | None,
        matcher: _Matcher,
    ) -> _Bounded:
        """Return a bounded box; its matching is kept if it is the best plan so far."""
        self._boxes += 1
        seats = self._graph.seats(mate, box)
        self._keep(seats)
        priced = None if prices is None else _KindPrices.of(self._graph, box, prices)
        return _Bounded((-bound, self._boxes), box, seats, start, priced, matcher)

    def _left(self, box: Box, parent: _Bounded) -> Box | None:
        """Return the part of a box in which plans may be better than the best one."""
        if parent.prices is None:
            return box
        run = parent.matcher.rematching.run
        return self._narrowing.narrowed(box, parent.prices, self._value, run)

    def _narrowed(self, found: _Bounded) -> _Bounded | None:
        """Return a box without what cannot be better than the best plan; None if that is all."""
        for _ in range(_NARROWINGS):
            left = self._left(found.box, found)
            if left is None:
                return None
            if not _is_outside(found.seats, found.box, left, self._graph.workers):
                return replace(found, box=left)
            again = self._bounded(left, found)
            if again is None or self._closed(again.bound):
                return None
            found = again
        return found

    def _forget(self, root: _Bounded) -> None:
        """Take from the graph what no plan takes that is better than the best one."""
        left = self._left(root.box, root)
        if left is not None and root.prices is not None:
            self._narrowing.forget(left, root.prices, self._value)

    def _whole_units(self, bound: float) -> float:
        """Return the largest value that a plan can have under a bound."""
        if not self._unit:
            return bound
        return math.floor(bound / self._unit + _ROUNDING * max(1.0, abs(bound))) * self._unit

    def _keep(self, seats: Seats) -> None:
        """Keep a matching that is a plan, if it is the best so far."""
        in_part = (seats.placed > 0) & (seats.placed < self._graph.workers)
        if (in_part | (self._gang & seats.mixed)).any():
            return
        value = self._graph.value(seats)
        if value > self._value:
            self._counts, self._value = self._graph.counts(seats), value

    def _dive(self, start: _Bounded) -> None:
        """Fix all gangs as in a matching, repeatedly while plans get better."""
        best = start
        for _ in range(_DIVE_STEPS):
            before = self._value
            if self._limits.passed:
                return
            found = self._bounded(self._settled(best), best)
            if found is None or self._value <= before:
                return
            best = found

    def _plunge(self, root: _Bounded) -> None:
        """Settle one gang after the other as its boxes lose least, and dive from each box."""
        found: _Bounded | None = root
        while found is not None and not self._limits.passed:
            self._dive(found)
            narrower = self._narrowed(found)
            splits = [] if narrower is None else self._splits(narrower)
            if narrower is None or not splits:
                return
            children = self._tried(narrower, splits[0]).children
            open_ = [child for child in children if not self._near(child.bound)]
            found = max(open_, key=lambda child: child.bound, default=None)

    def _settled(self, found: _Bounded) -> Box:
        """Return the box of the plans in which all gangs are as in a matching."""
        box, seats, gang = found.box, found.seats, self._gang
        placed = gang & ((2 * seats.placed >= self._graph.workers) | box.required)
        pace = np.where(placed & (seats.placed > 0), seats.least, np.inf)
        return replace(
            box,
            floor=np.where(pace < np.inf, np.minimum(pace, box.cap), box.floor),
            cap=np.minimum(box.cap, pace),
            variant=np.where(placed, np.maximum(box.variant, seats.variant), box.variant),
            required=box.required | placed,
            excluded=box.excluded | (gang & ~placed),
        )

    def _children(self, parent: _Bounded) -> Sequence[_Bounded]:
        """Split a box by the most promising split; return the remaining boxes."""
        narrower = self._narrowed(parent)
        if narrower is None:
            return []
        parent = narrower
        splits = self._splits(parent)
        if not splits:  # the matching is a plan; time or rounding kept it from being proven best
            self._bound_left = max(self._bound_left, parent.bound)
            return []
        known = [s for s in splits if s.name in self._losses]
        unknown = [s for s in splits if s.name not in self._losses]
        options = [self._tried(parent, split) for split in unknown[:_TRIED]]
        best = max(known, key=self._expected, default=None)
        if best is not None and all(self._expected(best) > option.score for option in options):
            options.append(self._tried(parent, best))
        return max(options, key=lambda option: option.score).children

    def _tried(self, parent: _Bounded, split: _Split) -> _Tried:
        """Bound the boxes of a split and remember their losses."""
        found = [self._bounded(box, parent) for box in split.boxes]
        bounds = [self._value if child is None else child.bound for child in found]
        losses = parent.bound - np.maximum(bounds, self._value)
        before = self._losses.get(split.name, _Losses(np.zeros(len(losses)), 0))
        self._losses[split.name] = _Losses(before.total + losses, before.times + 1)
        return _Tried(_score(losses), [child for child in found if child is not None])

    def _expected(self, split: _Split) -> float:
        losses = self._losses[split.name]
        return _score(losses.total / losses.times)

    def _splits(self, found: _Bounded) -> Sequence[_Split]:
        """Return the splits of a box, by gangs that count for more than they can be worth."""
        box, seats = found.box, found.seats
        placed = seats.placed / self._graph.workers
        whole = self._gang & (placed == 1)
        in_part = self._gang & (placed > 0) & (placed < 1)
        least = np.minimum(np.where(seats.placed > 0, seats.least, 0.0), box.cap)
        excess = np.where(whole, seats.mean - least, 0.0)
        at_full = seats.mean / np.maximum(placed, _ROUNDING)
        worth_of_part = np.minimum(placed, 1 - placed) * np.abs(at_full)
        excess[in_part] = _IN_PART * worth_of_part[in_part]
        order = np.argsort(-excess, kind="stable").tolist()
        # A gang without worth may still be placed in part because its partners gain.
        is_wrong = in_part | (excess > _ROUNDING * np.abs(at_full))
        wrong = [job for job in order if is_wrong[job]]
        middle = (seats.mean + least) / 2
        return [
            *(self._by_place(box, j) if in_part[j] else self._by_worth(box, j, middle[j])
              for j in wrong),
            *(self._by_variant(box, j) for j in np.flatnonzero(self._gang & seats.mixed).tolist()),
        ]  # fmt: skip

    def _by_place(self, box: Box, job: int) -> _Split:
        return _Split(job, "place", [self._left_out(box, job), self._placed(box, job)])

    def _by_worth(self, box: Box, job: int, between: float) -> _Split:
        """Split a box: a gang worth at least a threshold, or less, or (if allowed) left out."""
        worths = self._graph.worths(job)
        at = int(np.searchsorted(worths, between))
        placed = self._placed(box, job)
        boxes = [placed.settled(job, floor=worths[at]), placed.settled(job, cap=worths[at - 1])]
        if box.required[job]:
            return _Split(job, "worth", boxes)
        return _Split(job, "place and worth", [self._left_out(box, job), *boxes])

    def _left_out(self, box: Box, job: int) -> Box:
        return box.settled(self._graph.dominated(job), excluded=True)

    def _placed(self, box: Box, job: int) -> Box:
        return box.settled(self._graph.dominating(job), required=True)

    def _by_variant(self, box: Box, job: int) -> _Split:
        variants = self._graph.variants(job).tolist()
        return _Split(job, "sub-batch", [box.settled(job, variant=k) for k in variants])


def _score(losses: Floats) -> float:
    """Return the score of a split: its bound is the bound of the box that loses least."""
    least, second = np.sort(losses)[:2]
    return float((1 - _SECOND) * least + _SECOND * second)


def _is_outside(seats: Seats, box: Box, narrower: Box, workers: Ints) -> bool:
    """Return whether a matching of a box breaks the bounds of a narrower one."""
    changed: Bools = narrower.differs(box)
    breaks = (seats.placed > 0) & (narrower.excluded | (seats.least < narrower.floor))
    breaks |= narrower.required & (seats.placed < workers)
    breaks |= (seats.placed > 0) & (np.minimum(seats.mean, box.cap) > narrower.cap)
    return bool((changed & breaks).any())
