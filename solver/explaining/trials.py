"""Whether a changed round would start a job: the round solved with the job and without it.

It is not enough that a plan with the job is best: any plan of equal value may be returned. If no
plan without the job comes near the value of one with it, every optimal plan has it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dovetail.formulations.arrays import Bools
from dovetail.formulations.budget import Budget
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.candidates.kinds import Kinds
from dovetail.formulations.programs.problems import Problem
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
        best = self._solved(Problem(values.round, values, self._budget.part(_SHARE)))
        if best is None:
            return self._late
        choice, groups = best
        placed = placed_jobs(groups, choice.counts)
        if not placed[job]:
            return self._instead(values, choice, placed)
        without = self._solved(_Without(values, job, self._budget.part(_SHARE)))
        if without is None:
            return self._late
        if _exceeds(values, best, without[0]):
            return StartVerdict(True, "")
        return StartVerdict(False, ", but an equally good plan may leave it out")

    def _solved(self, problem: Problem) -> tuple[Choice, Groups] | None:
        """Return the best choice and its groups, or None if the time ran out."""
        if self.over:
            return None
        choice = Auto().solve(problem, Limits(self._budget.part(_SHARE))).bounded(problem)
        return None if self.over else (choice, choice.groups_of(problem))

    def _instead(self, values: JobValues, choice: Choice, placed: Bools) -> StartVerdict:
        """Return the verdict on what a best plan does instead of starting the job."""
        if relative_gap(choice.bound, choice.value) > OPTIMAL_GAP:
            return self._late
        ids = values.round.jobs.ids
        fresh = [ids[k] for k in np.flatnonzero(placed).tolist() if ids[k] not in self._placed]
        does = f"starts {listed(fresh, 3)} in its place" if fresh else "leaves it out"
        return StartVerdict(False, f", but a best plan {does}")


class _Without(Problem):
    """A round in which one queued job may not start."""

    def __init__(self, values: JobValues, job: int, budget: Budget) -> None:
        super().__init__(values.round, values, budget)
        self._job = job

    @cached_property
    def kinds(self) -> Kinds:
        """The kinds of jobs, with this job apart from its kind."""
        return super().kinds.without(self._job)

    @cached_property
    def groups(self) -> Groups:
        """The candidate groups without the job."""
        every = super().groups
        return every.take(
            np.bincount(every.group_of_member, every.job == self._job, len(every)) == 0
        )

    @property
    def tables(self) -> None:
        """No tables, because they contain all jobs."""
        return


def _exceeds(values: JobValues, best: tuple[Choice, Groups], without: Choice) -> bool:
    """Return whether a plan is worth more than any plan without the job can be."""
    choice, groups = best
    if values.two_stage:
        weight = score(groups, values, choice.counts).weight
        if weight > without.weight_bound * (1 + _MARGIN):
            return True
        if weight < without.weight_bound * (1 - _ROUNDING):
            return False
    return choice.value > without.bound + _MARGIN * max(abs(choice.value), abs(without.bound))
