"""Gangs that start beside several running jobs at once, on idle GPUs too if that helps.

A gang runs at the pace of its slowest worker, so one bad co-runner costs what all cost: what
matters is the largest slowdown that is accepted. For a few such limits the hosts within it are
taken in the order of what they cost for each GPU that they give, until the gang has its GPUs;
the best of these starts becomes one option of the round. The round is then optimal for the
options it has; another choice of hosts might still be better.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.policies.dovetail_market import Market
from dovetail.solver.policies.dovetail_outlook import Kind
from dovetail.solver.policies.dovetail_round import Option
from dovetail.solver.policies.dovetail_sites import Site
from dovetail.solver.policies.dovetail_ways import Seat
from dovetail.solver.policies.state import Job

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LIMITS = 8
"""How many limits on the slowdown are tried for a gang."""

_GANGS = 16
"""How many gangs are looked at in a round: the first of the queue."""


class Spread(NamedTuple):
    """A gang on GPUs of several running jobs, and perhaps on idle ones.

    ``parts`` says where, in which seat, and on how many GPUs.
    """

    job: Job
    parts: tuple[tuple[Site | Kind, Seat, int], ...]


@dataclass(frozen=True, eq=False)
class _Hosts:
    """Where jobs of one workload may get GPUs of one model in one mode, m places.

    Attributes
    ----------
    where : list of (Site or Kind, Seat)
        The places and the seat there. Idle GPUs stand as a host that has ended already.
    mine, mine_upper, mine_tail : (m,) float
        Slowdown of the newcomer there and its bounds, as a batch job and as a latency-critical one.
    theirs, theirs_upper, now : (m,) float
        Slowdown of the host while they share, its bound, and its present slowdown.
    left_s, weight, workers, room, gsla : (m,) float
        Of the host: seconds it needs alone, weight, GPUs it holds, GPUs it can share, gSLA.
    """

    where: list[tuple[Site | Kind, Seat]]
    mine: Floats
    mine_upper: Floats
    mine_tail: Floats
    theirs: Floats
    theirs_upper: Floats
    now: Floats
    left_s: Floats
    weight: Floats
    workers: Floats
    room: Floats
    gsla: Floats

    def only(self, chosen: Ints) -> _Hosts:
        """Return some of the places, in the order given."""
        arrays = [getattr(self, name)[chosen] for name in _ARRAYS]
        return _Hosts([self.where[k] for k in chosen.tolist()], *arrays)

    def end_s(self, gang_s: Floats | float) -> Floats:
        """Return when the hosts end if a gang is beside them until ``gang_s``."""
        done = gang_s / self.theirs
        return np.where(
            done >= self.left_s,
            self.left_s * self.theirs,
            gang_s + (self.left_s - done) * self.now,
        )


_ARRAYS = tuple(_Hosts.__annotations__)[1:]


def spreads(market: Market) -> Iterator[Option]:
    """Return for each gang the best start found beside several running jobs."""
    if market.state.machines.rules.gang_sharing == "whole" or not market.sites:
        return
    models = tuple(dict.fromkeys(site.kind.model for site in market.sites))
    known: dict[tuple[int, int, int], _Hosts | None] = {}
    gangs = [j for j, job in enumerate(market.jobs) if job.workers > 1]
    for j in gangs[:_GANGS]:
        workload = market.jobs[j].workload
        found: list[Option] = []
        for model in models:
            for mode in range(len(market.state.modes[workload])):
                key = workload, model, mode
                if key not in known:
                    known[key] = _hosts(market, *key)
                found += _best(market, j, known[key])
        if found:
            yield max(found, key=lambda option: option.gain)


def _hosts(market: Market, workload: int, model: int, mode: int) -> _Hosts | None:
    rows = [*_running(market, workload, model, mode), *_idle(market, workload, model, mode)]
    if not rows:
        return None
    return _Hosts([where for where, _ in rows], *np.array([row for _, row in rows]).T)


_Row = tuple[tuple[Site | Kind, Seat], tuple[float, ...]]


def _running(market: Market, workload: int, model: int, mode: int) -> Iterator[_Row]:
    hosts = market.hosts
    joined: set[int] = set()
    for s, site in enumerate(market.sites):
        found = site.ways.in_mode(workload, mode) if site.kind.model == model else None
        if found is None or site.job.number in joined:
            continue
        joined.add(site.job.number)
        way, seat = found
        now = float(hosts.slowdown[s])
        bound = way.theirs_tail if hosts.latency[s] else way.theirs_upper
        if hosts.partly[s]:
            theirs, bound = max(now, way.theirs), max(now, bound)
        else:
            theirs = way.theirs * max(1.0, now / way.theirs_after)
        of_host = (hosts.left_s, hosts.weight, hosts.workers, hosts.room, hosts.gsla)
        of_newcomer = (way.mine, way.mine_upper, way.mine_tail)
        numbers = (*of_newcomer, theirs, bound, now, *(x[s] for x in of_host))
        yield (site, seat), numbers


def _idle(market: Market, workload: int, model: int, mode: int) -> Iterator[_Row]:
    """Yield the largest kind of idle GPUs of a model that holds the workload."""
    how = market.state.modes[workload][mode]
    kinds = [
        kind
        for kind in market.idle
        if kind.model == model and math.isinf(kind.until_s) and how.memory_mib <= kind.memory_mib
    ]
    if kinds:
        kind = max(kinds, key=lambda kind: len(market.idle[kind]))
        room = len(market.idle[kind])
        of_newcomer = (how.stretch,) * 3
        numbers = (*of_newcomer, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, room, math.inf)
        yield (kind, Seat(None, mode)), numbers


def _best(market: Market, j: int, hosts: _Hosts | None) -> Iterator[Option]:
    """Yield the start within the best of the limits, if it gains something."""
    if hosts is None:
        return
    bound = hosts.mine_tail if market.latency[j] else hosts.mine_upper
    fits = (bound <= market.gsla[j]) & (hosts.theirs_upper <= hosts.gsla)
    if hosts.room[fits].sum() < market.jobs[j].workers:
        return
    hosts = hosts.only(np.flatnonzero(fits))
    seconds = market.seconds(j, hosts.where[0][0])
    chosen, count = _cheapest(market, hosts, market.jobs[j], seconds)
    if len(chosen) < 2:
        return
    taken = hosts.only(chosen)
    latest = float(taken.mine.max()) * seconds
    cost, late = _costs(market, taken, latest, count)
    gain = market.waiting[j] - market.weight[j] * _end(taken, latest, seconds) - cost.sum()
    if gain > 0 and not late.any():
        yield _option(market.jobs[j], float(gain), taken, count)


def _cheapest(market: Market, hosts: _Hosts, job: Job, seconds: float) -> tuple[Ints, Ints]:
    """Return the hosts within the best limit on the slowdown, and how many GPUs of each."""
    limits = np.unique(hosts.mine)
    if len(limits) > _LIMITS:
        limits = limits[np.linspace(0, len(limits) - 1, _LIMITS).round().astype(int)]
    workers, weight = job.workers, job.weight
    most = np.minimum(hosts.room, workers)
    cost, late = _costs(market, hosts, limits[:, None] * seconds, most)
    each = np.where((hosts.mine <= limits[:, None]) & ~late, cost / most, np.inf)
    order = np.argsort(each, axis=1, kind="stable")
    room = np.where(np.isfinite(each), most, 0.0)
    before = np.cumsum(np.take_along_axis(room, order, axis=1), axis=1)
    before -= np.take_along_axis(room, order, axis=1)
    count = np.clip(workers - before, 0.0, np.take_along_axis(room, order, axis=1))
    price = np.nan_to_num(np.take_along_axis(each, order, axis=1), posinf=0.0)
    total = (count * price).sum(axis=1) + weight * limits * seconds
    total[count.sum(axis=1) < workers] = np.inf
    best = int(total.argmin())
    if math.isinf(total[best]):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    used = count[best] > 0
    return order[best][used], count[best][used].astype(np.int64)


def _costs(
    market: Market, hosts: _Hosts, gang_s: Floats | float, count: Floats | Ints
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return what each host costs if a gang is there until ``gang_s``, and whether that is late.

    Its own delay, its GPUs for as long, and those it gives for as long as the gang outlasts it.
    """
    until = market.prices.until
    ends = hosts.end_s(gang_s)
    alone = hosts.left_s * hosts.now
    longer = np.maximum(ends, gang_s)
    cost = hosts.weight * (ends - alone) + hosts.workers * (until(ends) - until(alone))
    held = np.where(hosts.workers > 0, until(longer) - until(ends), market.from_idle(longer))
    return cost + count * held, longer > market.last_s


def _end(hosts: _Hosts, latest: float, seconds: float) -> float:
    """Return when a gang ends: as its hosts end, its slowest worker gets faster."""
    ends = np.where(hosts.workers > 0, hosts.end_s(latest), np.inf)
    order = np.argsort(ends, kind="stable")
    paces = np.maximum.accumulate(hosts.mine[order][::-1])[::-1]
    at = done = 0.0
    for pace, end in zip(paces.tolist(), ends[order].tolist(), strict=True):
        if done + (end - at) / pace >= seconds:
            return float(at + (seconds - done) * pace)
        done += (end - at) / pace
        at = end
    return float(at + seconds - done)


def _option(job: Job, gain: float, hosts: _Hosts, count: Ints) -> Option:
    parts = tuple((*where, n) for where, n in zip(hosts.where, count.tolist(), strict=True))
    numbers = tuple(place.job.number for place, _, _ in parts if isinstance(place, Site))
    kinds = [(place, n) for place, _, n in parts if isinstance(place, Kind)]
    kind, gpus = kinds[0] if kinds else (None, 0)
    return Option(gain, (job.number,), numbers, kind, gpus, job.workers, Spread(job, parts))
