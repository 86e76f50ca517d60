"""Large rounds of pairs: matched on tables, so that no more groups are listed than are chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.groups import Groups, idle_counts, list_chosen, member_gains
from dovetail.formulations.pair_tables import PairTables
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import score
from dovetail.solver.answers import MATCHING, MOST_GROUPS, Choice, Limits, Proven
from dovetail.solver.lexicographic import Heaviest, why_stopped
from dovetail.solver.pairing import (
    BestSplits,
    Matching,
    best_splits,
    certificate_errors,
    match_pairs,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LISTED_JOBS = 100
"""Jobs up to which listing all groups takes no time."""


@dataclass(frozen=True)
class TablePairs:
    """A round of pairs as the arguments of ``match_pairs``.

    Attributes
    ----------
    problem : Problem
        The round.
    tables : PairTables
        Its tables: ``required``, ``size`` and ``capacity`` among them.
    pairs : BestSplits
        The gain of each pair at its best split.
    alone : (n,) float
        The gain of each job alone; NaN where it may not be, or is not to be decided.
    fixed_gain : float
        The gain of the running jobs of whom nothing is to be decided.
    """

    problem: Problem
    tables: PairTables
    pairs: BestSplits
    alone: Floats
    fixed_gain: float

    @property
    def arguments(self) -> dict[str, Any]:
        """What ``match_pairs`` is asked for the largest gain."""
        return {
            "pair_value": self.pairs.value,
            "single_value": self.alone,
            "gpus": self.tables.capacity,
            "size": self.tables.size,
            "required": self.tables.required,
        }

    def chosen(self, mate: Ints) -> tuple[Groups, Ints]:
        """Return the groups of a matching and whatever else may be, and how often each is taken.

        Parameters
        ----------
        mate : (n,) int
            As ``match_pairs`` returns it; where it came too late for the running jobs, nobody
            starts.
        """
        if (self.tables.required & (mate < 0)).any():
            groups = _without_pairs(self.problem)
            return groups, idle_counts(groups)
        jobs = np.arange(len(mate))
        first = jobs[mate > jobs]
        shares = self.tables.shares[self.pairs.split[first, mate[first]]]
        pairs = np.stack([first, mate[first]], axis=1)
        groups = list_chosen(self.problem.round, self.problem.values, pairs, shares)
        start, last = groups.job[groups.start[:-1]], groups.job[groups.start[1:] - 1]
        decided = (start == last) | ~self.tables.running[start] | ~self.tables.running[last]
        counts = idle_counts(groups)
        counts[decided] = 0
        taken = decided & (mate[start] == last)
        counts[taken] = self.tables.size[start[taken]]
        return groups, counts


def table_pairs(problem: Problem) -> TablePairs | None:
    """Return a round as tables; None where its groups can, or have to be, listed.

    Small rounds are listed, because their ties are broken among all groups.
    """
    if len(problem.round.jobs) <= _LISTED_JOBS or problem.tables is None:
        return None
    tables = problem.tables
    pairs = best_splits(
        tables.slowdown,
        tables.kind,
        bound=tables.bound,
        gsla=tables.gsla,
        memory=tables.memory_mib,
        memory_limit=tables.memory_limit_mib,
        weight=tables.scale,
        size=tables.size,
        running=tables.running,
        allowed=tables.allowed,
        mirror=tables.mirror,
        gain="slowdown" if tables.minimised else "throughput",
    )
    alone, fixed_gain = _apart(problem, tables)
    groups = np.count_nonzero(~np.isnan(pairs.value)) // 2 + np.count_nonzero(~np.isnan(alone))
    if groups * len(problem.round.instance.cluster.nodes) <= MOST_GROUPS:
        return None
    return TablePairs(problem, tables, pairs, alone, fixed_gain)


def _without_pairs(problem: Problem) -> Groups:
    nobody = np.empty((0, 2), dtype=np.int64)
    return list_chosen(problem.round, problem.values, nobody, nobody)


def _apart(problem: Problem, tables: PairTables) -> tuple[Floats, float]:
    """Return the gain of each job alone, and of those who share and are not to be decided."""
    groups = _without_pairs(problem)
    single = groups.sizes == 1
    job = groups.job[groups.start[:-1]][single]
    alone = np.full(len(tables.size), np.nan)
    alone[job] = member_gains(groups, problem.values)[groups.start[:-1][single]]
    free = tables.capacity - tables.size[tables.required].sum()
    alone[~tables.running & (tables.size > free)] = np.nan
    held = np.where(single, 0, idle_counts(groups))
    return alone, score(groups, problem.values, held).gain


def best_of_tables(large: TablePairs, limits: Limits) -> Choice:
    """Return the proven best choice of groups, or the best found when the time is up."""
    if large.problem.values.two_stage:
        return _two_stages(large, limits)
    return _one_stage(large, limits)


def _one_stage(large: TablePairs, limits: Limits) -> Choice:
    found = match_pairs(
        **large.arguments,
        time_limit=limits.time_limit,
        seed=limits.seed,
        previous=limits.previous,
    )
    groups, counts = large.chosen(found.mate)
    value = score(groups, large.problem.values, counts).gain
    return Choice(
        counts=counts,
        value=value,
        bound=max(found.bound + large.fixed_gain, value),
        weight_bound=math.inf,
        stopped=why_stopped(found, limits),
        solver=MATCHING,
        proof=partial(_proven, found),
        prices=found.prices,
        groups=groups,
    )


def _proven(found: Matching, problem: Problem) -> Proven:
    """Return what the engine's certificate proves, checked against all pairs of jobs."""
    large = table_pairs(problem)
    if large is None:
        raise AssertionError("the same round has tables again")
    errors = certificate_errors(found, **large.arguments)
    return Proven(found.bound + large.fixed_gain, tuple(errors))


def _two_stages(large: TablePairs, limits: Limits) -> Choice:
    tables, values = large.tables, large.problem.values
    heaviest = Heaviest(
        values.weight,
        may_share=~np.isnan(large.pairs.value),
        may_run_alone=~np.isnan(large.alone),
        gpus=tables.capacity,
        size=tables.size,
        required=tables.required,
        limits=limits,
    )
    mate, bound, stopped = heaviest.mate, math.inf, heaviest.stopped
    if heaviest.proven:
        gain = large.pairs.value.astype(np.float64, copy=False)
        best = heaviest.best(gain, large.alone, limits)
        mate, bound, stopped = best.mate, best.bound + large.fixed_gain, best.stopped
    groups, counts = large.chosen(mate)
    reached = score(groups, values, counts)
    return Choice(
        counts=counts,
        value=reached.gain,
        bound=max(bound, reached.gain),
        weight_bound=reached.weight + heaviest.spare,
        stopped=stopped,
        solver=MATCHING,
        groups=groups,
    )
