"""``dovetail predictors suggest`` from end to end."""

import json

import pytest

from dovetail.instances.datasets import write_dataset
from tests.predictors.measured import measured
from tests.predictors.synthetic import synthetic


@pytest.fixture
def folder(tmp_path):
    def written(data):
        path = tmp_path / "data"
        write_dataset(data, path)
        return path

    return written


def test_suggest_names_the_pairs_that_are_worth_measuring(run, folder, tmp_path):
    path = folder(synthetic(families=3, skipped=0.5, noise=0.1))
    status, out, err = run("predictors", "suggest", path, "--count", "2")
    assert (status, err) == (0, "")
    assert "measure next" in out
    assert "±" in out
    status, out, _ = run("predictors", "suggest", path, "--count", "2", "--json")
    found = json.loads(out)
    assert status == 0
    assert 1 <= len(found) <= 2
    assert {"workloads", "shares", "slowdown", "error", "worth"} == found[0].keys()


def test_suggest_needs_a_gpu_model_of_the_data_and_measured_pairs(run, folder):
    path = folder(measured(families=3))
    status, _, err = run("predictors", "suggest", path, "--gpu-model", "none such")
    assert status == 2
    assert "--gpu-model: must be a GPU model of the data" in err
    status, _, err = run(
        "predictors", "suggest", folder(measured(families=3).replace(measurements=()))
    )
    assert status == 2
    assert "must have at least one measured pair" in err
    assert err.count("\n") == 1
