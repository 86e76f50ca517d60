"""The contention model as an estimator and a form: the predictor's own numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.estimator_checks import parametrize_with_checks

from dovetail.instances.errors import InputError
from dovetail.instances.instance import Workload
from dovetail.instances.metrics import Metrics
from dovetail.predictors import UNCAPPED, AnalyticPredictor
from dovetail.predictors.analytic import PCIE_3_X16_BYTES_S
from dovetail.predictors.estimators.analytic import Contention
from dovetail.predictors.estimators.registry import spec
from dovetail.predictors.features import Features, resolved
from dovetail.predictors.forms.analytic import FEATURES, Analytic

COLUMNS = "the check brings columns of its own making; this model takes ten with a meaning each"
EXPECTED_FAILURES = dict.fromkeys(
    [
        "check_dict_unchanged",
        "check_dont_overwrite_parameters",
        "check_estimators_dtypes",
        "check_estimators_fit_returns_self",
        "check_estimators_overwrite_params",
        "check_estimators_pickle",
        "check_f_contiguous_array_estimator",
        "check_fit2d_predict1d",
        "check_fit_check_is_fitted",
        "check_fit_idempotent",
        "check_fit_score_takes_y",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_n_features_in",
        "check_n_features_in_after_fitting",
        "check_pipeline_consistency",
        "check_positive_only_tag_during_fit",
        "check_readonly_memmap_input",
        "check_regressors_no_decision_function",
        "check_supervised_y_2d",
    ],
    COLUMNS,
)
UNCAPPED_ROW = [0.9, 0.3, 0.1 * PCIE_3_X16_BYTES_S, 1.0, 1.0]

fractions = st.floats(0, 1)
FORM = Analytic(PCIE_3_X16_BYTES_S, 0.5)


@parametrize_with_checks([Contention()], expected_failed_checks=lambda e: EXPECTED_FAILURES)
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


@st.composite
def workloads(draw):
    received = draw(st.floats(0, 3)) * PCIE_3_X16_BYTES_S
    metrics = Metrics(
        sm_active=draw(fractions), dram_active=draw(fractions), pcie_rx_bytes_s=received
    )
    rates = st.dictionaries(st.sampled_from([20, 50, 100]), st.floats(1, 9))
    return Workload(memory_mib=1, metrics=metrics, throughput=draw(rates))


@given(workloads(), workloads())
def test_exactly_what_the_predictor_says(first, second):
    # Every two caps of these, most without an answer.
    caps = np.array([UNCAPPED, 20, 50, 60, 80])
    known = {"a": first, "b": second}
    states = Features(FEATURES_KNOWN).states(known, np.repeat([0, 1], 5), np.tile(caps, 2))
    own, other = np.indices((10, 10)).reshape(2, -1)
    found = FORM.predict(states, own, other)
    pairs = np.stack([own // 5, other // 5], axis=1)
    shares = np.stack([caps[own % 5], caps[other % 5]], axis=1)
    expected = AnalyticPredictor().predict(known, pairs, shares).slowdown[:, 0]
    assert np.array_equal(found, expected, equal_nan=True)


FEATURES_KNOWN = ("sm_active", "dram_active", "pcie_rx_bytes_s", "alone", "share")


def test_by_hand():
    # Waits 0.6 * 0.1 + 0.3 * 0.4 + 0.1 * 0.2 = 0.2, see the predictor's own test.
    states = np.array([UNCAPPED_ROW, [0.5, 0.4, 0.2 * PCIE_3_X16_BYTES_S, 1.0, 1.0]])
    assert FORM.predict(states, np.array([0, 1]), np.array([1, 0])) == pytest.approx([1.2, 1.2])


def test_the_estimator_predicts_as_its_form():
    rng = np.random.default_rng(0)
    table = rng.uniform(0.1, 1, (9, 10))
    table[:, [4, 9]] = 1.0
    model = spec("analytic").build(0).fit(table, np.full(9, 1.5))
    form = Analytic.from_arrays(model.to_form().arrays(), features=5)
    found = form.predict(np.vstack([table[:, :5], table[:, 5:]]), np.arange(9), np.arange(9, 18))
    assert found.tolist() == model.predict(table).tolist()


def test_coarser_metrics_substitute_and_an_unknown_bus_is_left_out():
    coarse = Workload(memory_mib=1, metrics=Metrics(gpu_util=0.9, mem_util=0.3))
    names = resolved(FEATURES, {"a": coarse})
    assert names == ("gpu_util", "mem_util", "absent", "alone", "share")
    row = Features(names).states({"a": coarse}, np.array([0]), np.array([UNCAPPED]))
    assert row.tolist() == [[0.9, 0.3, 0.0, 1.0, 1.0]]


def test_all_its_features_are_needed():
    bus_only = Workload(memory_mib=1, metrics=Metrics(sm_active=0.9, pcie_rx_bytes_s=1.0))
    assert len(resolved(FEATURES, {"a": bus_only})) < spec("analytic").least


def test_other_columns_are_refused():
    with pytest.raises(ValueError, match=r"must have 10 columns, got 8 feature\(s\)"):
        Contention().fit(np.ones((3, 8)), np.ones(3))


def test_a_parameter_out_of_range_is_refused():
    with pytest.raises(InputError, match=r"saturating_sms: must be in \(0, 1\]"):
        Contention(saturating_sms=0.0).fit(np.ones((3, 10)), np.ones(3))


@pytest.mark.parametrize(
    ("name", "value", "features", "message"),
    [
        ("pcie_bytes_s", 0.0, 5, "pcie_bytes_s: must be > 0"),
        ("pcie_bytes_s", np.inf, 5, "pcie_bytes_s: must be finite"),
        ("saturating_sms", 1.5, 5, r"saturating_sms: must be in \(0, 1\]"),
        ("saturating_sms", 0.5, 4, "features: must be 5, got 4"),
    ],
)
def test_arrays_that_cannot_be_such_a_form_are_refused(name, value, features, message):
    arrays = {**FORM.arrays(), name: np.array([value])}
    with pytest.raises(InputError, match=message):
        Analytic.from_arrays(arrays, features)
