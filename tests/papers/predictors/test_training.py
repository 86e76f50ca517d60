"""The models of papers from a data set to a predictor; all of it on synthetic workloads."""

import random

import numpy as np
import pytest

from dovetail.instances.datasets import DataSet, Measurement
from dovetail.instances.errors import UnsupportedError
from dovetail.papers.predictors.sm_allocation import totals
from dovetail.predictors.estimators.registry import model_names, spec
from dovetail.predictors.fitted.model_file import load_model, save_model
from dovetail.predictors.fitted.training import fit, prepared
from tests.predictors.synthetic import GPU, synthetic
from tests.predictors.test_training import answers

TREES = ("castor", "coscheml", "sm_allocation")


@pytest.fixture(scope="module")
def data():
    return synthetic(families=4)


def test_they_are_found_after_those_of_the_core():
    assert model_names()[:4] == ("constant", "analytic", "kernels", "hierarchical")
    assert {*TREES, "tensorshare"} <= set(model_names())


@pytest.mark.parametrize("model", TREES)
def test_every_model_goes_from_measurements_to_a_file_and_back(model, data, tmp_path):
    predictor = fit(data, model)
    found = answers(predictor, data)
    mirrored = found.slowdown.reshape(8, 8, 2)
    assert np.isfinite(found.slowdown).all()
    assert (found.upper >= found.slowdown).all()
    assert np.array_equal(mirrored[..., 0], mirrored[..., 1].T)
    save_model(predictor, tmp_path / "m.model")
    again = answers(load_model(tmp_path / "m.model"), data)
    assert np.array_equal(again.slowdown, found.slowdown)
    assert np.array_equal(again.upper, found.upper)


def test_power_is_learnt_where_it_was_measured(data):
    powered = data.replace(
        profiles=[p.replace(power_w=100.0) for p in data.profiles],
        measurements=[m.replace(power_w=180.0) for m in data.measurements],
    )
    found = answers(fit(powered, "constant"), powered)
    assert found.power_w == pytest.approx(np.full(64, 180.0))


ESTIMATORS = {
    **{name: spec(name).build for name in ("castor", "coscheml", "sm_allocation")},
    "power": totals,
    # They draw the rows that they are fitted on where there are more than so many.
    "hierarchical": lambda seed: spec("hierarchical").build(seed).set_params(most_rows=20),
    "tensorshare": lambda seed: spec("tensorshare").build(seed).set_params(max_iter=3),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_seed_decides_and_nothing_global_does(name, data):
    model = "sm_allocation" if name == "power" else name
    rows = prepared(data, model).rows

    def predicted(seed):
        np.random.seed(7 * seed + len(calls))
        random.seed(7 * seed + len(calls))
        before = random.getstate(), np.random.get_state()[1].tolist()
        # Trees repeat what they were fitted on, whatever the seed.
        fitted = ESTIMATORS[name](seed).fit(rows.table[::2], rows.slowdown[::2])
        calls.append(fitted.predict(rows.table[1::2]))
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before
        return calls[-1]

    calls = []
    one = predicted(1)
    assert np.array_equal(one, predicted(1))
    assert not np.array_equal(one, predicted(2))


def test_the_seed_reaches_the_fit_and_its_bounds():
    data = synthetic(families=2)
    one, again, other = (fit(data, "castor", seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(answers(one, data).upper, answers(again, data).upper)
    assert one.about.held_out == again.about.held_out != other.about.held_out
    assert not np.array_equal(answers(one, data).slowdown, answers(other, data).slowdown)


def test_features_that_are_lacking_are_named():
    pair = Measurement(workloads=("a", "b"), gpu_model=GPU, slowdown=(1.0, 1.0))
    rule = "coscheml needs of every measured workload 2 more of gpu_util, mem_util, sm_active, "
    with pytest.raises(UnsupportedError) as caught:
        fit(DataSet(name="bare", measurements=[pair]), "coscheml")
    assert str(caught.value).startswith(rule)


def test_only_the_network_is_searched(data):
    with pytest.raises(UnsupportedError, match="model 'castor' has no option 'search'"):
        fit(data, "castor", options={"search": 1.0})
