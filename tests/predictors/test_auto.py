"""The choice among models: scikit-learn's checks, blends that pay, and what it is told apart by."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.estimator_checks import parametrize_with_checks

from dovetail.predictors.estimators.auto import Auto, Candidate
from dovetail.predictors.estimators.constant import Median
from dovetail.predictors.estimators.coscheml import CoScheML
from dovetail.predictors.fits import MEASURED, NEW
from tests.predictors.test_kernel import HALVES, ODD

CHEAP = (
    Candidate("constant", Median()),
    Candidate("coscheml", CoScheML(n_estimators=3, random_state=0)),
)


def expected_failures(_):
    return dict.fromkeys(ODD, HALVES)


@parametrize_with_checks([Auto(CHEAP)], expected_failed_checks=expected_failures)
def test_scikit_learn_agrees(estimator, check):
    check(estimator)


class Column(RegressorMixin, BaseEstimator):
    """Says what stands in a column of the own half."""

    def __init__(self, column=0):
        self.column = column

    def fit(self, X, y):  # noqa: N803
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X):  # noqa: N803
        return X[:, self.column]


def table(seed=0, workloads=12):
    """Return X with the columns: low guess, high guess, family, workload; y lies between.

    Both guesses are off by the same amount on either side for pairs of known workloads.
    """
    draw = np.random.default_rng(seed)
    own, other = (ends.ravel() for ends in np.indices((workloads, workloads)))
    y = 1.5 + 0.2 * draw.standard_normal(len(own))
    off = 0.1 * draw.uniform(0.5, 1.0, len(own))
    states = np.column_stack([np.arange(workloads) // 2, np.arange(workloads)]).astype(float)
    half = np.column_stack([y - off, y + off, states[own]])
    other_half = np.column_stack([np.zeros((len(own), 2)), states[other]])
    return np.hstack([half, other_half]), y


def test_two_models_that_err_in_opposite_ways_are_blended():
    X, y = table()  # noqa: N806
    auto = Auto([Candidate("low", Column(0)), Candidate("high", Column(1))], coded=True).fit(X, y)
    assert auto.weights_ == pytest.approx(np.full((2, 2), 0.5), abs=0.15)
    assert np.abs(auto.predict(X) - y).mean() < 0.5 * auto.errors_.min()


def test_a_model_that_is_worse_in_every_row_has_no_weight():
    X, y = table()  # noqa: N806
    far = X.copy()
    far[:, 1] = y - 3
    auto = Auto([Candidate("near", Column(0)), Candidate("far", Column(1))], coded=True)
    auto.fit(far, y)
    assert auto.weights_.tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert list(auto.fitted_) == [0]


def test_a_model_without_an_answer_for_what_is_held_out_has_no_weight():
    X, y = table()  # noqa: N806
    X[:3, 1] = np.nan
    candidates = [Candidate("low", Column(0)), Candidate("silent", Column(1))]
    auto = Auto(candidates, coded=True).fit(X, y)
    assert auto.weights_.tolist() == [[1, 0], [1, 0]]
    assert np.isnan(auto.errors_[:, 1]).all()
    assert not any(np.isnan(held.slowdown).any() for held in auto.held_out_)


def test_candidates_see_their_columns_only():
    X, y = table()  # noqa: N806
    auto = Auto([Candidate("high", Column(0), (1,))], coded=True).fit(X, y)
    np.testing.assert_allclose(auto.predict(X), X[:, 1])


def test_new_workloads_have_weights_of_their_own():
    X, y = table()  # noqa: N806
    auto = Auto([Candidate("low", Column(0)), Candidate("high", Column(1))], coded=True).fit(X, y)
    auto.weights_ = np.array([[1.0, 0.0], [0.0, 1.0]])
    new = X.copy()
    new[::2, 3] = np.nan
    new[::2, 2] = np.nan
    said = auto.predict(new)
    np.testing.assert_allclose(said[::2], X[::2, NEW])
    np.testing.assert_allclose(said[1::2], X[1::2, MEASURED])


def test_held_out_predictions_have_seen_neither_row_nor_weight():
    X, y = table()  # noqa: N806
    auto = Auto([Candidate("low", Column(0)), Candidate("high", Column(1))], coded=True).fit(X, y)
    for held, folds in zip(auto.held_out_, auto.folds_, strict=True):
        for k, fold in enumerate(folds):
            assert set(held.row[held.fold == k]) == set(np.flatnonzero(fold.test))
            assert not (fold.train & fold.test).any()
    own, other = X[:, 2], X[:, 6]
    for fold in auto.folds_[NEW]:
        seen = {*own[fold.train], *other[fold.train]}
        tested = zip(own[fold.test], other[fold.test], strict=True)
        assert all(not {a, b} <= seen for a, b in tested)


def test_every_fit_is_told():
    X, y = table()  # noqa: N806
    told = []
    Auto(CHEAP, coded=True, on_fit=lambda done, total: told.append((done, total))).fit(X, y)
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert {total for _, total in told} == {(6 + 5) * 2}
