"""The Gaussian process: scikit-learn's checks, its form, and the mixed model that it is."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dovetail.instances.errors import InputError
from dovetail.predictors.estimators.kernel import SPEC, KernelRegressor
from dovetail.predictors.folds import family_folds, held_out, random_folds
from dovetail.predictors.forms.kernel import Kernel
from dovetail.predictors.rows import training_rows
from tests.predictors.synthetic import synthetic

HALVES = "X is own and co-runner's features: two equal halves, and so an even number of columns"


ODD = (
    "check_dict_unchanged",
    "check_dont_overwrite_parameters",
    "check_estimators_dtypes",
    "check_estimators_nan_inf",
    "check_estimators_pickle",
    "check_f_contiguous_array_estimator",
    "check_fit2d_predict1d",
    "check_fit_score_takes_y",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_pipeline_consistency",
    "check_supervised_y_2d",
)


def expected_failures(_):
    return dict.fromkeys(ODD, HALVES)


@parametrize_with_checks([KernelRegressor()], expected_failed_checks=expected_failures)
def test_scikit_learn_agrees(estimator, check):
    check(estimator)


def fitted(data):
    features, rows = training_rows(data, SPEC.features)
    return features, rows, SPEC.build(0).fit(rows.table, rows.slowdown)


def test_by_hand_of_one_row():
    # One training row a beside b with log slowdown 0.5, mean 0.25, dual 2: beside itself
    # f = 1 and i = 1 on both sides, so 0.25 + 2 * (w_11 + w_1f + ... ) of all nine weights.
    weights = np.array([[0.0, 0.1, 0.02], [0.1, 0.2, 0.01], [0.02, 0.01, 0.04]])
    trained = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    form = Kernel(
        mean=np.array([0.25]),
        weights=weights,
        center=np.zeros(1),
        scale=np.ones(1),
        trained=trained,
        dual=np.array([[0.0, 2.0], [0.0, 0.0]]),
    )
    found = form.predict(trained, np.array([0]), np.array([1]))
    assert found == pytest.approx(np.exp(0.25 + 2 * weights.sum()))
    # A new workload described like the first: f = 1, i = 0 on the own side.
    new = np.array([[0.0, np.nan, np.nan], [1.0, 1.0, 1.0]])
    found = form.predict(new, np.array([0]), np.array([1]))
    assert found == pytest.approx(np.exp(0.25 + 2 * weights[:2].sum()))


def test_the_form_says_what_the_estimator_says():
    features, rows, model = fitted(synthetic())
    form = Kernel.from_arrays(model.to_form().arrays(), len(features.names))
    said = form.predict(rows.states, rows.own, rows.other)
    np.testing.assert_allclose(said, model.predict(rows.table), rtol=1e-12)


def test_it_fits_what_it_has_seen():
    _, rows, model = fitted(synthetic(noise=0.0))
    assert np.abs(model.predict(rows.table) - rows.slowdown).mean() < 0.01


def test_unseen_workloads_and_unseen_pairs_are_foretold():
    data = synthetic(families=8)
    _, rows = training_rows(data, SPEC.features)
    spread = np.abs(rows.slowdown - np.median(rows.slowdown)).mean()
    for folds, part in ((random_folds(rows), 0.4), (family_folds(rows), 0.7)):
        found = held_out(SPEC, rows, folds)
        error = np.abs(found.slowdown - rows.slowdown[found.row]).mean()
        assert error < part * spread


def test_the_same_seed_gives_the_same_model():
    one, other = (fitted(synthetic(families=4))[2].to_form().arrays() for _ in range(2))
    assert all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


def test_more_rows_than_are_taken():
    _, rows = training_rows(synthetic(), SPEC.features)
    model = KernelRegressor(coded=True, most_rows=60, searched_rows=40)
    model.fit(rows.table, rows.slowdown)
    assert np.isfinite(model.predict(rows.table)).all()


def test_codes_need_columns():
    with pytest.raises(ValueError, match="codes of family and workload, got 2"):
        KernelRegressor(coded=True).fit(np.ones((3, 2)), np.ones(3))


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("mean", np.zeros(2), r"mean: must have shape \(1,\), got \(2,\)"),
        ("mean", np.array([np.nan]), "mean: must be finite"),
        ("mean", np.array([1e16]), r"mean: must be within 1e\+15"),
        ("weights", np.zeros((2, 2)), "weights: must have shape"),
        ("scale", np.zeros(3), "scale: must be >= 1e-09"),
        ("scale", np.zeros(2), "scale: must have shape"),
        ("center", np.zeros(2), "center: must describe 5 features"),
        ("dual", np.zeros((1, 1)), "dual: must have shape"),
        ("trained", np.zeros((12, 3)), "trained: must be states"),
        ("trained", np.full((12, 5), np.inf), "trained: must be finite"),
    ],
)
def test_arrays_that_are_no_kernel(name, value, rule):
    arrays = dict(fitted(synthetic())[2].to_form().arrays())
    with pytest.raises(InputError, match=rule):
        Kernel.from_arrays({**arrays, name: value}, 5)


@pytest.mark.parametrize("name", ["mean", "trained", "dual"])
def test_arrays_that_are_missing(name):
    arrays = dict(fitted(synthetic())[2].to_form().arrays())
    del arrays[name]
    with pytest.raises(InputError, match=f"{name}: is required"):
        Kernel.from_arrays(arrays, 5)


def test_one_family_leaves_the_choice_as_it_is():
    data = synthetic()
    one = data.replace(profiles=tuple(p.replace(family="one") for p in data.profiles))
    _, rows = training_rows(one, SPEC.features)
    fitted = SPEC.build(0).fit(rows.table, rows.slowdown)
    error = np.abs(fitted.predict(rows.table) - rows.slowdown).mean()
    assert error < np.abs(rows.slowdown.mean() - rows.slowdown).mean()
