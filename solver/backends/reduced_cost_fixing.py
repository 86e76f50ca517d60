"""Bounds on the variables of solutions that are at least as good as a known one.

With any prices y of the rows, the reduced costs d = c - y A and the Lagrangian bound

    L(y) = max of y r over activities r of the rows + max of d x over the bounds of x,

every solution x satisfies c x <= L(y) - sum of |d_j| |x_j - b_j|, where b_j is the bound of x_j
that d_j prefers. So no solution of value v or better has an x_j further than (L(y) - v) / |d_j|
from b_j. This holds for any y; duals of the linear relaxation make L(y) small (reduced cost fixing:
Nemhauser and Wolsey, Integer and Combinatorial Optimization, 1988, II.5).

If many variables stay open, which is so if many have equal values, those that the relaxation or the
known solution uses are searched first (the heuristic of the restricted master problem: Joncour et
al., Column generation based primal heuristics, 2010). They are few, and if their best solution
reaches the bound, it is proven.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.budget import Budget
from dovetail.formulations.programs.program import IntegerProgram
from dovetail.solver.backends import child_process
from dovetail.solver.backends.interruptible import interruptible
from dovetail.solver.types import Answer, Backend, Limits

_TOLERANCE = 1e-9

_ROUNDING = 2.0**-45
"""Relative error allowed for the sums of a bound."""

_MOST_PIVOTS, _PIVOTS = 10_000, 50
"""Maximum number of pivots for the relaxation, and additional pivots for each variable and row."""

_STEPS_PER_ENTRY = 5_000
"""Approximate steps of work to solve the relaxation, per entry of its rows."""

_MOST_UNITS = 2.0**40

_FIRST_STEP, _WIDEN = 1e-4, 4.0
"""The first target lies this fraction of the bound, or of its distance from the start's value,
below the bound; the distance grows by the second factor, so that a few targets reach the start's
value."""


_MANY = 2_000
"""Open variables from which on those that the relaxation uses are searched first."""

_FIRST_PART, _FIRST_S = 0.1, 5.0
"""The part of the time for it, and the most seconds."""


class Relaxation:
    """The bound of a program's linear relaxation, and the variables that it leaves open.

    Parameters
    ----------
    program : IntegerProgram
        The program.
    limits : Limits
        When to stop; the bound is then poor but valid.

    Attributes
    ----------
    bound : float
        Upper bound on the value of every solution, a value that solutions can have: if all costs
        are multiples of the least of them, such as GPUs are of 1, so is the bound.
    """

    def __init__(self, program: IntegerProgram, limits: Limits) -> None:
        limits.budget.spend(_STEPS_PER_ENTRY * program.rows.nnz)
        prices, self._solution = _relaxed(program, limits)
        # A price applies to the side on which its row has a bound.
        limit = np.where(prices > 0, program.row_upper, program.row_lower)
        prices = np.where(np.isfinite(limit), prices, 0.0)
        self._program = program
        self._reduced = program.cost - program.rows.T @ prices
        most = _most(prices, program.row_lower, program.row_upper)
        most += _most(self._reduced, program.lower, program.upper)
        farthest = np.maximum(np.abs(program.lower), np.abs(program.upper))
        terms = np.abs(program.cost) + abs(program.rows).T @ np.abs(prices)
        self._most = most + _ROUNDING * float(terms @ farthest)
        self.bound = _reachable(self._most, program.cost)

    def tightened(self, at_least: float) -> IntegerProgram:
        """Return the program with bounds that keep every solution worth at least ``at_least``."""
        program, reduced = self._program, self._reduced
        room = max(0.0, self._most - at_least) + _TOLERANCE * max(1.0, abs(self._most))
        span = (program.upper - program.lower).astype(np.float64)
        steps = np.divide(room, np.abs(reduced), out=span.copy(), where=reduced != 0)
        steps = np.minimum(np.floor(steps + _TOLERANCE), span).astype(np.int64)
        return replace(
            program,
            lower=np.where(reduced > 0, program.upper - steps, program.lower),
            upper=np.where(reduced < 0, program.lower + steps, program.upper),
        )

    def open(self, at_least: float) -> int:
        """Return how many variables are not fixed in solutions worth at least ``at_least``."""
        program = self.tightened(at_least)
        return int(np.count_nonzero(program.lower < program.upper))

    def used(self, known: Ints) -> IntegerProgram:
        """Return the program of the variables that the relaxation or a known solution uses."""
        program = self._program
        unused = (self._solution <= program.lower + _TOLERANCE) & (known == program.lower)
        return replace(program, upper=np.where(unused, program.lower, program.upper))

    def is_reached(self, value: float) -> bool:
        """Return whether no solution is better than one of this value."""
        return value >= self.bound - _TOLERANCE * max(1.0, abs(self.bound))


class ReducedCostFixing:
    """Solves integer programs with a backend that gets only the variables that can matter.

    Solutions worth less than a target are cut off by reduced cost fixing, and the backend solves
    the rest, which is small if the target is close to the bound. If it finds a solution that
    reaches the target, this is the best of all; if not, the target is a bound, and is lowered.

    Parameters
    ----------
    backend : Backend
        Solves the remaining programs.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.name = backend.name

    def solve(self, program: IntegerProgram, limits: Limits, start: Ints | None = None) -> Answer:
        """Maximise; ``start`` is an initial feasible solution."""
        if start is None:
            return self.backend.solve(program, limits)
        relaxation = Relaxation(program, limits)
        best, value = start, float(program.cost @ start)
        bound = relaxation.bound
        if relaxation.open(value) >= _MANY:
            answer = self.backend.solve(relaxation.used(start), _first(limits), start)
            if answer.x is not None and (new := float(program.cost @ answer.x)) >= value:
                best, value = answer.x, new
            if relaxation.is_reached(value):
                return Answer(best, bound, "complete")
        step = _FIRST_STEP * max(abs(bound), bound - value)
        while not limits.passed:
            limits.report(value, bound)
            target = max(value, relaxation.bound - step)
            answer = self.backend.solve(relaxation.tightened(target), limits, best)
            if answer.x is not None and (new := float(program.cost @ answer.x)) >= value:
                best, value = answer.x, new
            none_left = answer.x is None and answer.stopped == "complete"
            bound = min(bound, target if none_left else max(answer.bound, target))
            if answer.stopped != "complete" or value >= target:
                return Answer(best, bound, answer.stopped)
            step *= _WIDEN
        return Answer(best, bound, "time_limit")


