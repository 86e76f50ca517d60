"""Whether a changed round would start a job: the round solved with the job and without it.

It is not enough that a plan with the job is best: any plan of equal value may be returned. If no
plan without the job comes near the value of one with it, every optimal plan has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from dovetail.formulations.arrays import Bools
from dovetail.formulations.budget import Budget
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.candidates.kinds import Kinds
from dovetail.formulations.candidates.needed import candidate_groups
from dovetail.formulations.programs.scores import placed_jobs, score
from dovetail.formulations.values import JobValues
from dovetail.instances._record import listed
from dovetail.solver.registry import Auto
from dovetail.solver.types import OPTIMAL_GAP, Choice, Limits, relative_gap

_SHARE = 0.5
"""The fraction of the remaining time that one solve may take."""

_MARGIN = 2 * OPTIMAL_GAP
"""The relative amount by which a value must exceed a bound: plans within a gap are equally good."""


_ROUNDING = 1e-12
"""Relative error of a sum of weights."""


class StartVerdict(NamedTuple):
    """Whether every best plan starts a job; if not, a clause on what may happen instead."""

    sure: bool
    instead: str


class Trials:
    """Solves changed rounds until a budget is used up.

    Parameters
    ----------
    seconds : float
        For all rounds together; without time nothing is sure.
    placed : collection of str
        The jobs that the explained plan places.
    """

    def __init__(self, seconds: float, placed: Collection[str]) -> None:
        self._budget = Budget.of(seconds)
        self._late = StartVerdict(False, ", not solved in time" if seconds else "")
        self._placed = placed

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        return self._budget.passed

    def of(self, values: JobValues, job: int) -> StartVerdict:
        """Return whether every best plan of a round starts the job with this index."""
        best = self._solved(lambda limits: Auto().solve(values, limits))
        if best is None:
            return self._late
        placed = placed_jobs(best.groups, best.counts)
        if not placed[job]:
            return self._instead(values, best, placed)
        without = self._solved(
            lambda limits: Auto().best(_without(values, job, limits.budget), limits)
        )
        if without is None:
            return self._late
        if _exceeds(values, best, without):
            return StartVerdict(True, "")
        return StartVerdict(False, ", but an equally good plan may leave it out")

    def _solved(self, solve: Callable[[Limits], Choice]) -> Choice | None:
        """Return the best choice, or None if the time ran out."""
        if self.over:
            return None
        choice = solve(Limits(self._budget.part(_SHARE))).bounded()
        return None if self.over else choice

    def _instead(self, values: JobValues, choice: Choice, placed: Bools) -> StartVerdict:
        """Return the verdict on what a best plan does instead of starting the job."""
        if relative_gap(choice.bound, choice.value) > OPTIMAL_GAP:
            return self._late
        ids = values.round.jobs.ids
        fresh = [ids[k] for k in np.flatnonzero(placed).tolist() if ids[k] not in self._placed]
        does = f"starts {listed(fresh, 3)} in its place" if fresh else "leaves it out"
        return StartVerdict(False, f", but a best plan {does}")


def _without(values: JobValues, job: int, budget: Budget) -> Groups:
    """Return the candidate groups without those of one queued job, which is apart from its kind."""
    kinds = Kinds.of(values.round, values).without(job)
    every = candidate_groups(values, budget, kinds=kinds)
    return every.take(np.bincount(every.group_of_member, every.job == job, len(every)) == 0)


def _exceeds(values: JobValues, best: Choice, without: Choice) -> bool:
    """Return whether a plan is worth more than any plan without the job can be."""
    if values.two_stage:
        weight = score(best.groups, best.counts).weight
        if weight > without.weight_bound * (1 + _MARGIN):
            return True
        if weight < without.weight_bound * (1 - _ROUNDING):
            return False
    return best.value > without.bound + _MARGIN * max(abs(best.value), abs(without.bound))
