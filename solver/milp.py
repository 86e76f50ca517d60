"""Backend: any MIP solver that PuLP can drive, its bundled CBC by default."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.integer_program import IntegerProgram
from dovetail.instances.errors import UnsupportedError
from dovetail.solver.answers import Answer, Limits

Ints = NDArray[np.int64]


class Milp:
    """Solves integer programs through PuLP.

    Parameters
    ----------
    solver : str
        PuLP's name of the solver, for example ``PULP_CBC_CMD``, ``HiGHS`` or ``SCIP_CMD``;
        empty for the bundled CBC.
    """

    def __init__(self, solver: str = "") -> None:
        self.solver = solver
        self.name = f"milp:{solver}" if solver else "milp"

    def solve(self, program: IntegerProgram, limits: Limits, start: Ints | None = None) -> Answer:
        """Return the best solution found and its bound; ``start`` is not used.

        Raises
        ------
        UnsupportedError
            When PuLP does not know the solver or does not find it on this machine.
        """
        from dovetail.solver import _pulp

        name = self.solver or _pulp.DEFAULT
        request = _pulp.Request(program, name, limits.seconds_left, limits.gap, limits.seed)
        return _in_child(request) if _pulp.library_of(name) else _pulp.solve(request)


def _in_child(request: object) -> Answer:
    child = subprocess.run(
        [sys.executable, "-m", "dovetail.solver._pulp"],
        input=pickle.dumps(request),
        capture_output=True,
        check=False,
    )
    if child.returncode:
        reason = child.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise UnsupportedError(f"the solver's process failed: {''.join(reason)}")
    answer = pickle.loads(child.stdout)
    if isinstance(answer, str):
        raise UnsupportedError(answer)
    return answer  # type: ignore[no-any-return]


def write_model(program: IntegerProgram, path: Path) -> None:
    """Write the program as an MPS file that minimises ``-cost @ x``."""
    from dovetail.solver._pulp import pulp_problem

    pulp_problem(program).writeMPS(str(path))
