"""Gangs that start beside several running jobs at once, on idle GPUs too if that helps.

A gang runs at the pace of its slowest worker, so one bad co-runner costs what all cost: what
matters is the largest slowdown that is accepted. For a few such limits the hosts within it are
taken in the order of what they cost for each GPU that they give, until the gang has its GPUs;
the best of these starts becomes one option of the round. The round is then optimal for the
options it has; another choice of hosts might still be better.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.policies.dovetail_market import Hosts, Market, Site
from dovetail.solver.policies.dovetail_outlook import Kind
from dovetail.solver.policies.dovetail_round import Option
from dovetail.solver.policies.dovetail_ways import Seat
from dovetail.solver.policies.state import Job

Floats = NDArray[np.float64]

_LIMITS = 8
"""How many limits on the slowdown are tried for a gang."""


class Spread(NamedTuple):
    """A gang on GPUs of several running jobs, and perhaps on idle ones.

    ``parts`` says where, in which seat, and on how many GPUs.
    """

    job: Job
    parts: tuple[tuple[Site | Kind, Seat, int], ...]


class _Offers(NamedTuple):
    """What m hosts, running jobs or a kind of idle GPUs, offer to a gang.

    ``mine`` and ``theirs``: slowdown of the gang and of the host while they share, ``now`` that
    of the host as it is; ``left_s``: seconds the host needs alone, ``room``: GPUs. An idle kind
    is a host that needs no more and weighs nothing.
    """

    where: list[tuple[Site | Kind, Seat]]
    mine: Floats
    theirs: Floats
    now: Floats
    left_s: Floats
    weight: Floats
    workers: Floats
    room: Floats


def spreads(market: Market) -> Iterator[Option]:
    """Return for each gang the best start found beside several running jobs."""
    rules = market.state.machines.rules
    if rules.gang_sharing == "whole" or len(market.sites) < 1:
        return
    for j, job in enumerate(market.jobs):
        if job.workers == 1:
            continue
        found = [
            option
            for model in dict.fromkeys(site.kind.model for site in market.sites)
            for mode in range(len(market.state.modes[job.workload]))
            for option in _best(market, j, _offers(market, j, model, mode))
        ]
        if found:
            yield max(found, key=lambda option: option.gain)


def _offers(market: Market, j: int, model: int, mode: int) -> _Offers | None:
    """Return the hosts of one model that the gang may join in a mode within all gSLAs."""
    job, state = market.jobs[j], market.state
    hosts, gsla = market.hosts, market.gsla[j]
    rows: list[tuple[float, ...]] = []
    where: list[tuple[Site | Kind, Seat]] = []
    joined: set[int] = set()
    for s, site in enumerate(market.sites):
        if site.kind.model != model or site.job.number in joined:
            continue
        found = site.ways.in_mode(job.workload, mode)
        if found is None:
            continue
        way, seat = found
        now, partly = hosts.slowdown[s], hosts.partly[s]
        if way.mine_upper > gsla or max(way.theirs_upper, now if partly else 0) > hosts.gsla[s]:
            continue
        joined.add(site.job.number)
        theirs = max(now, way.theirs) if partly else way.theirs * max(1, now / way.theirs_after)
        where.append((site, seat))
        rows.append((way.mine, theirs, now, *_load(hosts, s)))
    stretch, memory = state.modes[job.workload][mode].stretch, state.modes[job.workload][mode]
    for kind, gpus in market.idle.items():
        if (
            kind.model == model
            and math.isinf(kind.until_s)
            and memory.memory_mib <= kind.memory_mib
        ):
            where.append((kind, Seat(None, mode)))
            rows.append((stretch, 1.0, 1.0, 0.0, 0.0, 0.0, len(gpus)))
            break
    if not rows:
        return None
    return _Offers(where, *np.array(rows, dtype=np.float64).T)


def _load(hosts: Hosts, s: int) -> tuple[float, float, float, float]:
    return hosts.left_s[s], hosts.weight[s], hosts.workers[s], hosts.room[s]


def _best(market: Market, j: int, offers: _Offers | None) -> Iterator[Option]:
    """Yield the best start at any of the limits, if it gains something."""
    if offers is None or offers.room.sum() < market.jobs[j].workers:
        return
    limits = np.unique(offers.mine)
    if len(limits) > _LIMITS:
        limits = limits[np.linspace(0, len(limits) - 1, _LIMITS).round().astype(int)]
    found = [_within(market, j, offers, limit) for limit in limits.tolist()]
    gain, taken = max(found, key=lambda one: one[0])
    if gain > 0 and len(taken) > 1:
        yield _option(market.jobs[j], gain, offers, taken)


def _within(
    market: Market, j: int, offers: _Offers, limit: float
) -> tuple[float, list[tuple[int, int]]]:
    """Return the gain of the cheapest hosts within a limit, and these with their GPUs."""
    workers = market.jobs[j].workers
    seconds = market.seconds(j, offers.where[0][0])
    cost, late = _costs(market, offers, limit * seconds, workers)
    usable = (offers.mine <= limit) & ~late
    each = np.where(usable, cost / np.minimum(offers.room, workers), np.inf)
    taken: list[tuple[int, int]] = []
    missing = workers
    for k in np.argsort(each, kind="stable").tolist():
        if not usable[k] or missing == 0:
            break
        count = min(int(offers.room[k]), missing)
        taken.append((k, count))
        missing -= count
    if missing:
        return -math.inf, []
    chosen = [k for k, _ in taken]
    pace = float(offers.mine[chosen].max())
    cost, late = _costs(market, offers, pace * seconds, np.array([c for _, c in taken]), chosen)
    end = _end(offers, chosen, pace * seconds, seconds)
    gain = market.waiting[j] - market.weight[j] * end - float(cost.sum())
    return float(gain), taken


def _costs(
    market: Market,
    offers: _Offers,
    end_s: float,
    most: int | NDArray[np.int64],
    which: Sequence[int] | slice = slice(None),
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return what each host costs if the gang is there until ``end_s``, and who ends too late.

    Its own delay, its GPUs for as long, and those it gives for as long as the gang outlasts it.
    """
    left, now, theirs = offers.left_s[which], offers.now[which], offers.theirs[which]
    host_end = _host_end(left, now, theirs, end_s)
    alone_s = left * now
    until = market.prices.until
    count = np.minimum(offers.room[which], most)
    cost = offers.weight[which] * (host_end - alone_s)
    cost += offers.workers[which] * (until(host_end) - until(alone_s))
    longer = np.maximum(host_end, end_s)
    idle = left == 0
    held = np.where(idle, market.from_idle(longer), until(longer) - until(host_end))
    return cost + count * held, longer > market.last_s


