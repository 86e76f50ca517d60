"""Makes the ways of each kind of job: a row for each place and each known combination there.

A place is a site as it is where there is room, else the site without one of its jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.entries import Member
from dovetail.formulations.rounds import GSLA_TOLERANCE, MEMORY_TOLERANCE_MIB, Variant
from dovetail.instances.instance import Job, SlowdownEntry
from dovetail.solver._sites import Occupant, Site, Sites
from dovetail.solver._ways import NO_SHARE, NOBODY, Level, Ways

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FREE = -1
"""The share of a job that may still be given any."""

_Wanted = tuple[str, int]
"""A workload and the share it has: ``NO_SHARE``, a cap, or ``_FREE``."""


@dataclass(frozen=True)
class _Known:
    """The known ways to give shares to the jobs on a GPU: arrays of (n, members)."""

    share: Ints
    slowdown: Floats
    usual: Floats
    tail: Floats


_NOTHING = _Known(np.empty((1, 0), dtype=np.int64), *(np.empty((1, 0)) for _ in range(3)))


_KEPT = 4
"""Kinds of jobs whose ways are kept: those of a large round do not fit the memory together."""


class _Casts:
    """Every site with a place for one more: as it is where there is room, else one job less.

    Arrays have a row for each; ``others`` are the jobs that stay, padded with NaN. Casts with
    the same workloads at the same shares on one GPU model are one *company*: what is known of
    them is the same. ``team`` is the number of GPUs that all jobs of the site have in common,
    0 where there are no jobs, -1 where they have different ones.
    """

    def __init__(self, sites: Sites) -> None:
        self._jobs = sites.round.jobs
        found = [
            (k, leaver, others)
            for k, site in enumerate(sites.all)
            for leaver, others in _with_room(site, sites.round.instance.cluster.max_jobs_per_gpu)
        ]
        self.others = [others for _, _, others in found]
        self.site = np.array([k for k, _, _ in found], dtype=np.int64)
        company: dict[tuple[str, tuple[_Wanted, ...]], int] = {}
        self.company = np.array(
            [
                company.setdefault((sites.all[k].model, self.wanted(others)), len(company))
                for k, _, others in found
            ],
            dtype=np.int64,
        )
        self.companies = tuple(company)
        team = np.array([_team(sites, site) for site in sites.all], dtype=np.int64)
        self.team = team[self.site]
        self.open = np.array([site.open for site in sites.all], dtype=bool)[self.site]
        self.leaver = np.array([leaver for _, leaver, _ in found], dtype=np.int64)
        self.size = np.array([len(others) + 1 for others in self.others], dtype=np.int64)
        self.width = int(self.size.max(initial=2))
        self.left_mib = np.array(
            [
                sites.all[k].memory_mib - sum(o.variant.memory_mib for o in others)
                for k, _, others in found
            ]
        )
        self.stretch = self._each(lambda occupant, _: occupant.variant.stretch)
        self.gsla = self._each(lambda _, job: np.inf if job.gsla is None else job.gsla)
        self.latency = self._each(lambda _, job: job.priority == "latency")
        self.remaining = self._each(lambda _, job: job.remaining_s or np.nan)
        self.running = self._each(lambda occupant, _: not occupant.starting)

    def wanted(self, occupants: Sequence[Occupant]) -> tuple[_Wanted, ...]:
        return tuple(_wanted(self._jobs[o.variant.job], o) for o in occupants)

    def _each(self, fact: Callable[[Occupant, Job], float]) -> Floats:
        """Return a fact of every job that stays, behind an empty column for the one to come."""
        table = np.full((len(self.others), self.width), np.nan)
        for row, others in zip(table, self.others, strict=True):
            row[1 : len(others) + 1] = [fact(o, self._jobs[o.variant.job]) for o in others]
        return table


def _with_room(site: Site, most: int) -> Iterator[tuple[int, tuple[Occupant, ...]]]:
    """Yield who would leave (a position or ``NOBODY``) and who would stay."""
    if len(site.occupants) < most or not site.open:
        yield NOBODY, site.occupants
        return
    for leaver in range(len(site.occupants)):
        yield leaver, site.occupants[:leaver] + site.occupants[leaver + 1 :]


def _team(sites: Sites, site: Site) -> int:
    held = {frozenset(sites.gpus_of[o.variant.job]) for o in site.occupants}
    return max(map(len, held), default=0) if len(held) <= 1 else -1


def _wanted(job: Job, occupant: Occupant) -> _Wanted:
    return job.workload, _FREE if occupant.starting else occupant.share or NO_SHARE


class WaysBook:
    """Makes the ways of each kind of job.

    Parameters
    ----------
    sites : Sites
        Who is where.
    """

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._round = sites.round
        self._cluster = sites.round.instance.cluster
        self._known = lru_cache(maxsize=None)(self._find)
        self._casts = _Casts(sites)
        self._startable = np.zeros(101, dtype=bool)
        self._startable[[NO_SHARE, *self._cluster.shares]] = True
        self._of_kind: dict[tuple[object, ...], Ways] = {}

    def ways(self, index: int) -> Ways:
        """Return the ways of the kind of the job with this index."""
        job = self._round.jobs[index]
        whole = self._cluster.gang_sharing == "whole"
        kind = (job.workload, job.priority, job.workers if whole else 0)
        if kind not in self._of_kind:
            if len(self._of_kind) == _KEPT:
                del self._of_kind[next(iter(self._of_kind))]
            self._of_kind[kind] = self._table(index)
        return self._of_kind[kind]

    def can_stay(self, site: Site, occupants: tuple[Occupant, ...]) -> tuple[int, ...] | None:
        """Return shares at which these jobs may share a GPU of the site, None if there are none."""
        if not occupants:
            return ()
        known = self._together(site.model, occupants)
        jobs = [self._round.jobs[o.variant.job] for o in occupants]
        late = np.array([job.priority == "latency" for job in jobs])
        gsla = np.array([np.inf if job.gsla is None else job.gsla for job in jobs])
        bound = np.where(late, known.tail, known.usual) * [o.variant.stretch for o in occupants]
        allowed = np.flatnonzero((bound <= gsla * (1 + GSLA_TOLERANCE)).all(axis=1))
        if not len(allowed):
            return None
        best = allowed[known.slowdown[allowed].sum(axis=1).argmin()]
        return tuple(known.share[best].tolist())

    # -- what is known ------------------------------------------------------------------

    def _together(self, model: str, occupants: Sequence[Occupant]) -> _Known:
        if len(occupants) == 1:
            (one,) = occupants
            if one.starting:
                return self._alone(one.variant)
            alone = self._round.alone(one.variant, one.share)
            return _one_way(one.share, (alone or one.variant.stretch) / one.variant.stretch)
        return self._known(model, self._casts.wanted(occupants))

    def _alone(self, variant: Variant) -> _Known:
        found = [
            (share or NO_SHARE, alone / variant.stretch)
            for share in self._round.shares_alone
            if (alone := self._round.alone(variant, share)) is not None
        ]
        share = np.array([[share] for share, _ in found], dtype=np.int64)
        slowdown = np.array([[alone] for _, alone in found], dtype=np.float64)
        return _Known(share, slowdown, slowdown, slowdown)

    def _find(self, model: str, wanted: tuple[_Wanted, ...]) -> _Known:
        if len(wanted) == 2 and wanted[0][0] != wanted[1][0]:
            return self._of_two(model, wanted)
        share: list[list[int]] = []
        slowdown: list[list[float]] = []
        usual: list[list[float]] = []
        tail: list[list[float]] = []
        for entry in self._round.entries.together(model, [name for name, _ in wanted]):
            if sum(share or 0 for share in entry.shares) > self._cluster.share_sum:
                continue
            values = entry.slowdown or ()
            upper = entry.upper or values
            p99 = entry.p99 or upper
            for order in self._orders(entry, wanted):
                share.append([entry.shares[k] or NO_SHARE for k in order])
                slowdown.append([values[k] for k in order])
                usual.append([upper[k] for k in order])
                tail.append([p99[k] for k in order])
        width = len(wanted)
        return _Known(
            np.array(share, dtype=np.int64).reshape(-1, width),
            np.array(slowdown, dtype=np.float64).reshape(-1, width),
            np.array(usual, dtype=np.float64).reshape(-1, width),
            np.array(tail, dtype=np.float64).reshape(-1, width),
        )

    def _of_two(self, model: str, wanted: tuple[_Wanted, ...]) -> _Known:
        """Find what is known of two different workloads, of which there is much."""
        names = [name for name, _ in wanted]
        entries = list(self._round.entries.together(model, names))
        turned = np.array([entry.workloads[0] != names[0] for entry in entries], dtype=bool)

        def table(rows: Sequence[Sequence[float] | None], dtype: type) -> NDArray[Any]:
            found: NDArray[Any] = np.array(rows, dtype=dtype).reshape(-1, 2)
            return np.where(turned[:, None], found[:, ::-1], found)

        shares = [[share or NO_SHARE for share in entry.shares] for entry in entries]
        known = _Known(
            table(shares, np.int64),
            table([e.slowdown for e in entries], np.float64),
            table([e.upper or e.slowdown for e in entries], np.float64),
            table([e.p99 or e.upper or e.slowdown for e in entries], np.float64),
        )
        may = known.share.sum(axis=1) <= self._cluster.share_sum
        for share, (_, held) in zip(known.share.T, wanted, strict=True):
            may &= self._startable[share] if held == _FREE else share == held
        return _Known(known.share[may], known.slowdown[may], known.usual[may], known.tail[may])

    def _orders(self, entry: SlowdownEntry, wanted: Sequence[_Wanted]) -> Iterator[tuple[int, ...]]:
        """Yield each different order of the members that gives all wanted what they may have."""
        members = tuple(zip(entry.workloads, entry.shares, strict=True))
        fits = [[self._fits(member, each) for member in members] for each in wanted]
        seen = set()
        for order in permutations(range(len(members))):
            if all(map(list.__getitem__, fits, order)):
                ordered = tuple(members[k] for k in order)
                if ordered not in seen:
                    seen.add(ordered)
                    yield order

    def _fits(self, member: Member, wanted: _Wanted) -> bool:
        (name, share), (wanted_name, wanted_share) = member, wanted
        if name != wanted_name:
            return False
        if wanted_share == _FREE:
            return bool(self._startable[share or NO_SHARE])
        return (share or NO_SHARE) == wanted_share

    # -- the table ----------------------------------------------------------------------

    def _table(self, index: int) -> Ways:
        casts, job = self._casts, self._round.jobs[index]
        own = job.workload, _FREE
        alone = self._alone(self._round.variants[index][0])
        found = [
            self._known(model, (own, *others)) if others else alone
            for model, others in casts.companies
        ]
        rows = np.array([len(known.share) for known in found], dtype=np.int64)
        level = np.where(rows[casts.company] > 0, Level.POSSIBLE, Level.UNKNOWN)
        if self._cluster.gang_sharing == "whole":
            level[(casts.team != 0) & (casts.team != job.workers)] = Level.APART
        level[~casts.open] = Level.CLOSED
        # What is not known has one row, of no figures; it stands behind the others.
        block = np.where(level == Level.POSSIBLE, casts.company, len(found))
        known = _Stacked([*found, _NOTHING], casts.width)
        parts = [
            self._rows(known, block, level, v, own_variant)
            for v, own_variant in enumerate(self._round.variants[index])
        ]
        return Ways(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _rows(
        self, known: _Stacked, block: Ints, level: Ints, variant: int, own: Variant
    ) -> tuple[NDArray[Any], ...]:
        """Return the columns of ``Ways`` for one variant of the job."""
        casts = self._casts
        row, source = known.rows_of(block)
        latency, stretch = casts.latency[row], casts.stretch[row]
        latency[:, 0] = self._round.jobs[own.job].priority == "latency"
        stretch[:, 0] = own.stretch
        bound = np.where(latency > 0, known.tail[source], known.usual[source]) * stretch
        excess = np.nan_to_num(bound / casts.gsla[row] - 1)
        short_mib = own.memory_mib - casts.left_mib[row]
        short_mib = np.where(short_mib > MEMORY_TOLERANCE_MIB, short_mib, 0.0)
        return (
            np.full(len(row), variant),
            casts.site[row],
            casts.leaver[row],
            level[row],
            known.share[source],
            known.slowdown[source] * stretch,
            bound,
            stretch,
            np.where(excess > GSLA_TOLERANCE, excess, 0.0),
            short_mib,
            short_mib / max(own.memory_mib, 1.0),
            casts.remaining[row],
            casts.running[row] > 0,
            casts.size[row],
        )


class _Stacked:
    """Known ways one below the other, padded with NaN to one width."""

    def __init__(self, parts: Sequence[_Known], width: int) -> None:
        self._count = np.array([len(known.share) for known in parts], dtype=np.int64)
        self._first = np.cumsum(self._count) - self._count
        share, self.slowdown, self.usual, self.tail = (
            _joined([getattr(known, name) for known in parts], width)
            for name in ("share", "slowdown", "usual", "tail")
        )
        self.share = np.nan_to_num(share).astype(np.int64)

    def rows_of(self, part: Ints) -> tuple[Ints, Ints]:
        """Return all rows of these parts in turn: the position in ``part``, and the row."""
        count = self._count[part]
        position = np.repeat(np.arange(len(part)), count)
        within = np.arange(len(position)) - np.repeat(np.cumsum(count) - count, count)
        return position, self._first[part][position] + within


def _one_way(share: int | None, slowdown: float) -> _Known:
    value = np.array([[slowdown]])
    return _Known(np.array([[share or NO_SHARE]], dtype=np.int64), value, value, value)


def _joined(parts: Sequence[NDArray[Any]], width: int) -> Floats:
    """Return all rows of the parts, padded with NaN to one width."""
    table = np.full((sum(len(part) for part in parts), width), np.nan)
    start = 0
    for part in parts:
        table[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return table
