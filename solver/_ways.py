"""Every way in which a waiting job could use a GPU under a plan, and what stands against it.

The ways of one kind of job are rows of arrays. Jobs of a kind differ in what they accept and in
what is left to do, so that the rows are made once a kind and judged once a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.rounds import GSLA_TOLERANCE
from dovetail.formulations.values import shortens_mean_completion
from dovetail.instances.instance import Job

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NO_SHARE = 0
NOBODY = -1


class Level(IntEnum):
    """What stands against a way, the least first.

    ``POSSIBLE`` nothing; ``TAKEN`` somebody holds the place; ``FIGURES`` a gSLA or memory,
    which other figures would meet; ``JCT`` the rule of the objective of that name;
    ``TAKEN_FIGURES`` and ``TAKEN_JCT`` the same in somebody's place; ``UNKNOWN`` no slowdown
    is known; ``APART`` gangs share only whole; ``CLOSED`` the GPU takes nobody (constraint 5).
    """

    POSSIBLE = 0
    TAKEN = 1
    FIGURES = 2
    JCT = 3
    TAKEN_FIGURES = 4
    TAKEN_JCT = 5
    UNKNOWN = 6
    APART = 7
    CLOSED = 8


@dataclass(frozen=True)
class Ways:
    """The ways of one kind of job, a row each, ordered by variant and site.

    In arrays of two dimensions the job itself comes first, then its co-runners in the order of
    the site, then padding (NaN).

    Attributes
    ----------
    variant : (n,) int
        Position among the job's variants.
    site : (n,) int
        Index of the site.
    leaver : (n,) int
        Position of the occupant in whose place the job would come; ``NOBODY`` where there is
        room.
    fixed : (n,) int
        ``UNKNOWN``, ``APART`` or ``CLOSED``; ``POSSIBLE`` where the figures decide.
    share : (n, k) int
        The shares.
    slowdown, bound : (n, k) float
        Slowdowns, and what the gSLAs are checked against; stretched by the sub-batches.
    stretch : (n, k) float
        The slowdowns of the sub-batches by themselves.
    excess : (n, k) float
        By how much, relative to the gSLA, each co-runner's bound is above it (0 for the job).
    short_mib, short : (n,) float
        Memory that is missing, and the same relative to the job's own need.
    remaining, running : (n, k) float and bool
        Of the co-runners.
    size : (n,) int
        How many jobs share.
    """

    variant: Ints
    site: Ints
    leaver: Ints
    fixed: Ints
    share: Ints
    slowdown: Floats
    bound: Floats
    stretch: Floats
    excess: Floats
    short_mib: Floats
    short: Floats
    remaining: Floats
    running: Bools
    size: Ints

    @cached_property
    def starts(self) -> Ints:
        """The first row of each variant at each site."""
        site_changes = np.diff(self.site, prepend=-1) != 0
        return np.flatnonzero(site_changes | (np.diff(self.variant, prepend=-1) != 0))

    def own_excess(self, job: Job) -> Floats:
        """Return by how much, relative to it, the job's own gSLA is exceeded."""
        if job.gsla is None:
            return np.zeros(len(self.site))
        excess = self._own_bound / job.gsla - 1
        return np.where(excess > GSLA_TOLERANCE, excess, 0.0)

    def lacking(self, job: Job) -> Floats:
        """Return the sum of the relative differences of gSLAs and memory from what they must be."""
        return np.asarray(self.own_excess(job) + self._lacking)

    def keys(self, job: Job, jct: bool) -> Floats:
        """Return what stands against each way, by which ways are compared.

        The whole part is a ``Level``. The rest says how far the way is from what it lacks:
        where figures are too high or too low, by ``lacking``; where nothing is known, first
        where it fits, then in somebody's place, then by the missing memory; elsewhere by the
        job's slowdown.
        """
        lacking = self.lacking(job)
        level = np.where(lacking > 0, self._level_lacking, self._level)
        if jct:
            level = np.where(self._shortens(job), level, self._level_jct)
        far = np.where(lacking > 0, lacking, self._own_slowdown)
        unknown = self.fixed == Level.UNKNOWN
        far[unknown] += 2 * (self.short[unknown] > 0) + (self.leaver[unknown] != NOBODY)
        return np.asarray(level + far / (1 + far))

    @cached_property
    def _lacking(self) -> Floats:
        return np.asarray(self.excess.sum(axis=1) + self.short)

    @cached_property
    def _own_bound(self) -> Floats:
        return np.nan_to_num(self.bound[:, 0])

    @cached_property
    def _own_slowdown(self) -> Floats:
        return np.nan_to_num(self.slowdown[:, 0])

    @cached_property
    def _level(self) -> Ints:
        return self._levels_from(Level.POSSIBLE, Level.TAKEN)

    @cached_property
    def _level_lacking(self) -> Ints:
        return self._levels_from(Level.FIGURES, Level.TAKEN_FIGURES)

    @cached_property
    def _level_jct(self) -> Ints:
        return self._levels_from(Level.JCT, Level.TAKEN_JCT)

    def _levels_from(self, room: Level, taken: Level) -> Ints:
        level = np.where(self.leaver == NOBODY, room, taken)
        return np.where(self.fixed == Level.POSSIBLE, level, self.fixed)

    def _shortens(self, job: Job) -> Bools:
        found = np.asarray(self.size == 1)
        pairs = np.flatnonzero((self.size == 2) & (self.fixed == Level.POSSIBLE))
        if not len(pairs):
            return found
        own = np.full(len(pairs), job.remaining_s, dtype=np.float64)
        remaining = np.stack([self.remaining[pairs, 1], own], axis=1)
        running = np.stack([self.running[pairs, 1], np.zeros(len(pairs), dtype=bool)], axis=1)
        slowdown, alone = self.slowdown[pairs][:, [1, 0]], self.stretch[pairs][:, [1, 0]]
        found[pairs] = shortens_mean_completion(slowdown, alone, remaining, running)
        return found
