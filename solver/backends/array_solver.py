"""Rounds solved by integer programs: one for each stage."""

from __future__ import annotations

from dataclasses import replace

from dovetail.formulations.arrays import Ints
from dovetail.formulations.candidates.groups import Groups, score
from dovetail.formulations.candidates.listing import candidate_groups
from dovetail.formulations.values import JobValues
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

    def solve(self, values: JobValues, limits: Limits) -> Choice:
        """Return the best choice of groups within the limits; never worse than greedy's."""
        return self.best(candidate_groups(values, limits.budget), limits)

    def best(self, groups: Groups, limits: Limits) -> Choice:
        """Return the best choice of these groups."""
        start = start_counts(groups, limits)
        choice = solve_in_stages(ArraySearch(groups, limits, start, self.backend))
        return choice if self.name == CpSat.name else settled(choice, limits)


def start_counts(groups: Groups, limits: Limits) -> Ints:
    """Return the better of greedy's choice of groups and the best choice in equal pairs."""
    part = replace(limits, budget=limits.budget.part(_GREEDY))
    greedy = greedy_counts(groups, part, at_least=AT_LEAST)
    if limits.passed or groups.members_apart > _MOST_PAIRED:
        return greedy
    try:
        paired = groups.merged(paired_counts(groups.apart, limits))
    except UnsupportedError:
        return greedy
    return max(greedy, paired, key=lambda counts: _worth(groups, counts))


def _worth(groups: Groups, counts: Ints) -> tuple[float, float]:
    """Return the first and the second criterion of a choice of groups."""
    reached = score(groups, counts)
    value = reached.value(groups.values)
    return (reached.weight, value) if groups.values.two_stage else (value, 0.0)
