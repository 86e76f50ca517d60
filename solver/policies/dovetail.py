"""Dovetail's own policy: every round's starts chosen together, by what each is worth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.policies.dovetail_market import Kind, Market, Site
from dovetail.solver.policies.dovetail_round import Chosen, Option, RoundSolver
from dovetail.solver.policies.dovetail_ways import WayBook
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus, idle_gpus_of
from dovetail.solver.policies.policy import NOTHING, Decision, RoundProof
from dovetail.solver.policies.state import Job, State

Floats = NDArray[np.float64]


@dataclass
class Dovetail:
    """TODO"""

    gpu_price: float = 0.0
    window: int = 128
    time_limit_s: float = math.inf
    _solver: RoundSolver = field(init=False)
    _book: WayBook | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._solver = RoundSolver(self.time_limit_s)

    def decide(self, state: State) -> Decision:
        """Return the starts whose gains sum to the most."""
        if not state.pending:
            return NOTHING
        if self._book is None:
            self._book = WayBook(state)
        self._book.refresh()
        market = Market(state, self._book, self.gpu_price, self.window)
        options = list(_options(market))
        chosen = self._solver.solve(options, dict(market.idle))
        draft = Draft(state)
        for option in chosen.options:
            option.detail(draft)
        if not state.running and not chosen.options:
            _start_first(draft, market)
        return draft.decision(proof=_proof(chosen, market))


def _proof(chosen: Chosen, market: Market) -> RoundProof:
    largest = max(abs(chosen.bound), abs(chosen.value))
    gap = (chosen.bound - chosen.value) / largest if largest else 0.0
    return RoundProof(chosen.value, chosen.bound, gap, len(market.jobs) + len(market.rest))


def _start_first(draft: Draft, market: Market) -> None:
    for job in market.jobs:
        gpus = idle_gpus(draft, job)
        if gpus is not None:
            draft.start(job, gpus)
            return


def _options(market: Market) -> Iterator[Option]:
    for kind, idle in market.idle.items():
        if idle:
            yield from _on_idle(market, kind)
    yield from _beside(market)


def _on_idle(market: Market, kind: Kind) -> Iterator[Option]:
    alone = market.alone(kind)
    for j in np.flatnonzero(alone > 0).tolist():
        job = market.jobs[j]
        yield Option(
            float(alone[j]), (job.number,), (), kind, job.workers, job.workers, _Alone(job, kind)
        )
    if market.nobody_waits:
        return
    gain, way = market.pairs(kind)
    least = np.nan_to_num(np.maximum(alone, 0.0))
    worth = np.triu(gain > np.maximum(least[:, None], least), 1) | np.tril(
        gain > np.maximum(least[:, None], least), -1
    )
    for o, j in zip(*(axis.tolist() for axis in np.nonzero(worth)), strict=True):
        other, job = market.jobs[o], market.jobs[j]
        seats = market.pair_seats(kind, o, j, int(way[o, j]))
        yield Option(
            float(gain[o, j]),
            (other.number, job.number),
            (),
            kind,
            job.workers,
            job.workers,
            _Together(other, job, kind, seats),
        )


def _beside(market: Market) -> Iterator[Option]:
    gain, way = market.joins()
    likely = np.nan_to_num(gain, nan=0.0)
    most = market.most_starts
    if gain.shape[1] > most:
        likely[likely < -np.partition(-likely, most - 1, axis=1)[:, most - 1 : most]] = 0
    if gain.shape[0] > gain.shape[1]:
        n = gain.shape[1]
        likely[likely < -np.partition(-likely, n - 1, axis=0)[n - 1]] = 0
    for s, j in zip(*(axis.tolist() for axis in np.nonzero(likely > 0)), strict=True):
        site, job = market.sites[s], market.jobs[j]
        seat, _ = site.ways.seats[job.workload][int(way[s, j])]
        yield Option(
            float(gain[s, j]),
            (job.number,),
            (site.job.number,),
            None,
            0,
            job.workers,
            _Join(job, site, seat),
        )


@dataclass(frozen=True)
class _Alone:
    job: Job
    kind: Kind

    def __call__(self, draft: Draft) -> None:
        gpus = idle_gpus_of(draft, self.job, self.job.workers, self.kind[0])
        if gpus:
            draft.start(self.job, gpus)


@dataclass(frozen=True)
class _Together:
    other: Job
    job: Job
    kind: Kind
    seats: tuple

    def __call__(self, draft: Draft) -> None:
        mine, theirs = self.seats
        gpus = idle_gpus_of(draft, self.job, self.job.workers, self.kind[0])
        if gpus:
            for job, seat in ((self.other, theirs), (self.job, mine)):
                shares = None if seat.share is None else (seat.share,) * job.workers
                draft.start(job, gpus, shares, seat.mode)


@dataclass(frozen=True)
class _Join:
    job: Job
    site: Site
    seat: object

    def __call__(self, draft: Draft) -> None:
        shares = None if self.seat.share is None else (self.seat.share,) * self.job.workers
        draft.start(self.job, self.site.gpus[: self.job.workers], shares, self.seat.mode)
