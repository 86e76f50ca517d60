"""The benchmark of predictions runs to its end; its figures are not checked."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
FILE = Path(__file__).resolve().parents[3] / "benchmarks" / "predict.py"


@pytest.fixture
def benchmark(monkeypatch):
    spec = spec_from_file_location("predict_benchmark", FILE)
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_small_table(benchmark, capsys):
    chosen = ["--models", "castor", "--methods", "form, numpy", "library"]
    benchmark.main(["--workloads", "3", "--sample", "50", *chosen])
    _, header, ours, library = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["model", "method", "rows/s"]
    # 3 * 4 / 2 pairs at nine splits, in both orders: 108 rows.
    assert ours.endswith("all rows")
    assert library.endswith("from 50 rows")
    assert all(len(line) < 100 for line in (header, ours, library))


def test_what_is_absent_is_said(benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "find_spec", lambda name: None)
    found = benchmark.cell("castor", "treelite", 2, 10)
    assert benchmark.line("castor", "treelite", found).endswith("treelite not installed")
