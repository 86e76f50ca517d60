"""The benchmark of decisions, on a cluster of a few GPUs."""

import importlib.util
from pathlib import Path

from dovetail.executor.simulation import pool

PATH = Path(__file__).parents[2] / "benchmarks" / "decisions.py"


def test_a_row_of_the_table():
    spec = importlib.util.spec_from_file_location("decisions_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    violations = pool.violations
    row = module._row(12, 30, "dovetail", 8)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:4] == ["12", "30", "dovetail", "8"]
    assert all(float(cell) >= 0 for cell in cells[4:])
    assert pool.violations is violations
