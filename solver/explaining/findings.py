"""The GPUs that come nearest to letting a waiting job start, and the limits that prevent it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.candidates.refusals import (
    NONE_DISPLACED,
    Candidates,
    Refusal,
    Refusals,
)
from dovetail.formulations.candidates.sites import Site, rows_at, sites_of, worth
from dovetail.formulations.rounds import Resident
from dovetail.formulations.values import JobValues, Rows
from dovetail.instances._record import AnyShare, listed
from dovetail.instances.hosts import FULL, RESOURCES
from dovetail.instances.instance import Job
from dovetail.instances.plan import Assignment
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.instances.slowdowns.shares import caps_of, share_code, share_of, share_total
from dovetail.solver.explaining.nodes import GpuAtSite, groups_on, keeps_groups, whole_groups

_ROUNDING = 1e-12
"""Fraction of the largest gain up to which a change is treated as rounding."""

_Taken = tuple[int, float, tuple[int, ...], int]
"""A site, the key of a job there, GPUs of the site, and how many of the first are taken."""

_Held = tuple[int, Rows]
"""A number of GPUs, and the group on each of them."""


@dataclass(frozen=True)
class Pick:
    """GPUs of a site, used as in a row of ``Candidates``, and the reason against it."""

    ways: Candidates
    row: int
    site: Site
    level: Refusal
    number: int

    @property
    def slowdown(self) -> float:
        """The job's slowdown; NaN if it is unknown."""
        return float(self.ways.slowdown[self.row, 0])

    @property
    def bound(self) -> float:
        """The bound that the job's gSLA is checked against."""
        return float(self.ways.bound[self.row, 0])

    @property
    def share(self) -> AnyShare:
        """The job's share."""
        return share_of(self._code(0))

    @property
    def short_mib(self) -> float:
        """The missing memory."""
        return float(self.ways.short_mib[self.row])

    @property
    def displaced(self) -> Resident | None:
        """The job that would be replaced, if any."""
        position = int(self.ways.displaced[self.row])
        return None if position == NONE_DISPLACED else self.site.occupants[position]

    @property
    def others(self) -> tuple[Resident, ...]:
        """The co-runners, at the shares that they would have."""
        staying = [o for o in self.site.occupants if o is not self.displaced]
        if self.level >= Refusal.UNKNOWN:
            return tuple(staying)
        return tuple(o._replace(share=self._code(k)) for k, o in enumerate(staying, 1))

    def mostly_memory(self, job: Job) -> bool:
        """Return whether the missing memory is relatively larger than the excess over gSLAs."""
        own = 0.0 if job.gsla is None else max(0.0, self.bound / job.gsla - 1)
        return bool(self.ways.short[self.row] > own + self.ways.excess[self.row].sum())

    def too_slow(self) -> Iterator[tuple[int, float, float]]:
        """Yield the co-runners that would be over their gSLAs, with slowdown and bound.

        The first has the number 1.
        """
        for k in range(1, len(self.others) + 1):
            if self.ways.excess[self.row, k] > 0:
                row = self.row, k
                yield k, float(self.ways.slowdown[row]), float(self.ways.bound[row])

    def _code(self, position: int) -> int:
        return int(self.ways.share[self.row, position])


@dataclass(frozen=True)
class BestGpus:
    """The best GPUs for a whole job.

    Attributes
    ----------
    sub_batch : int or None
        Samples per accumulation step; None if the workload has no batch model.
    slowdown_factor : float
        The factor on the job's slowdowns at this sub-batch.
    picks : tuple of Pick
        All its GPUs, the most promising first; the last decides whether the job can start.
    """

    sub_batch: int | None
    slowdown_factor: float
    picks: tuple[Pick, ...]

    @property
    def possible(self) -> int:
        """The number of GPUs that the job could have now."""
        return sum(p.number for p in self.picks if p.level == Refusal.NONE)

    @property
    def binding(self) -> Pick:
        """The pick with the strongest reason against it."""
        return self.picks[-1]

    @property
    def level(self) -> Refusal:
        """The reason that keeps the job out."""
        return self.binding.level

    @property
    def figures(self) -> str:
        """Share, sub-batch and slowdown in words, in parentheses; empty if there are none."""
        shares = {pick.share for pick in self.picks}
        parts = [f"share {shares.pop()}"] if len(shares) == 1 and None not in shares else []
        if self.slowdown_factor != 1:
            parts.append(f"sub-batch {self.sub_batch}")
        slowdown = max(pick.slowdown for pick in self.picks)
        parts += [f"slowdown {slowdown:.2f}"] if slowdown != 1 else []
        return f" ({', '.join(parts)})" if parts else ""


