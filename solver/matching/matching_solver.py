"""Solver: rounds in which jobs share interchangeable GPUs in pairs, with our own engine."""

from __future__ import annotations

from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.candidates.needed import candidate_groups
from dovetail.formulations.programs.pair_graph import PartialSharingError, require_matchings
from dovetail.formulations.values import JobValues
from dovetail.solver.backends.array_search import settled
from dovetail.solver.matching.exact_pairs import best_matching, best_on_tables, paired_counts
from dovetail.solver.matching.partial_pairs import best_partial_sharing
from dovetail.solver.matching.table_pairs import table_pairs
from dovetail.solver.types import Choice, Limits, refusals_of


class MatchingSolver:
    """Solves rounds by one matching if plans are matchings, else by a search with many.

    The search is for gangs that may share some of their GPUs (``gang_sharing: partial``).
    """

    name = "matching"

    def solve(self, values: JobValues, limits: Limits) -> Choice:
        """Return the proven best choice of groups, or the best found when the time is up.

        Raises
        ------
        UnsupportedError
            If jobs do not share interchangeable GPUs in pairs.
        """
        with refusals_of(self.name):
            large = table_pairs(values)
            if large is not None:
                return best_on_tables(large, limits)
            return best_in_pairs(candidate_groups(values, limits.budget), limits)


def best_in_pairs(groups: Groups, limits: Limits) -> Choice:
    """Return the proven best choice of groups, or the best found when the time is up.

    Raises
    ------
    UnsupportedError
        If jobs do not share interchangeable GPUs in pairs, with the reason.
    """
    try:
        require_matchings(groups)
        choice = best_matching(groups.apart, limits)
    except PartialSharingError:
        apart = groups.apart
        choice = best_partial_sharing(apart, limits, paired_counts(apart, limits))
    return settled(choice.merged(groups), limits)
