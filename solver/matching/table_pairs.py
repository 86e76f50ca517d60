"""Large rounds of pairs: matched on tables, so that only chosen groups are listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.candidates.groups import Groups, idle_counts
from dovetail.formulations.candidates.listing import list_chosen
from dovetail.formulations.memory import require_room
from dovetail.formulations.pair_tables import PairTables, pair_tables
from dovetail.formulations.programs.scores import score
from dovetail.formulations.values import SHORTER_BY, JobValues
from dovetail.solver.matching.pairing_problem import PairingProblem, PairMatrix
from dovetail.solver.pairing.splits import SplitValues
from dovetail.solver.pairing.timed_splits import SavedTimeSplits, ShorteningSplits
from dovetail.solver.types import MOST_GROUPS

_LISTED_JOBS = 100
"""Number of jobs up to which listing all groups takes negligible time."""


_CELL_BYTES = {False: 7, True: 24}
"""Bytes of a matching per pair of jobs, in one stage and in two, measured at 10,000 jobs."""


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
    alone : (n,) float
        The gain of each job alone; NaN if that is not allowed or not to be decided.
    fixed_gain : float
        The gain of the running jobs without a decision.
    """

    values: JobValues
    tables: PairTables
    pairs: SplitValues
    alone: Floats
    fixed_gain: float

    @property
    def pairing(self) -> PairingProblem:
        """The plans as matchings, valued by their gain."""
        return PairingProblem(
            pairs=PairMatrix(self.pairs),
            pair=self.pairs,
            alone=self.alone,
            constant=self.fixed_gain,
            size=self.tables.size,
            gpus=self.tables.capacity,
            required=self.tables.required,
            taken=self._taken,
        )

    def _taken(self, mate: Ints) -> tuple[Ints, Groups]:
        if (self.tables.required & (mate < 0)).any():
            groups = _without_pairs(self.values)
            return idle_counts(groups), groups
        jobs = np.arange(len(mate))
        first = jobs[mate > jobs]
        shares = self.tables.shares[self.pairs.best(first, mate[first])[1]]
        pairs = np.stack([first, mate[first]], axis=1)
        groups = list_chosen(self.values.round, self.values, pairs, shares)
        start, last = groups.job[groups.start[:-1]], groups.job[groups.start[1:] - 1]
        decided = (start == last) | ~self.tables.running[start] | ~self.tables.running[last]
        counts = idle_counts(groups)
        counts[decided] = 0
        taken = decided & (mate[start] == last)
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
    cells = _CELL_BYTES[values.two_stage] * len(tables.size) ** 2
    require_room(cells, "tables of all pairs of jobs")
    pairs = _values(tables)
    alone, fixed_gain = _apart(values, tables)
    most = MOST_GROUPS // len(values.round.machines.node_ids)
    groups = np.count_nonzero(~np.isnan(alone))
    if groups <= most and groups + np.count_nonzero(~np.isnan(np.asarray(pairs))) // 2 <= most:
        return None
    return TablePairs(values, tables, pairs, alone, fixed_gain)


def _values(tables: PairTables) -> SplitValues:
    """Return the value of every pair at its best split."""
    given: dict[str, Any] = {
        "slowdown": tables.slowdown,
        "workload": tables.kind,
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
    }
    if tables.ends is not None:
        return SavedTimeSplits(tables.ends, **given)
    if tables.left is not None:
        return ShorteningSplits(tables.left, SHORTER_BY, **given)
    return SplitValues(**given)


def _without_pairs(values: JobValues) -> Groups:
    no_pairs = np.empty((0, 2), dtype=np.int64)
    return list_chosen(values.round, values, no_pairs, no_pairs)


def _apart(values: JobValues, tables: PairTables) -> tuple[Floats, float]:
    """Return the gain of each job alone, and of the sharing jobs without a decision."""
    groups = _without_pairs(values)
    single = groups.sizes == 1
    job = groups.job[groups.start[:-1]][single]
    alone = np.full(len(tables.size), np.nan)
    alone[job] = groups.gain[groups.start[:-1][single]] + groups.value[single] * tables.size[job]
    free = tables.capacity - tables.size[tables.required].sum()
    alone[~tables.running & (tables.size > free)] = np.nan
    if values.relative:
        alone[~tables.running & (alone < 0)] = np.nan  # to wait is worth 0
    held = np.where(single, 0, idle_counts(groups))
    return alone, score(groups, held).gain
