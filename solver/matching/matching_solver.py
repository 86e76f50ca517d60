"""Solver: rounds in which jobs share interchangeable GPUs in pairs, with our own engine."""

from __future__ import annotations

from dovetail.formulations.programs.pair_graph import PartialSharingError
from dovetail.formulations.programs.problems import Problem
from dovetail.solver.backends.array_search import settled
from dovetail.solver.matching.exact_pairs import best_matching, paired_counts
from dovetail.solver.matching.partial_pairs import best_partial_sharing
from dovetail.solver.types import Choice, Limits, refusals_of


class MatchingSolver:
    """Solves rounds by one matching if plans are matchings, else by a search with many.

    The search is for gangs that may share some of their GPUs (``gang_sharing: partial``).
    """

    name = "matching"

    def solve(self, problem: Problem, limits: Limits) -> Choice:
        """Return the proven best choice of groups, or the best found when the time is up.

        Raises
        ------
        UnsupportedError
            If jobs do not share interchangeable GPUs in pairs.
        """
        with refusals_of(self.name):
            return best_in_pairs(problem, limits)


def best_in_pairs(problem: Problem, limits: Limits) -> Choice:
    """Return the proven best choice of groups, or the best found when the time is up.

    Raises
    ------
    UnsupportedError
        If jobs do not share interchangeable GPUs in pairs, with the reason.
    """
    apart = problem.apart
    try:
        choice = best_matching(apart, limits)
    except PartialSharingError:
        choice = best_partial_sharing(apart, limits, paired_counts(apart, limits))
    return settled(problem, choice.merged(problem), limits)
