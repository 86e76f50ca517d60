"""Which values variables can still take in solutions that are as good as a known one.

With any prices y of the rows, the reduced costs d = c - y A and the Lagrangian bound

    L(y) = max of y r over activities r of the rows + max of d x over the bounds of x,

every solution x satisfies c x <= L(y) - sum of |d_j| |x_j - b_j|, where b_j is the bound of x_j
that d_j prefers. So none of value v or better has an x_j further than (L(y) - v) / |d_j| from
b_j. This holds for any y; duals of the linear relaxation make L(y) small (reduced cost fixing:
Nemhauser and Wolsey, Integer and Combinatorial Optimization, 1988, II.5).
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.integer_program import IntegerProgram
from dovetail.solver import _child
from dovetail.solver._interruptible import interruptible

Floats = NDArray[np.float64]

_TOLERANCE = 1e-9


def within_reach(program: IntegerProgram, at_least: float) -> IntegerProgram:
    """Return the program with bounds that keep every solution of a value of at least so much."""
    prices = _valid(_duals(program), program)
    reduced = program.cost - program.rows.T @ prices
    bound = _most(prices, program.row_lower, program.row_upper)
    bound += _most(reduced, program.lower, program.upper)
    room = bound - at_least + _TOLERANCE * max(1.0, abs(bound))
    span = (program.upper - program.lower).astype(np.float64)
    steps = np.divide(room, np.abs(reduced), out=span.copy(), where=reduced != 0)
    steps = np.minimum(np.floor(steps + _TOLERANCE), span).astype(np.int64)
    return replace(
        program,
        lower=np.where(reduced > 0, program.upper - steps, program.lower),
        upper=np.where(reduced < 0, program.lower + steps, program.upper),
    )


def _valid(prices: Floats, program: IntegerProgram) -> Floats:
    """Return the prices, 0 where a row has no bound on the side that its price is for."""
    limit = np.where(prices > 0, program.row_upper, program.row_lower)
    return np.where(np.isfinite(limit), prices, 0.0)


def _most(slope: Floats, low: NDArray[np.generic], high: NDArray[np.generic]) -> float:
    """Return the maximum of ``slope @ x`` over ``low <= x <= high``."""
    used = slope != 0
    best = np.where(slope > 0, high, low)
    return float(slope[used] @ best[used])


def _duals(program: IntegerProgram) -> Floats:
    """Return the duals of the program's linear relaxation, 0 where it was not solved."""
    try:
        from ortools.linear_solver import pywraplp  # noqa: F401
    except ImportError:
        # highspy is loaded in this process, and its symbols clash with those of OR-Tools.
        return cast(Floats, _child.call(__name__, "duals", program))
    return duals(program)


def duals(program: IntegerProgram) -> Floats:
    """Solve the linear relaxation in this process, by the simplex method of GLOP."""
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("GLOP")
    bounds = zip(program.lower.tolist(), program.upper.tolist(), strict=True)
    variables = [solver.NumVar(low, high, "") for low, high in bounds]
    rows = []
    limits = zip(program.row_lower.tolist(), program.row_upper.tolist(), strict=True)
    for k, (low, high) in enumerate(limits):
        row = solver.Constraint(low, high)
        entries = slice(program.rows.indptr[k], program.rows.indptr[k + 1])
        terms = (program.rows.indices[entries].tolist(), program.rows.data[entries].tolist())
        for column, coefficient in zip(*terms, strict=True):
            row.SetCoefficient(variables[column], coefficient)
        rows.append(row)
    objective = solver.Objective()
    objective.SetMaximization()
    for variable, cost in zip(variables, program.cost.tolist(), strict=True):
        objective.SetCoefficient(variable, cost)
    if interruptible(solver.Solve, solver.InterruptSolve) != solver.OPTIMAL:
        return np.zeros(len(rows))
    return np.array([row.dual_value() for row in rows])
