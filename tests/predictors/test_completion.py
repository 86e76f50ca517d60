"""Completion of the matrix of pairs: cases by hand, and what a matrix with a rule must give."""

import copy
import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dovetail.instances.datasets import DataSet, Measurement
from dovetail.instances.errors import InputError
from dovetail.predictors.estimators.completion import Completion
from dovetail.predictors.estimators.registry import spec
from dovetail.predictors.folds import family_folds, held_out, random_folds
from dovetail.predictors.forms.low_rank import LowRank
from dovetail.predictors.rows import training_rows

GAVEL = Path(__file__).parents[3] / "shared" / "data" / "gavel" / "gavel_pairs.csv"

NEEDS_BOTH_HALVES = (
    "the check brings an odd number of columns; a pair has as many of the job as of its co-runner"
)
EXPECTED_FAILURES = dict.fromkeys(
    [
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
    ],
    NEEDS_BOTH_HALVES,
)


@parametrize_with_checks(
    [Completion(chains=2, warm_up=3, draws=3)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


def cells(slowdown, seen):
    """Return the table and target of the seen cells of a matrix."""
    return np.argwhere(seen).astype(float), slowdown[seen]


def completed(slowdown, seen, **settings):
    return Completion(**settings).fit(*cells(slowdown, seen))


def at(model, *pairs):
    return model.predict(np.array(pairs, dtype=float))


def pairs_seen(count, part, seed=0):
    """Reveal both cells of a part of the pairs."""
    drawn = np.triu(np.random.default_rng(seed).random((count, count)) < part)
    return drawn | drawn.T


def interacting(count=20, seed=0):
    """Return slowdowns that own and co-runner's effects alone do not explain."""
    rng = np.random.default_rng(seed)
    own, other, sensitive, aggressive = rng.normal(0, 0.3, (4, count))
    logs = 0.5 + np.add.outer(own, other) + 4 * np.outer(sensitive, aggressive)
    return np.exp(logs + rng.normal(0, 0.02, (count, count)))


def log_error(model, slowdown, hidden):
    predicted = model.predict(np.argwhere(hidden).astype(float))
    return np.abs(np.log(predicted / slowdown[hidden])).mean()


def test_products_are_completed():
    # Own effects 1, 1.2, 1.5, 2 times the co-runner's 1.1, 1.3, 1.4, 1.6: the three hidden
    # cells are 1.2 * 1.3 = 1.56, 2 * 1.1 = 2.2 and 1 * 1.6 = 1.6.
    slowdown = np.outer([1.0, 1.2, 1.5, 2.0], [1.1, 1.3, 1.4, 1.6])
    seen = np.ones((4, 4), dtype=bool)
    seen[1, 1] = seen[3, 0] = seen[0, 3] = False
    found = at(completed(slowdown, seen), (1, 1), (3, 0), (0, 3))
    assert found == pytest.approx([1.56, 2.2, 1.6], rel=0.05)


def test_interactions_are_completed_better_with_factors_than_with_effects_alone():
    slowdown, seen = interacting(), pairs_seen(20, 0.5)
    effects = log_error(completed(slowdown, seen, rank=0), slowdown, ~seen)
    factors = log_error(completed(slowdown, seen), slowdown, ~seen)
    assert factors < effects / 2


def test_one_wild_measurement_does_little():
    slowdown, seen = interacting(), pairs_seen(20, 0.5)
    clean = log_error(completed(slowdown, seen), slowdown, ~seen)
    wild = slowdown.copy()
    wild[tuple(np.argwhere(seen)[7])] *= 8
    assert log_error(completed(wild, seen), slowdown, ~seen) < 1.3 * clean


def test_new_measurements_count_as_if_they_had_always_been_there():
    slowdown = interacting()
    before, after = pairs_seen(20, 0.3), pairs_seen(20, 0.5)
    updated = completed(slowdown, before).partial_fit(*cells(slowdown, after & ~before))
    again = completed(slowdown, after)
    hidden = np.argwhere(~after).astype(float)
    difference = np.log(updated.predict(hidden) / again.predict(hidden))
    assert np.abs(difference).mean() < 0.03
    assert log_error(updated, slowdown, ~after) < 1.2 * log_error(again, slowdown, ~after)


def test_a_new_workload_is_placed_by_a_few_measurements():
    slowdown = interacting()
    others = np.ones((20, 20), dtype=bool)
    others[19] = others[:, 19] = False
    hidden = ~others
    hidden[19, :4] = hidden[:4, 19] = False
    model = completed(slowdown, others)
    unknown = log_error(model, slowdown, hidden)
    model.partial_fit(*cells(slowdown, ~others & ~hidden))
    assert log_error(model, slowdown, hidden) < unknown / 2


def test_a_first_update_is_a_fit():
    slowdown, seen = interacting(6), pairs_seen(6, 0.6)
    updated = Completion().partial_fit(*cells(slowdown, seen))
    assert at(updated, (1, 2)) == at(completed(slowdown, seen), (1, 2))


def test_an_unknown_workload_is_an_average_one():
    slowdown, seen = interacting(6), np.ones((6, 6), dtype=bool)
    model = completed(slowdown, seen)
    everyone = np.arange(6)
    beside_two = np.log(at(model, *((own, 2) for own in everyone)))
    of_two = np.log(at(model, *((2, other) for other in everyone)))
    overall = np.log(at(model, *((own, other) for own in everyone for other in everyone)))
    found = at(model, (np.nan, 2), (2, np.nan), (99, 2), (np.nan, np.nan))
    expected = [beside_two.mean(), of_two.mean(), beside_two.mean(), overall.mean()]
    assert np.log(found) == pytest.approx(expected)


def test_shares_are_apart():
    # Uncapped pairs at 1.5; own at 0.6 beside 0.4 at 2, own at 0.4 beside 0.6 at 3.
    own, other = np.indices((5, 5)).reshape(2, -1)
    splits = [(1.0, 1.0, 1.5), (0.6, 0.4, 2.0), (0.4, 0.6, 3.0)]
    table = np.vstack(
        [
            np.stack([own, np.full(25, mine), other, np.full(25, theirs)], axis=1)
            for mine, theirs, _ in splits
        ]
    )
    slowdown = np.repeat([value for *_, value in splits], 25)
    slowdown = slowdown * np.exp(np.random.default_rng(0).normal(0, 0.02, 75))
    model = Completion().fit(table, slowdown)
    found = at(model, (0, 1, 1, 1), (0, 0.6, 1, 0.4), (0, 0.4, 1, 0.6), (np.nan, 0.4, 1, 0.6))
    assert found == pytest.approx([1.5, 2, 3, 3], rel=0.05)
    never_measured = at(model, (0, 0.6, 1, 0.6), (0, 1, 1, 0.4), (0, 0.5, 1, 0.5))
    assert np.isnan(never_measured).all()


def test_repeated_measurements_are_averaged():
    slowdown, seen = interacting(8), np.ones((8, 8), dtype=bool)
    table, target = cells(slowdown, seen)
    noisy = np.concatenate([target * 1.1, target / 1.1])
    model = Completion().fit(np.vstack([table, table]), noisy)
    assert np.abs(np.log(model.predict(table) / target)).mean() < 0.03


def test_the_standard_error_is_that_of_a_new_measurement():
    slowdown, seen = interacting(30), pairs_seen(30, 0.4)
    form = completed(slowdown, seen).to_form()
    states = np.arange(30.0)[:, np.newaxis]
    own, other = np.nonzero(~seen)
    error = slowdown[own, other] - form.predict(states, own, other)
    scaled = np.abs(error) / form.standard_error(states, own, other)
    assert 0.55 < np.mean(scaled < 1) < 0.85
    assert 0.85 < np.mean(scaled < 2) < 0.995
    own, other = np.nonzero(seen)
    assert form.standard_error(states, own, other).mean() < np.abs(error).mean()


def test_families_help_a_workload_with_one_measurement():
    rng = np.random.default_rng(0)
    families = np.repeat(np.arange(5), 4)
    level = np.array([0.0, 0.2, 0.5, 0.9, 1.4])[families]
    slowdown = np.exp(0.1 + np.add.outer(level, level) + rng.normal(0, 0.02, (20, 20)))
    seen = np.ones((20, 20), dtype=bool)
    seen[19] = seen[:, 19] = False
    hidden = ~seen
    seen[19, 0] = seen[0, 19] = True
    hidden &= ~seen
    alone = log_error(completed(slowdown, seen), slowdown, hidden)
    grouped = log_error(completed(slowdown, seen, groups=families.tolist()), slowdown, hidden)
    assert grouped < alone


def test_another_gpu_model_helps_where_little_is_measured():
    elsewhere, seen = interacting(20), pairs_seen(20, 0.1)
    slowdown = np.exp(0.2 + 0.7 * np.log(elsewhere))
    prior = completed(elsewhere, np.ones((20, 20), dtype=bool)).to_form()
    alone = log_error(completed(slowdown, seen), slowdown, ~seen)
    told = log_error(completed(slowdown, seen, priors=[prior]), slowdown, ~seen)
    assert told < alone / 2


def test_a_prior_that_has_no_answer_says_nothing():
    slowdown, seen = interacting(6), np.ones((6, 6), dtype=bool)
    table, target = cells(slowdown, seen)
    capped = np.insert(table, (1, 2), 0.5, axis=1)
    uncapped = np.insert(table, (1, 2), 1.0, axis=1)
    prior = Completion().fit(uncapped, target).to_form()
    found = Completion(priors=[prior]).fit(capped, target).predict(capped)
    assert found.tolist() == Completion().fit(capped, target).predict(capped).tolist()


def test_the_form_predicts_as_the_estimator_and_survives_its_arrays():
    slowdown, seen = interacting(6), pairs_seen(6, 0.6)
    model = completed(slowdown, seen)
    form = LowRank.from_arrays(model.to_form().arrays(), features=1)
    states = np.array([[0.0], [3.0], [np.nan], [5.0]])
    own, other = np.indices((4, 4)).reshape(2, -1)
    found = form.predict(states, own, other)
    assert found.tolist() == model.predict(np.hstack([states[own], states[other]])).tolist()
    mirrored = form.predict(states, other, own).reshape(4, 4)
    assert mirrored.T.tolist() == found.reshape(4, 4).tolist()
    assert np.isfinite(form.standard_error(states, own, other)).all()


def test_a_workload_beside_itself_and_no_rows():
    model = completed(interacting(6), np.eye(6, dtype=bool))
    assert np.isfinite(at(model, (3, 3)))
    nothing = np.array([], dtype=np.int64)
    assert model.to_form().predict(np.empty((0, 1)), nothing, nothing).shape == (0,)


def test_the_same_seed_gives_the_same_matrix():
    slowdown, seen = interacting(6), pairs_seen(6, 0.6)
    first, again = (at(completed(slowdown, seen), (1, 2)) for _ in range(2))
    assert first == again
    assert first != at(completed(slowdown, seen, random_state=1), (1, 2))


def test_as_the_registry_builds_it():
    assert spec("completion").features == ("workload", "share")
    assert spec("completion").build(3).random_state == 3


@pytest.mark.parametrize(
    ("table", "slowdown", "groups", "message"),
    [
        ([[0, 1, 2]], [1.5], None, "must have an even number of columns, got 3"),
        ([[0, 1]], [0.0], None, "slowdowns must be > 0, got 0.0"),
        ([[0, 2]], [1.5], [0, 0], r"workloads must be numbers in 0\.\.1, see groups"),
    ],
)
def test_what_cannot_be_completed_is_refused(table, slowdown, groups, message):
    with pytest.raises(ValueError, match=message):
        Completion(groups=groups).fit(np.array(table, dtype=float), np.array(slowdown))


SMALL = LowRank(
    known=np.array([[0.0, 1.0], [1.0, 1.0]]),
    conditions=np.array([[1.0]]),
    together=np.array([[True]]),
    log_slowdown=np.log([[1.0, 2.0, 1.5], [3.0, 4.0, 3.5], [2.0, 3.0, 2.5]]),
    variance=np.full((3, 3), 0.04),
)


def test_form_by_hand():
    states = np.array([[1.0, 1.0], [0.0, 1.0], [7.0, 1.0], [0.0, 0.5]])
    own, other = np.array([0, 1, 0, 2, 0]), np.array([1, 0, 2, 2, 3])
    assert SMALL.predict(states, own, other) == pytest.approx([3, 2, 3.5, 2.5, np.nan], nan_ok=True)
    # The deviation of the logarithm is 0.2.
    found = SMALL.standard_error(states, own, other)
    assert found == pytest.approx([0.6, 0.4, 0.7, 0.5, np.nan], nan_ok=True)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("known", None, "known: is required"),
        ("known", [[0, 1]], r"log_slowdown: must have shape \(2, 2\), got \(3, 3\)"),
        ("known", [[0, 1], [0, 1]], "known: must not repeat a state"),
        ("known", [[0, 1], [np.nan, 1]], "known: must be finite"),
        ("known", [0, 1], r"known: must have shape \('n', 2\), got \(2,\)"),
        ("known", np.empty((0, 2)), r"known: must have shape \('n', 2\), got \(0, 2\)"),
        ("known", [["a", "b"]], "known: must hold numbers, got <U1"),
        ("conditions", [[1], [1]], r"log_slowdown: must have shape \(4, 4\)"),
        ("together", [[2]], "together: must be 0 or 1"),
        ("log_slowdown", np.full((3, 3), 1e3), "must be the logarithm of a slowdown"),
        ("log_slowdown", np.full((3, 3), np.inf), "log_slowdown: must be finite"),
        ("variance", np.full((3, 3), -1.0), "variance: must be >= 0"),
    ],
)
def test_arrays_that_cannot_be_such_a_form_are_refused(name, value, message):
    arrays = dict(SMALL.arrays())
    if value is None:
        del arrays[name]
    else:
        arrays[name] = np.asarray(value)
    with pytest.raises(InputError, match=message):
        LowRank.from_arrays(arrays, features=2)


