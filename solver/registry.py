"""The solvers by name, and which one ``auto`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from typing import Protocol, cast

import numpy as np

from dovetail.formulations.problems import Problem
from dovetail.instances.errors import ArgumentError, UnsupportedError, hint, require_call
from dovetail.solver.array_solver import ArraySolver
from dovetail.solver.cpsat import CpSat
from dovetail.solver.greedy import Greedy
from dovetail.solver.highs import Highs
from dovetail.solver.matching_solver import MatchingSolver, best_in_pairs
from dovetail.solver.milp import Milp
from dovetail.solver.networkx_solver import NetworkxSolver
from dovetail.solver.outside import PREFIX, class_at, path_of
from dovetail.solver.own_backend import OwnBackend
from dovetail.solver.own_best import own_best
from dovetail.solver.reduced_cost_fixing import ReducedCostFixing
from dovetail.solver.types import Backend, Choice, Limits

_MANY, _PAIRS_OF_KINDS = 1000, 5
"""``auto`` counts the jobs of each kind where there are so many, and so few pairs of kinds a job:
the matching of single jobs then takes longer, and memory for every pair of them."""

_MOST_PRICED = 2_000_000
"""Members of the groups of single jobs up to which prices may prove the best choice."""


class Solver(Protocol):
    """Solves rounds."""

    name: str

    def solve(self, problem: Problem, limits: Limits) -> Choice:
        """Return a choice of groups with what is proven of it."""
        ...


def solver_named(name: str) -> Solver:
    """Return the solver with this name, or of the class ``python:MODULE.CLASS``.

    Raises
    ------
    UnsupportedError
        When there is none.
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
    """Return a solver of rounds; one of integer programs takes a start, and solves their arrays.

    Raises
    ------
    ArgumentError
        When it has no method ``solve``, or is a class.
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
    rule = f"{path}.solve must take the arguments problem and limits"
    require_call(solver.solve, rule, None, None)
    return cast(Solver, solver)


class Auto:
    """Takes ``matching`` where jobs share in pairs and ``highs`` elsewhere, and says why.

    ``cpsat`` takes the place of ``highs`` where the limit is one of work, which HiGHS cannot count.

    ``highs`` counts the jobs of a kind (``formulations.kinds``), which is less work than matching
    them where there are many of each. Where jobs get what is best for them in the order of their
    gains, there is nothing to search for (``own_best``).
    """

    name = "auto"

    def solve(self, problem: Problem, limits: Limits) -> Choice:
        """Return the answer of the solver that fits; ``note`` says which and why."""
        if _in_few_kinds(problem):
            return _by_program(problem, limits, "jobs are of few kinds")
        try:
            choice = _in_own_best(problem) or best_in_pairs(problem, limits)
        except UnsupportedError as refusal:
            return _by_program(problem, limits, str(refusal))
        reason = "GPUs are interchangeable and jobs share in pairs"
        return replace(choice, note=choice.note or f"auto took matching: {reason}")


def _in_few_kinds(problem: Problem) -> bool:
    """Tell whether pairs of kinds are so few that counting jobs is less work than matching them."""
    jobs, kinds = len(problem.round), int(np.count_nonzero(problem.kinds.copies))
    return jobs >= _MANY and kinds * (kinds + 1) / 2 <= _PAIRS_OF_KINDS * jobs


def _in_own_best(problem: Problem) -> Choice | None:
    """Return the choice that needs no search, None where there is none that prices prove."""
    if not problem.values.grouped or problem.groups.members_apart > _MOST_PRICED:
        return None
    choice = own_best(problem.apart)
    note = "auto needed no search: prices of GPUs prove it"
    return choice and replace(choice.merged(problem), note=note)


def _by_program(problem: Problem, limits: Limits, why: str) -> Choice:
    backend = CpSat() if limits.budget.counts_work else Highs()
    choice = ArraySolver(ReducedCostFixing(backend)).solve(problem, limits)
    return replace(choice, note=f"auto took {backend.name}: {why}")


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
"""The solvers by name; ``milp:NAME`` is any solver that PuLP knows. ``milp`` and ``networkx`` need
the extras of these names. ``exclusive`` and ``random`` are what plans are compared with: the
queue's order, alone on every GPU or with any co-runner."""
