"""Measures by hand, and the data that folds and bounds of an evaluation may use."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.instances.datasets import DataSet, Measurement, SoloProfile
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.papers.studies.evaluation import (
    NotApplicable,
    Trial,
    accuracy,
    coverage,
    cross_calibrated,
    decisions,
    evaluate,
    evaluation,
    gpu_model_folds,
    importance,
    two_family_folds,
)
from dovetail.predictors.estimators.registry import ModelSpec, spec
from dovetail.predictors.features import Features
from dovetail.predictors.fitted.folds import Fold, family_folds, held_out, random_folds
from dovetail.predictors.fitted.rows import HeldOut, training_rows
from tests.predictors.measured import measured

M, P = np.array([1.0, 2.0]), np.array([1.5, 1.5])


def test_measures_of_two_rows():
    found = accuracy(M, P, np.ones(2))
    # |m - p| = 0.5 for both. 200 * 0.5 / 2.5 = 40, 200 * 0.5 / 3.5 = 28.57.
    assert found.smape == pytest.approx((40 + 100 / 3.5) / 2)
    # Variance 0.25, mean squared error 0.25. 2 - 1.5 > 0.1; the first is over-predicted.
    assert (found.mae, found.rmse, found.r2, found.bias, found.under) == (0.5, 0.5, 0.0, 0.0, 0.5)


def test_weights_count_rows():
    found = accuracy(M, P, np.array([3.0, 1.0]))
    # (3 * 0.5 - 1 * 0.5) / 4; one of four is under-predicted.
    assert (found.bias, found.under) == (0.25, 0.25)
    # Mean (3 + 2) / 4 = 1.25, variance (3 * 0.0625 + 0.5625) / 4 = 0.1875; 1 - 0.25 / 0.1875.
    assert found.r2 == pytest.approx(-1 / 3)


def test_no_variance_leaves_r2_open():
    assert accuracy(np.ones(3), np.array([1.0, 1.1, 0.9]), np.ones(3)).r2 is None


def test_rows_without_an_answer_are_counted_apart():
    found = accuracy(np.array([1.0, 2.0, 1.0]), np.array([1.5, 1.5, np.nan]), np.ones(3))
    assert (found.rows, found.unanswered, found.mae) == (2, 1, 0.5)


def three_pairs(predicted, upper):
    """Return three measured pairs (1.0, 1.1), (1.4, 1.0), (1.1, 1.3), tested once each."""
    slowdowns = ((1.0, 1.1), (1.4, 1.0), (1.1, 1.3))
    data = DataSet(
        name="by hand",
        measurements=tuple(
            Measurement(workloads=(f"a{k}", f"b{k}"), gpu_model="V100", slowdown=pair)
            for k, pair in enumerate(slowdowns)
        ),
    )
    _, rows = training_rows(data, ())
    everything = np.ones(6, dtype=bool)
    # Rows are the first jobs of all pairs, then the second ones.
    flat = np.array(predicted, dtype=float).T.ravel()
    held = HeldOut(np.arange(6), np.zeros(6, dtype=np.int64), flat, np.full(6, np.nan))
    uppers = np.array(upper, dtype=float).T.reshape(1, 6)
    folds = (Fold(~everything, everything),)
    return Trial(
        "m", ModelSpec((), None), "random", Features(()), rows, folds, held, (0.9,), uppers
    )


PREDICTED = ((1.1, 1.1), (1.1, 1.1), (1.3, 1.2))
UPPER = ((1.15, 1.25), (1.3, 1.3), (1.35, 1.35))


def test_pairs_wrongly_accepted_and_refused():
    tested = three_pairs(PREDICTED, UPPER)
    # At 1.2 the first pair is acceptable, the others are not; predictions accept the first two.
    found = decisions(tested, tested.predicted, 1.2)
    assert (found.pairs, found.acceptable) == (3, 1)
    assert (found.wrongly_accepted, found.wrongly_refused) == (1, 0)
    assert found.accepted_rate == pytest.approx(1 / 3)
    # The bound of the first pair's second job is 1.25.
    found = decisions(tested, tested.upper(0.9), 1.2)
    assert (found.wrongly_accepted, found.wrongly_refused) == (0, 1)
    assert found.refused_rate == pytest.approx(1 / 3)


def test_no_prediction_refuses_the_pair():
    tested = three_pairs(((np.nan, 1.1), *PREDICTED[1:]), UPPER)
    assert decisions(tested, tested.predicted, 1.2).wrongly_refused == 1


def test_coverage_of_jobs_and_of_pairs():
    # Only the 1.4 of the second pair is above its bound, 1.3: five of six jobs, two of three pairs.
    found = coverage(three_pairs(PREDICTED, UPPER), 0.9)
    assert found.job == pytest.approx(5 / 6)
    assert found.pair == pytest.approx(2 / 3)
    # 0.05, 0.15, 0.2, 0.2, 0.05, 0.15
    assert found.width == pytest.approx(0.8 / 6)


def test_coverage_among_some_pairs():
    tested = three_pairs(PREDICTED, UPPER)
    found = coverage(tested, 0.9, tested.pair == 1)
    assert (found.job, found.pair) == (0.5, 0.0)


def test_jobs_without_a_bound_are_reported():
    # The first job of each pair has none: 1.1, 1.0 and 1.3 of the second ones are within theirs.
    upper = [(np.nan, second) for _, second in UPPER]
    found = coverage(three_pairs(PREDICTED, upper), 0.9)
    assert (found.job, found.pair, found.bounded) == (1.0, None, 0.5)


def test_no_bounds_no_coverage():
    assert coverage(three_pairs(PREDICTED, np.full((3, 2), np.nan)), 0.9) is None


def test_two_tests_of_a_pair_count_once():
    data = measured()
    found = next(iter(evaluate(data, ["constant"], ["family"], rounds=1)))
    assert found.weight.sum() == pytest.approx(len(found.rows.slowdown))
    families = np.array(found.rows.families)
    row = found.held.row
    two = families[found.rows.own_workload[row]] != families[found.rows.other_workload[row]]
    assert set(found.weight[two]) == {0.5}
    assert set(found.weight[~two]) == {1.0}


def test_two_new_families_are_unseen():
    _, rows = training_rows(measured(), ())
    family = np.array(rows.families)
    times = np.zeros(len(rows.slowdown))
    for train, test in two_family_folds(rows):
        hidden = {*family[rows.own_workload[test]], *family[rows.other_workload[test]]}
        assert len(hidden) <= 2
        seen = {*family[rows.own_workload[train]], *family[rows.other_workload[train]]}
        assert not hidden & seen
        times += test
    assert set(times) == {1}


def test_a_left_out_gpu_model_is_unseen():
    data = measured(("V100", "A100"))
    _, rows = training_rows(data, ())
    folds = list(gpu_model_folds(rows, [m.gpu_model for m in data.measurements]))
    per_model = len(data.measurements) // 2
    assert len(folds) == 2
    for k, (train, test) in enumerate(folds):
        assert set(rows.pair[test] // per_model) == {k}
        assert set(rows.pair[train] // per_model) == {1 - k}


def test_errors_that_were_left_out_are_not_in_the_bounds():
    data = measured()
    model = spec("constant")
    _, rows = training_rows(data, model.features)
    folds = list(family_folds(rows))
    known, new = held_out(model, rows, random_folds(rows)), held_out(model, rows, folds)
    before = cross_calibrated(rows, folds, new, known, new, (0.5,), 1)
    slower = rows._replace(slowdown=np.where(folds[0].test, 5 * rows.slowdown, rows.slowdown))
    after = cross_calibrated(slower, folds, new, known, new, (0.5,), 1)
    first = new.fold == 0
    assert np.isfinite(before[:, first]).any()
    np.testing.assert_array_equal(before[:, first], after[:, first])
    assert (after[:, ~first] != before[:, ~first]).any()


def test_the_seed_reaches_the_rounds_of_the_bounds():
    data = measured()
    _, rows = training_rows(data, spec("constant").features)
    folds = list(family_folds(rows))
    known, new = (held_out(spec("constant"), rows, f) for f in (random_folds(rows), folds))
    one, again, other = (
        cross_calibrated(rows, folds, new, known, new, (0.5,), 1, seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_every_measure_of_every_setting():
    data = measured(("V100", "A100"), families=3)
    settings = ("random", "family", "two_families", "gpu_model")
    steps = []
    found = list(
        evaluate(
            data,
            ["constant"],
            settings,
            progress=lambda *step: steps.append(step),
            rounds=1,
        )
    )
    assert [each.setting for each in found] == list(settings)
    for each in found:
        result = evaluation(each, 0.9)
        assert result.accuracy.rows == 2 * len(data.measurements)
        assert [d.gsla for d in result.by_prediction] == [1.2, 1.5, 2.0]
        assert type(result).from_data(result.to_data()) == result
    assert all(0 <= done <= total == 4 for _, done, total in steps)


def test_the_same_seed_gives_the_same_numbers():
    one, two = (
        next(iter(evaluate(measured(), ["constant"], ["random"], seed=3, rounds=1)))
        for _ in range(2)
    )
    np.testing.assert_array_equal(one.predicted, two.predicted)
    np.testing.assert_array_equal(one.uppers, two.uppers)


def test_a_model_without_its_features_is_reported():
    bare = measured().replace(profiles=())
    found = list(evaluate(bare, ["coscheml"], ["random", "family"]))
    assert all(isinstance(each, NotApplicable) for each in found)


@pytest.mark.parametrize(
    ("setting", "families", "reason"),
    [
        ("family", 1, "needs at least two families"),
        ("two_families", 1, "needs at least three families"),
        ("gpu_model", 4, "needs pairs measured on at least two GPU models"),
    ],
)
def test_too_little_is_reported(setting, families, reason):
    found = list(evaluate(measured(families=families), ["constant"], [setting]))
    assert isinstance(found[0], NotApplicable)
    assert found[0].reason.startswith(reason)


def test_no_pairs_is_an_error():
    with pytest.raises(InputError, match="must have at least one measured pair"):
        list(evaluate(measured().replace(measurements=()), ["constant"]))


def test_an_unknown_model_is_an_error():
    with pytest.raises(UnsupportedError, match=r"model must be one of constant, .*got 'magic'"):
        list(evaluate(measured(), ["magic"]))


def test_a_feature_that_decides_is_important():
    data = measured()
    found = next(iter(evaluate(data, ["hierarchical"], ["random"], rounds=1)))
    grown = importance(found)
    described = {name for name in found.features.names if name.startswith(("gpu", "mem", "log"))}
    most = max(grown, key=grown.get)
    assert described
    assert grown[most] > 0.01


def test_profiles_without_pairs_have_no_rows():
    profile = SoloProfile(workload="w", gpu_model="V100")
    with pytest.raises(InputError):
        training_rows(DataSet(name="d", profiles=(profile,)), ())
