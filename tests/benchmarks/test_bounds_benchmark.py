"""The benchmark of bounds runs to its end; its figures are not checked."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from dovetail.predictors.fitted.rows import training_rows
from dovetail.predictors.fitted.standing import STANDINGS
from tests.predictors.synthetic import synthetic

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "bounds.py"


@pytest.mark.slow
def test_small_rounds(monkeypatch, tmp_path, capsys):
    spec = spec_from_file_location("bounds_benchmark", FILE)
    benchmark = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, benchmark)
    spec.loader.exec_module(benchmark)
    data = synthetic(families=4)
    monkeypatch.setattr(benchmark, "DATA", tmp_path)
    monkeypatch.setattr(benchmark, "lucid_rows", lambda made: training_rows(data, made.features)[1])
    monkeypatch.setattr(benchmark, "JOBS", 6)
    monkeypatch.setattr(benchmark, "ROUNDS", 1)
    monkeypatch.setattr(benchmark, "GANG_ROUNDS", 1)
    monkeypatch.setattr(benchmark, "FEWEST_ROWS", 1)
    monkeypatch.setattr(sys, "argv", ["bounds.py", "--model", "analytic"])
    benchmark.main()
    out = capsys.readouterr().out
    for promised in ("90%", "95%"):
        assert f"Promised {promised}: jobs within their bounds" in out
    # A line for each kind of pair in two tables, and one for the plans.
    assert out.count("corrected") == 2 * (2 * len(STANDINGS) + 1)
