"""The GPUs that come nearest to letting a waiting job start, and what stands against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.groups import NO_SHARE
from dovetail.formulations.problems import Problem
from dovetail.formulations.refusals import (
    NO_LEAVER,
    Candidates,
    Refusal,
    Refusals,
    Site,
    sites_of,
)
from dovetail.formulations.rounds import Resident, Variant
from dovetail.instances.instance import Job
from dovetail.instances.plan import Assignment

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Pick:
    """So many GPUs of a site, used as a row of ``Candidates`` says, and what refuses that."""

    ways: Candidates
    row: int
    level: Refusal
    number: int

    @property
    def site(self) -> int:
        """Index of the site."""
        return int(self.ways.site[self.row])

    @property
    def slowdown(self) -> float:
        """The job's slowdown; NaN where it is not known."""
        return float(self.ways.slowdown[self.row, 0])

    @property
    def bound(self) -> float:
        """What the job's gSLA is checked against."""
        return float(self.ways.bound[self.row, 0])

    @property
    def share(self) -> int | None:
        """The job's share."""
        return self._share(0)

    @property
    def short_mib(self) -> float:
        """Memory that is missing."""
        return float(self.ways.short_mib[self.row])

    def mostly_memory(self, job: Job) -> bool:
        """Tell whether memory is further from what it must be than gSLAs are, relatively."""
        own = 0.0 if job.gsla is None else max(0.0, self.bound / job.gsla - 1)
        return bool(self.ways.short[self.row] > own + self.ways.excess[self.row].sum())

    def others(self, site: Site) -> tuple[Resident, ...]:
        """Return the co-runners, at the shares that they would have."""
        leaver = int(self.ways.leaver[self.row])
        staying = [o for k, o in enumerate(site.occupants) if k != leaver]
        if self.level >= Refusal.UNKNOWN:
            return tuple(staying)
        return tuple(Resident(o.variant, self._share(k)) for k, o in enumerate(staying, 1))

    def leaver(self, site: Site) -> Resident | None:
        """Return in whose place the job would come."""
        position = int(self.ways.leaver[self.row])
        return None if position == NO_LEAVER else site.occupants[position]

    def slowed(self, position: int) -> tuple[float, float]:
        """Return slowdown and bound of the co-runner at this position of ``others``."""
        row = self.row, position + 1
        return float(self.ways.slowdown[row]), float(self.ways.bound[row])

    def too_slow(self, position: int) -> bool:
        """Tell whether the co-runner at this position of ``others`` would be over its gSLA."""
        return bool(self.ways.excess[self.row, position + 1] > 0)

    def _share(self, position: int) -> int | None:
        share = int(self.ways.share[self.row, position])
        return None if share == NO_SHARE else share


@dataclass(frozen=True)
class Finding:
    """The best GPUs for a whole job.

    Attributes
    ----------
    variant : Variant
        At which sub-batch.
    picks : tuple of Pick
        All its GPUs, the most promising first; the last decides whether the job can start.
    """

    variant: Variant
    picks: tuple[Pick, ...]

    @property
    def possible(self) -> int:
        """How many of its GPUs the job could have at once."""
        return sum(p.number for p in self.picks if p.level == Refusal.NONE)

    @property
    def binding(self) -> Pick:
        """The pick that is refused most."""
        return self.picks[-1]

    @property
    def level(self) -> Refusal:
        """What stands against the job."""
        return self.binding.level


