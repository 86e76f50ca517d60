"""Integer programs in PuLP.

Importing PuLP imports highspy if it is installed, and highspy cannot be imported together with
OR-Tools (both contain HiGHS, and the symbols clash). So this module is imported only in a child
process: see ``child_process``.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pulp

from dovetail.formulations.programs.program import IntegerProgram
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plan import Stopped
from dovetail.solver.backends.highs import TOLERANCE, cost_scale, steadied
from dovetail.solver.backends.milp import CBC
from dovetail.solver.types import Answer, Limits

STOPPED: Mapping[int, Stopped] = {
    pulp.LpSolutionOptimal: "complete",
    pulp.LpSolutionIntegerFeasible: "time_limit",
    pulp.LpSolutionInfeasible: "complete",
    pulp.LpSolutionUnbounded: "error",
    pulp.LpSolutionNoSolutionFound: "time_limit",
}
"""By PuLP's ``sol_status``; its ``status`` is optimal even for mere incumbents."""


_CBC_ROUNDING = 1e-3
"""CBC prints its bound with three decimals."""


def model_text(program: IntegerProgram) -> str:
    """Return the program as the text of an MPS file that minimises ``-cost @ x``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "round.mps"
        pulp_problem(program).writeMPS(str(path))
        return path.read_text()


def pulp_problem(program: IntegerProgram, scale: float = 1.0) -> pulp.LpProblem:
    """Return the program as a PuLP problem that minimises ``-scale * cost @ x``."""
    problem = pulp.LpProblem("round", pulp.LpMinimize)
    bounds = zip(program.lower.tolist(), program.upper.tolist(), strict=True)
    variables = [
        pulp.LpVariable(f"x{k}", low, high, cat=pulp.LpInteger)
        for k, (low, high) in enumerate(bounds)
    ]
    cost = (-scale * program.cost).tolist()
    problem += pulp.LpAffineExpression(zip(variables, cost, strict=True))
    rows = program.rows
    for k in range(rows.shape[0]):
        entries = slice(rows.indptr[k], rows.indptr[k + 1])
        names = [variables[column] for column in rows.indices[entries]]
        terms = pulp.LpAffineExpression(zip(names, rows.data[entries].tolist(), strict=True))
        low, high = float(program.row_lower[k]), float(program.row_upper[k])
        if low == high:
            problem += terms == low
            continue
        if low > -math.inf:
            problem += terms >= low
        if high < math.inf:
            problem += terms <= high
    return problem


def solve(program: IntegerProgram, solver: str, limits: Limits) -> Answer:
    """Solve with the PuLP solver of this name.

    Raises
    ------
    UnsupportedError
        When PuLP does not know the solver or does not find it.
    """
    scale = cost_scale(program)
    problem = pulp_problem(steadied(program), scale)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "solver.log"
        problem.solve(_solver(solver, limits, log))
        stopped = STOPPED.get(problem.sol_status, "error")
        bound = (_bound(problem, log, stopped) + TOLERANCE) / scale
    if problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return Answer(None, bound, stopped)
    by_name = {v.name: v.value() for v in problem.variables()}
    x = [round(by_name.get(f"x{k}") or 0.0) for k in range(program.size)]
    return Answer(np.array(x, dtype=np.int64), bound, stopped)


def _solver(name: str, limits: Limits, log: Path) -> pulp.LpSolver:
    if name not in pulp.listSolvers():
        known = ", ".join(sorted(set(pulp.listSolvers())))
        raise UnsupportedError(f"PuLP knows no solver {name!r}; it knows {known}")
    options: dict[str, object] = {"msg": False, "gapRel": limits.gap}
    if limits.budget.is_limited:
        options["timeLimit"] = limits.seconds_left
    if name == CBC:
        options |= {"logPath": str(log), "options": [f"randomCbcSeed {limits.seed % 2**31}"]}
    solver = pulp.getSolver(name, **options)
    if not solver.available():
        raise UnsupportedError(f"PuLP finds no {name} on this machine")
    return solver


def _bound(problem: pulp.LpProblem, log: Path, stopped: Stopped) -> float:
    """Return the proven bound on the (scaled, maximised) objective; inf if none is known."""
    if problem.sol_status in (pulp.LpSolutionInfeasible, pulp.LpSolutionUnbounded):
        return math.inf
    if log.exists():
        lower = re.search(r"^Lower bound:\s+(\S+)", log.read_text(), re.MULTILINE)
        if lower:
            return -float(lower[1]) + _CBC_ROUNDING
    info = getattr(getattr(problem, "solverModel", None), "getInfo", None)
    if info is not None:
        return -float(info().mip_dual_bound)
    return -float(problem.objective.value()) if stopped == "complete" else math.inf
