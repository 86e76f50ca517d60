"""Large rounds of pairs: matched on tables, so that only chosen groups are listed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.budget import require_room
from dovetail.formulations.candidates.groups import Groups, idle_counts, score
from dovetail.formulations.candidates.listing import list_chosen
from dovetail.formulations.pair_tables import PairTables, pair_tables
from dovetail.formulations.values import SHORTER_BY, JobValues
from dovetail.solver.matching.exact_pairs import MatchingSearch
from dovetail.solver.matching.pairing_problem import PairingProblem, WorkloadPairs
from dovetail.solver.pairing.splits import SavedTimeSplits, ShorteningSplits, SplitValues
from dovetail.solver.stages import solve_in_stages
from dovetail.solver.types import MOST_GROUPS, Choice, Limits

_LISTED_JOBS = 100
"""Number of jobs up to which listing all groups takes negligible time."""


@dataclass(frozen=True)
class TablePairs:
    """A round of pairs on tables.

    Attributes
    ----------
    values : JobValues
        The objective, with its round.
    tables : PairTables
        The tables, with ``required``, ``size`` and ``capacity``.
    pairs : SplitValues
        The gain of each pair at its best split.
    apart : Groups
        The groups of single jobs, and of running jobs that share.
    """

    values: JobValues
    tables: PairTables
    pairs: SplitValues
    apart: Groups

    def pairing(self, per_gain: float = 1.0, per_cost: float = 0.0) -> PairingProblem:
        """Return the plans as matchings; the value is gain less cost, with these factors."""
        tables = self.tables
        pairs = self.pairs
        if (per_gain, per_cost) != (1.0, 0.0):
            pairs = pairs.weighed(per_gain, per_cost)
        fixed = score(self.apart, self._held)
        return PairingProblem(
            pairs=WorkloadPairs.of(pairs),
            pair=pairs,
            alone=self.alone(per_gain, per_cost),
            constant=per_gain * fixed.gain - per_cost * float(np.nan_to_num(fixed.cost)),
            size=tables.size,
            gpus=tables.capacity,
            required=tables.required,
            taken=partial(self._taken, pairs, per_gain, per_cost),
        )

    def alone(self, per_gain: float = 1.0, per_cost: float = 0.0) -> Floats:
        """Return the value of each job alone; NaN if that is not allowed or not decided, (n,)."""
        tables = self.tables
        group, value = self._best_alone(self.apart, per_gain, per_cost)
        job = self.apart.job[self.apart.start[group]]
        alone = np.full(len(tables.size), np.nan)
        alone[job] = value
        free = tables.capacity - tables.size[tables.required].sum()
        alone[~tables.running & (tables.size > free)] = np.nan
        if self.values.relative:
            alone[~tables.running & (alone < 0)] = np.nan  # to wait is worth 0
        return alone

    @property
    def _held(self) -> Ints:
        """How often the groups of running jobs without a decision are taken."""
        return np.where(self.apart.sizes == 1, 0, idle_counts(self.apart))

    def _best_alone(self, groups: Groups, per_gain: float, per_cost: float) -> tuple[Ints, Floats]:
        """Return the best group of each job alone, and its value."""
        group = np.flatnonzero(groups.sizes == 1)
        job, size = groups.job[groups.start[group]], self.tables.size
        cost = np.nan_to_num(groups.cost[group])
        gain = groups.gain[groups.start[group]] + groups.value[group] * size[job]
        value = per_gain * gain - per_cost * cost * size[job]
        order = np.lexsort((value, job))
        best = order[np.diff(job[order], append=-1) != 0]
        return group[best], value[best]

    def _taken(
        self, values: SplitValues, per_gain: float, per_cost: float, mate: Ints
    ) -> tuple[Ints, Groups]:
        if (self.tables.required & (mate < 0)).any():
            return idle_counts(self.apart), self.apart
        jobs = np.arange(len(mate))
        first = jobs[mate > jobs]
        shares = self.tables.shares[values.best(first, mate[first])[1]]
        pairs = np.stack([first, mate[first]], axis=1)
        groups = list_chosen(self.values.round, self.values, pairs, shares)
        start, last = groups.job[groups.start[:-1]], groups.job[groups.start[1:] - 1]
        decided = (start == last) | ~self.tables.running[start] | ~self.tables.running[last]
        counts = idle_counts(groups)
        counts[decided] = 0
        usable = groups.sizes > 1
        usable[self._best_alone(groups, per_gain, per_cost)[0]] = True
        taken = decided & usable & (mate[start] == last)
        counts[taken] = self.tables.size[start[taken]]
        return counts, groups


def table_pairs(values: JobValues) -> TablePairs | None:
    """Return a round as tables, or None if its groups can or must be listed.

    Small rounds are listed, because ties are broken among all groups.

    Raises
    ------
    UnsupportedError
        If the tables would not fit in memory.
    """
    if len(values.round) <= _LISTED_JOBS:
        return None
    tables = pair_tables(values.round, values)
    if tables is None:
        return None
    gains = _values(tables)
    require_room(gains.needed_bytes, "the values of all pairs of jobs")
    no_pairs = np.empty((0, 2), dtype=np.int64)
    apart = list_chosen(values.round, values, no_pairs, no_pairs)
    found = TablePairs(values, tables, gains, apart)
    most = MOST_GROUPS // len(values.round.machines.node_ids)
    groups, pairs = np.count_nonzero(~np.isnan(found.alone())), found.pairs
    if groups <= most and groups + np.count_nonzero(~np.isnan(np.asarray(pairs))) // 2 <= most:
        return None
    return found


def _values(tables: PairTables) -> SplitValues:
    """Return the value of every pair at its best split."""
    given: dict[str, Any] = {
        "slowdown": tables.slowdown,
        "workload": tables.row,
        "bound": tables.bound,
        "gsla": tables.gsla,
        "memory": tables.memory_mib,
        "memory_limit": tables.memory_limit_mib,
        "weight": tables.scale,
        "size": tables.size,
        "running": tables.running,
        "allowed": tables.allowed,
        "mirror": tables.mirror,
        "gain": "slowdown" if tables.minimised else "throughput",
        "cost": tables.cost,
    }
    if tables.ends is not None:
        return SavedTimeSplits(tables.ends, **given)
    if tables.left is not None:
        return ShorteningSplits(tables.left, SHORTER_BY, **given)
    return SplitValues(**given)


def best_on_tables(large: TablePairs, limits: Limits) -> Choice:
    """Return the best choice of groups among the matchings of a round on tables."""
    return solve_in_stages(MatchingSearch(large.values, large.pairing, limits))
