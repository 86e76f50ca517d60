"""The solvers by name, and which one ``auto`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from typing import Protocol, cast

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

    Where jobs get what is best for them in the order of their gains, there is nothing to search
    for (``own_best``).
    """

    name = "auto"

    def solve(self, problem: Problem, limits: Limits) -> Choice:
        """Return the answer of the solver that fits; ``note`` says which and why."""
        if problem.values.grouped and (choice := own_best(problem)) is not None:
            return replace(choice, note="auto needed no search: prices of GPUs prove it")
        try:
            choice = best_in_pairs(problem, limits)
        except UnsupportedError as refusal:
            backend = CpSat() if limits.budget.counts_work else Highs()
            choice = ArraySolver(ReducedCostFixing(backend)).solve(problem, limits)
            return replace(choice, note=f"auto took {backend.name}: {refusal}")
        reason = "GPUs are interchangeable and jobs share in pairs"
        return replace(choice, note=f"auto took matching: {reason}")


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
"""The solvers by name; ``milp:NAME`` is any solver that PuLP knows. ``exclusive`` and ``random``
are what plans are compared with: the queue's order, alone on every GPU or with any co-runner."""
