"""The ways in which two workloads may share a GPU: shares, sub-batches, and what each costs.

Predictions say how much two workloads slow each other; what was measured on running pairs
overrides them, and pairs that ran out of memory are struck out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.policies.state import Job, State

Floats = NDArray[np.float64]

_SLACK_MIB = 1e-6

_KEPT = 0.9
"""The part of the measured slowdowns that bounds with the margin would have kept."""

_ENOUGH = 10
"""Measured slowdowns from which on they tell the margin."""

_LEAST_EXCESS = 0.02
"""Predicted bounds closer to 1 than this say nothing of a factor."""

_NEWS = 0.05
"""The relative change of the margin for which everything is looked up anew."""


class Seat(NamedTuple):
    """How a job runs on a GPU: its cap there and its mode."""

    share: int | None
    mode: int


class Way(NamedTuple):
    """Two jobs beside each other, each in a seat; all slowdowns contain the sub-batch's.

    Attributes
    ----------
    mine, theirs : float
        Slowdown of the newcomer and of the other while they share.
    mine_upper, theirs_upper : float
        Upper bounds on these, which gSLAs are checked against.
    mine_tail, theirs_tail : float
        What the gSLAs of latency-critical jobs are checked against.
    mine_after, theirs_after : float
        Slowdown of each once the other has ended.
    """

    mine: float
    mine_upper: float
    mine_tail: float
    mine_after: float
    theirs: float
    theirs_upper: float
    theirs_tail: float
    theirs_after: float


@dataclass(frozen=True)
class Ways:
    """The W workloads beside one other workload, each in at most K ways.

    Attributes
    ----------
    cost : (8, W, K) float
        The fields of ``Way``; NaN where a workload has fewer ways.
    seats : list of list of (Seat, Seat)
        For workload and way: the newcomer's seat and the other's.
    """

    cost: Floats
    seats: list[list[tuple[Seat, Seat]]]
    _in_mode: dict[tuple[int, int], tuple[Way, Seat] | None] = field(default_factory=dict)

    def in_mode(self, workload: int, mode: int) -> tuple[Way, Seat] | None:
        """Return the way that slows a workload least in one of its modes, None if there is none."""
        key = workload, mode
        if key not in self._in_mode:
            of_mode = [k for k, (seat, _) in enumerate(self.seats[workload]) if seat.mode == mode]
            best = min(of_mode, key=lambda k: float(self.cost[0, workload, k]), default=None)
            self._in_mode[key] = (
                None
                if best is None
                else (Way(*self.cost[:, workload, best].tolist()), self.seats[workload][best][0])
            )
        return self._in_mode[key]


class WayBook:
    """Looks up how workloads may share, and remembers it until a measurement says otherwise.

    Parameters
    ----------
    state : State
        The pool, whose predictions and measurements are read.
    margin : float
        What the excess over 1 of predicted upper bounds is multiplied by before anything has
        been measured; afterwards the factor that the measured pairs would have needed.
    """

    def __init__(self, state: State, margin: float = 1.0) -> None:
        self._state = state
        self._margin = margin
        self._measured: list[float] = []
        self._kept: dict[tuple[int, float, int, tuple[Seat, ...]], Ways] = {}
        self._read = (0, 0)
        rules = state.machines.rules
        self._shares: tuple[int | None, ...] = (None, *rules.shares)

    def refresh(self) -> None:
        """Forget what measurements since the last call have shown to be otherwise."""
        seen, clashes = self._read
        state = self._state
        self._learn(list(islice(state.seen, seen, None)))
        touched = {pair[2:] for pair in islice(state.seen, seen, None)}
        if len(state.clashes) != clashes:
            touched.update(pair[1:] for pair in state.clashes)
        self._read = len(state.seen), len(state.clashes)
        others = {workload for pair in touched for workload in pair}
        self._kept = {key: ways for key, ways in self._kept.items() if key[2] not in others}

    def _learn(self, pairs: Sequence[tuple[int, int, int, int]]) -> None:
        """Let the margin follow from how far the measured slowdowns are above their bounds."""
        foretold = self._state.foretold or self._state.predicted
        for model, caps, workload, other in pairs:
            excess = foretold.upper_rows[model][caps][workload][other] - 1
            if excess > _LEAST_EXCESS:
                seen = self._state.seen[model, caps, workload, other]
                self._measured.append((seen - 1) / excess)
        if pairs and len(self._measured) >= _ENOUGH:
            margin = max(1.0, float(np.quantile(self._measured, _KEPT)))
            if abs(margin - self._margin) > _NEWS * self._margin:
                self._margin = margin
                self._kept.clear()

    def beside(self, model: int, memory_mib: float, other: int, seats: Sequence[Seat]) -> Ways:
        """Return how every workload may run beside ``other``, which takes one of ``seats``."""
        key = (model, memory_mib, other, tuple(seats))
        if key not in self._kept:
            self._kept[key] = self._ways(*key)
        return self._kept[key]

    def seats_of(self, workload: int) -> list[Seat]:
        """Return every seat that a starting job of a workload can take."""
        return [
            Seat(share, mode)
            for mode, share in product(range(len(self._state.modes[workload])), self._shares)
        ]

    def _ways(self, model: int, memory_mib: float, other: int, seats: tuple[Seat, ...]) -> Ways:
        found = [
            self._least(self._pairings(model, memory_mib, workload, other, seats))
            for workload in range(len(self._state.workloads))
        ]
        most = max(1, *(len(ways) for ways in found))
        cost = np.full((8, len(found), most), np.nan)
        for workload, ways in enumerate(found):
            for k, (way, _, _) in enumerate(ways):
                cost[:, workload, k] = way
        return Ways(cost, [[(mine, theirs) for _, mine, theirs in ways] for ways in found])

    def _pairings(
        self, model: int, memory_mib: float, workload: int, other: int, seats: tuple[Seat, ...]
    ) -> Iterable[tuple[Way, Seat, Seat]]:
        state = self._state
        if (model, workload, other) in state.clashes:
            return
        modes, their_modes = state.modes[workload], state.modes[other]
        for mine, theirs in product(self.seats_of(workload), seats):
            need = modes[mine.mode].memory_mib + their_modes[theirs.mode].memory_mib
            if need > memory_mib + _SLACK_MIB or not self._caps_fit(mine.share, theirs.share):
                continue
            there = self._slowdown(model, (mine.share, theirs.share), workload, other)
            back = self._slowdown(model, (theirs.share, mine.share), other, workload)
            if there is None or back is None:
                continue
            stretch, their_stretch = modes[mine.mode].stretch, their_modes[theirs.mode].stretch
            way = Way(
                there[0] * stretch,
                there[1] * stretch,
                there[2] * stretch,
                self._alone(workload, mine.share) * stretch,
                back[0] * their_stretch,
                back[1] * their_stretch,
                back[2] * their_stretch,
                self._alone(other, theirs.share) * their_stretch,
            )
            yield way, mine, theirs

    def _caps_fit(self, mine: int | None, theirs: int | None) -> bool:
        return (mine or 0) + (theirs or 0) <= self._state.machines.rules.share_sum

    def _slowdown(
        self, model: int, caps: tuple[int | None, int | None], workload: int, other: int
    ) -> tuple[float, float, float] | None:
        """Return slowdown, upper bound and tail; the measured ones if there are any."""
        table = self._state.predicted
        place = table.caps_place.get(caps)
        if place is None:
            return None
        seen = self._state.seen.get((model, place, workload, other))
        p99 = float(table.p99[model, place, workload, other])
        if seen is not None:
            upper = self._state.seen_upper.get((model, place, workload, other), seen)
            return seen, upper, upper if math.isnan(p99) else p99
        slowdown = table.rows[model][place][workload][other]
        if math.isnan(slowdown):
            return None
        upper = table.upper_rows[model][place][workload][other]
        upper = max(slowdown, 1 + max(upper - 1, (upper - 1) * self._margin))
        return slowdown, upper, upper if math.isnan(p99) else p99

    def _alone(self, workload: int, share: int | None) -> float:
        throughput = self._state.workloads[workload].throughput
        if share is None or share not in throughput or 100 not in throughput:
            return 1.0
        return throughput[100] / throughput[share]

    @staticmethod
    def _least(ways: Iterable[tuple[Way, Seat, Seat]]) -> list[tuple[Way, Seat, Seat]]:
        """Leave out every way that another one is nowhere worse than."""
        kept: list[tuple[Way, Seat, Seat]] = []
        for found in sorted(ways, key=lambda way: sum(way[0])):
            if not any(all(x <= y for x, y in zip(k[0], found[0], strict=True)) for k in kept):
                kept.append(found)
        return kept


def seat_on(job: Job, gpu: int) -> Seat:
    """Return the seat of a running job on one of its GPUs."""
    return Seat(job.share_on(gpu), job.mode)
