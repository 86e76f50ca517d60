"""Any solvers after one another in one process: highspy and ortools cannot both be imported.

Both carry HiGHS and their symbols clash (seen with highspy 1.15.1 and ortools 9.15), and PuLP
imports highspy where it is installed.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

ORDERS = [
    ["", "highs", "cpsat", "milp:HiGHS", "milp", "cpsat"],
    ["import highspy", "cpsat", "milp:HiGHS", "highs", "cpsat"],
    ["import ortools.sat.python.cp_model", "milp:HiGHS", "cpsat"],
    ["import pulp", "milp", "auto", "networkx", "cpsat"],
]

CODE = """
{first}
import sys
from dovetail.instances import library
from dovetail.solver.rounds import solve
instance = library.load("memory")
for name in sys.argv[1:]:
    result = solve(instance, solver=name)
    print(name, result.status, round(result.objective, 6))
"""


@pytest.mark.parametrize(
    "order",
    [ORDERS[0], *(pytest.param(order, marks=pytest.mark.long) for order in ORDERS[1:])],
    ids=lambda order: " ".join(order).strip(),
)
def test_every_solver_answers_alike(order):
    first, *solvers = order
    if find_spec("highspy") is None:
        if first == "import highspy":
            pytest.skip("highspy is not installed")
        solvers = [name for name in solvers if name != "milp:HiGHS"]
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE.format(first=first), *solvers],
        capture_output=True,
        text=True,
        check=False,
    )
    # 1 / 1.5 + 1 / 1.25, as the file's own comment says.
    expected = "".join(f"{name} optimal 1.466667\n" for name in solvers)
    assert (child.stdout, child.returncode) == (expected, 0), child.stderr


def test_cp_sat_is_used_without_pandas():
    # OR-Tools' cp_model imports it, which takes longer than planning a small round.
    code = CODE.format(first="") + "print('ortools' in sys.modules, 'pandas' in sys.modules)"
    command = [sys.executable, "-c", code, "cpsat"]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    assert child.stdout.splitlines()[1:] == ["True False"]
