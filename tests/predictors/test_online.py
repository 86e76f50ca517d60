"""Measurements taken in one by one: the answers of a refit, and pairs that drift."""

import time

import numpy as np
import pytest

from dovetail.instances.datasets import Measurement
from dovetail.predictors.estimators.hierarchical import Hierarchical
from dovetail.predictors.fitted.online import ALARM, LEAST, Drifts, Online, Residual
from dovetail.predictors.fitted.rows import training_rows
from dovetail.predictors.fitted.training import fit
from dovetail.predictors.forms.hierarchy import FEATURES
from tests.predictors.synthetic import GPU, synthetic

BEGUN = 40


@pytest.fixture(scope="module")
def data():
    found = synthetic(families=5, noise=0.05)
    order = np.random.default_rng(0).permutation(len(found.measurements))
    return found.replace(measurements=tuple(found.measurements[k] for k in order))


@pytest.fixture(scope="module")
def model(data):
    return fit(data.replace(measurements=data.measurements[:BEGUN]), confidence=0.6)


def until(data, count):
    return data.replace(measurements=data.measurements[:count])


def asked(predictor, data):
    workloads = data.workloads(GPU)
    count = len(workloads)
    pairs = np.indices((count, count)).reshape(2, -1).T
    return predictor.predict(workloads, pairs, np.zeros_like(pairs), GPU)


def test_each_measurement_makes_the_answers_of_a_refit(data, model):
    online = Online(model, BEGUN)
    again = (*data.measurements, *data.measurements[:5])
    known = data.replace(measurements=again)
    residuals = []
    for count in range(BEGUN + 1, len(again) + 1):
        residuals += online.learn(until(known, count))
    _, rows = training_rows(known, FEATURES, [GPU], partial=True)
    form = Hierarchical(like=model.fits[GPU].member.form).fit(rows.table, rows.slowdown).to_form()
    said = online.predictor.fits[GPU].member.form.predict(rows.states, rows.own, rows.other)
    np.testing.assert_allclose(said, form.predict(rows.states, rows.own, rows.other), rtol=1e-8)
    assert online.learnt == len(again) - BEGUN
    assert len(residuals) == 2 * online.learnt
    assert np.abs([found.value for found in residuals]).mean() < 2


def test_at_once_and_one_by_one_and_after_a_newer_profile_are_the_same(data, model):
    slowly, quickly = Online(model, BEGUN), Online(model, BEGUN)
    newer = data.profiles[0].replace(throughput=99.0)
    known = data.replace(profiles=(*data.profiles, newer))
    for count in (BEGUN, BEGUN + 3, len(data.measurements) - 1):
        slowly.learn(until(data, count))
    slowly.learn(known)
    quickly.learn(known)
    one, other = (asked(each.predictor, known) for each in (slowly, quickly))
    np.testing.assert_allclose(one.slowdown, other.slowdown, rtol=1e-8)
    np.testing.assert_allclose(one.upper, other.upper, rtol=1e-8)


def test_a_measurement_takes_well_under_a_second_of_processor_time(data, model):
    online = Online(model, BEGUN)
    online.learn(until(data, BEGUN + 1))
    began = time.process_time()
    online.learn(until(data, BEGUN + 2))
    assert time.process_time() - began < 0.5


def test_a_pair_that_is_slower_than_it_was_is_noticed_and_others_are_not(data, model):
    online, drifts = Online(model, BEGUN), Drifts()
    first = data.measurements[0]
    drifts.add(online.learn(data))
    assert drifts.texts == []
    known = data
    slower = tuple(value * 1.5 for value in first.slowdown)
    for _ in range(LEAST):
        more = Measurement(workloads=first.workloads, gpu_model=GPU, slowdown=slower)
        known = known.replace(measurements=(*known.measurements, more))
        drifts.add(online.learn(known))
    assert drifts.texts
    assert all("standard errors above what is believed" in text for text in drifts.texts)
    assert all(
        {*first.workloads} >= {*text.split(" on ")[0].split(" with ")} for text in drifts.texts
    )


def test_a_drift_needs_enough_measurements_that_all_lie_on_one_side():
    def texts(*values):
        drifts = Drifts()
        drifts.add([Residual("G", "a", "b", (0, 50), value) for value in values])
        return drifts.texts

    assert texts(9.0, 9.0) == []
    assert texts(3.0, -3.0, 3.0, -3.0) == []
    assert texts(2.5, 2.5, 2.5)[0].startswith("a with b on G at -/50 drifts: its last 3 slowdowns")
    assert "below" in texts(*[-ALARM] * 5)[0]
    # What is long past does not count.
    assert texts(9.0, 9.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0) == []
