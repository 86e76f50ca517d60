"""Rounds solved by integer programs: one for each stage."""

from __future__ import annotations

from dataclasses import replace

from dovetail.formulations.arrays import Ints
from dovetail.formulations.programs.problems import Problem
from dovetail.formulations.programs.scores import score
from dovetail.instances.errors import UnsupportedError
from dovetail.solver.backends.array_search import ArraySearch, settled
from dovetail.solver.backends.cpsat import CpSat
from dovetail.solver.greedy import AT_LEAST, greedy_counts
from dovetail.solver.matching.exact_pairs import paired_counts
from dovetail.solver.stages import solve_in_stages
from dovetail.solver.types import Backend, Choice, Limits

_GREEDY = 0.3
"""The fraction of the remaining time that greedy may take."""

_MOST_PAIRED = 1_000_000
"""Maximum number of members of the groups of single jobs for an initial matching."""


class ArraySolver:
    """Solves rounds with a backend that takes integer programs.

    Parameters
    ----------
    backend : Backend
        Solves the program of each stage.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.name = backend.name

    def solve(self, problem: Problem, limits: Limits) -> Choice:
        """Return the best choice of groups within the limits; never worse than greedy's."""
        start = start_counts(problem, limits)
        choice = solve_in_stages(ArraySearch(problem, limits, start, self.backend))
        return choice if self.name == CpSat.name else settled(problem, choice, limits)


def start_counts(problem: Problem, limits: Limits) -> Ints:
    """Return the better of greedy's choice of groups and the best choice in equal pairs."""
    part = replace(limits, budget=limits.budget.part(_GREEDY))
    greedy = greedy_counts(problem, part, at_least=AT_LEAST)
    if limits.passed or problem.groups.members_apart > _MOST_PAIRED:
        return greedy
    try:
        paired = problem.merged(paired_counts(problem.apart, limits))
    except UnsupportedError:
        return greedy
    return max(greedy, paired, key=lambda counts: _worth(problem, counts))


def _worth(problem: Problem, counts: Ints) -> tuple[float, float]:
    """Return the first and the second criterion of a choice of groups."""
    reached = score(problem.groups, problem.values, counts)
    value = reached.value(problem.values)
    return (reached.weight, value) if problem.values.two_stage else (value, 0.0)
