"""What every start that is possible now is worth, in seconds of completion time.

A job that waits is believed to start when the queue's layout says, alone. Starting it in some
way now is worth what that costs, less what the way costs: the weighted completion of the job,
the delay of those it joins, and the seconds for which GPUs are held, at their price
(``dovetail_prices``). Completions of two jobs that share follow both phases: until the first of
them ends, and after it (Castor, 2025, equations 16 to 19).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.prices import Asks, Prices, layout
from dovetail.solver.policies.dovetail_outlook import (
    Kind,
    busy_seconds,
    idle_by_kind,
    queue_of,
    solo_seconds,
)
from dovetail.solver.policies.dovetail_sites import GSLA_SLACK, Hosts, Site, sites_of
from dovetail.solver.policies.dovetail_ways import Seat, WayBook, Ways
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.state import Job

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FAR_S = 3600.0
"""How far off the next chance of a job is taken to be where no running job's end brings one."""


class Market:
    """The jobs that wait, the places there are, and what each is worth to each.

    Parameters
    ----------
    draft : Draft
        The pool and what is decided already.
    book : WayBook
        How workloads may share.
    ends : mapping
        When running jobs are believed to end, by number.
    reserved : mapping
        GPUs kept for others, and until when.
    gpu_price : float
        Seconds of completion that a second of a GPU is worth at least.
    window : int
        How many more of the waiting jobs take part in the round than there are idle GPUs: the
        first of the queue.

    Attributes
    ----------
    jobs : list of Job
        The n waiting jobs that take part, in the order in which they are believed to start.
    rest : list of Job
        The other waiting jobs.
    idle : dict of Kind to list of int
        Idle GPUs of each kind.
    sites : list of Site
        Where jobs may join running ones.
    """

    def __init__(
        self,
        draft: Draft,
        book: WayBook,
        ends: Mapping[int, float],
        reserved: Mapping[int, float],
        gpu_price: float,
        window: int,
    ) -> None:
        self._draft = draft
        self.state = state = draft.state
        self.gpu_price = gpu_price
        self._book = book
        self.idle = idle_by_kind(draft, reserved)
        self._busy_s = busy_seconds(draft, ends)
        window += sum(map(len, self.idle.values()))
        queue, work = queue_of(draft)
        self.jobs = queue[:window]
        self.rest = queue[window:]
        count = len(self.jobs)
        seconds = solo_seconds(state, queue, work)
        self._lay_out(queue, seconds)
        self.workers = np.array([job.workers for job in self.jobs], dtype=np.int64)
        self._names = [job.workload for job in self.jobs]
        self._workload = np.array(self._names, dtype=np.int64)
        self.weight = np.array([job.weight for job in self.jobs], dtype=np.float64)
        self.gsla = np.array([job.gsla for job in self.jobs]) + GSLA_SLACK
        self.latency = np.array([job.latency for job in self.jobs], dtype=bool)
        self._work = work[:count]
        self.waiting = self._cost(self._start_s + seconds[:count], self._start_s)
        self.sites = sites_of(state, book, reserved) if self.jobs else []

    def _lay_out(self, queue: Sequence[Job], seconds: Floats) -> None:
        workers = [job.workers for job in queue]
        asks = Asks(workers, seconds, [job.weight for job in queue])
        idle = sum(map(len, self.idle.values()))
        starts = layout([0.0] * idle + self._busy_s, asks)
        self.prices = Prices(starts, asks, self.gpu_price)
        last = max([float((starts + seconds).max(initial=0.0)), *self._busy_s[-1:]])
        self.last_s = last * (1 + GSLA_SLACK) if self.gpu_price == 0 else math.inf
        self._claimed_s = float(starts[starts > 0].min(initial=math.inf))
        starts = starts[: len(self.jobs)]
        self.starts_now = starts <= 0
        taken = zip(workers[: len(starts)], seconds.tolist(), strict=False)
        chance = [self._next_chance(count, needs) for count, needs in taken]
        self._start_s = np.where(self.starts_now, chance, starts)

    def _next_chance(self, workers: int, seconds: float) -> float:
        """Return when enough GPUs become idle for a job that lets those pass that are idle."""
        if workers <= len(self._busy_s):
            return max(1.0, self._busy_s[workers - 1])
        return _FAR_S + seconds

    @property
    def nobody_waits(self) -> bool:
        """Whether idle GPUs suffice for all and a GPU costs nothing."""
        return self.gpu_price == 0 and not self.rest and bool(self.starts_now.all())

    @property
    def most_starts(self) -> int:
        """The most jobs that can start in a round."""
        return len(self.sites) + 2 * sum(map(len, self.idle.values()))

    @cached_property
    def hosts(self) -> Hosts:
        """The running jobs of the sites."""
        return Hosts.of(self.state, self.sites)

    def seconds(self, job: int, place: Site | Kind) -> float:
        """Return the seconds that a job needs alone on GPUs of a place."""
        kind = place if isinstance(place, Kind) else place.kind
        return float(self._work[job] / self.state.speed[kind.model][self._names[job]])

    def pair_seats(self, kind: Kind, other: int, job: int, way: int) -> tuple[Seat, Seat]:
        """Return the seats of newcomer and other in one of the ways of ``pairs``."""
        return self._beside(kind, self._names[other]).seats[self._names[job]][way]

    def _beside(self, kind: Kind, other: int) -> Ways:
        """Return how every workload may start together with another on idle GPUs."""
        book = self._book
        return book.beside(kind.model, kind.memory_mib, other, book.seats_of(other))

    def from_idle(self, end: Floats) -> Floats:
        """Return the price of an idle GPU until ``end``.

        Those who could use it now compete for it in this round. Others pay for it only from when
        the next of them would start.
        """
        before = np.minimum(end, self._claimed_s)
        later = self.prices.until(end) - self.prices.until(before)
        return np.asarray(later + self.gpu_price * before)

    def _cost(self, end: Floats, start: Floats) -> Floats:
        """Return what jobs cost that hold their GPUs from ``start`` to ``end``."""
        held = self.prices.until(end) - self.prices.until(start)
        return np.asarray(self.weight * end + self.workers * held)

    def alone(self, kind: Kind) -> Floats:
        """Return the (n,) gains of starting alone on idle GPUs of a kind; NaN = cannot."""
        state = self.state
        seconds = self._work / np.array(state.speed[kind.model])[self._workload]
        gain = self.waiting - self.weight * seconds - self.workers * self.from_idle(seconds)
        need = np.array([modes[0].memory_mib for modes in state.modes])[self._workload]
        refused = (need > kind.memory_mib) | (self.workers > len(self.idle[kind]))
        gain[refused | (seconds > kind.until_s - state.now)] = np.nan
        return np.asarray(gain)

    def pairs(self, kind: Kind) -> tuple[Floats, Ints]:
        """Return the (n, n) gains of two that start together on idle GPUs, and in which way.

        Row and column: the other and the newcomer of the way. NaN = they may not.
        """
        ways = {o: self._beside(kind, o) for o in set(self._names)}
        cost = _stacked([ways[o] for o in self._names], self._workload)
        mine, mine_upper, mine_tail, mine_after, theirs, theirs_upper, theirs_tail, theirs_after = (
            cost
        )
        seconds = self._work / np.array(self.state.speed[kind.model])[self._workload]
        own, other = _newcomers, _others
        mine_s, theirs_s = _ends(
            (mine, mine_after, own(seconds)), (theirs, theirs_after, other(seconds))
        )
        total = own(self.weight) * mine_s + other(self.weight) * theirs_s
        total += own(self.workers) * self.from_idle(np.maximum(mine_s, theirs_s))
        gain = own(self.waiting) + other(self.waiting) - total
        late = self.latency
        refused = np.where(own(late), mine_tail, mine_upper) > own(self.gsla)
        refused |= np.where(other(late), theirs_tail, theirs_upper) > other(self.gsla)
        refused |= (own(self.workers) != other(self.workers)) | (
            own(self.workers) > len(self.idle[kind])
        )
        refused |= np.maximum(mine_s, theirs_s) > min(kind.until_s - self.state.now, self.last_s)
        gain[refused | np.eye(len(self.jobs), dtype=bool)[:, :, None]] = np.nan
        return _best_way(gain)

    def joins(self) -> tuple[Floats, Ints]:
        """Return the (sites, n) gains of joining a site with all workers, and in which way."""
        if not self.sites:
            none = np.zeros((0, len(self.jobs)))
            return none, none.astype(np.int64)
        cost = _stacked([site.ways for site in self.sites], self._workload)
        mine, mine_upper, mine_tail, mine_after, theirs, theirs_upper, theirs_tail, theirs_after = (
            cost
        )
        speed = np.array([self.state.speed[site.kind[0]] for site in self.sites])
        seconds = (self._work / speed[:, self._workload])[:, :, None]
        hosts = self.hosts
        own, other = _newcomers, _others
        now, partly = other(hosts.slowdown), other(hosts.partly)
        together = np.where(
            partly, np.maximum(now, theirs), theirs * np.maximum(1.0, now / theirs_after)
        )
        mine_s, theirs_s = _ends((mine, mine_after, seconds), (together, now, other(hosts.left_s)))
        until, alone_s = self.prices.until, other(hosts.left_s) * now
        total = own(self.weight) * mine_s + other(hosts.weight) * (theirs_s - alone_s)
        total += other(hosts.workers) * (until(theirs_s) - until(alone_s))
        total += own(self.workers) * (until(np.maximum(mine_s, theirs_s)) - until(theirs_s))
        gain = own(self.waiting) - total
        refused = np.where(own(self.latency), mine_tail, mine_upper) > own(self.gsla)
        refused |= own(self.workers) > other(hosts.room)
        bound = np.where(other(hosts.latency), theirs_tail, theirs_upper)
        refused |= np.maximum(bound, np.where(partly, now, 0.0)) > other(hosts.gsla)
        refused |= np.maximum(mine_s, theirs_s) > self.last_s
        if self.state.machines.rules.gang_sharing == "whole":
            refused |= own(self.workers) != other(hosts.room)
            refused |= other(hosts.workers) != other(hosts.room)
        gain[refused] = np.nan
        return _best_way(gain)


