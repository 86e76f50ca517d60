"""Backend: the constraint solver CP-SAT of OR-Tools."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.budget import STEPS_PER_S
from dovetail.formulations.programs.program import IntegerProgram
from dovetail.instances.plan import Stopped
from dovetail.solver.backends import child_process
from dovetail.solver.backends.interruptible import interruptible
from dovetail.solver.types import (
    Answer,
    Limits,
    integer_scale,
)

if TYPE_CHECKING:
    from ortools.sat.python.cp_model_helper import CpModelProto, SatParameters


_ROWS_AT_ONCE = 1000
"""Rows added between two checks of the clock."""

_PRECISION = 2.0**40
_LARGEST_WHOLE, _LARGEST_SUM = 2.0**52, 2.0**61

STOPPED: Mapping[str, Stopped] = {
    "OPTIMAL": "complete",
    "FEASIBLE": "time_limit",
    "INFEASIBLE": "complete",
    "UNKNOWN": "time_limit",
    "MODEL_INVALID": "error",
}


class CpSat:
    """Solves integer programs with CP-SAT.

    Fractional coefficients are scaled and rounded so that the scaled program is a relaxation: its
    bound holds for the program itself, and the loss from rounding is part of the gap. One worker
    searches, so that the same program and seed give the same answer; it linearises fully, because
    otherwise it does not close rounds of 100 jobs.
    """

    name = "cpsat"

    def solve(self, program: IntegerProgram, limits: Limits, start: Ints | None = None) -> Answer:
        """Return the best solution found and its bound; ``start`` is an initial solution."""
        try:
            from ortools.sat.python import cp_model_helper  # noqa: F401
        except ImportError:
            # highspy is loaded in this process, and its symbols clash with those of OR-Tools.
            within = limits.unwatched()
            outcome = child_process.call(
                __name__, "solve", program, within, start, budget=limits.budget
            )
            late = Answer(None, math.inf, "time_limit"), 0.0
            answer, work = cast(tuple[Answer, float] | None, outcome) or late
        else:
            answer, work = solve(program, limits, start)
        limits.budget.spend(STEPS_PER_S * work)
        return answer


def solve(program: IntegerProgram, limits: Limits, start: Ints | None) -> tuple[Answer, float]:
    """Solve in this process; return also the work in the solver's deterministic seconds."""
    # These are the classes below cp_model, which imports pandas and takes longer than most rounds.
    from ortools.sat.python.cp_model_helper import CpModelProto, SatParameters, SolveWrapper

    model = CpModelProto()
    for bounds in zip(program.lower.tolist(), program.upper.tolist(), strict=True):
        model.variables.add().domain.extend(bounds)
    if not _add_rows(model, program, limits):
        return Answer(None, math.inf, "time_limit"), 0.0
    scale = _add_objective(model, program)
    if start is not None:
        model.solution_hint.vars.extend(range(program.size))
        model.solution_hint.values.extend(start.tolist())
    parameters = SatParameters()
    _set_parameters(parameters, limits)
    solver = SolveWrapper()
    solver.set_parameters(parameters)
    response = interruptible(partial(solver.solve, model), limits.budget, solver.stop_search)
    assert response is not None  # it is stopped
    stopped = STOPPED.get(response.status.name, "error")
    if response.status.name not in ("OPTIMAL", "FEASIBLE"):
        return Answer(None, math.inf, stopped), response.deterministic_time
    x = np.array(response.solution, dtype=np.int64)
    answer = Answer(x, response.best_objective_bound / scale, stopped)
    return answer, response.deterministic_time


def _add_rows(model: CpModelProto, program: IntegerProgram, limits: Limits) -> bool:
    """Add the rows; return whether there was time for them."""
    rows = program.rows
    columns, data = rows.indices.tolist(), rows.data
    whole = data.astype(np.int64).tolist() if _is_whole(data) else None
    for k in range(rows.shape[0]):
        if k % _ROWS_AT_ONCE == 0 and not limits.budget.counts_work and limits.passed:
            return False
        first, last = int(rows.indptr[k]), int(rows.indptr[k + 1])
        low, high = float(program.row_lower[k]), float(program.row_upper[k])
        if whole is not None:
            coefficients, (least, most) = whole[first:last], _whole_bounds(low, high)
        else:
            coefficients, least, most = _whole_row(data[first:last], low, high)
        row = model.constraints.add().linear
        row.vars.extend(columns[first:last])
        row.coeffs.extend(coefficients)
        row.domain.extend((least, most))
    return True


def _add_objective(model: CpModelProto, program: IntegerProgram) -> float:
    """Add the objective in whole numbers and return its scale."""
    scale = _whole_scale(program.cost)
    whole = np.ceil(program.cost * scale).astype(np.int64)
    used = np.flatnonzero(whole)
    model.objective.vars.extend(used.tolist())
    # CP-SAT minimises.
    model.objective.coeffs.extend((-whole[used]).tolist())
    model.objective.scaling_factor = -1.0
    return scale


def _whole_row(data: Floats, low: float, high: float) -> tuple[list[int], int, int]:
    """Return the row in whole numbers; a fractional row must be of the form ``>=``.

    Rounding its coefficients up and its bound down only admits more solutions (all variables are >=
    0), so the program stays a relaxation.
    """
    if _is_whole(data):
        return data.astype(np.int64).tolist(), *_whole_bounds(low, high)
    if low == -math.inf or high != math.inf:
        raise ValueError("a row with fractional coefficients must be one of >=")
    # The bound may be far larger than the coefficients; it must still be a 64-bit number after
    # scaling.
    scale = _whole_scale(np.append(data, low * 2.0**-15))
    return np.ceil(data * scale).astype(np.int64).tolist(), math.floor(low * scale), _INT_MAX


def _whole_bounds(low: float, high: float) -> tuple[int, int]:
    lowest = _INT_MIN if low == -math.inf else math.ceil(low)
    return lowest, _INT_MAX if high == math.inf else math.floor(high)


_INT_MIN, _INT_MAX = -(2**62), 2**62


def _is_whole(values: Floats) -> bool:
    size = np.abs(values)
    small = size.max(initial=0.0) <= _LARGEST_WHOLE and size.sum() <= _LARGEST_SUM
    return bool(small and (values == np.round(values)).all())


def _whole_scale(values: Floats) -> float:
    """Return 1 if all values are whole, else a power of two that keeps 40 bits of them."""
    return 1.0 if _is_whole(values) else integer_scale(values, _PRECISION)


def _set_parameters(parameters: SatParameters, limits: Limits) -> None:
    parameters.catch_sigint_signal = False
    parameters.num_workers = 1
    parameters.linearization_level = 2
    parameters.random_seed = limits.seed % 2**31
    parameters.relative_gap_limit = limits.gap
    work = limits.effort
    if limits.budget.counts_work:
        work = min(work, limits.seconds_left)
    elif limits.budget.is_limited:
        parameters.max_time_in_seconds = limits.seconds_left
    if work != math.inf:
        parameters.max_deterministic_time = work
