"""The groups that a waiting job could join under a plan, each with the reason against it.

They are listed like candidate groups (``groups``) and by the same rules, but for one job, and on
GPUs with all jobs that the plan has placed; and a group that breaks a rule is kept, with its
distance from satisfying it. GPUs with the same jobs are one *site*. A full site is listed without
each of its jobs in turn. Jobs that start in the plan may change their shares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Bools, Floats, Ints, ranges
from dovetail.formulations.candidates.rows import CandidateRows, RowRules
from dovetail.formulations.candidates.sites import Site
from dovetail.formulations.rounds import Resident, Round
from dovetail.formulations.rules import (
    GSLA_TOLERANCE,
    MEMORY_TOLERANCE_MIB,
    most_bound,
    slowdown_alone,
)
from dovetail.formulations.slowdowns import ANY_SHARE, Colocations, Members
from dovetail.formulations.values import JobValues, Rows
from dovetail.instances._record import AnyShare
from dovetail.instances.hosts import FULL
from dovetail.instances.slowdowns.entry import GpuKind
from dovetail.instances.slowdowns.shares import share_of

NONE_DISPLACED: Final = -1

_KEPT: Final = 4
"""Number of kinds of jobs whose candidates are cached: not all fit in memory together."""


class Refusal(IntEnum):
    """The reason against a group, the weakest first.

    ``NONE``: nothing; ``HOST``: the node's host has too little left; ``TAKEN``: the GPU is full;
    ``FIGURES``: a gSLA or memory, which other figures would satisfy; ``OBJECTIVE``: the rule of the
    objective; ``TAKEN_FIGURES`` and ``TAKEN_OBJECTIVE``: the same on a full GPU; ``UNKNOWN``: no
    slowdown is known; ``SHARING``: a job shares only GPUs that are shared in another way;
    ``APART``: gangs share only whole; ``CLOSED``: no job may join (constraint 5 of the round
    problem).
    """

    NONE = 0
    HOST = 1
    TAKEN = 2
    FIGURES = 3
    OBJECTIVE = 4
    TAKEN_FIGURES = 5
    TAKEN_OBJECTIVE = 6
    UNKNOWN = 7
    SHARING = 8
    APART = 9
    CLOSED = 10


_TAKEN: Final = np.arange(Refusal.CLOSED + 1)
_TAKEN[Refusal.NONE] = Refusal.TAKEN
_TAKEN[Refusal.FIGURES] = Refusal.TAKEN_FIGURES
_TAKEN[Refusal.OBJECTIVE] = Refusal.TAKEN_OBJECTIVE
"""The reason against a group on a full GPU, by the reason if the GPU had room."""


@dataclass(frozen=True)
class Candidates:
    """The groups that one kind of job could join, one per row, ordered by variant and site.

    In arrays of two dimensions the job itself comes first, then the jobs that stay, in the order of
    the site, then zeros.

    Attributes
    ----------
    position : (n,) int
        The position of the variant among the job's variants.
    site : (n,) int
        Index of the site.
    displaced : (n,) int
        The position of the resident that the job would replace, or ``NONE_DISPLACED``.
    fixed : (n,) int
        ``UNKNOWN``, ``SHARING``, ``APART`` or ``CLOSED``; ``NONE`` if the figures decide.
    size : (n,) int
        The number of jobs that would share.
    variant, share : (n, k) int
        As in ``Groups``; the first variant is of one job of the kind.
    slowdown, bound : (n, k) float
        Slowdowns, and the bounds that the gSLAs are checked against.
    excess : (n, k) float
        By how much each bound exceeds the gSLA, relative to it (0 for the job itself).
    short_mib, short : (n,) float
        Missing memory, and the same relative to the job's own need.
    """

    position: Ints
    site: Ints
    displaced: Ints
    fixed: Ints
    size: Ints
    variant: Ints
    share: Ints
    slowdown: Floats
    bound: Floats
    excess: Floats
    short_mib: Floats
    short: Floats

    @classmethod
    def joined(cls, parts: Sequence[tuple[NDArray[Any], ...]], width: int) -> Candidates:
        """Return the rows of all parts by variant and site; the columns are those of the class."""
        columns = [
            np.concatenate([_padded(c, width) for c in of]) for of in zip(*parts, strict=True)
        ]
        order = np.lexsort((columns[1], columns[0]))
        return cls(*(column[order] for column in columns))

    @cached_property
    def starts(self) -> Ints:
        """The first row of each variant at each site."""
        changes = np.diff(self.site, prepend=-1) != 0
        return np.flatnonzero(changes | (np.diff(self.position, prepend=-1) != 0))

    @cached_property
    def lacking(self) -> Floats:
        """The relative excess over the co-runners' gSLAs plus the relative missing memory."""
        return np.asarray(self.excess.sum(axis=1) + self.short)

    @cached_property
    def far(self) -> Floats:
        """How far each row is from the best if no figures rule it out.

        It is the job's slowdown; if none is known, rows where the job fits come first, then those
        that replace another job, then those that lack memory.
        """
        unknown = 2 * (self.short > 0) + (self.displaced != NONE_DISPLACED)
        known = np.nan_to_num(self.slowdown[:, 0])
        return np.where(self.fixed == Refusal.UNKNOWN, unknown, known)


