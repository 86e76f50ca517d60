"""Backend: any MIP solver that PuLP can drive, its bundled CBC by default."""

from __future__ import annotations

import math
from typing import cast

from dovetail.formulations.arrays import Ints
from dovetail.formulations.programs.program import IntegerProgram
from dovetail.instances.plugins import require_package
from dovetail.solver.backends import child_process
from dovetail.solver.types import Answer, Limits

CBC = "PULP_CBC_CMD"


class Milp:
    """Solves integer programs through PuLP, in a child process (see ``pulp_programs`` for why).

    Parameters
    ----------
    solver : str
        PuLP's name of the solver, for example ``HiGHS`` or ``SCIP_CMD``.

    Raises
    ------
    UnsupportedError
        When PuLP is not installed.
    """

    def __init__(self, solver: str = CBC) -> None:
        self.solver = solver
        self.name = "milp" if solver == CBC else f"milp:{solver}"
        require_pulp(f"solver {self.name}")

    def solve(self, program: IntegerProgram, limits: Limits, start: Ints | None = None) -> Answer:
        """Return the best solution found and its bound; ``start`` is not used.

        Raises
        ------
        UnsupportedError
            When PuLP does not know the solver or does not find it on this machine.
        """
        arguments = program, self.solver, limits.unwatched()
        answer = child_process.call(
            "dovetail.solver.backends.pulp_programs", "solve", *arguments, budget=limits.budget
        )
        return cast(Answer | None, answer) or Answer(None, math.inf, "time_limit")


def require_pulp(what: str) -> None:
    """Refuse ``what`` if PuLP is not installed; it is not imported here (see ``pulp_programs``)."""
    require_package("pulp", "milp", what)


def model_text(program: IntegerProgram) -> str:
    """Return the program as the text of an MPS file that minimises ``-cost @ x``."""
    require_pulp("writing the model")
    return cast(
        str, child_process.call("dovetail.solver.backends.pulp_programs", "model_text", program)
    )