def _first(limits: Limits) -> Limits:
    """Return the limits of the search that comes first."""
    budget = limits.budget
    seconds = min(_FIRST_S, _FIRST_PART * budget.left_s)
    return replace(limits.unwatched(), budget=Budget(budget.now() + seconds, budget.clock))


def _reachable(bound: float, cost: Floats) -> float:
    """Return the largest value within a bound that sums of whole multiples of costs can have."""
    unit = float(np.abs(cost[cost != 0]).min(initial=math.inf))
    # Beyond 2^40 units, rounding errors of the bound would matter.
    if not math.isfinite(bound) or not abs(bound) < _MOST_UNITS * unit < math.inf:
        return bound
    return math.floor(bound / unit) * unit if (cost % unit == 0).all() else bound


def _most(slope: Floats, low: NDArray[np.generic], high: NDArray[np.generic]) -> float:
    """Return the maximum of ``slope @ x`` over ``low <= x <= high``."""
    used = slope != 0
    best = np.where(slope > 0, high, low)
    return float(slope[used] @ best[used])


def _relaxed(program: IntegerProgram, limits: Limits) -> tuple[Floats, Floats]:
    """Return the duals of the linear relaxation and its solution, all 0 if it was not solved."""
    try:
        from ortools.linear_solver.python import model_builder_helper  # noqa: F401
    except ImportError:
        # highspy is loaded in this process, and its symbols clash with those of OR-Tools.
        answer = child_process.call(
            __name__, "relaxed", program, limits.unwatched(), budget=limits.budget
        )
        return _unsolved(program) if answer is None else cast("tuple[Floats, Floats]", answer)
    return relaxed(program, limits)


def _unsolved(program: IntegerProgram) -> tuple[Floats, Floats]:
    return np.zeros(program.rows.shape[0]), np.zeros(program.size)


def relaxed(program: IntegerProgram, limits: Limits) -> tuple[Floats, Floats]:
    """Solve the linear relaxation in this process, by the simplex method of GLOP."""
    from ortools.linear_solver.python.model_builder_helper import (
        ModelBuilderHelper,
        ModelSolverHelper,
        SolveStatus,
    )

    model: Any = ModelBuilderHelper()  # its types allow only an old form of arrays
    solver = ModelSolverHelper("glop")
    model.fill_model_from_sparse_data(
        program.lower.astype(np.float64),
        program.upper.astype(np.float64),
        program.cost,
        program.row_lower,
        program.row_upper,
        program.rows,
    )
    model.set_maximize(True)
    # With weights many orders of magnitude apart the simplex method may cycle.
    most = _MOST_PIVOTS + _PIVOTS * sum(program.rows.shape)
    solver.set_solver_specific_parameters(f"max_number_of_iterations: {most}")
    if limits.passed:  # the simplex method would read the model for nothing
        return _unsolved(program)
    if limits.budget.timeout_s is not None:  # the limit of the pivots limits the work
        solver.set_time_limit_in_seconds(limits.budget.timeout_s)
    interruptible(lambda: solver.solve(model), limits.budget, solver.interrupt_solve)
    if solver.status() != SolveStatus.OPTIMAL:
        return _unsolved(program)
    return np.asarray(solver.dual_values()), np.asarray(solver.variable_values())
