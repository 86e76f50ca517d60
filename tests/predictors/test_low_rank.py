"""Workloads that are known by name alone: what they suffer and cause, multiplied.

On made-up slowdowns with a heavy tail (``made_up_names``).
"""

import numpy as np
import pytest

from dovetail.instances.datasets import Measurement
from dovetail.instances.errors import InputError
from dovetail.predictors.estimators._factors import Cells, completed
from dovetail.predictors.estimators.hierarchical import Hierarchical
from dovetail.predictors.fitted.folds import random_folds, workload_folds
from dovetail.predictors.fitted.rows import training_rows
from dovetail.predictors.fitted.training import fit, update
from dovetail.predictors.forms.hierarchy import FEATURES, Hierarchy
from tests.predictors.made_up_names import GPU, committed, made


@pytest.fixture(scope="module")
def data():
    return committed()


@pytest.fixture(scope="module")
def rows(data):
    return training_rows(data, FEATURES, [GPU], partial=True)[1]


@pytest.fixture(scope="module")
def fold(rows):
    """A fifth of the pairs, and a model of the others."""
    fold = next(iter(random_folds(rows)))
    train = rows.take(fold.train)
    return rows.take(fold.test), train, Hierarchical().fit(train.table, train.slowdown)


def test_the_committed_set_is_what_its_script_draws(data):
    drawn = made()
    assert data.measurements == drawn.measurements
    values = np.array([m.slowdown for m in data.measurements])
    assert np.median(values) < 1.4
    assert values.max() > 4


def mean_error(found, rows):
    return float(np.abs(found - rows.slowdown).mean())


def effects(train, test):
    """Predict by the mean logarithm of each workload on either side."""
    log, mean = np.log(train.slowdown), np.log(train.slowdown).mean()
    sides = [
        np.array([(log[at == w] - mean).mean() for w in range(len(train.names))])
        for at in (train.own_workload, train.other_workload)
    ]
    return np.exp(mean + sides[0][test.own_workload] + sides[1][test.other_workload])


def test_hidden_pairs_of_workloads_known_by_name(fold):
    test, train, model = fold
    error = mean_error(model.predict(test.table), test)
    process = mean_error(model.process_.predict(*states_of(test)), test)
    # The process alone knows averages and measured pairs, and errs half as much again and more.
    assert error < 0.75 * process
    assert error < 0.6 * mean_error(effects(train, test), test)
    assert model.form_.stack[0] > 0.5


def test_a_quarter_revealed(rows):
    shown = np.isin(rows.workload_pair % 4, [0])
    train, test = rows.take(shown), rows.take(~shown)
    model = Hierarchical().fit(train.table, train.slowdown)
    process = mean_error(model.process_.predict(*states_of(test)), test)
    error = mean_error(model.predict(test.table), test)
    # The process adds effects up in the logarithm of the excess, a product already.
    assert error <= process < 0.8 * mean_error(effects(train, test), test)


def test_left_out_workloads_are_left_to_the_process(rows):
    fold = next(iter(workload_folds(rows)))
    train, test = rows.take(fold.train), rows.take(fold.test)
    model = Hierarchical().fit(train.table, train.slowdown)
    found = model.predict(test.table)
    assert "form_" not in vars(model)
    assert np.array_equal(found, model.form_.predict(*states_of(test)))
    assert mean_error(found, test) < 1.1 * mean_error(np.median(train.slowdown), test)


def test_measured_pairs_are_left_to_the_process(fold):
    _, train, model = fold
    own, process = model.predict(train.table), model.process_.predict(*states_of(train))
    assert np.array_equal(own, process)


def test_a_file_and_an_update_keep_it(data, tmp_path):
    some, last = data.measurements[::2], data.measurements[1]
    before = fit(data.replace(measurements=some))
    form = before.fits[GPU].member.form
    again = Hierarchy.from_arrays(form.arrays(), len(FEATURES))
    assert np.array_equal(again.completed, form.completed, equal_nan=True)
    assert again.stack == form.stack > 0
    new = Measurement(workloads=last.workloads, gpu_model=GPU, slowdown=(1.7, 1.9))
    after = update(before, data.replace(measurements=(*some, new))).predictor.fits[GPU].member
    assert after.form.stack == form.stack
    places = [after.features.known.index(name) for name in new.workloads]
    known = {code: k for k, code in enumerate(form.named[:, 0].tolist())}
    cell = known[places[0]], known[places[1]]
    assert np.isfinite(form.completed[cell])
    # Measured since: the process knows more of it.
    assert np.isnan(after.form.completed[cell])


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("stack", np.array([1.5]), "stack: must be from 0 to 1"),
        ("stack", np.array([np.nan]), "stack: must be finite"),
        ("named", np.zeros((2, 3)), "named: must have shape"),
        ("completed", np.zeros((1, 2)), "completed: must be the pairs of named"),
        ("completed", None, "completed: is required"),
    ],
)
def test_arrays_that_cannot_be(fold, name, value, rule):
    arrays = {**fold[2].form_.arrays(), name: value}
    if value is None:
        del arrays[name]
    with pytest.raises(InputError, match=rule):
        Hierarchy.from_arrays(arrays, len(FEATURES))


def test_arrays_of_the_first_format_have_no_factors(fold):
    model = fold[2].form_
    arrays = {k: v for k, v in model.arrays().items() if k not in ("stack", "named", "completed")}
    old = Hierarchy.from_arrays(arrays, len(FEATURES))
    test = fold[0]
    assert np.array_equal(old.predict(*states_of(test)), fold[2].process_.predict(*states_of(test)))


def test_a_product_is_found_from_half_of_its_cells():
    draw = np.random.default_rng(0)
    truth = np.outer(draw.standard_normal(14), draw.standard_normal(14))
    own, other = np.nonzero(draw.random(truth.shape) < 0.5)
    cells = Cells(own, other, truth[own, other], np.ones(len(own)))
    found = completed(cells, np.zeros(14, np.int64), rank=2)
    hidden = np.ones(truth.shape, dtype=bool)
    hidden[own, other] = False
    assert np.abs(found - truth)[hidden].mean() < 0.5 * np.abs(truth - truth.mean())[hidden].mean()


def test_the_seed_of_the_draws_is_all_that_chance_there_is(fold):
    _, train, model = fold
    again = Hierarchical().fit(train.table, train.slowdown)
    assert np.array_equal(again.form_.completed, model.form_.completed, equal_nan=True)
    other = Hierarchical(random_state=1).fit(train.table, train.slowdown)
    assert not np.array_equal(other.form_.completed, model.form_.completed, equal_nan=True)


def states_of(rows):
    at = np.arange(len(rows.slowdown))
    return np.vstack(np.hsplit(rows.table, 2)), at, at + len(at)
