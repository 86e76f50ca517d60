"""The hierarchical Gaussian process: its form by hand, and its answers from little evidence."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dovetail.instances.datasets import DataSet, Measurement, SoloProfile
from dovetail.instances.datasets.files import read_dataset
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Workload
from dovetail.instances.metrics import Metrics
from dovetail.predictors.estimators.hierarchical import SPEC, Hierarchical
from dovetail.predictors.features import Features
from dovetail.predictors.fitted.folds import family_folds, held_out, random_folds
from dovetail.predictors.fitted.model_file import load_model, save_model
from dovetail.predictors.fitted.rows import training_rows
from dovetail.predictors.fitted.training import fit
from dovetail.predictors.forms.hierarchy import (
    ALONE,
    BATCH,
    FEATURES,
    SHARE,
    Hierarchy,
    steepness,
    unwarped,
    warped,
)
from dovetail.predictors.kernels import RANGES, KernelsPredictor, Law
from tests.predictors.made_up_names import committed
from tests.predictors.synthetic import GPU, synthetic
from tests.predictors.test_analytic_form import COLUMNS, EXPECTED_FAILURES

DEFAULT_LAW = np.array([getattr(Law(), name) for name in RANGES])

ODD = {
    **EXPECTED_FAILURES,
    **dict.fromkeys(
        [
            "check_dtype_object",
            "check_fit2d_1sample",
            "check_regressor_data_not_an_array",
            "check_regressors_int",
            "check_regressors_train",
        ],
        COLUMNS,
    ),
}


@parametrize_with_checks([Hierarchical()], expected_failed_checks=lambda e: ODD)
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


def fitted(data):
    features, rows = training_rows(data, SPEC.features, partial=True)
    return features, rows, SPEC.build(0).fit(rows.table, rows.slowdown)


def states(*rows):
    """Return states by name of column; other columns are unknown."""
    found = np.full((len(rows), len(FEATURES)), np.nan)
    found[:, SHARE] = 1.0
    found[:, ALONE] = 0.0
    for k, row in enumerate(rows):
        for name, value in row.items():
            found[k, FEATURES.index(name)] = value
    return found


def by_hand():
    """Return a form of one trained pair, a with b, whose dual is 2."""
    weights = np.zeros((5, 5))
    weights[0, 0], weights[1, 0], weights[0, 3], weights[3, 3] = 0.1, 0.05, 0.02, 0.01
    trained = states({"family": 0, "workload": 0}, {"family": 1, "workload": 1})
    return Hierarchy(
        mean=np.array([0.25]),
        limits=np.array([-1.0, 1.0]),
        weights=weights,
        slope=np.array([1.0]),
        noise=np.array([0.01]),
        exponent=np.array([1.0]),
        shift=np.array([1.0]),
        batches=np.array([2.0]),
        law=DEFAULT_LAW,
        scale=np.zeros((2, 6)),
        trained=trained,
        dual=np.array([[0.0, 2.0], [0.0, 0.0]]),
    )


def test_by_hand_from_the_prior_to_the_measured_pair():
    form = by_hand()
    asked = np.vstack([form.trained, states({}, {"family": 0})])
    own, other = np.array([0, 3, 2, 2]), np.array([1, 1, 1, 2])
    # The pair itself; a new workload of the own family; an unknown one with b; two unknown ones.
    weight = [0.18, 0.17, 0.12, 0.1]
    assert form.predict(asked, own, other) == pytest.approx(np.exp(0.25 + 2 * np.array(weight)))
    error = form.standard_error(asked, own, other)
    assert (np.diff(error) > 0).all()
    # Of two strangers only the mean of all is known: most of the prior is left, and the noise.
    assert 0.01 + 0.18 / 2 < error[3] ** 2 < 0.01 + 0.18


def test_a_share_that_was_not_measured_follows_the_solo_curve_and_is_less_sure():
    form = by_hand()
    half = states({"family": 0, "workload": 0, "share": 0.5, "log_alone": np.log(1.5)})
    unknown = states({"family": 0, "workload": 0, "share": 0.5, "log_alone": np.nan})
    asked = np.vstack([form.trained, half, unknown])
    whole, capped, guessed = form.predict(asked, np.array([0, 2, 3]), np.array([1, 1, 1]))
    assert 1.5 < capped < 1.5 * whole
    assert guessed == pytest.approx(capped / 1.5 * 2)
    error = form.standard_error(asked, np.array([0, 2, 3]), np.array([1, 1, 1]))
    assert error[0] < error[1] < error[2]


def test_no_answer_lies_outside_the_observed_range_of_the_solo_curve():
    form = by_hand()
    held = Hierarchy(**{**form.arrays(), "limits": np.array([0.0, 0.3])})
    half = states({"family": 0, "workload": 0, "log_alone": np.log(4.0)})
    asked = np.vstack([half, form.trained])
    assert held.predict(asked, np.array([0]), np.array([2])) == pytest.approx(4 * np.exp(0.3))


def test_what_a_shift_does_to_the_target():
    logarithm = np.array([-0.05, 0.0, 0.1, 1.0, 3.0])
    for shift in (1.0, 0.3, 0.1):
        value = warped(logarithm, shift)
        assert unwarped(value, shift) == pytest.approx(logarithm)
        step = (unwarped(value + 1e-6, shift) - unwarped(value - 1e-6, shift)) / 2e-6
        assert steepness(value, shift) == pytest.approx(step)
    # Twice the excess is the same step from any slowdown that is not near 1.
    two, three, five = warped(np.log([2.0, 3.0, 5.0]), 0.01)
    assert three - two == pytest.approx(five - three, abs=0.01)
    assert np.isfinite(warped(np.array([-700.0]), 0.1)).all()


def test_a_shifted_target_multiplies_the_excess_and_is_surer_of_a_small_one():
    form = replace(by_hand(), shift=np.array([0.1]), mean=np.zeros(1), limits=np.array([-9.0, 9.0]))
    own, other = np.array([0]), np.array([1])
    pair = form.predict(form.trained, own, other)
    # Without contention the excess and the shift are exp(0) * exp(2 * 0.18) and 0.1.
    assert pair == pytest.approx(1 - 0.1 + np.exp(0.36))
    slight = replace(form, mean=np.array([-3.0]))
    errors = [one.standard_error(form.trained, own, other)[0] for one in (slight, form)]
    assert errors[0] < errors[1]


def by_law(form, law):
    """Return the slowdown of a job of short kernels next to one of long ones, and the law's."""
    short = Metrics(sm_active=0.5, graphics_active=0.8, dram_active=0.2, kernels_s=30_000.0)
    long = Metrics(sm_active=0.9, graphics_active=1.0, dram_active=0.7, kernels_s=3_000.0)
    jobs = {
        name: Workload(memory_mib=1, metrics=metrics)
        for name, metrics in (("short", short), ("long", long))
    }
    found = []
    for cap in (0, 50):
        asked = Features(FEATURES).states(jobs, np.arange(2), np.array([cap, cap]))
        own, other = np.array([0, 1]), np.array([1, 0])
        said = KernelsPredictor(law).predict(jobs, np.array([[0, 1]]), np.array([[cap, cap]]))
        found.append((form.predict(asked, own, other), said.slowdown[0]))
    return found


