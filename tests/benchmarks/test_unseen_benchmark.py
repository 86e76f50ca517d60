"""The benchmark of unmeasured pairs: a run on a few made-up rows, and its baselines."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from dovetail.predictors.estimators.hierarchical import SPEC
from dovetail.predictors.fitted.rows import DirectedRows, training_rows
from dovetail.predictors.forms.hierarchy import FEATURES, SHARE
from tests.predictors.synthetic import GPU, synthetic

PATH = Path(__file__).parents[2] / "benchmarks" / "unseen.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("unseen_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows():
    return training_rows(synthetic(families=4, noise=0.0), SPEC.features, [GPU], partial=True)[1]


def test_what_is_hidden_of_a_pair_is_hidden_in_both_directions(benchmark, rows):
    hidden = benchmark.cells(rows, seeds=2)
    assert list(hidden) == ["hidden pairs", "25 % revealed", "new workload", "new family"]
    for one in hidden.values():
        for test in (test for tests in one.draws for test in tests):
            assert not set(rows.pair[test]) & set(rows.pair[~test])
    assert [len(one.draws[0]) for one in hidden.values()] == [1, 1, 8, 4]


@pytest.mark.parametrize("model", ["hierarchical", "GP on names", "factorisation"])
def test_models_beat_a_constant_on_hidden_pairs(benchmark, rows, model):
    hidden = benchmark.cells(rows, seeds=1)["hidden pairs"]
    error = benchmark.scored(rows, benchmark.MODELS[model], hidden)[0]
    assert error < 0.5 * benchmark.scored(rows, benchmark.constant, hidden)[0]


def test_the_split_that_is_predicted_best_loses_nothing_where_predictions_are_right(
    benchmark, monkeypatch, capsys
):
    # a and b at two splits: 20/80 is worth 1/2 + 1, 50/50 is worth 1 + 1; then c and d, turned.
    rows = DirectedRows(
        states=np.where(np.arange(len(FEATURES)) == SHARE, [[0.2], [0.8], [0.5], [0.5]], 0.0),
        workload=np.array([0, 1, 0, 1]),
        own=np.array([0, 2, 1, 3]),
        other=np.array([1, 3, 0, 2]),
        pair=np.array([0, 1, 0, 1]),
        slowdown=np.array([2.0, 1.0, 1.0, 1.0]),
        names=("a", "b"),
        families=("f", "g"),
    )
    monkeypatch.setattr(benchmark, "random_folds", lambda rows: [(~ROWS, ROWS)])
    for truth, lost in ((rows.slowdown, "0.00%"), (rows.slowdown[::-1], "25.00%")):
        monkeypatch.setattr(benchmark, "hierarchical", lambda *_, said=truth: said)
        benchmark.report_splits(rows)
        line = capsys.readouterr().out.splitlines()[1]
        assert line.split() == ["hierarchical", "mean", f"{lost},", "largest", lost]


ROWS = np.ones(4, dtype=bool)


def test_without_data_it_says_so(benchmark, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(benchmark, "DATA", tmp_path)
    others = [part for part, (folder, *_) in benchmark.PARTS.items() if folder]
    benchmark.main(others)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"k80: skipped, python benchmarks/fetch_data.py fetches {tmp_path / 'gavel'}"
    assert len(lines) == len(others)


def test_sets_follow_the_rule_on_made_up_rows(benchmark, monkeypatch, tmp_path, capsys):
    processes = tmp_path / "parvagpu"
    processes.mkdir()
    # s = 1.25, 1.6 and 2.03125 for two, three and four: the rule, see test_sets.py.
    rates = [1.0, 1 / 1.25, 1 / 1.6, 1 / 2.03125, 0.4]
    lines = [f"1,1,{k},{rate}" for k, rate in enumerate(rates, 1)]
    (processes / "m.csv").write_text(
        "\n".join(["Mig instance,Batch size,Workload Number,Throughput", *lines])
    )
    monkeypatch.setattr(benchmark, "DATA", tmp_path)
    benchmark.main(["sets"])
    printed = capsys.readouterr().out
    exact = next(line for line in printed.splitlines() if "4 mean-value analysis" in line)
    assert exact.split()[3] == "0.000"


def test_the_whole_gpu_continues_the_solo_curve(benchmark):
    rates = {("a", 60): 60.0, ("a", 80): 80.0, ("b", 60): 9.0, ("b", 80): 9.0}
    assert [benchmark.whole(rates, name) for name in "ab"] == pytest.approx([100.0, 9.0])
    assert np.isfinite(benchmark.whole(rates, "a"))
