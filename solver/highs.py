"""Backend: the MIP solver HiGHS, as SciPy carries it (no further package needed)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.integer_program import IntegerProgram
from dovetail.instances.plan import Stopped
from dovetail.solver._interruptible import interruptible
from dovetail.solver.answers import Answer, Limits

Ints = NDArray[np.int64]

STOPPED: Mapping[int, Stopped] = {
    0: "complete",
    1: "time_limit",
    2: "complete",
    3: "error",
    4: "error",
}


class Highs:
    """Solves integer programs with the HiGHS inside SciPy; it cannot begin with a solution."""

    name = "highs"

    def solve(self, program: IntegerProgram, limits: Limits, start: Ints | None = None) -> Answer:
        """Return the best solution found and its bound; ``start`` is not used."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        scale = cost_scale(program)
        result = interruptible(
            lambda: milp(
                -program.cost * scale,
                integrality=np.ones(program.size, dtype=np.int64),
                bounds=Bounds(program.lower, program.upper),
                constraints=LinearConstraint(program.rows, program.row_lower, program.row_upper),
                options={"mip_rel_gap": limits.gap, "time_limit": limits.seconds_left},
            )
        )
        bound = getattr(result, "mip_dual_bound", None)
        return Answer(
            None if result.x is None else np.round(result.x).astype(np.int64),
            math.inf if bound is None else -bound / scale,
            STOPPED.get(result.status, "error"),
        )


def cost_scale(program: IntegerProgram) -> float:
    """Return the factor that brings the largest cost to 1000.

    MIP solvers stop at absolute tolerances around 1e-6; costs as small as those of the
    objective ``jct`` would vanish in them.
    """
    largest = float(np.abs(program.cost).max(initial=0.0))
    return 1000.0 / largest if largest else 1.0
