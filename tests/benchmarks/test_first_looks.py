"""The study of first looks at pairs, in a small form."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "first_looks.py"


@pytest.mark.slow
def test_every_rule_has_a_row(capsys):
    spec = importlib.util.spec_from_file_location("first_looks_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(["--seeds", "1", "--jobs", "60"])
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("Simulated.")
    ratios = [float(row.split(" (")[0].rsplit(maxsplit=1)[1]) for row in rows]
    assert len(ratios) == len(module.RULES)
    # The looks take place: at least one rule changes what happens.
    assert len(set(ratios)) > 1