def _padded(column: NDArray[Any], width: int) -> NDArray[Any]:
    if column.ndim == 1 or column.shape[1] == width:
        return column
    table = np.zeros((len(column), width), dtype=column.dtype)
    table[:, : column.shape[1]] = column
    return table


class _Places:
    """Sites for one more job, with the jobs that stay there and the same number on each GPU.

    Places with the same workloads at the same shares on one kind of GPU share one index in
    ``co_runner_sets``: the same combinations apply to them.
    """

    def __init__(
        self, rules: Refusals, size: int, found: Sequence[tuple[int, int, Sequence[Resident]]]
    ) -> None:
        self.site = np.array([k for k, _, _ in found], dtype=np.int64)
        self.displaced = np.array([displaced for _, displaced, _ in found], dtype=np.int64)
        staying = [[o.variant for o in others] for _, _, others in found]
        self.variant = np.array(staying, dtype=np.int64).reshape(len(found), size - 1)
        co_runners: dict[tuple[GpuKind, Members], int] = {}
        self.co_runners = np.array(
            [
                co_runners.setdefault((rules.sites[k].kind, rules.wanted(others)), len(co_runners))
                for k, _, others in found
            ],
            dtype=np.int64,
        )
        self.co_runner_sets = tuple(co_runners)


class Refusals(RowRules):
    """Lists the groups that waiting jobs could join under a plan.

    Rows are listed once per kind of job and judged once per job: jobs of a kind differ in their
    gSLAs and in their remaining work.

    Parameters
    ----------
    compiled : Round
        The round.
    values : JobValues
        The objective, which also decides which jobs may share.
    sites : sequence of Site
        The jobs on the GPUs under the plan.
    """

    def __init__(self, compiled: Round, values: JobValues, sites: Sequence[Site]) -> None:
        super().__init__(compiled, values)
        self.sites = sites
        self.rules = compiled.machines.rules
        found: dict[int, list[tuple[int, int, Sequence[Resident]]]] = defaultdict(list)
        for k, site in enumerate(sites):
            for displaced, others in self._with_room(site):
                found[len(others) + 1].append((k, displaced, others))
        if not sites:
            found[1] = []
        self._places = {size: _Places(self, size, each) for size, each in sorted(found.items())}
        of = [site.gpu_class for site in sites]
        self._class = np.array(of, dtype=np.int64)
        self._open = compiled.classes.open[self._class]
        self._known = lru_cache(maxsize=None)(self._find)
        # For the job that is asked for repeatedly.
        self._judge = lru_cache(maxsize=1)(self._judged)
        self._of_kind: dict[tuple[object, ...], Candidates] = {}

    @cached_property
    def sites_of(self) -> Mapping[int, Sequence[int]]:
        """The sites of each placed job."""
        found: dict[int, list[int]] = defaultdict(list)
        for k, site in enumerate(self.sites):
            for occupant in site.occupants:
                found[occupant.job].append(k)
        return found

    def _gpus_of(self, job: int) -> frozenset[int]:
        """Return the GPUs of a placed job."""
        return frozenset(gpu for k in self.sites_of[job] for gpu in self.sites[k].gpus)

    def candidates(self, job: int) -> Candidates:
        """Return the groups that the job with this index, or another of its kind, could join."""
        jobs = self.round.jobs
        workers = int(jobs.workers[job]) if self.rules.gang_sharing == "whole" else 0
        kind = int(jobs.workload[job]), bool(jobs.latency[job]), int(jobs.sharing[job]), workers
        if kind not in self._of_kind:
            if len(self._of_kind) == _KEPT:
                del self._of_kind[next(iter(self._of_kind))]
            width = max(self._places)
            parts = [self._listed(job, *each) for each in self._places.items()]
            self._of_kind[kind] = Candidates.joined(parts, width)
        return self._of_kind[kind]

    def keys(self, job: int) -> Floats:
        """Return the key of each candidate of a job by which candidates are compared.

        The integer part is a ``Refusal``. The fraction is the distance from an allowed group: the
        sum of the relative differences of gSLAs and memory from their required values, otherwise
        ``Candidates.far``.
        """
        return self._judge(job)

    def _judged(self, job: int) -> Floats:
        each, lacking = self.candidates(job), self.lacking(job)
        level = np.where(lacking > 0, Refusal.FIGURES, Refusal.NONE)
        if self.values.has_rule or self.values.grouped:
            level = np.where(self._allowed(job), level, Refusal.OBJECTIVE)
        level = np.where(each.displaced == NONE_DISPLACED, level, _TAKEN[level])
        level = np.where(each.fixed == Refusal.NONE, level, each.fixed)
        if self.round.hosts is not None:
            short = np.asarray(self.host_lacks(job).any(axis=1))
            level = np.where((level == Refusal.NONE) & short[each.site], Refusal.HOST, level)
        unknown = each.fixed == Refusal.UNKNOWN
        far = np.where(lacking > 0, lacking + each.far * unknown, each.far)
        return np.asarray(level + far / (1 + far))

    @cached_property
    def host_load(self) -> Floats:
        """The load of the host of each site under the plan, (sites, resources)."""
        hosts, machines = self.round.hosts, self.round.machines
        if hosts is None:
            raise AssertionError("asked of a round with hosts only")
        load = hosts.load.copy()
        for site in self.sites:
            for occupant in site.occupants:
                if not self.round.jobs.running[occupant.job]:
                    for gpu in site.gpus:
                        node = machines.node[gpu]
                        load[node] += hosts.part[node, occupant.job]
        return load[self._site_node]

    def host_lacks(self, job: int) -> Bools:
        """Return the resources that each site's host lacks for a job, (sites, resources)."""
        hosts = self.round.hosts
        if hosts is None:
            raise AssertionError("asked of a round with hosts only")
        needed = hosts.part[self._site_node, job]
        return np.asarray((needed > 0) & (self.host_load + needed > FULL))

    @cached_property
    def _site_node(self) -> Ints:
        """The node of each site: a node with a host that may fall short has sites of its own."""
        node = self.round.machines.node
        return np.array([node[site.gpus[0]] for site in self.sites], dtype=np.int64)

    def own_excess(self, job: int) -> Floats:
        """Return the relative excess over the job's own gSLA."""
        return _above(self.candidates(job).bound[:, 0] / self.round.jobs.gsla[job] - 1)

    def lacking(self, job: int) -> Floats:
        """Return the sum of the relative excess over gSLAs and the relative missing memory."""
        return self.own_excess(job) + self.candidates(job).lacking

    def groups_of(self, job: int, which: Ints) -> Rows:
        """Return candidates of a job, all of one size, as groups."""
        each = self.candidates(job)
        size = int(each.size[which[0]]) if len(which) else 1
        variant = each.variant[which, :size]
        variant[:, 0] = self.first_of_job[job] + each.position[which]
        return Rows(
            self._class[each.site[which]],
            self.job[variant],
            variant,
            each.share[which, :size],
            each.slowdown[which, :size],
            np.full(len(which), np.nan),
        )

    def shares_of(self, site: Site, occupants: Sequence[Resident]) -> tuple[AnyShare, ...] | None:
        """Return shares at which these jobs may share a GPU of the site, or None."""
        if not occupants:
            return ()
        jobs = [o.job for o in occupants]
        latency = self.round.jobs.latency[jobs].tolist()
        most = most_bound(self.round.jobs.gsla[jobs])
        factor = self.slowdown_factor[[o.variant for o in occupants]]
        known = self._known(site.kind, self.wanted(occupants))
        bound = np.where(latency, known.tail, known.upper) * factor
        allowed = np.flatnonzero((bound <= most).all(axis=1))
        if not len(allowed):
            return None
        best = allowed[np.argmin((known.slowdown[allowed] * factor).sum(axis=1))]
        return tuple(map(share_of, known.share[best].tolist()))

    def wanted(self, occupants: Iterable[Resident]) -> Members:
        """Return the workloads of jobs and the shares that they may have."""
        running, workload = self.round.jobs.running, self.round.jobs.workload
        return tuple(
            (
                int(workload[o.job]),
                o.share if running[o.job] else ANY_SHARE,
            )
            for o in occupants
        )

    def _with_room(self, site: Site) -> Iterator[tuple[int, Sequence[Resident]]]:
        """Yield the position of the job that would leave, and the jobs that would stay."""
        there = site.occupants
        open_ = self.round.classes.open[site.gpu_class]
        if len(there) < self.round.instance_slowdowns.most_on(site.kind) or not open_:
            yield NONE_DISPLACED, there
            return
        for displaced in range(len(there)):
            yield displaced, there[:displaced] + there[displaced + 1 :]

    def _find(self, kind: GpuKind, wanted: Members) -> Colocations:
        """Return how jobs may share a GPU, or how one job runs alone."""
        if len(wanted) > 1:
            return self.round.instance_slowdowns.seats(kind, wanted)
        ((workload, held),) = wanted
        shares = self.round.shares_alone_on(kind) if held == ANY_SHARE else (held,)
        of = self.round.workloads[workload]
        alone = [slowdown_alone(of, share_of(share)) for share in shares]
        known = [
            (share, 1.0 if slowdown is None else slowdown)
            for share, slowdown in zip(shares, alone, strict=True)
            if slowdown is not None or held != ANY_SHARE
        ]
        if not known:
            return Colocations.none(1)
        share, slowdown = np.array(known).T[:, :, None]
        return Colocations(
            np.full_like(share, workload, dtype=np.int64),
            share.astype(np.int64),
            *(slowdown,) * 3,
            np.full(len(known), np.nan),
        )

    def _listed(self, job: int, size: int, places: _Places) -> tuple[NDArray[Any], ...]:
        """Return the columns of ``Candidates`` for the places where ``size`` jobs would share."""
        own = int(self.round.jobs.workload[job])
        known = [
            self._known(kind, (*others, (own, ANY_SHARE))) for kind, others in places.co_runner_sets
        ]
        # A place that is ruled out for any figures has one row without figures.
        known.append(Colocations.unknown(size))
        fixed = self._fixed(job, places, np.array([len(each) > 0 for each in known]))
        of = np.where(fixed == Refusal.NONE, places.co_runners, len(known) - 1)
        place, row = _each_row(np.array([len(each) for each in known], dtype=np.int64), of)
        variants = self.round.variants_of(job)
        first = np.full((len(place), 1), self.first_of_job[job])
        count = np.ones((len(place), size), dtype=np.int64)
        count[:, -1] = len(variants)
        candidates = CandidateRows.on(
            self._class[places.site[place]],
            np.hstack([places.variant[place], first]),
            count,
            Colocations.joined(known).take(row),
            size,
        )
        candidate, variant = candidates.product()
        rows = self.rows(candidates, candidate, variant)
        bound = np.column_stack(
            [self.bound(candidates, k, candidate, of_place) for k, of_place in enumerate(variant.T)]
        )
        excess = _above(bound / self.round.jobs.gsla[self.job[variant]] - 1)
        excess[:, -1] = 0.0
        short_mib = self.need_mib(rows.gpu_class, variant) - self._offered_mib[rows.gpu_class]
        short_mib = np.where(short_mib > MEMORY_TOLERANCE_MIB, short_mib, 0.0)
        place, own_variant = place[candidate], variant[:, -1]
        tables = (variant, rows.share, rows.slowdown, bound, excess)
        own_first = [size - 1, *range(size - 1)]
        return (
            own_variant - variants.start,
            places.site[place],
            places.displaced[place],
            fixed[place],
            np.full(len(place), size),
            *(table[:, own_first] for table in tables),
            short_mib,
            short_mib / np.maximum(self.need_mib(rows.gpu_class, own_variant[:, None]), 1.0),
        )

    def _fixed(self, job: int, places: _Places, known: Bools) -> Ints:
        """Return the reason against each place for any figures."""
        fixed = np.where(known[places.co_runners], Refusal.NONE, Refusal.UNKNOWN)
        if self.round.bound_to_mode and places.variant.shape[1]:
            of_class = self._class[places.site]
            may = self.may_share(of_class[:, None], places.variant).all(axis=1)
            may &= self.may_share(of_class, np.array(self.first_of_job[job]))
            fixed[~may] = Refusal.SHARING
        if self.rules.gang_sharing == "whole":
            team, size = self.teams
            held = np.array([bool(site.occupants) for site in self.sites], dtype=bool)
            apart = held & (size[team] != self.round.jobs.workers[job])
            fixed[apart[places.site]] = Refusal.APART
        fixed[~self._open[places.site]] = Refusal.CLOSED
        return fixed

    @cached_property
    def teams(self) -> tuple[Ints, Ints]:
        """The team of each site with jobs, and the GPUs of each team.

        A team is jobs that all have the same GPUs; the size is 0 for other jobs.
        """
        index: dict[frozenset[int], int] = {frozenset(): 0}
        team = np.zeros(len(self.sites), dtype=np.int64)
        held = [0]
        for k, site in enumerate(self.sites):
            sets = {self._gpus_of(occupant.job) for occupant in site.occupants}
            if len(sets) == 1:
                team[k] = index.setdefault(sets.pop(), len(index))
                held += [0] * (len(index) - len(held))
                held[team[k]] += len(site.gpus)
        size = [len(gpus) * (len(gpus) == number) for gpus, number in zip(index, held, strict=True)]
        return team, np.array(size, dtype=np.int64)

    def _allowed(self, job: int) -> Bools:
        """Return which candidates with figures the objective allows."""
        each, values = self.candidates(job), self.values
        found = (each.size <= 2) | (not values.pairs_only)
        for size in (size for size in self._places if size > 1):
            open_ = found & (each.size == size) & (each.fixed == Refusal.NONE)
            if values.has_rule and open_.any():
                rows = self.groups_of(job, np.flatnonzero(open_))
                found[open_] = values.may_share(rows)
            # Values are expensive: they are computed only if nothing else rules out a group.
            open_ &= found & (self.lacking(job) == 0)
            if values.grouped and open_.any():
                rows = self.groups_of(job, np.flatnonzero(open_))
                found[open_] = ~np.isnan(values.value(rows))
        return found


def _above(excess: Floats) -> Floats:
    return np.where(excess > GSLA_TOLERANCE, excess, 0.0)


def _each_row(count: Ints, part: Ints) -> tuple[Ints, Ints]:
    """Return all rows of these parts in turn: the position in ``part`` and the row of each.

    ``count`` is the number of rows of each part; the rows of one part are consecutive.
    """
    first, rows = np.cumsum(count) - count, count[part]
    return np.repeat(np.arange(len(part)), rows), ranges(first[part], rows)