class Finder:
    """Finds the best GPUs for waiting jobs.

    Parameters
    ----------
    problem : Problem
        The round, under the objective that has a say in who may share.
    assignments : sequence of Assignment
        A valid plan.
    """

    def __init__(self, problem: Problem, assignments: Sequence[Assignment]) -> None:
        self.round, self.values = problem.round, problem.values
        self.instance = problem.round.instance
        self.jobs = self.instance.jobs
        self.rows = {row.job: row for row in assignments}
        self.sites = sites_of(self.round, assignments)
        self.refusals = Refusals(self.round, self.values, self.sites)
        self._number = np.array([len(site.gpus) for site in self.sites], dtype=np.int64)
        self._of_model = [
            np.array([k for k, site in enumerate(self.sites) if site.model == model])
            for model in self.round.models
        ]
        self._whole = self.refusals.rules.gang_sharing == "whole"
        self._held = np.array([bool(site.occupants) for site in self.sites], dtype=bool)
        self._team, self._team_size = self._teams()

    def starts(self, occupant: Resident) -> bool:
        """Tell whether a placed job starts, so that its share may still be changed."""
        return not self.jobs[occupant.variant.job].running

    def find(self, index: int, among: Bools | None = None) -> Finding | None:
        """Return the best GPUs for a job; None where no model has as many GPUs.

        Those of one model whose worst one is best; at the first such sub-batch.

        Parameters
        ----------
        index : int
            Index of the job.
        among : (n,) bool, optional
            The candidates that count besides those that nothing refuses; all without.
        """
        job, ways = self.jobs[index], self.refusals.candidates(index)
        key = self.refusals.keys(index)
        if among is not None:
            key = np.where(among | (self.levels(index) == Refusal.NONE), key, Refusal.CLOSED)
        best = _best_of_each_site(ways, key).reshape(len(self.round.variants[index]), -1)
        found: tuple[float, Finding] | None = None
        for variant, row in zip(self.round.variants[index], best, strict=True):
            for sites, keys in self._choices(job, key[row]):
                worst = float(keys[-1])
                if found is None or worst < found[0]:
                    found = worst, Finding(variant, self._picks(job, ways, row[sites], keys))
        return found[1] if found else None

    def levels(self, index: int) -> Ints:
        """Return what refuses each candidate of a job."""
        return self.refusals.keys(index).astype(np.int64)

    def _teams(self) -> tuple[Ints, Ints]:
        """Return the set of GPUs that the jobs of each site have, and the sizes of the sets.

        A set that is not wholly held by jobs with just these GPUs has size 0.
        """
        index: dict[frozenset[str], int] = {}
        team = np.zeros(len(self.sites), dtype=np.int64)
        for k in np.flatnonzero(self._held):
            first = self.sites[k].occupants[0].variant.job
            team[k] = index.setdefault(self.refusals.gpus_of(first), len(index))
        size = np.array([len(gpus) for gpus in index], dtype=np.int64)
        held = np.zeros(len(index), dtype=np.int64)
        np.add.at(held, team[self._held], self._number[self._held])
        return team, np.where(size == held, size, 0)

    def _choices(self, job: Job, key: Floats) -> Iterator[tuple[Ints, Floats]]:
        """Yield the best sites of each model, and of the gangs it may join, with their keys."""
        if self._whole:
            yield from self._best_team(job.workers, key)
            # Apart from joining a whole gang, only free GPUs are to be had.
            key = np.where(self._held, np.maximum(key, Refusal.APART), key)
        for sites in self._of_model:
            order = sites[np.argsort(key[sites], kind="stable")]
            total = np.cumsum(self._number[order])
            if total[-1] >= job.workers:
                order = order[: int(np.searchsorted(total, job.workers)) + 1]
                yield order, key[order]

    def _best_team(self, workers: int, key: Floats) -> Iterator[tuple[Ints, Floats]]:
        fitting = np.flatnonzero(self._team_size == workers)
        if len(fitting):
            worst = np.zeros(len(self._team_size))
            np.maximum.at(worst, self._team[self._held], key[self._held])
            best = fitting[worst[fitting].argmin()]
            sites = np.flatnonzero(self._held & (self._team == best))
            order = sites[np.argsort(key[sites], kind="stable")]
            yield order, key[order]

    def _picks(self, job: Job, ways: Candidates, rows: Ints, keys: Floats) -> tuple[Pick, ...]:
        needed, picks = job.workers, []
        for row, key in zip(rows.tolist(), keys.tolist(), strict=True):
            number = min(needed, int(self._number[ways.site[row]]))
            needed -= number
            picks.append(Pick(ways, row, Refusal(int(key)), number))
        return tuple(picks)


def _best_of_each_site(ways: Candidates, key: Floats) -> Ints:
    """Return, for each variant at each site, the first of its rows with the least key."""
    least = np.minimum.reduceat(key, ways.starts)
    rows = np.diff(ways.starts, append=len(key))
    attained = np.flatnonzero(key == np.repeat(least, rows))
    return np.asarray(attained[np.searchsorted(attained, ways.starts)])


def started(finder: Finder, index: int, finding: Finding) -> Mapping[str, Assignment]:
    """Return, by job, the assignment of a job to the GPUs found and those that change with it.

    They claim no slowdowns and co-runners.
    """
    jobs = finder.jobs
    shares: dict[int, dict[str, int | None]] = {}
    for pick in finding.picks:
        site = finder.sites[pick.site]
        seated = [(index, pick.share)]
        seated += [(o.variant.job, o.share) for o in pick.others(site) if finder.starts(o)]
        for job, share in seated:
            shares.setdefault(job, {}).update(dict.fromkeys(site.gpus[: pick.number], share))
    own = shares.pop(index)
    found = Assignment(
        job=jobs[index].id,
        gpus=tuple(own),
        share=tuple(own.values()),
        sub_batch=finding.variant.sub_batch,
        start=True,
    )
    rows = (with_shares(finder.rows[jobs[k].id], changed) for k, changed in shares.items())
    return {row.job: row for row in (found, *rows)}


def with_shares(row: Assignment, changed: Mapping[str, int | None]) -> Assignment:
    """Return an assignment with other shares on some GPUs and without its claims."""
    share = {**dict(zip(row.gpus, row.shares, strict=True)), **changed}
    return row.replace(share=tuple(share.values()), slowdown=None, co_runners=None)
