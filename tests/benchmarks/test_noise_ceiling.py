"""The benchmark of the accuracy that noise permits, on figures by hand and without data."""

import importlib.util
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dovetail.instances.datasets import DataSet, Measurement

PATH = Path(__file__).parents[2] / "benchmarks" / "noise_ceiling.py"


@pytest.fixture
def benchmark(monkeypatch):
    spec = importlib.util.spec_from_file_location("noise_ceiling", PATH)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_without_noise_the_means_are_the_best(benchmark):
    means = np.random.default_rng(0).uniform(0.5, 1.0, (8, 8))
    found = benchmark.ceiling(means, partial(benchmark.normal, 0.0), draws=3, seed=0)
    assert found == pytest.approx((1.0, 0.0))


def test_more_noise_leaves_less(benchmark):
    means = np.random.default_rng(0).uniform(0.7, 1.0, (20, 20))
    found = [benchmark.ceiling(means, partial(benchmark.normal, sd), 10, 0) for sd in (0.02, 0.1)]
    assert 1 > found[0].mean > found[1].mean


def test_differences_by_hand(benchmark):
    def pair(workloads, slowdown):
        return Measurement(workloads=workloads, slowdown=slowdown, gpu_model="V100")

    twins = pair(("a", "a"), (1.25, 2.0))
    data = DataSet(name="d", measurements=(twins, pair(("a", "b"), (1.0, 9.0))))
    # Speeds 0.8 and 0.5 differ by 0.3; the other pair is no self-pair.
    apart = 0.3 / np.sqrt(2)
    assert benchmark.differences(data) == pytest.approx([apart, -apart])


def test_without_data_it_says_so(benchmark, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(benchmark, "DATA", tmp_path / "absent")
    benchmark.main([])
    missing = f"skipped, no measured data in {tmp_path / 'absent'}"
    assert capsys.readouterr().out == f"{missing}: python benchmarks/fetch_data.py fetches it\n"
