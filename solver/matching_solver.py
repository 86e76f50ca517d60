"""Solver: rounds in which jobs share interchangeable GPUs in pairs, by our own engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.formulations.pair_graph import PartialSharingError
from dovetail.formulations.problems import Problem
from dovetail.instances.errors import UnsupportedError
from dovetail.solver.array_solver import settled
from dovetail.solver.exact_pairs import best_matching
from dovetail.solver.partial_pairs import best_partial_sharing
from dovetail.solver.types import Choice, Limits


@contextmanager
def refusals_of(solver: str) -> Iterator[None]:
    """Let refusals name the solver, and those to take instead."""
    try:
        yield
    except UnsupportedError as refusal:
        others = "auto, cpsat, highs or milp"
        raise UnsupportedError(
            f"solver {solver} cannot take this instance, {others} can: {refusal}"
        ) from None


class MatchingSolver:
    """Solves rounds by matchings: by one where plans are matchings, else by a search with many.

    The search is for gangs that may share some of their GPUs (``gang_sharing: partial``).
    """

    name = "matching"

    def solve(self, problem: Problem, limits: Limits) -> Choice:
        """Return the proven best choice of groups, or the best found when the time is up.

        Raises
        ------
        UnsupportedError
            Where jobs do not share interchangeable GPUs in pairs.
        """
        with refusals_of(self.name):
            return best_in_pairs(problem, limits)


def best_in_pairs(problem: Problem, limits: Limits) -> Choice:
    """Return the proven best choice of groups, or the best found when the time is up.

    Raises
    ------
    UnsupportedError
        Where jobs do not share interchangeable GPUs in pairs, with the reason.
    """
    try:
        choice = best_matching(problem, limits)
    except PartialSharingError:
        choice = best_partial_sharing(problem, limits)
    return settled(problem, choice, limits)
