"""The benchmark of completion: its baselines by hand, and a run on a few made-up rows."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "completion.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("completion_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_baselines_by_hand(benchmark):
    # Seen: 1 and 3 in the first row, 2 in the second; the third row and column have nothing.
    slowdown = np.array([[1.0, 3.0, 9.0], [2.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
    seen = np.array([[True, True, False], [True, False, False], [False, False, False]])
    assert benchmark.row_mean(slowdown, seen)[:, 0].tolist() == [2.0, 2.0, 2.0]
    assert benchmark.column_mean(slowdown, seen)[0].tolist() == [1.5, 3.0, 2.0]
    assert benchmark.row_and_column_means(slowdown, seen)[1].tolist() == [1.5, 3.0, 2.0]
    # 3 * 2 / 1 from own and co-runner's effects.
    assert benchmark.additive(slowdown, seen)[1, 1] == pytest.approx(6.0)


def test_both_directions_of_a_pair_are_revealed_together(benchmark):
    slowdown = np.ones((9, 9))
    slowdown[3, 4] = slowdown[4, 3] = np.nan
    seen = benchmark.revealed(slowdown, 0.25, seed=1)
    assert (seen == seen.T).all()
    assert not seen[3, 4]
    assert np.triu(seen).sum() == round(0.25 * 44)


def test_without_data_it_says_so(benchmark, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(benchmark, "DATA", tmp_path)
    benchmark.main([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"gavel: skipped, no measured data in {tmp_path / 'gavel'}"
    assert len(lines) == len(benchmark.PARTS)


@pytest.mark.slow
def test_it_runs_on_made_up_rows(benchmark, monkeypatch, tmp_path, capsys):
    gavel = tmp_path / "gavel"
    gavel.mkdir()
    jobs = [f"{name} (batch size {size})" for name in "ab" for size in (1, 2, 4)]
    rows = [
        f"{device},{first},{second},{1.1 + i / 10},{1.2 + j / 10},ok"
        for device in benchmark.DEVICES
        for i, first in enumerate(jobs)
        for j, second in enumerate(jobs[i:])
    ]
    head = "device,job_a,job_b,slowdown_a,slowdown_b,status"
    (gavel / "gavel_pairs.csv").write_text("\n".join([head, *rows]))
    processes = tmp_path / "parvagpu"
    processes.mkdir()
    # s = 1.25, 1.6 and 2.03125 for two, three and four: the rule, see test_sets.py.
    rates = [1.0, 1 / 1.25, 1 / 1.6, 1 / 2.03125, 0.4]
    lines = [f"1,1,{k},{rate}" for k, rate in enumerate(rates, 1)]
    (processes / "m.csv").write_text(
        "\n".join(["Mig instance,Batch size,Workload Number,Throughput", *lines])
    )
    monkeypatch.setattr(benchmark, "DATA", tmp_path)
    monkeypatch.setattr(benchmark, "FRACTIONS", (0.5,))
    benchmark.main(["gavel", "sets", "--seeds", "1"])
    printed = capsys.readouterr().out
    assert all(len(line) < 100 for line in printed.splitlines())
    assert printed.count("completion ") == len(benchmark.DEVICES)
    exact = next(line for line in printed.splitlines() if "4 mean-value analysis" in line)
    assert exact.split()[3] == "0.000"
