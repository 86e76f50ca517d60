"""The solvers by name, and the choice of ``auto``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from typing import Protocol, cast

import numpy as np

from dovetail.formulations.candidates.groups import Groups, Kinds
from dovetail.formulations.candidates.listing import candidate_groups
from dovetail.formulations.candidates.nodes import on_nodes
from dovetail.formulations.programs.pair_graph import PartialSharingError, require_matchings
from dovetail.formulations.values import JobValues
from dovetail.instances.errors import ArgumentError, UnsupportedError, hint, require_call
from dovetail.solver.backends.array_solver import ArraySolver, settled
from dovetail.solver.backends.cpsat import CpSat
from dovetail.solver.backends.highs import Highs
from dovetail.solver.backends.milp import Milp
from dovetail.solver.backends.networkx_solver import NetworkxSolver
from dovetail.solver.backends.own_backend import OwnBackend
from dovetail.solver.backends.reduced_cost_fixing import ReducedCostFixing
from dovetail.solver.greedy import Greedy
from dovetail.solver.matching.exact_pairs import best_matching, paired_counts
from dovetail.solver.matching.own_best import own_best
from dovetail.solver.matching.partial_pairs import best_partial_sharing
from dovetail.solver.matching.table_pairs import best_on_tables, table_pairs
from dovetail.solver.outside import PREFIX, class_at, path_of
from dovetail.solver.stages import bounded
from dovetail.solver.types import Backend, Choice, Limits, refusals_of
from dovetail.solver.whole_nodes import (
    FEW_COPIES,
    better,
    few_copies,
    in_equal_pairs,
    on_whole_nodes,
    within,
)

_MANY, _PAIRS_OF_KINDS = 1000, 5
"""``auto`` counts the jobs of each kind if there are at least this many jobs, and at most this many
pairs of kinds per job: matching single jobs then takes longer, and memory for every pair."""

_ANYWHERE = 0.5
"""The part of the time for the best plan if workers that stay together on nodes need not."""

_AT_FIRST = "auto planned first as if workers could be on any nodes"

_IN_PAIRS = "auto chose matching: GPUs are interchangeable and jobs share in pairs"

_MOST_PRICED = 2_000_000
"""Maximum number of members of the groups of single jobs for a proof by prices."""


class Solver(Protocol):
    """Solves rounds."""

    name: str

    def solve(self, values: JobValues, limits: Limits) -> Choice:
        """Return the best choice of groups with its proven bounds, for an objective's round."""
        ...


def solver_named(name: str) -> Solver:
    """Return the solver with this name, or an object of the class ``python:MODULE.CLASS``.

    Raises
    ------
    UnsupportedError
        When there is no such solver.
    """
    if name.startswith(PREFIX):
        return _own_solver(name)
    kind, _, detail = name.partition(":")
    if kind == "milp" and detail:
        return ArraySolver(Milp(detail))
    if name not in SOLVERS:
        known = ", ".join(SOLVERS)
        rule = f"must be one of {known}, milp:NAME or python:MODULE.CLASS"
        raise UnsupportedError(f"solver {rule}, got {name!r}{hint(name, SOLVERS)}")
    return SOLVERS[name]()


def _own_solver(name: str) -> Solver:
    try:
        made = class_at(name, "solver", "solve")()
    except TypeError as error:
        raise UnsupportedError(f"solver {name!r} must need no arguments: {error}") from None
    return round_solver(made)


def round_solver(solver: Solver | Backend) -> Solver:
    """Return a solver of rounds; a backend of integer programs is wrapped as one.

    Raises
    ------
    ArgumentError
        When it has no method ``solve`` or is a class.
    UnsupportedError
        When this method takes other arguments.
    """
    if isinstance(solver, type) or not callable(getattr(solver, "solve", None)):
        rule = "solver must be a name, or an object with a method solve"
        raise ArgumentError(f"{rule}, got {solver!r}")
    path, known = path_of(solver), signature(solver.solve).parameters
    if "start" in known or "program" in known:
        rule = f"{path}.solve must take the arguments program, limits and start"
        require_call(solver.solve, rule, None, None, None)
        return ArraySolver(OwnBackend(cast(Backend, solver)))
    rule = f"{path}.solve must take the arguments values and limits"
    require_call(solver.solve, rule, None, None)
    return cast(Solver, solver)


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