class Finder:
    """Finds the best GPUs for waiting jobs.

    Parameters
    ----------
    values : JobValues
        The objective in the round, which decides which jobs may share.
    assignments : sequence of Assignment
        A valid plan.
    """

    def __init__(self, values: JobValues, assignments: Sequence[Assignment]) -> None:
        self.round, self.values = values.round, values
        self.instance = values.round.instance
        self.jobs = self.instance.jobs
        self.rows = {row.job: row for row in assignments}
        self.sites = sites_of(self.round, assignments)
        self.refusals = Refusals(self.round, self.values, self.sites)
        self._number = np.array([len(site.gpus) for site in self.sites], dtype=np.int64)
        self._of_model = [
            np.array([k for k, site in enumerate(self.sites) if site.model == model])
            for model in self.round.models
        ]
        self._held = np.array([bool(site.occupants) for site in self.sites], dtype=bool)
        self._now = cache(lambda k: rows_at(self.round, self.sites[k]))
        self._measurable_of: tuple[Candidates, Bools] | None = None

    def name(self, occupant: Resident) -> str:
        """Return the id of a placed job."""
        return self.jobs[occupant.job].id

    def gpu(self, pick: Pick) -> str:
        """Return the id of the first GPU of a site."""
        return self.round.machines.gpu_ids[pick.site.gpus[0]]

    def place_text(self, finding: BestGpus) -> str:
        """Return where a job would run: with which co-runners, on which GPUs."""
        gpus: list[int] = []
        others: dict[str, None] = {}
        for pick in finding.picks:
            gpus += pick.site.gpus[: pick.number]
            others |= dict.fromkeys(map(self.name, pick.others))
        together = f"with {listed(others, 3)}" if others else "alone"
        return f"{together} on {listed(self.round.machines.names(gpus), 4)}"

    def starts(self, occupant: Resident) -> bool:
        """Return whether a placed job starts now, so that its share may still change."""
        return not self.jobs[occupant.job].running

    def find(self, index: int, among: Bools | None = None) -> BestGpus | None:
        """Return the best GPUs for a job; or None if no model has enough.

        They are of one model, the one whose worst GPU is best, at the first such sub-batch.

        Parameters
        ----------
        index : int
            Index of the job.
        among : (n,) bool, optional
            The candidates to consider in addition to those without a reason against them; all by
            default.
        """
        job, ways = self.jobs[index], self.refusals.candidates(index)
        key = self.refusals.keys(index)
        if among is not None:
            key = np.where(among | (self.levels(index) == Refusal.NONE), key, Refusal.CLOSED)
        numbers, variants = self.round.variants_of(index), self.round.variants
        best = _best_of_each_site(ways, key).reshape(len(numbers), -1)
        found: tuple[float, BestGpus] | None = None
        for variant, row in zip(numbers, best, strict=True):
            for worst, chosen in self._options(job, key[row]):
                if found is None or worst < found[0]:
                    picks = self._picks(ways, row, chosen)
                    size, factor = variants.sub_batch[variant], variants.slowdown_factor[variant]
                    found = worst, BestGpus(int(size) or None, float(factor), picks)
        return found[1] if found else None

    def short_host(self, index: int, finding: BestGpus) -> tuple[str, str, float, float] | None:
        """Return what the host of some GPUs lacks for a job, or None.

        The result is the node, the resource, the fraction of it in use under the plan, and the
        fraction that the workers of the job need there.
        """
        hosts, machines = self.round.hosts, self.round.machines
        if hosts is None:
            return None
        needed: dict[int, Floats] = {}
        load: dict[int, Floats] = {}
        for pick in finding.picks:
            node = machines.node[pick.site.gpus[0]]
            needed[node] = needed.get(node, 0.0) + pick.number * hosts.part[node, index]
            load[node] = self.refusals.host_load[int(pick.ways.site[pick.row])]
        lacking = [
            (float(load[node][k] + need[k]), node, k)
            for node, need in needed.items()
            for k in np.flatnonzero((need > 0) & (load[node] + need > FULL)).tolist()
        ]
        if not lacking:
            return None
        _, node, k = max(lacking)
        return machines.node_ids[node], RESOURCES[k], float(load[node][k]), float(needed[node][k])

    def levels(self, index: int) -> Ints:
        """Return the reason against each candidate of a job."""
        return self.refusals.keys(index).astype(np.int64)

    def _options(self, job: Job, key: Floats) -> Iterator[tuple[float, Sequence[_Taken]]]:
        """Yield the best GPUs of each model, and of the gangs it may join, with the worst key."""
        if job.by_node:
            for sites, keys in self._usable(job, key):
                if chosen := whole_groups(job, self._each_gpu(sites, keys)):
                    yield chosen[-1].key, _by_site(chosen)
            return
        for sites, keys in self._choices(job, key):
            needed, taken = job.workers, []
            for k, level in zip(sites.tolist(), keys.tolist(), strict=True):
                gpus = self.sites[k].gpus[:needed]
                needed -= len(gpus)
                taken.append((k, level, self.sites[k].gpus, len(gpus)))
            yield float(keys[-1]), taken

    def _usable(self, job: Job, key: Floats) -> Iterator[tuple[Ints, Floats]]:
        """Yield all sites of each model, and of the gangs that a job may join, with their keys."""
        if self.refusals.rules.gang_sharing == "whole":
            team, size = self.refusals.teams
            for number in np.flatnonzero(size == job.workers).tolist():
                sites = np.flatnonzero(self._held & (team == number))
                gpus = (gpu for k in sites.tolist() for gpu in self.sites[k].gpus)
                if keeps_groups(job, (self.round.machines.node[gpu] for gpu in gpus)):
                    yield sites, key[sites]
            key = np.where(self._held, np.maximum(key, Refusal.APART), key)
        for sites in self._of_model:
            yield sites, key[sites]

    def _each_gpu(self, sites: Ints, keys: Floats) -> Iterator[GpuAtSite]:
        node = self.round.machines.node
        for k, level in zip(sites.tolist(), keys.tolist(), strict=True):
            for gpu in self.sites[k].gpus:
                yield GpuAtSite(level, node[gpu], gpu, k)

    def nodes_of(self, sites: Ints) -> Mapping[str, int]:
        """Return how many GPUs of each node are at some sites."""
        names, node = self.round.machines.node_ids, self.round.machines.node
        on = Counter(node[gpu] for k in sites.tolist() for gpu in self.sites[k].gpus)
        return {names[k]: on[k] for k in sorted(on)}

    def most_groups(self, job: Job) -> Mapping[str, int]:
        """Return the GPUs on each node, of the model with most groups of workers of a job."""
        found = [self.nodes_of(sites) for sites in self._of_model]
        return max(found, key=lambda counts: sum(groups_on(job, n) for n in counts.values()))

    def by_node(self, index: int) -> tuple[Mapping[str, int], bool]:
        """Return how many GPUs of each node a job could have now, and whether all are free.

        They are of the model, and for the sub-batch, with which it could have most groups of
        workers.
        """
        job, key = self.jobs[index], self.refusals.keys(index)
        ways = self.refusals.candidates(index)
        best = _best_of_each_site(ways, key).reshape(len(self.round.variants_of(index)), -1)
        found: list[tuple[int, dict[str, int], bool]] = []
        for row in best:
            for sites, keys in self._usable(job, key[row]):
                can = keys < Refusal.NONE + 1
                now = self.nodes_of(sites[can])
                counts = {name: now.get(name, 0) for name in self.nodes_of(sites)}
                groups = sum(groups_on(job, number) for number in counts.values())
                found.append((groups, counts, not self._held[sites[can]].any()))
        _, counts, free = max(found, key=lambda each: each[0])
        return counts, free

    def _choices(self, job: Job, key: Floats) -> Iterator[tuple[Ints, Floats]]:
        """Yield the best sites of each model, and of the gangs it may join, with their keys."""
        if self.refusals.rules.gang_sharing == "whole":
            team, size = self.refusals.teams
            if len(fitting := np.flatnonzero(size == job.workers)):
                worst = np.zeros(len(size))
                np.maximum.at(worst, team[self._held], key[self._held])
                sites = np.flatnonzero(self._held & (team == fitting[worst[fitting].argmin()]))
                order = sites[np.argsort(key[sites], kind="stable")]
                yield order, key[order]
            # Apart from joining a whole gang, only free GPUs are available.
            key = np.where(self._held, np.maximum(key, Refusal.APART), key)
        for sites in self._of_model:
            order = sites[np.argsort(key[sites], kind="stable")]
            total = np.cumsum(self._number[order])
            if total[-1] >= job.workers:
                order = order[: int(np.searchsorted(total, job.workers)) + 1]
                yield order, key[order]

    def _picks(self, ways: Candidates, rows: Ints, taken: Sequence[_Taken]) -> tuple[Pick, ...]:
        return tuple(
            Pick(ways, int(rows[k]), self.sites[k]._replace(gpus=gpus), Refusal(int(key)), number)
            for k, key, gpus, number in taken
        )

    def started(self, index: int, finding: BestGpus) -> Mapping[str, Assignment]:
        """Return, by job, the assignment of a job to the GPUs found and the others that change.

        They have no slowdowns and co-runners.
        """
        shares: dict[int, dict[str, AnyShare]] = {}
        for pick in finding.picks:
            seated = [(index, pick.share)]
            seated += [(o.job, share_of(o.share)) for o in pick.others if self.starts(o)]
            for job, share in seated:
                gpus = self.round.machines.names(pick.site.gpus[: pick.number])
                shares.setdefault(job, {}).update(dict.fromkeys(gpus, share))
        own = shares.pop(index)
        found = Assignment(
            job=self.jobs[index].id,
            gpus=tuple(own),
            share=tuple(own.values()),
            sub_batch=finding.sub_batch,
            start=True,
        )
        rows = (with_shares(self.rows[self.jobs[k].id], changed) for k, changed in shares.items())
        return {row.job: row for row in (found, *rows)}

    # -- the value of a start -------------------------------------------------------------------

    def change(self, index: int, finding: BestGpus) -> float:
        """Return the change of the objective if a job started as found."""
        met = {o.job for pick in finding.picks for o in pick.site.occupants}
        touched = sorted({k for job in met for k in self.refusals.sites_of[job]})
        held = [(int(self._number[k]), self._now(k)) for k in touched]
        before, worth_before = worth(self.values, held)
        taken: Counter[int] = Counter()
        for pick in finding.picks:
            taken[int(pick.ways.site[pick.row])] += pick.number
        left = [(number - taken[k], r) for k, (number, r) in zip(touched, held, strict=True)]
        new = [
            (pick.number, self.refusals.groups_of(index, np.array([pick.row])))
            for pick in finding.picks
        ]
        after, worth_after = worth(self.values, [*new, *(each for each in left if each[0])])
        parts = [gain - before.get(job, 0.0) for job, gain in after.items()]
        change = math.fsum([*parts, worth_after - worth_before])
        largest = max(map(abs, [*after.values(), *before.values(), worth_after]))
        return 0.0 if abs(change) <= _ROUNDING * largest else change

    def later(self, index: int, way: Pick, place: int) -> bool:
        """Return whether one bound is reached only after co-runners have ended.

        Place 0 is the job with this index; the others are its co-runners.
        """
        jobs = [index, *(other.job for other in way.others)]
        shares = [share_code(way.share), *(other.share for other in way.others)]
        workloads = self.round.jobs.workload[jobs].tolist()
        members = list(zip(workloads, shares, strict=True))
        latency = self.round.jobs.latency[jobs].tolist()
        records = self.round.instance_slowdowns
        found = [find(way.site.kind, members) for find in (records.find, records.at_first)]
        last, first = (known.bounds(latency)[place] if known else 0.0 for known in found)
        return last > first

    def cost_text(self, index: int, finding: BestGpus) -> str:
        """Return why a plan may be better without a job that starts as found, or ""."""
        if self.values.two_stage:
            return ", but its weight is 0" if self.round.jobs.weight[index] == 0 else ""
        change = self.change(index, finding)
        if change > 0:
            return ""
        if change == 0:
            return f", but {self.values.name} would not rise"
        return f", but {self.values.name} would fall by {Decimal(f'{-change:.2g}'):f}"

    # -- missing measurements -------------------------------------------------------------------

    def unmeasured(self, index: int) -> BestGpus | None:
        """Return the best GPUs for a job if the unknown slowdowns there were harmless.

        None if no unknown slowdown would let the job start.
        """
        ways = self.refusals.candidates(index)
        if self._measurable_of is None or self._measurable_of[0] is not ways:
            self._measurable_of = ways, self._measurable(index, ways)
        able = self._measurable_of[1]
        if self.round.hosts is not None:
            short = np.asarray(self.refusals.host_lacks(index).any(axis=1))
            able = able & ~short[ways.site]
        found = self.find(index, able)
        return found if found and found.level == Refusal.UNKNOWN else None

    def missing(self, index: int, finding: BestGpus) -> tuple[SlowdownEntry, ...]:
        """Return the entries that were not measured, with their best possible values."""
        met = [pick for pick in finding.picks if pick.level == Refusal.UNKNOWN]
        return tuple({e.key: e for e in (self._entry(index, pick) for pick in met)}.values())

    def _measurable(self, index: int, ways: Candidates) -> Bools:
        """Return which candidates of a kind of job a measurement could make possible."""
        fits: Bools = (ways.fixed == Refusal.UNKNOWN) & (ways.displaced == NONE_DISPLACED)
        fits &= ways.short == 0
        for row in np.flatnonzero(fits).tolist():
            site = self.sites[int(ways.site[row])]
            pick = Pick(ways, row, site, Refusal.UNKNOWN, 1)
            asked = tuple(
                sorted((name, share_code(share)) for name, share in self._members(index, pick))
            )
            # An entry without a slowdown says that they may not share.
            known, (model, mode) = self.instance.entries, site.kind
            fits[row] = not any((of, asked, mode) in known for of in (None, model))
        return fits

    def _members(self, index: int, pick: Pick) -> list[tuple[str, AnyShare]]:
        """Return the job and those it would join, with equal shares where they may be chosen."""
        held = [None if self.starts(o) else o.share for o in pick.others]
        rules = self.instance.cluster
        # The largest share that all jobs whose share is open can have together. Not idle: an entry
        # may not have only that share.
        taken = share_total(share_of(code) for code in held if code is not None)
        each = (rules.share_sum - taken) // (1 + held.count(None))
        caps = caps_of(rules.shares) if pick.site.kind.sharing == "mps" else []
        free = max((share for share in caps if share <= each), default=None)
        names = [self.jobs[o.job].workload for o in pick.others]
        shares = [free if share is None else share_of(share) for share in held]
        return [(self.jobs[index].workload, free), *zip(names, shares, strict=True)]

    def _entry(self, index: int, pick: Pick) -> SlowdownEntry:
        names, shares = zip(*self._members(index, pick), strict=True)
        alone = [self.instance.workloads[name].power_w for name in names]
        known = [watts for watts in alone if watts is not None]
        return SlowdownEntry.from_data(
            {
                "pair" if len(names) == 2 else "set": list(names),
                "share": list(shares),
                "slowdown": [1.0] * len(names),
                # ``energy`` needs it.
                "power_w": sum(known) if len(known) == len(alone) else None,
                "gpu_model": pick.site.model,
                "mode": pick.site.kind.sharing,
            }
        )


def _by_site(chosen: Sequence[GpuAtSite]) -> Sequence[_Taken]:
    """Return GPUs as parts of their sites, in the order of their keys."""
    found: dict[tuple[float, int], list[int]] = defaultdict(list)
    for each in chosen:
        found[each.key, each.site].append(each.gpu)
    return [(k, key, tuple(gpus), len(gpus)) for (key, k), gpus in found.items()]


def _best_of_each_site(ways: Candidates, key: Floats) -> Ints:
    """Return, for each variant at each site, the first row with the least key."""
    least = np.minimum.reduceat(key, ways.starts)
    rows = np.diff(ways.starts, append=len(key))
    attained = np.flatnonzero(key == np.repeat(least, rows))
    return np.asarray(attained[np.searchsorted(attained, ways.starts)])


def with_shares(row: Assignment, changed: Mapping[str, AnyShare]) -> Assignment:
    """Return an assignment with other shares on some GPUs, without slowdown and co-runners."""
    share = {**dict(zip(row.gpus, row.shares, strict=True)), **changed}
    return row.replace(share=tuple(share.values()), slowdown=None, co_runners=None)
