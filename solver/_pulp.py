"""An integer program in PuLP; run as a module, it answers one pickled request on stdin.

A process of its own is for solvers that PuLP loads as a library: highspy, for one, cannot be
imported beside OR-Tools (both carry HiGHS, and the symbols clash).
"""

from __future__ import annotations

import math
import pickle
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pulp

from dovetail.formulations.integer_program import IntegerProgram
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plan import Stopped
from dovetail.solver.answers import Answer
from dovetail.solver.highs import cost_scale

STOPPED: Mapping[int, Stopped] = {
    pulp.LpSolutionOptimal: "complete",
    pulp.LpSolutionIntegerFeasible: "time_limit",
    pulp.LpSolutionInfeasible: "complete",
    pulp.LpSolutionUnbounded: "error",
    pulp.LpSolutionNoSolutionFound: "time_limit",
}
"""By PuLP's ``sol_status``; its ``status`` calls mere incumbents optimal as well."""


DEFAULT = "PULP_CBC_CMD"

_CBC_ROUNDING = 1e-3
"""CBC prints its bound with three decimals."""


@dataclass(frozen=True)
class Request:
    """What to solve, with which of PuLP's solvers, for how long, and to which relative gap."""

    program: IntegerProgram
    solver: str
    seconds: float
    gap: float
    seed: int


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


def solve(request: Request) -> Answer:
    """Solve in this process.

    Raises
    ------
    UnsupportedError
        When PuLP does not know the solver or does not find it.
    """
    scale = cost_scale(request.program)
    problem = pulp_problem(request.program, scale)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "solver.log"
        problem.solve(_solver(request, log))
        stopped = STOPPED.get(problem.sol_status, "error")
        bound = _bound(problem, log, stopped) / scale
    if problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return Answer(None, bound, stopped)
    by_name = {v.name: v.value() for v in problem.variables()}
    x = [round(by_name.get(f"x{k}") or 0.0) for k in range(request.program.size)]
    return Answer(np.array(x, dtype=np.int64), bound, stopped)


def library_of(solver: str) -> bool:
    """Tell whether PuLP loads the solver as a library instead of running a program."""
    return not solver.endswith("_CMD")


def _solver(request: Request, log: Path) -> pulp.LpSolver:
    if request.solver not in pulp.listSolvers():
        known = ", ".join(sorted(set(pulp.listSolvers())))
        raise UnsupportedError(f"PuLP knows no solver {request.solver!r}; it knows {known}")
    options: dict[str, object] = {"msg": False, "gapRel": request.gap}
    if request.seconds < math.inf:
        options["timeLimit"] = request.seconds
    if request.solver == DEFAULT:
        options |= {"logPath": str(log), "options": [f"randomCbcSeed {request.seed % 2**31}"]}
    solver = pulp.getSolver(request.solver, **options)
    if not solver.available():
        raise UnsupportedError(f"PuLP finds no {request.solver} on this machine")
    return solver


def _bound(problem: pulp.LpProblem, log: Path, stopped: Stopped) -> float:
    """Return the proven bound on the (scaled, maximised) objective; inf where none is known."""
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


def _main() -> None:
    try:
        answer: Answer | str = solve(pickle.load(sys.stdin.buffer))
    except UnsupportedError as error:
        answer = str(error)
    pickle.dump(answer, sys.stdout.buffer)


if __name__ == "__main__":
    _main()
