"""What our own measurements on an H200 say of predictions."""

import numpy as np
import pytest

from dovetail.instances.datasets.files import read_dataset
from dovetail.instances.instance import Workload
from dovetail.predictors import AnalyticPredictor, load_model, predict, save_model
from dovetail.predictors.fitted.training import fit
from dovetail.solver.rounds import solve


@pytest.fixture(scope="module")
def data():
    return read_dataset("library:h200-2026-11")


def uncapped(data):
    """Return the pairs that were measured without caps."""
    return tuple(m for m in data.measurements if m.share is None and not m.failed)


def test_without_caps_an_estimate_without_a_bound_is_no_reason_to_share(data):
    (gpu_model,) = data.gpu_models
    workloads = data.workloads(gpu_model)
    names = list(workloads)
    measured = uncapped(data)
    pairs = np.array([[names.index(name) for name in m.workloads] for m in measured])
    estimated = AnalyticPredictor().predict(workloads, pairs, np.zeros_like(pairs)).slowdown
    truth = np.array([m.slowdown for m in measured])
    accepted = (estimated <= 1.5).all(axis=1)
    broken = (truth > 1.5).any(axis=1)
    assert (accepted.sum(), (accepted & broken).sum()) == (21, 11)


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    """Return a model of the pairs without caps, through a file."""
    path = tmp_path_factory.mktemp("models") / "h200"
    save_model(fit(data.replace(measurements=uncapped(data))), path)
    return load_model(path)


@pytest.mark.parametrize("by_name", [False, True])
def test_measured_pairs_share_as_they_do_as_measured_slowdowns(data, model, by_name):
    """A bound of a prediction, 8.39 for a measured 1.32, would let no two jobs share."""
    (gpu_model,) = data.gpu_models
    measured = uncapped(data)
    given = data.replace(measurements=measured).instance(gpu_model, 4, memory_mib=143771)
    given = given.with_jobs(job.replace(gsla=2.0) for job in given.jobs)
    unknown = given.replace(slowdowns=())
    if by_name:
        bare = {name: Workload(memory_mib=w.memory_mib) for name, w in given.workloads.items()}
        unknown = unknown.replace(workloads=bare)
    filled = predict(unknown, model)
    assert solve(given).objective == pytest.approx(5.606, abs=1e-3)
    # Pairs that were not measured may share as well, within bounds of predictions.
    assert solve(filled).objective > 5.605
    found = {frozenset(e.workloads): e for e in filled.slowdowns if e.source == "measured"}
    truth = {frozenset(m.workloads): m for m in measured}
    assert found.keys() == {pair for pair in truth if len(pair) == 2}
    for pair, entry in found.items():
        assert sorted(entry.slowdown) == pytest.approx(sorted(truth[pair].slowdown), abs=1e-3)