def test_a_copy_goes_on_by_itself():
    slowdown, seen = interacting(6), pairs_seen(6, 0.6)
    model = completed(slowdown, seen)
    before = at(model, (1, 2))
    copy.deepcopy(model).partial_fit(*cells(slowdown, ~seen))
    assert at(model, (1, 2)) == before


@pytest.mark.parametrize("device", ["k80", "p100", "v100"])
def test_a_quarter_of_the_measured_pairs_tells_the_rest_better_than_means_do(device):
    if not GAVEL.exists():
        pytest.skip(f"no measured pairs at {GAVEL}")
    with GAVEL.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["device"] == device and r["status"] == "ok"]
    names = sorted({r[side] for r in rows for side in ("job_a", "job_b")})
    slowdown = np.full((len(names), len(names)), np.nan)
    for r in rows:
        a, b = names.index(r["job_a"]), names.index(r["job_b"])
        slowdown[a, b], slowdown[b, a] = float(r["slowdown_a"]), float(r["slowdown_b"])
    measured = ~np.isnan(slowdown)
    seen = pairs_seen(len(names), 0.25) & measured
    table, target = cells(slowdown, seen)
    hidden = np.argwhere(measured & ~seen)
    own, other = (
        np.array([target[table[:, side] == k].mean() for k in hidden[:, side]]) for side in (0, 1)
    )
    means = own + other - target.mean()
    truth = slowdown[tuple(hidden.T)]
    predicted = Completion().fit(table, target).predict(hidden.astype(float))
    assert np.abs(predicted - truth).mean() < 0.75 * np.abs(means - truth).mean()


def test_on_rows_of_a_data_set():
    # Slowdowns are products, so pairs that were left out follow from the others.
    own = {"a": 1.0, "b": 1.2, "c": 1.5, "d": 1.6, "e": 1.1}
    other = {"a": 1.1, "b": 1.3, "c": 1.4, "d": 1.2, "e": 1.2}
    measured = [
        Measurement(
            workloads=(x, y), gpu_model="V100", slowdown=(own[x] * other[y], own[y] * other[x])
        )
        for x, y in itertools.combinations_with_replacement("abcde", 2)
    ]
    data = DataSet(name="products", measurements=measured)
    model = spec("completion")
    features, rows = training_rows(data, model.features)
    assert features.names == model.features
    found = held_out(model, rows, random_folds(rows, 3))
    error = np.abs(np.log(found.slowdown / rows.slowdown[found.row]))
    assert error.mean() < 0.05
    unknown = held_out(model, rows, family_folds(rows))
    assert np.isfinite(unknown.slowdown).all()
