"""The possible starts of a round as options for its solver, and how they are carried out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.policies.dovetail_market import Market
from dovetail.solver.policies.dovetail_outlook import Kind
from dovetail.solver.policies.dovetail_round import Option
from dovetail.solver.policies.dovetail_sites import Site
from dovetail.solver.policies.dovetail_spread import Spread, spreads
from dovetail.solver.policies.dovetail_ways import Seat
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import fewest_nodes
from dovetail.solver.policies.state import Job

Floats = NDArray[np.float64]

_ALONE = Seat(None, 0)


class OnIdle(NamedTuple):
    """One or two jobs of equal size on idle GPUs of a kind."""

    jobs: tuple[Job, ...]
    seats: tuple[Seat, ...]
    kind: Kind


class Beside(NamedTuple):
    """A job on GPUs of a running one."""

    job: Job
    seat: Seat
    site: Site


def starts(market: Market) -> Iterator[Option]:
    """Return every start that gains something and that another one does not make needless."""
    if not market.jobs:
        return
    for kind in market.idle:
        yield from _on_idle(market, kind)
    wide = list(spreads(market))
    yield from _beside(market, len(market.jobs) + sum(len(start.hosts) - 1 for start in wide))
    yield from wide


def carry_out(detail: OnIdle | Beside | Spread, draft: Draft, market: Market) -> None:
    """Enter a start that was chosen into the decision."""
    if isinstance(detail, Spread):
        _carry_out_spread(detail, draft, market)
        return
    if isinstance(detail, Beside):
        gpus = _together(draft, detail.site.gpus, detail.job.workers)
        _start(draft, detail.job, detail.seat, gpus)
        return
    idle = [gpu for gpu in market.idle[detail.kind] if draft.is_idle(gpu)]
    gpus = _together(draft, idle, detail.jobs[0].workers)
    for job, seat in zip(detail.jobs, detail.seats, strict=True):
        _start(draft, job, seat, gpus)


def _carry_out_spread(detail: Spread, draft: Draft, market: Market) -> None:
    gpus: list[int] = []
    shares: list[int | None] = []
    for place, seat, count in detail.parts:
        held = place.gpus if isinstance(place, Site) else market.idle[place]
        free = [gpu for gpu in held if isinstance(place, Site) or draft.is_idle(gpu)]
        gpus += _together(draft, free, count)
        shares += [seat.share] * count
    capped = any(share is not None for share in shares)
    mode = detail.parts[0][1].mode
    draft.start(detail.job, gpus, tuple(shares) if capped else None, mode)


def _start(draft: Draft, job: Job, seat: Seat, gpus: Sequence[int]) -> None:
    shares = None if seat.share is None else (seat.share,) * job.workers
    draft.start(job, gpus, shares, seat.mode)


def _together(draft: Draft, gpus: Sequence[int], count: int) -> list[int]:
    """Return ``count`` of the GPUs on few nodes and racks, breaking up no node without need."""
    by_node: dict[int, list[int]] = defaultdict(list)
    for gpu in gpus:
        by_node[draft.state.machines.node[gpu]].append(gpu)
    enough = [held for held in by_node.values() if len(held) >= count]
    if enough:
        return min(enough, key=len)[:count]
    counts = {node: len(held) for node, held in by_node.items()}
    nodes = fewest_nodes(counts, count, draft.state.machines)
    return [gpu for node in nodes for gpu in by_node[node]][:count]


def _on_idle(market: Market, kind: Kind) -> Iterator[Option]:
    alone = market.alone(kind)
    for j in np.flatnonzero(alone > 0).tolist():
        yield _option(alone[j], OnIdle((market.jobs[j],), (_ALONE,), kind))
    if market.nobody_waits:
        return
    gain, way = market.pairs(kind)
    least = np.nan_to_num(np.maximum(alone, 0.0))
    for o, j in zip(*(gain > np.maximum(least[:, None], least)).nonzero(), strict=True):
        jobs = market.jobs[int(o)], market.jobs[int(j)]
        mine, theirs = market.pair_seats(kind, int(o), int(j), int(way[o, j]))
        yield _option(gain[o, j], OnIdle(jobs, (theirs, mine), kind))


def _option(gain: float, detail: OnIdle) -> Option:
    workers = detail.jobs[0].workers
    numbers = tuple(job.number for job in detail.jobs)
    return Option(float(gain), numbers, (), detail.kind, workers, workers, detail)


def _beside(market: Market, most_hosts: int) -> Iterator[Option]:
    gain, way = market.joins()
    needed = _needed(gain, market.most_starts, most_hosts)
    for s, j in zip(*needed.nonzero(), strict=True):
        site, job = market.sites[int(s)], market.jobs[int(j)]
        seat, _ = site.ways.seats[job.workload][int(way[s, j])]
        numbers = (job.number,), (site.job.number,)
        yield Option(float(gain[s, j]), *numbers, None, 0, job.workers, Beside(job, seat, site))


def _needed(gain: Floats, most_starts: int, most_hosts: int) -> NDArray[np.bool_]:
    """Tell which joins an optimum may need.

    A host needs only as many of its best jobs as can start at all, since the others leave one of
    these free for it; a job as many of its best hosts as all jobs together can take.
    """
    found = np.nan_to_num(gain, nan=0.0)
    sites, jobs = found.shape
    if jobs > most_starts > 0:
        least = -np.partition(-found, most_starts - 1, axis=1)[:, most_starts - 1]
        found = np.where(found < least[:, None], 0.0, found)
    if sites > most_hosts > 0:
        least = -np.partition(-found, most_hosts - 1, axis=0)[most_hosts - 1]
        found = np.where(found < least, 0.0, found)
    return np.asarray(found > 0)
