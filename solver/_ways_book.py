"""Makes the ways of each kind of job: a row for each place and each known combination there.

A place is a site as it is where there is room, else the site without one of its jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.entries import Combination, Member
from dovetail.formulations.rounds import GSLA_TOLERANCE, MEMORY_TOLERANCE_MIB, Variant
from dovetail.instances.instance import Job
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


class _Casts:
    """Every site with a place for one more: as it is where there is room, else one job less.

    Arrays have a row for each; ``others`` are the jobs that stay, padded with NaN.
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
        self._of_kind: dict[tuple[object, ...], Ways] = {}
        self._combinations: dict[tuple[str, tuple[str, ...]], list[Combination]] = {}
        for model in self._round.models:
            for known in self._round.entries.known(model):
                names = tuple(sorted(name for name, _ in known.members))
                self._combinations.setdefault((model, names), []).append(known)

    def ways(self, index: int) -> Ways:
        """Return the ways of the kind of the job with this index."""
        job = self._round.jobs[index]
        whole = self._cluster.gang_sharing == "whole"
        kind = (job.workload, job.priority, job.workers if whole else 0)
        if kind not in self._of_kind:
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
        return self._known(model, tuple(map(self._wanted, occupants)))

    def _wanted(self, occupant: Occupant) -> _Wanted:
        workload = self._round.jobs[occupant.variant.job].workload
        return workload, _FREE if occupant.starting else occupant.share or NO_SHARE

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
        names = tuple(sorted(name for name, _ in wanted))
        found = [
            known.reordered(order)
            for known in self._combinations.get((model, names), ())
            if sum(share or 0 for _, share in known.members) <= self._cluster.share_sum
            for order in self._orders(known.members, wanted)
        ]
        width = len(wanted)
        share = [[share or NO_SHARE for _, share in known.members] for known in found]
        return _Known(
            np.array(share, dtype=np.int64).reshape(-1, width),
            *(
                np.array(values, dtype=np.float64).reshape(-1, width)
                for values in (
                    [known.slowdown for known in found],
                    [known.bounds([False] * width) for known in found],
                    [known.bounds([True] * width) for known in found],
                )
            ),
        )

    def _orders(
        self, members: Sequence[Member], wanted: Sequence[_Wanted]
    ) -> Iterator[tuple[Member, ...]]:
        """Yield each different order of the members that gives all wanted what they may have."""
        if not wanted:
            yield ()
            return
        allowed = {None, *self._cluster.shares}
        for member in dict.fromkeys(members):
            name, share = wanted[0]
            fits = member[1] in allowed if share == _FREE else (member[1] or NO_SHARE) == share
            if member[0] == name and fits:
                left = list(members)
                left.remove(member)
                for order in self._orders(left, wanted[1:]):
                    yield (member, *order)

    # -- the table ----------------------------------------------------------------------

    def _table(self, index: int) -> Ways:
        found = [self._known_in(index, cast) for cast in range(len(self._casts.others))]
        parts = [self._rows(found, v, own) for v, own in enumerate(self._round.variants[index])]
        return Ways(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _known_in(self, index: int, cast: int) -> tuple[Level, _Known]:
        site = self._sites.all[self._casts.site[cast]]
        if not site.open:
            return Level.CLOSED, _NOTHING
        if not self._may_meet(index, site):
            return Level.APART, _NOTHING
        own = Occupant(self._round.variants[index][0], None, starting=True)
        known = self._together(site.model, (own, *self._casts.others[cast]))
        return (Level.POSSIBLE, known) if len(known.share) else (Level.UNKNOWN, _NOTHING)

    def _may_meet(self, index: int, site: Site) -> bool:
        """Tell whether ``gang_sharing`` lets the job share with those at a site."""
        if self._cluster.gang_sharing == "partial":
            return True
        held = {frozenset(self._sites.gpus_of[o.variant.job]) for o in site.occupants}
        workers = self._round.jobs[index].workers
        return not held or (len(held) == 1 and all(len(gpus) == workers for gpus in held))

    def _rows(
        self, found: Sequence[tuple[Level, _Known]], variant: int, own: Variant
    ) -> tuple[NDArray[Any], ...]:
        """Return the columns of ``Ways`` for one variant of the job."""
        casts = self._casts
        row = np.repeat(np.arange(len(found)), [len(known.share) for _, known in found])
        usual, tail, slowdown, share = (
            _joined([getattr(known, name) for _, known in found], casts.width)
            for name in ("usual", "tail", "slowdown", "share")
        )
        latency, stretch = casts.latency[row], casts.stretch[row]
        latency[:, 0] = self._round.jobs[own.job].priority == "latency"
        stretch[:, 0] = own.stretch
        bound = np.where(latency > 0, tail, usual) * stretch
        excess = np.nan_to_num(bound / casts.gsla[row] - 1)
        short_mib = own.memory_mib - casts.left_mib[row]
        short_mib = np.where(short_mib > MEMORY_TOLERANCE_MIB, short_mib, 0.0)
        return (
            np.full(len(row), variant),
            casts.site[row],
            casts.leaver[row],
            np.array([level for level, _ in found], dtype=np.int64)[row],
            np.nan_to_num(share).astype(np.int64),
            slowdown * stretch,
            bound,
            np.where(excess > GSLA_TOLERANCE, excess, 0.0),
            short_mib,
            short_mib / max(own.memory_mib, 1.0),
            casts.remaining[row],
            casts.running[row] > 0,
            casts.size[row],
        )


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
