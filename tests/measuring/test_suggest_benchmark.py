"""The benchmark of measurement suggestions: a short run on made-up pairs, and its figure."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from dovetail.predictors.estimators.hierarchical import SPEC
from dovetail.predictors.fitted.rows import training_rows
from tests.predictors.synthetic import GPU, synthetic

PATH = Path(__file__).parents[2] / "benchmarks" / "measuring" / "suggest.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("suggest_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_knowing_every_pair_gives_the_best_plan_under_every_rule(benchmark):
    data = synthetic(families=5, noise=0.1)
    world = benchmark.world_of(training_rows(data, SPEC.features, [GPU], partial=True)[1])
    assert world.half == 45  # of two different workloads
    for rule in benchmark.RULES:
        found = list(benchmark.qualities(world, rule, 0, 15))
        assert [measured for measured, _ in found] == [30, 35, 40, 45]
        qualities = np.array([quality for _, quality in found])
        assert qualities[-1] == pytest.approx(1.0)
        assert (qualities <= 1 + 1e-9).all()


def test_what_was_collected_is_drawn(benchmark, tmp_path):
    pytest.importorskip("matplotlib")
    source, picture = tmp_path / "q.csv", tmp_path / "q.svg"
    lines = (
        f"k80,{rule},{seed},{30 + 5 * k},{0.9 + 0.01 * k}"
        for rule in benchmark.RULES
        for seed in range(2)
        for k in range(3)
    )
    source.write_text("\n".join(lines) + "\n")
    benchmark.main(["--out", str(source), "--figure", str(picture)])
    assert "<svg" in picture.read_text()


def test_without_data_it_says_so(benchmark, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(benchmark, "DATA", tmp_path)
    benchmark.main([])
    assert len(capsys.readouterr().out.splitlines()) == len(benchmark.WORLDS)
