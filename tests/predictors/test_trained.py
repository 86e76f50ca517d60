"""The fitted predictor: blends, bounds, unknown pairs, and tables for whole rounds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.instances.errors import InputError
from dovetail.instances.instance import Workload
from dovetail.predictors import UNCAPPED
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.solver import best_splits
from tests.predictors.fitted import Margin, busy, fit, linear, member, simple

AB = {"a": busy(0.5), "b": busy(0.2)}
NONE = (UNCAPPED, UNCAPPED)


def ask(predictor, workloads, *rows, gpu_model=None):
    """Predict rows of (first, second, shares)."""
    names = list(workloads)
    pairs = np.array([[names.index(a), names.index(b)] for a, b, _ in rows], dtype=np.int64)
    shares = np.array([shares for *_, shares in rows], dtype=np.int64)
    return predictor.predict(workloads, pairs.reshape(-1, 2), shares.reshape(-1, 2), gpu_model)


def test_a_pair_by_hand():
    # a: 1 + 0.1 * 0.5 + 0.2 = 1.25; b: 1 + 0.1 * 0.2 + 0.5 = 1.52.
    found = ask(simple(), AB, ("a", "b", NONE))
    assert found.slowdown[0] == pytest.approx([1.25, 1.52])
    assert (found.upper, found.power_w) == (None, None)


def test_mirrored_rows_and_a_workload_with_itself():
    found = ask(simple(Margin()), AB, ("a", "b", NONE), ("b", "a", NONE), ("a", "a", NONE))
    for values in (found.slowdown, found.upper):
        assert (values[0] == values[1, ::-1]).all()
        assert values[2, 0] == values[2, 1]


def test_no_rows():
    found = ask(simple(Margin()), AB)
    assert found.slowdown.shape == found.upper.shape == (0, 2)


def test_predictions_stay_within_the_slowdowns_seen():
    predictor = simple(limits=(1.3, 1.5))
    assert ask(predictor, AB, ("a", "b", NONE)).slowdown.tolist() == [[1.3, 1.5]]


def test_bounds_by_standing_and_gang_by_hand():
    # 0.1 * workers * (1 + standing) * 0.9; c is of a new family: standing 3 for a, 4 for c.
    predictor = TrainedPredictor(simple(Margin()).fits, 0.9, workers={"a": 4})
    found = ask(predictor, {**AB, "c": busy(0.2)}, ("a", "b", NONE), ("a", "c", NONE))
    rise = found.upper - found.slowdown
    assert rise == pytest.approx(np.array([[0.36, 0.09], [1.44, 0.45]]))


def test_standing_of_workloads_by_family():
    known = replace(simple().fits["V100"], families=("f", "g"))
    asked = {name: busy(0.2) for name in "acdg"}
    asked["c"], asked["d"] = asked["c"].replace(family="f"), asked["d"].replace(family="h")
    assert known.novelty(asked).tolist() == [0, 1, 2, 1]
    assert replace(known, families=()).novelty(asked).tolist() == [0, 2, 2, 2]


def test_a_bound_below_the_prediction_is_lifted_to_it():
    found = ask(simple(Margin(-0.1)), AB, ("a", "b", NONE))
    assert (found.upper == found.slowdown).all()


def test_power_is_the_mean_of_both_orders():
    # a first: 100 + 10 * 0.5 + 20 * 0.2 = 109; b first: 100 + 2 + 10 = 112.
    power = member(linear((10, 20), base=100.0), "sm_active")
    found = ask(simple(power=power), AB, ("a", "b", NONE), ("b", "a", NONE))
    assert found.power_w == pytest.approx([110.5, 110.5])
    assert found.power_w[0] == found.power_w[1]


@pytest.mark.parametrize(
    ("shares", "known"),
    [
        (NONE, True),
        ((30, 70), True),
        ((40, 60), True),
        ((50, 50), True),
        ((20, 80), False),  # a cap outside of 30..70
        ((30, 30), False),  # a sum that was never measured
        ((0, 50), False),  # no job was measured uncapped with a capped one
        ((100, 100), False),
    ],
)
def test_caps_outside_of_what_was_measured_stay_unknown(shares, known):
    predictor = simple(splits=[NONE, (30, 70), (50, 50)])
    found = ask(predictor, AB, ("a", "b", shares), ("b", "a", shares[::-1]))
    assert (~np.isnan(found.slowdown)).tolist() == [[known] * 2] * 2


def test_pairs_with_one_cap_where_they_were_measured():
    predictor = simple(splits=[(0, 30), (0, 70)])
    found = ask(predictor, AB, ("a", "b", (50, 0)), ("a", "b", (0, 50)), ("a", "b", NONE))
    assert np.isnan(found.slowdown).any(axis=1).tolist() == [False, False, True]


def test_rows_of_workloads_that_lack_a_feature_stay_unknown():
    found = ask(simple(Margin()), {**AB, "c": Workload(memory_mib=1)}, ("a", "c", NONE))
    assert np.isnan(found.slowdown).all()
    assert np.isnan(found.upper).all()


def test_only_measurements_help_a_model_that_knows_workloads_by_name():
    by_name = member(linear((0, 0)), "workload", known=("a", "b"))
    predictor = TrainedPredictor({"V100": fit(by_name)})
    blank = Workload(memory_mib=1)
    assert predictor.lacks("c", blank) == ("measured pairs",)
    assert predictor.lacks("a", blank) == ()
    found = ask(predictor, {"a": blank, "b": blank, "c": blank}, ("a", "b", NONE), ("a", "c", NONE))
    assert np.isnan(found.slowdown).any(axis=1).tolist() == [False, True]


def test_what_one_of_the_fits_can_do_without_is_not_lacking():
    fine, coarse = (fit(member(linear((0, 0)), name)) for name in ("sm_active", "gpu_util"))
    predictor = TrainedPredictor({"V100": fine, "K80": coarse})
    assert predictor.lacks("a", busy(0.1)) == ()
    assert np.isnan(ask(predictor, AB, ("a", "b", NONE), gpu_model="K80").slowdown).all()


def test_gpu_models():
    predictor = simple()
    assert ask(predictor, AB, ("a", "b", NONE), gpu_model="V100").slowdown[0, 0] == 1.25
    with pytest.raises(InputError, match=r"gpu_model: must be one .* \(V100\), got 'A100'"):
        ask(predictor, AB, ("a", "b", NONE), gpu_model="A100")
    standing = predictor.standing_in({"A100": "V100"})
    assert ask(standing, AB, ("a", "b", NONE), gpu_model="A100").slowdown[0, 0] == 1.25
    with pytest.raises(InputError, match=r"gpu_model: must be one .*, got none"):
        ask(standing, AB, ("a", "b", NONE))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: fit(member(linear((0, 0)), "sm_active"), limits=(2.0, 1.0)),
            "limits: must be 0 < lowest <= highest, got 2.0, 1.0",
        ),
        (lambda: TrainedPredictor({}), "fits: must have a fit"),
        (lambda: TrainedPredictor(simple().fits, 1.0), "confidence: must be > 0 and < 1, got 1.0"),
    ],
)
def test_what_does_not_fit_together_is_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()


SPLITS = [(30, 70), (50, 50), (70, 30)]


def capped(**more):
    """slowdown = 1 + other activity + (1 - own share)."""
    form = linear((0.0, 1.0), (-1.0, 0.0), base=2.0)
    one = fit(member(form, "sm_active", "share"), splits=SPLITS, bound=Margin(), **more)
    return TrainedPredictor({"V100": one})


def test_a_table_has_what_the_rows_say():
    predictor = capped()
    table = predictor.predict_table(AB, SPLITS)
    # a at 30 with b at 70: 2 + 0.2 - 0.3 = 1.9; b at 30 with a: 2.2.
    assert table.slowdown.dtype == table.upper.dtype == np.float32
    assert table.slowdown[:, :, 0] == pytest.approx(np.array([[2.2, 1.9], [2.2, 1.9]]))
    rows = [(a, b, split) for a in AB for b in AB for split in SPLITS]
    found = ask(predictor, AB, *rows)
    assert table.slowdown.ravel() == pytest.approx(found.slowdown[:, 0], rel=1e-6)
    assert table.upper.ravel() == pytest.approx(found.upper[:, 0], rel=1e-6)


def test_best_splits_takes_the_table():
    predictor = capped()
    table = predictor.predict_table({"a": busy(0.9), "b": busy(0.0)}, SPLITS)
    best = best_splits(table.slowdown, [0, 1], bound=table.upper)
    # a slows by 2 - share_a, b by 2.9 - share_b. At (70, 30): 1 / 1.3 + 1 / 2.6 = 1.154; at
    # (30, 70): 1 / 1.7 + 1 / 2.2 = 1.043; at (50, 50): 1 / 1.5 + 1 / 2.4 = 1.083.
    assert best.split[0, 1] == 2
    assert best.value[0, 1] == pytest.approx(1 / 1.3 + 1 / 2.6)


def test_blocks_do_not_show(monkeypatch):
    workloads = {f"w{k}": busy(k / 10) for k in range(7)}
    whole = capped().predict_table(workloads, SPLITS)
    rows = [(a, b, (50, 50)) for a in workloads for b in workloads]
    answers = ask(capped(), workloads, *rows)
    monkeypatch.setattr("dovetail.predictors.fitted.trained._BLOCK_ROWS", 5)
    blocks = capped().predict_table(workloads, SPLITS)
    assert (whole.slowdown == blocks.slowdown).all()
    assert (whole.upper == blocks.upper).all()
    assert (ask(capped(), workloads, *rows).upper == answers.upper).all()


fractions = st.floats(0, 1)


@given(st.lists(fractions, min_size=1, max_size=5), st.data())
def test_contract_of_predictors(levels, data):
    workloads = {f"w{k}": busy(level) for k, level in enumerate(levels)}
    names = st.sampled_from(list(workloads))
    rows = data.draw(st.lists(st.tuples(names, names, st.sampled_from(SPLITS)), min_size=1))
    mirrored = [(b, a, shares[::-1]) for a, b, shares in rows]
    found, again = (ask(capped(), workloads, *some) for some in (rows, rows))
    assert (found.slowdown == again.slowdown).all()
    turned = ask(capped(), workloads, *rows, *mirrored)
    assert (turned.slowdown[: len(rows)] == turned.slowdown[len(rows) :, ::-1]).all()
    assert (turned.upper[: len(rows)] == turned.upper[len(rows) :, ::-1]).all()
    assert (found.upper >= found.slowdown).all()


def test_numbers_that_overflow_stay_within_the_slowdowns_seen():
    forms = {1e308: linear((1e308, 1e308)), -1e308: linear((-1e308, -1e308))}
    seen = {}
    for size, form in forms.items():
        model = TrainedPredictor({"V100": fit(member(form, "sm_active"), limits=(0.9, 3.0))})
        pairs = np.array([[0, 1]])
        workloads = {"a": busy(1.0), "b": busy(1.0)}
        seen[size] = model.predict(workloads, pairs, np.zeros_like(pairs)).slowdown.tolist()
    assert seen == {1e308: [[3.0, 3.0]], -1e308: [[0.9, 0.9]]}
