"""The constant: the median, nothing else."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dovetail.instances.errors import InputError
from dovetail.predictors.estimators.constant import Median
from dovetail.predictors.estimators.registry import spec
from dovetail.predictors.forms.constant import Constant


@parametrize_with_checks([Median()])
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


def test_the_median_has_the_least_absolute_error():
    # |1 - 1.2| + |1.2 - 1.2| + |5 - 1.2| = 4; the mean, 2.4, has 1.4 + 1.2 + 2.6 = 5.2.
    model = Median().fit(np.array([[1.0], [1.0], [np.nan]]), np.array([1.0, 1.2, 5.0]))
    assert model.predict(np.array([[0.5], [np.nan]])).tolist() == [1.2, 1.2]


def test_the_form_predicts_as_the_estimator():
    model = spec("constant").build(0).fit(np.ones((3, 2)), np.array([1.0, 1.2, 5.0]))
    form = Constant.from_arrays(model.to_form().arrays(), features=1)
    assert form.predict(np.ones((2, 1)), np.array([0, 1, 1]), np.array([1, 0, 1])).tolist() == [
        1.2,
        1.2,
        1.2,
    ]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "slowdown: is required"),
        ({"slowdown": np.array([1.0, 2.0])}, r"slowdown: must have shape \(1,\), got \(2,\)"),
        ({"slowdown": np.array([np.nan])}, "slowdown: must be finite"),
        ({"slowdown": np.array(["x"])}, "slowdown: must hold numbers"),
        ({"slowdown": np.array([-1.0])}, "slowdown: must be > 0"),
    ],
)
def test_arrays_that_cannot_be_a_constant_are_refused(arrays, message):
    with pytest.raises(InputError, match=message):
        Constant.from_arrays(arrays, features=1)
