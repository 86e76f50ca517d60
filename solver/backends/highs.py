"""Backend: the MIP solver HiGHS that is part of SciPy (no other package is needed)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from scipy.sparse import coo_array, csr_array

from dovetail.formulations.arrays import Ints
from dovetail.formulations.programs.program import IntegerProgram
from dovetail.instances.plan import Stopped
from dovetail.solver.backends.interruptible import interruptible
from dovetail.solver.types import Answer, Limits

TOLERANCE = 1e-6
"""The absolute gap between bound and solution at which MIP solvers stop."""

_LARGEST_COST = 1000.0
_LARGEST_COEFFICIENT = 2.0**24

STOPPED: Mapping[int, Stopped] = {
    0: "complete",
    1: "time_limit",
    2: "complete",
    3: "error",
    4: "error",
}


class Highs:
    """Solves integer programs with the HiGHS inside SciPy; it takes no initial solution."""

    name = "highs"

    def solve(self, program: IntegerProgram, limits: Limits, start: Ints | None = None) -> Answer:
        """Return the best solution found and its bound; ``start`` is not used."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        scale = cost_scale(program)
        program = steadied(program)
        result = interruptible(
            lambda: milp(
                -program.cost * scale,
                integrality=np.ones(program.size, dtype=np.int64),
                bounds=Bounds(program.lower, program.upper),
                constraints=LinearConstraint(program.rows, program.row_lower, program.row_upper),
                options={"mip_rel_gap": limits.gap, "time_limit": limits.seconds_left},
            ),
            limits.budget,
        )
        if result is None:
            return Answer(None, math.inf, "time_limit")
        bound = getattr(result, "mip_dual_bound", None)
        return Answer(
            None if result.x is None else np.round(result.x).astype(np.int64),
            math.inf if bound is None else (TOLERANCE - bound) / scale,
            STOPPED.get(result.status, "error"),
        )


def cost_scale(program: IntegerProgram) -> float:
    """Return the factor that brings the largest cost to 1000.

    MIP solvers stop at absolute tolerances around 1e-6; small costs, such as those of the objective
    ``jct``, would vanish in them.
    """
    largest = float(np.abs(program.cost).max(initial=0.0))
    return _LARGEST_COST / largest if largest else 1.0


def steadied(program: IntegerProgram) -> IntegerProgram:
    """Return a relaxation in which ``>=`` rows have no coefficients above 2^24.

    These solvers fail with larger ones. Coefficients are scaled and rounded up, bounds down, which
    admits more solutions because all variables are >= 0; the caller rejects false solutions.
    """
    rows = program.rows.tocoo()
    large = np.zeros(rows.shape[0])
    np.maximum.at(large, rows.row, np.abs(rows.data))
    large[np.isfinite(program.row_upper)] = 0.0
    factor = np.minimum(1.0, _LARGEST_COEFFICIENT / np.maximum(large, 1.0))
    if (factor == 1).all():
        return program
    data = rows.data * factor[rows.row]
    data = np.where(factor[rows.row] < 1, np.ceil(data), data)
    lower = np.where(factor < 1, np.floor(program.row_lower * factor), program.row_lower)
    scaled = csr_array(coo_array((data, (rows.row, rows.col)), shape=rows.shape))
    return replace(program, rows=scaled, row_lower=lower)
