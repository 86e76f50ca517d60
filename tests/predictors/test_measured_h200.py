"""What our own measurements on an H200 say of predictions; skipped where they are absent."""

from pathlib import Path

import numpy as np
import pytest

from dovetail.instances.datasets.files import read_dataset
from dovetail.predictors import AnalyticPredictor
from dovetail.predictors.analytic import safe_without_bound

DATA = Path(__file__).parents[3] / "shared" / "data" / "h200"


@pytest.fixture(scope="module")
def data():
    if not DATA.is_dir():
        pytest.skip(f"no measurements in {DATA}")
    return read_dataset(DATA)


def test_no_gsla_is_broken_where_one_may_rest_on_an_estimate(data):
    (gpu_model,) = data.gpu_models
    workloads = data.workloads(gpu_model)
    names = list(workloads)
    uncapped = [m for m in data.measurements if m.share is None]
    pairs = np.array([[names.index(name) for name in m.workloads] for m in uncapped])
    estimated = AnalyticPredictor().predict(workloads, pairs, np.zeros_like(pairs)).slowdown
    truth = np.array([m.slowdown for m in uncapped])
    accepted = (estimated <= 1.5).all(axis=1)
    broken = (truth > 1.5).any(axis=1)
    safe = np.array(
        [safe_without_bound(*(workloads[n] for n in m.workloads), (0, 0)) for m in uncapped]
    )
    assert (accepted.sum(), (accepted & broken).sum()) == (21, 11)
    assert ((accepted & safe).sum(), (accepted & safe & broken).sum()) == (4, 0)
