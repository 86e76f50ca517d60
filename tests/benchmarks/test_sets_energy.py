"""The study of sets and of the price of energy, in a small form."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "sets_energy.py"


@pytest.mark.slow
def test_all_rows_are_ratios_to_pairs_at_no_price(capsys):
    spec = importlib.util.spec_from_file_location("sets_energy_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(["--seeds", "1", "--jobs", "25"])
    title, _, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("Simulated.")
    assert len(rows) == 16
    pairs = [row.split("2 on a GPU")[1].split() for row in rows if "2 on a GPU" in row]
    assert [row[:9:2] for row in pairs] == [["1.000"] * 4 + ["0.00"]] * 2