def _newcomers(of_job: Floats | Ints) -> Floats:
    """Shape (n,) numbers of newcomers for arrays of (others, newcomers, ways)."""
    return np.asarray(of_job, dtype=np.float64)[None, :, None]


def _others(of_job: Floats | Ints) -> Floats:
    return np.asarray(of_job, dtype=np.float64)[:, None, None]


def _stacked(ways: Sequence[Ways], workload: Ints) -> Floats:
    """Return the (8, others, newcomers, K) costs, padded with NaN to equally many ways."""
    most = max(way.cost.shape[2] for way in ways)
    stacked = np.full((len(ways), 8, len(workload), most), np.nan)
    for k, way in enumerate(ways):
        stacked[k, :, :, : way.cost.shape[2]] = way.cost[:, workload]
    return np.moveaxis(stacked, 1, 0)


_Phases = tuple[Floats, Floats, Floats]
"""Slowdown while both run, slowdown afterwards, seconds needed alone."""


def _ends(mine: _Phases, theirs: _Phases) -> tuple[Floats, Floats]:
    """Return when each of two ends that share from now until the first of them ends."""
    first, second = mine[0] * mine[2], theirs[0] * theirs[2]
    mine_left = np.maximum(0.0, mine[2] - second / mine[0])
    theirs_left = np.maximum(0.0, theirs[2] - first / theirs[0])
    return (
        np.where(first <= second, first, second + mine_left * mine[1]),
        np.where(second <= first, second, first + theirs_left * theirs[1]),
    )


def _best_way(gain: Floats) -> tuple[Floats, Ints]:
    """Return the best of the ways, the last axis, and which it is."""
    way = np.where(np.isnan(gain), -np.inf, gain).argmax(axis=2)
    return np.take_along_axis(gain, way[:, :, None], axis=2)[:, :, 0], way