@pytest.mark.parametrize("shift", [1.0, 0.1])
def test_the_law_of_mps_is_the_mean_where_nothing_was_measured(shift):
    law = Law(wait=0.8, bandwidth=0.6)
    numbers = np.array([getattr(law, name) for name in RANGES])
    form = replace(by_hand(), law=numbers, shift=np.array([shift]))
    form = replace(form, dual=np.zeros((2, 2)), mean=warped(np.zeros(1), shift))
    for said, expected in by_law(replace(form, limits=np.array([-9.0, 9.0])), law):
        assert said == pytest.approx(expected)
        assert said[0] > 1.4


def test_few_pairs_correct_the_law():
    """On our H200, pairs hidden in fifths: the law, fitted to the other pairs, and corrected."""
    data = read_dataset("library:h200-2026-11")
    found = {}
    # In logarithms without caps, where a single pair of the largest slowdowns decides otherwise.
    for capped in (False, True):
        some = tuple(m for m in data.measurements if (m.share is not None) == capped)
        _, rows = training_rows(data.replace(measurements=some), SPEC.features, partial=True)
        held = held_out(SPEC, rows, random_folds(rows))
        truth = rows.slowdown[held.row]
        log, said = np.log(truth), np.log(held.slowdown)
        off = np.square(said - log).sum() / np.square(log - log.mean()).sum()
        found[capped] = 1 - off, np.abs(held.slowdown - truth).mean()
    assert found[False][0] > 0.95
    assert found[True][1] < 0.12