def _host_end(left: Floats, now: Floats, theirs: Floats, end_s: float) -> Floats:
    """Return when hosts end whose slowdown is ``theirs`` until the gang's end, then ``now``."""
    done = end_s / theirs
    return np.where(done >= left, left * theirs, end_s + (left - done) * now)


def _end(offers: _Offers, chosen: Sequence[int], latest: float, seconds: float) -> float:
    """Return when the gang ends: as hosts end, its slowest worker gets faster."""
    ends = _host_end(offers.left_s, offers.now, offers.theirs, latest)
    idle = offers.left_s == 0
    order = sorted(chosen, key=lambda k: math.inf if idle[k] else ends[k])
    at = 0.0
    done = 0.0
    alone = 1.0
    for place, k in enumerate(order):
        pace = float(max(offers.mine[order[place:]]))
        until = math.inf if idle[k] else float(ends[k])
        if done + (until - at) / pace >= seconds:
            return at + (seconds - done) * pace
        done += (until - at) / pace
        at = until
    return at + (seconds - done) * alone


def _option(job: Job, gain: float, offers: _Offers, taken: Sequence[tuple[int, int]]) -> Option:
    parts = tuple((*offers.where[k], count) for k, count in taken)
    hosts = tuple(place.job.number for place, _, _ in parts if isinstance(place, Site))
    kinds = [(place, count) for place, _, count in parts if isinstance(place, Kind)]
    kind, count = kinds[0] if kinds else (None, 0)
    return Option(gain, (job.number,), hosts, kind, count, job.workers, Spread(job, parts))
