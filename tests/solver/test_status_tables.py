"""Every status that a backend can end with is named in its table."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import get_args

from ortools.sat import cp_model_pb2
from scipy.optimize import milp

from dovetail.instances.plan import Stopped
from dovetail.solver.backends import cpsat, highs

WORDS = get_args(Stopped)


def test_every_status_of_cp_sat_is_mapped():
    assert set(cpsat.STOPPED) == set(cp_model_pb2.CpSolverStatus.keys())


def test_every_status_of_scipy_is_mapped():
    # SciPy has no public list of its codes but the documentation of ``status``.
    text = (milp.__doc__ or "").partition("status : int")[2].partition("success : bool")[0]
    codes = {int(code) for code in re.findall("``([0-9])`` :", text)}
    assert len(codes) >= 5
    assert set(highs.STOPPED) == codes


def test_every_status_of_pulp_is_mapped():
    # In a process of its own, as PuLP may import highspy, which clashes with OR-Tools.
    code = (
        "import pulp; from dovetail.solver.backends.pulp_programs import STOPPED; "
        "print(set(STOPPED) == set(pulp.LpSolution), sorted(set(STOPPED.values())))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == "True ['complete', 'error', 'time_limit']\n"


def test_only_the_words_of_the_format_are_used():
    assert {*cpsat.STOPPED.values(), *highs.STOPPED.values()} <= set(WORDS)


def test_what_a_solver_calls_optimal_or_infeasible_is_complete():
    assert cpsat.STOPPED["OPTIMAL"] == highs.STOPPED[0] == "complete"
    assert cpsat.STOPPED["INFEASIBLE"] == highs.STOPPED[2] == "complete"
    assert cpsat.STOPPED["FEASIBLE"] == highs.STOPPED[1] == "time_limit"