def test_the_target_is_chosen_by_folds():
    # Excesses are products: with a small shift they are sums.
    _, rows = training_rows(committed(), SPEC.features, partial=True)
    assert Hierarchical().fit(rows.table, rows.slowdown).process_.shift[0] < 1


def test_the_length_scale_of_batch_sizes_is_learnt():
    """Of three workloads at each of eight batch sizes, next to three others."""
    mine = states(
        *({"family": 0, "log_batch": k // 3, "workload": k} for k in range(24)),
        *({"family": 1 + k, "workload": 24 + k} for k in range(3)),
    )
    own, other = (end.ravel() for end in np.meshgrid(np.arange(24), np.arange(24, 27)))
    table, size = np.hstack([mine[own], mine[other]]), mine[own, BATCH]
    chosen = [
        Hierarchical().fit(table, 1.5 + 0.4 * cost).process_.batches[0]
        for cost in (size % 2, size / 7)
    ]
    assert chosen[0] < 2 < chosen[1]


def test_the_form_says_what_the_estimator_says_row_by_row_and_as_a_grid():
    features, rows, model = fitted(synthetic())
    form = Hierarchy.from_arrays(model.to_form().arrays(), len(features.names))
    said = form.predict(rows.states, rows.own, rows.other)
    np.testing.assert_allclose(said, model.predict(rows.table), rtol=1e-12)
    one = [form.predict(rows.states, rows.own[k : k + 1], rows.other[k : k + 1]) for k in range(9)]
    np.testing.assert_allclose(np.concatenate(one), said[:9], rtol=1e-12)


def test_it_fits_what_it_has_seen():
    _, rows, model = fitted(synthetic(noise=0.0))
    assert np.abs(model.predict(rows.table) - rows.slowdown).mean() < 0.01


def test_unseen_workloads_and_unseen_pairs_are_predicted():
    _, rows = training_rows(synthetic(families=6), SPEC.features, partial=True)
    spread = np.abs(rows.slowdown - np.median(rows.slowdown)).mean()
    for folds, part in ((random_folds(rows), 0.4), (family_folds(rows), 0.7)):
        found = held_out(SPEC, rows, folds)
        error = np.abs(found.slowdown - rows.slowdown[found.row]).mean()
        assert error < part * spread


def test_measuring_a_pair_more_often_draws_its_answer_there():
    data = synthetic(families=3, noise=0.05)
    names = ("f0 b0", "f1 b0")
    more = Measurement(workloads=names, gpu_model=GPU, slowdown=(1.9, 1.9))
    said = []
    for times in (0, 1, 20):
        _, rows, model = fitted(data.replace(measurements=(*data.measurements, *[more] * times)))
        row = np.flatnonzero(
            (rows.own_workload == rows.names.index(names[0]))
            & (rows.other_workload == rows.names.index(names[1]))
        )[0]
        said.append(model.predict(rows.table[[row]])[0])
    assert said[0] < said[1] < said[2]
    assert said[2] == pytest.approx(1.9, abs=0.1)


def test_the_same_seed_gives_the_same_model():
    one, other = (fitted(synthetic(families=4))[2].to_form().arrays() for _ in range(2))
    assert all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


def test_more_pairs_than_are_taken():
    _, rows = training_rows(synthetic(), SPEC.features, partial=True)
    model = Hierarchical(most_rows=60, searched_rows=40).fit(rows.table, rows.slowdown)
    assert np.isfinite(model.predict(rows.table)).all()


def test_columns_have_a_meaning_each():
    with pytest.raises(ValueError, match="X must have 36 columns, got 2"):
        Hierarchical().fit(np.ones((3, 2)), np.ones(3))


def of_names(shares=(None,), families="abcd", sizes=(8, 16, 32)):
    """Return slowdowns of workloads by family and batch size, without any metric."""
    sizes = {f"{family}{size}": (family, size) for family in families for size in sizes}
    cost = {name: 0.1 * "abcd".index(f) + 0.02 * np.log2(size) for name, (f, size) in sizes.items()}
    profiles = [
        SoloProfile(
            workload=name,
            gpu_model=GPU,
            family=family,
            batch_size=size,
            share=share,
            throughput=100 * ((share or 100) / 100) ** 0.5,
        )
        for name, (family, size) in sizes.items()
        for share in (None, 25, 75)
    ]
    pairs = [(a, b) for k, a in enumerate(sizes) for b in list(sizes)[k:]]
    measured = []
    for a, b in pairs:
        for share in shares:
            alone = [(100 / (s or 100)) ** 0.5 for s in share or (None, None)]
            slow = tuple(x * (1 + cost[a] + cost[b]) for x in alone)
            measured.append(
                Measurement(workloads=(a, b), gpu_model=GPU, share=share, slowdown=slow)
            )
    return DataSet(name="names", profiles=profiles, measurements=measured), cost


@pytest.fixture(scope="module")
def with_a_gap(tmp_path_factory):
    """Data of names, their costs, and a model that has not seen one of their pairs, a8 with b8."""
    data, cost = of_names()
    rest = tuple(m for m in data.measurements if set(m.workloads) != {"a8", "b8"})
    path = tmp_path_factory.mktemp("gap") / "m"
    save_model(fit(data.replace(measurements=rest)), path)
    return data, cost, load_model(path)


@cache
def of_splits(splits):
    """Return data of names that were measured at these splits, and a model of them."""
    data, _ = of_names(splits, families="abc", sizes=(8, 32))
    return data, fit(data)


def test_a_new_workload_without_metrics_is_answered_by_family_and_batch_size(with_a_gap):
    data, cost, predictor = with_a_gap
    known = data.workloads(GPU)
    asked = {
        "a8": known["a8"],
        "d64": Workload(memory_mib=1, family="d", batch_size=64),
        "d4": Workload(memory_mib=1, family="d", batch_size=4),
        "x": Workload(memory_mib=1),
    }
    assert not any(predictor.lacks(name, workload) for name, workload in asked.items())
    pairs = np.array([[0, 1], [0, 2], [0, 3]])
    found = predictor.predict(asked, pairs, np.zeros_like(pairs), GPU).slowdown[:, 1]
    base = 1 + cost["a8"]
    assert found[0] == pytest.approx(base + 0.3 + 0.02 * 6, abs=0.1)
    assert found[1] == pytest.approx(base + 0.3 + 0.02 * 2, abs=0.1)
    assert found[0] > found[1] > found[2] > 1.1


def test_a_split_that_was_not_measured_follows_the_solo_curves():
    data, cost = of_names(((25, 75), (75, 25)), sizes=(8, 32))
    predictor = fit(data)
    known = data.workloads(GPU)
    pair = np.array([[list(known).index("a8"), list(known).index("d32")]])
    found = predictor.predict(known, pair, np.array([[50, 50]]), GPU).slowdown[0]
    assert found == pytest.approx(2**0.5 * (1 + cost["a8"] + cost["d32"]), rel=0.03)


def test_measured_pairs_alone_where_that_is_asked_for(with_a_gap):
    data, _, model = with_a_gap
    first = data.measurements[0].workloads
    predictor = replace(model, measured_only=True)
    workloads = {**data.workloads(GPU), "x": Workload(memory_mib=1)}
    place = {name: k for k, name in enumerate(workloads)}
    asked = [first, ("a8", "b8"), ("a8", "b16"), ("a8", "x"), ("a8", "b16")]
    shares = np.array([[0, 0]] * 4 + [[50, 50]])
    pairs = np.array([[place[name] for name in pair] for pair in asked])
    found = predictor.predict(workloads, pairs, shares, GPU).slowdown
    assert np.isfinite(found).all(axis=1).tolist() == [True, False, True, False, False]


THREE_SPLITS = ((25, 75), (50, 50), (40, 60))


def test_a_split_that_was_not_measured_has_a_bound_from_three_splits_on():
    pair = np.array([[0, 5]])
    for splits in (((25, 75), (50, 50)), THREE_SPLITS):
        data, predictor = of_splits(splits)
        known = data.workloads(GPU)
        measured, new = (
            predictor.predict(known, pair, np.array([split]), GPU) for split in ((50, 50), (33, 67))
        )
        assert np.isfinite(measured.upper).all()
        assert np.isfinite(new.slowdown).all()
        enough = len(splits) > 2
        assert np.isfinite(new.upper).all() == enough
        bounded = predictor.fits[GPU].bounded(0.9)
        assert (bounded[50, 50], bounded[33, 67], bounded[10, 90]) == (True, enough, enough)
        if enough:
            assert (new.upper >= new.slowdown).all()


@pytest.mark.parametrize(
    ("measured", "others"),
    [
        # A bound of other capped splits is given, see above.
        (THREE_SPLITS, [(0, 0), (0, 50), (50, 0)]),
        ((None,), [(50, 50), (0, 50), (50, 0)]),
    ],
)
def test_no_answer_at_a_kind_of_split_that_was_not_measured(measured, others):
    """A cap takes the queue of kernels apart: measurements with caps tell nothing without."""
    data, predictor = of_splits(measured)
    asked = np.array([measured[0] or (0, 0), *others])
    pairs = np.tile([[0, 5]], (len(asked), 1))
    found = predictor.predict(data.workloads(GPU), pairs, asked, GPU)
    known = [True, *(False for _ in others)]
    assert np.isfinite(found.slowdown).all(axis=1).tolist() == known
    assert np.isnan(found.upper[1:]).all()
    bounded = predictor.fits[GPU].bounded(0.9)
    assert [bool(bounded[split]) for split in map(tuple, asked.tolist())] == known


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("mean", np.zeros(2), r"mean: must have shape \(1,\), got \(2,\)"),
        ("mean", np.array([np.nan]), "mean: must be finite"),
        ("mean", np.array([1e16]), r"mean: must be within 1e\+15"),
        ("weights", np.zeros((2, 2)), "weights: must have shape"),
        ("weights", np.full((5, 5), -1.0), "weights: must be >= 0"),
        ("scale", np.full((2, 6), -1.0), "scale: must be >= 0"),
        ("shift", np.zeros(1), "shift: must be > 0 and <= 1"),
        ("batches", np.zeros(1), "batches: must be > 0"),
        ("law", np.zeros(4), "law: wait must be from 0.2 to 3"),
        ("dual", np.zeros((1, 1)), "dual: must have shape"),
        ("trained", np.zeros((2, 3)), "trained: must be states"),
        ("trained", np.zeros((2, 18)), r"trained: shares must be in \(0, 1\]"),
        ("trained", np.full((2, 18), np.inf), "trained: must not be infinite"),
    ],
)
def test_arrays_that_are_no_process(name, value, rule):
    with pytest.raises(InputError, match=rule):
        Hierarchy.from_arrays({**by_hand().arrays(), name: value}, len(FEATURES))


@pytest.mark.parametrize("name", ["mean", "trained", "dual"])
def test_arrays_that_are_missing(name):
    arrays = dict(by_hand().arrays())
    del arrays[name]
    with pytest.raises(InputError, match=f"{name}: is required"):
        Hierarchy.from_arrays(arrays, len(FEATURES))


def test_solo_curves_are_interpolated_and_go_on():
    workload = Workload(memory_mib=1, throughput={20: 40.0, 80: 80.0})
    features = Features(("log_alone", "log_throughput"))
    caps = np.array([0, 10, 20, 40, 80])
    found = features.states({"w": workload}, np.zeros(5, dtype=np.int64), caps)
    # A line on logarithmic axes: the rate grows by 2 where the share grows by 4.
    whole = 80 * (100 / 80) ** 0.5
    rate = np.array([whole, 40 / 2**0.5, 40, 40 * 2**0.5, 80])
    assert np.exp(found[:, 0]) == pytest.approx(whole / rate)
    assert np.exp(found[0, 1]) == pytest.approx(whole)