class Auto:
    """Uses ``matching`` if jobs share in pairs, otherwise ``highs``, and notes why.

    ``cpsat`` replaces ``highs`` if the work is limited, which HiGHS cannot count.

    ``highs`` counts the jobs of a kind (``formulations.candidates.groups.Kinds``), which is less
    work than matching them if there are many of each. If jobs get their best GPUs in the order of
    their gains, no search is needed (``own_best``).

    Parameters
    ----------
    at_paces : bool
        List gangs that share some of their GPUs at only a few paces (``paces``).
    """

    name = "auto"

    def __init__(self, at_paces: bool = False) -> None:
        self._at_paces = at_paces

    def solve(self, values: JobValues, limits: Limits) -> Choice:
        """Return the answer of the suitable solver; ``note`` has its name and the reason."""
        if values.round.on_nodes.any():
            return self._on_nodes(values, limits)
        kinds, refused = Kinds.of(values.round, values), ""
        if not _are_few(kinds):
            try:
                large = table_pairs(values)
                if large is not None:
                    return replace(best_on_tables(large, limits), note=_IN_PAIRS)
            except UnsupportedError as refusal:
                refused = str(refusal)
        groups = candidate_groups(values, limits.budget, self._at_paces, kinds)
        return _by_program(groups, limits, refused) if refused else self.best(groups, limits)

    def _on_nodes(self, values: JobValues, limits: Limits) -> Choice:
        """Return the answer if workers of some gangs stay together on nodes (``whole_nodes``)."""
        free = candidate_groups(values, limits.budget, self._at_paces, anywhere=True)
        bound = replace(free, anywhere=False)
        if few_copies(free, FEW_COPIES):
            return self.best(on_nodes(bound), limits)
        part = replace(limits, budget=limits.budget.part(_ANYWHERE))
        relaxed = _with_bounds(self.best(free, part.unwatched()))
        seated = on_whole_nodes(relaxed, limits)
        if seated is not None:
            return replace(seated, note=f"{_AT_FIRST}, and nodes were found for them")
        paired = in_equal_pairs(free, relaxed, part.unwatched())
        if not few_copies(free) and paired is not None:
            return replace(paired, note=f"{_AT_FIRST}, then let only equal gangs share")
        choice = within(_with_bounds(self.best(on_nodes(bound), limits)), relaxed)
        return better(choice, paired)

    def best(self, groups: Groups, limits: Limits) -> Choice:
        """Return the best choice of these groups; ``note`` is that of ``solve``."""
        if _are_few(groups.kinds):
            return _by_program(groups, limits, "jobs are of few kinds")
        try:
            choice = _in_own_best(groups) or best_in_pairs(groups, limits)
        except UnsupportedError as refusal:
            return _by_program(groups, limits, str(refusal))
        return replace(choice, note=choice.note or _IN_PAIRS)


def _with_bounds(choice: Choice) -> Choice:
    """Return a choice whose bounds hold for all groups, also those that are not listed."""
    found = bounded(choice)
    return replace(found, groups=replace(found.groups, complete=True))


def _are_few(kinds: Kinds) -> bool:
    """Return whether there are so few kinds that counting jobs is less work than matching."""
    jobs, number = len(kinds.first), int(np.count_nonzero(kinds.copies))
    return jobs >= _MANY and number * (number + 1) / 2 <= _PAIRS_OF_KINDS * jobs


def _in_own_best(groups: Groups) -> Choice | None:
    """Return the choice that prices prove without a search, or None."""
    if not groups.values.relative or groups.members_apart > _MOST_PRICED:
        return None
    choice = own_best(groups.apart)
    note = "auto needed no search: prices of GPUs prove it"
    return choice and replace(choice.merged(groups), note=note)


def _by_program(groups: Groups, limits: Limits, why: str) -> Choice:
    backend = CpSat() if limits.budget.counts_work else Highs()
    choice = ArraySolver(ReducedCostFixing(backend)).best(groups, limits)
    return replace(choice, note=f"auto chose {backend.name}: {why}")


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


SOLVERS: Mapping[str, Callable[[], Solver]] = {
    "auto": Auto,
    "matching": MatchingSolver,
    "cpsat": lambda: ArraySolver(CpSat()),
    "highs": lambda: ArraySolver(Highs()),
    "milp": lambda: ArraySolver(Milp()),
    "networkx": NetworkxSolver,
    "greedy": Greedy,
    "exclusive": lambda: Greedy("alone"),
    "random": lambda: Greedy("random"),
}
"""The solvers by name; ``milp:NAME`` is any solver of PuLP. ``milp`` and ``networkx`` need the
extras of these names. ``exclusive`` and ``random`` are baselines in queue order: alone on every
GPU, or with any co-runner."""
