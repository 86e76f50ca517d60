"""The form of tree ensembles: a tree by hand, the libraries' own answers, hostile arrays."""

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

from dovetail.instances.errors import InputError
from dovetail.papers.forms import _kernels
from dovetail.papers.forms.forest import MOST_LEAVES, Forest
from dovetail.papers.forms.totals import Totals, pair_table
from dovetail.papers.predictors._trees import forest_of_sklearn, forest_of_xgboost

FEATURES = 3


@pytest.fixture(params=["numpy", "compiled"])
def kernels(request, monkeypatch):
    """Run a test once in numpy and once compiled, whatever would be chosen for the size."""
    if request.param == "compiled":
        pytest.importorskip("numba")
    least = 0 if request.param == "compiled" else float("inf")
    monkeypatch.setattr(_kernels, "_WORTH_LOADING", least)
    monkeypatch.setattr(_kernels, "_WORTH_CALLING", least)
    return request.param


def by_hand():
    """Return 10 + a tree: own[0] <= 0.5 ? (other[0] <= 0.25 ? 1 : 2; NaN right) : 3; NaN left."""
    return {
        "start": np.array([0, 5]),
        "end": np.array([5, 4, 3, 4, 5]),
        "feature": np.array([0, 1, 0, 0, 0]),
        "threshold": np.array([0.5, 0.25, 0, 0, 0], dtype=np.float32),
        "missing_left": np.array([True, False, False, False, False]),
        "value": np.array([0.0, 0.0, 1.0, 2.0, 3.0]),
        "base": np.array(10.0),
    }


def test_tree_by_hand(kernels):
    forest = Forest.from_arrays(by_hand(), 1)
    states = np.array([[0.5], [0.25], [0.9], [np.nan]])
    own = np.array([0, 0, 0, 0, 1, 2, 3, 3])
    other = np.array([0, 1, 2, 3, 1, 1, 1, 3])
    # Thresholds are reached from the left: 0.5 and 0.25 go left. NaN goes left as own, and
    # right as other.
    expected = [12, 11, 12, 12, 11, 13, 11, 12]
    assert forest.predict(states, own, other).tolist() == expected
    assert forest.evaluate(np.hstack([states[own], states[other]])).tolist() == expected


def pairs_of(count=40, rows=600, seed=0):
    """Return states on a grid, so that values meet thresholds, and rows of pairs with targets."""
    draw = np.random.default_rng(seed)
    states = draw.integers(0, 9, (count, FEATURES)) / 8
    own, other = draw.integers(0, count, (2, rows))
    table = np.hstack([states[own], states[other]])
    target = 1 + table[:, 0] * table[:, 3] + (table[:, 1] + table[:, 4] > 1) * 0.3
    return states, own, other, table, target + 0.05 * draw.standard_normal(rows)


def on_thresholds(states, forest):
    """Return further states whose features are thresholds of the forest, or next to them."""
    met = np.unique(forest.threshold[np.isfinite(forest.threshold) & ~forest._is_leaf])
    near = [np.nextafter(met, np.float32(side)) for side in (-np.inf, np.inf)]
    values = np.concatenate([met, *near]).astype(float)
    return np.vstack([states, np.repeat(values[:, np.newaxis], FEATURES, axis=1)])


def probes(states, forest, missing):
    states = on_thresholds(states, forest)
    draw = np.random.default_rng(1)
    if missing:
        states[draw.random(states.shape) < 0.2] = np.nan
    own, other = draw.integers(0, len(states), (2, 3000))
    return states, own, other, np.hstack([states[own], states[other]])


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("leaves", [2, 64, 65, 400])
@pytest.mark.parametrize("ensemble", [RandomForestRegressor, ExtraTreesRegressor])
def test_equals_sklearn(ensemble, leaves, missing, kernels):
    states, _, _, table, target = pairs_of()
    if missing:
        table[::7, 1] = np.nan
    fitted = ensemble(7, max_leaf_nodes=leaves, random_state=0).fit(table, target)
    forest = forest_of_sklearn(fitted)
    states, own, other, table = probes(states, forest, missing)
    expected = fitted.predict(table)
    np.testing.assert_allclose(forest.predict(states, own, other), expected, rtol=1e-12)
    np.testing.assert_allclose(forest.evaluate(table), expected, rtol=1e-12)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("depth", [1, 6, 9])
def test_equals_xgboost(depth, missing, kernels):
    states, _, _, table, target = pairs_of()
    if missing:
        table[::7, 1] = np.nan
    parameters = {"max_depth": depth, "nthread": 1, "base_score": 0.5}
    fitted = xgboost.train(parameters, xgboost.DMatrix(table, target), 30)
    forest = forest_of_xgboost(fitted, FEATURES, 0.0)
    states, own, other, table = probes(states, forest, missing)
    expected = fitted.predict(xgboost.DMatrix(table))
    np.testing.assert_allclose(forest.predict(states, own, other), expected, rtol=1e-6)
    np.testing.assert_allclose(forest.evaluate(table), expected, rtol=1e-6)


def test_values_that_are_equal_in_float32():
    # 0.1 is not a float32: the float64 0.1 and its float32 neighbour are one value to the trees.
    states, own, other, table, target = pairs_of()
    states, table = states * 0.1, table * 0.1
    fitted = RandomForestRegressor(5, random_state=0).fit(table, target)
    forest = forest_of_sklearn(fitted)
    states = states.astype(np.float32).astype(float) * (1 + 1e-9)
    expected = fitted.predict(np.hstack([states[own], states[other]]))
    np.testing.assert_allclose(forest.predict(states, own, other), expected, rtol=1e-12)


def test_compiled_and_numpy_agree_to_the_last_bit(monkeypatch):
    pytest.importorskip("numba")
    states, own, other, table, target = pairs_of()
    forest = forest_of_sklearn(RandomForestRegressor(20, random_state=0).fit(table, target))
    totals = Totals(forest)
    answers = []
    for least in (0, float("inf")):
        monkeypatch.setattr(_kernels, "_WORTH_CALLING", least)
        monkeypatch.setattr(_kernels, "_WORTH_LOADING", least)
        answers.append((forest.predict(states, own, other), totals.predict(states, own, other)))
    np.testing.assert_array_equal(*answers)


def test_groups_of_trees_change_nothing(monkeypatch):
    states, own, other, table, target = pairs_of()
    forest = forest_of_sklearn(RandomForestRegressor(9, random_state=0).fit(table, target))
    whole = forest.predict(states, own, other)
    monkeypatch.setattr("dovetail.papers.forms.forest._MASK_BYTES", 1)
    assert len(list(forest._groups(len(states)))) == 9
    np.testing.assert_array_equal(forest.predict(states, own, other), whole)


def test_a_row_alone_gets_the_same_answer():
    states, own, other, table, target = pairs_of()
    forest = forest_of_sklearn(RandomForestRegressor(9, random_state=0).fit(table, target))
    whole = forest.predict(states, own, other)
    for k in (0, 17, 599):
        alone = forest.predict(states[[own[k], other[k]]], np.array([0]), np.array([1]))
        assert alone[0] == whole[k]


def test_totals_are_symmetric_to_the_last_bit():
    states, own, other, _, target = pairs_of()
    table = pair_table(states, own, other)
    totals = Totals(forest_of_sklearn(ExtraTreesRegressor(9, random_state=0).fit(table, target)))
    there, back = totals.predict(states, own, other), totals.predict(states, other, own)
    np.testing.assert_array_equal(there, back)


def test_no_rows_and_a_leaf_alone(kernels):
    leaf = {
        "start": np.array([0, 1]),
        "end": np.array([1]),
        "feature": np.array([0]),
        "threshold": np.zeros(1, dtype=np.float32),
        "missing_left": np.zeros(1, dtype=bool),
        "value": np.array([2.0]),
        "base": np.array(1.0),
    }
    forest = Forest.from_arrays(leaf, FEATURES)
    none = np.array([], dtype=np.int64)
    assert forest.predict(np.zeros((0, FEATURES)), none, none).shape == (0,)
    assert forest.predict(np.zeros((2, FEATURES)), np.array([0]), np.array([1])).tolist() == [3.0]


def test_nothing_but_the_states_is_read():
    forest, zero = Forest.from_arrays(by_hand(), 1), np.array([0])
    for position in (-1, 2):
        with pytest.raises(IndexError, match="must be positions in 2 states"):
            forest.predict(np.zeros((2, 1)), zero, np.array([position]))
    with pytest.raises(ValueError, match="must have 1 columns"):
        forest.predict(np.zeros((2, 3)), zero, zero)
    with pytest.raises(ValueError, match="must have 2 columns"):
        forest.evaluate(np.zeros((2, 1)))


def test_arrays_come_back_as_they_were():
    forest = Forest.from_arrays(by_hand(), 1)
    assert {name: a.tolist() for name, a in forest.arrays().items()} == {
        name: a.tolist() for name, a in by_hand().items()
    }


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("start", [0], "must begin with 0 and increase"),
        ("start", [[0, 5]], "must have one dimension, got 2"),
        ("start", [0, 0, 5], "must begin with 0 and increase"),
        ("start", [1, 5], "must begin with 0 and increase"),
        ("start", [0, 6], r"must have shape \(6,\)"),
        ("start", [0, 2, 5], "the subtree of a root must be its tree"),
        ("start", [0.0, 5.0], "must hold int64"),
        ("end", [5, 4, 3, 4, 4], "a subtree must end after its node"),
        ("end", [5, 4, 3, 4, 6], "a subtree must end after its node"),
        ("end", [5, 4, 3, -4, 5], "a subtree must end after its node"),
        ("end", [5, 5, 3, 4, 5], "two subtrees must fill"),
        ("end", [5, 3, 3, 4, 5], "two subtrees must fill"),
        ("feature", [2, 1, 0, 0, 0], "must be from 0 to 1"),
        ("feature", [-1, 1, 0, 0, 0], "must be from 0 to 1"),
        ("value", [0.0, 0.0, 1.0, np.nan, 3.0], "must not be NaN"),
        ("value", [0.0, 0.0, 1.0, np.inf, 3.0], "must be finite"),
        ("value", [0.0], r"must have shape \(5,\)"),
        ("base", [1.0], r"must have shape \(\)"),
    ],
)
def test_broken_arrays(name, value, rule):
    with pytest.raises(InputError, match=rule) as error:
        Forest.from_arrays({**by_hand(), name: np.array(value)}, 1)
    assert error.value.path in (name, "end")


def test_missing_array_and_no_features():
    with pytest.raises(InputError, match="value: this array is required"):
        Forest.from_arrays({k: v for k, v in by_hand().items() if k != "value"}, 1)
    with pytest.raises(InputError, match="at least one feature"):
        Forest.from_arrays(by_hand(), 0)


def test_too_many_leaves():
    # A chain: every left child is a leaf.
    nodes = 2 * MOST_LEAVES + 1
    inner = np.arange(nodes) % 2 == 0
    inner[-1] = False
    with pytest.raises(InputError, match="may have 4096 leaves, got 4097"):
        Forest.from_arrays(
            {
                "start": np.array([0, nodes]),
                "end": np.where(inner, nodes, np.arange(1, nodes + 1)),
                "feature": np.zeros(nodes, dtype=np.int64),
                "threshold": np.zeros(nodes, dtype=np.float32),
                "missing_left": np.zeros(nodes, dtype=bool),
                "value": np.zeros(nodes),
                "base": np.array(0.0),
            },
            1,
        )


numbers = st.integers(-2, 9) | st.sampled_from([2**62, -(2**63)])


@st.composite
def hostile(draw):
    """Draw arrays that are wrong here and there, from a sound forest or from nothing."""
    arrays = by_hand()
    for name in draw(st.sets(st.sampled_from(["start", "end", "feature"]), min_size=1)):
        sound = arrays[name].tolist()
        spoilt = st.lists(st.sampled_from(sound) | numbers, min_size=1, max_size=8)
        arrays[name] = np.array(draw(spoilt), dtype=np.int64)
    if draw(st.booleans()):
        length = max(0, min(9, int(arrays["start"][-1])))
        for name in ("threshold", "missing_left", "value"):
            arrays[name] = np.resize(arrays[name], length)
    return arrays


@given(hostile())
@settings(deadline=None)
def test_hostile_arrays_are_refused_or_run(arrays):
    try:
        forest = Forest.from_arrays(arrays, 1)
    except InputError:
        return
    states = np.array([[0.1], [0.9]])
    own, other = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    table = np.hstack([states[own], states[other]])
    np.testing.assert_array_equal(forest.predict(states, own, other), forest.evaluate(table))


@given(st.integers(1, 12), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_any_shape_of_tree_is_read(leaves, random):
    """Trees of random shape: both ways to run them agree."""
    end, feature = [], []

    def grow(count):
        place = len(end)
        end.append(0)
        feature.append(random.randrange(2))
        if count > 1:
            first = random.randrange(1, count)
            grow(first)
            grow(count - first)
        end[place] = len(end)

    grow(leaves)
    nodes = len(end)
    draw = np.random.default_rng(random.randrange(1000))
    forest = Forest.from_arrays(
        {
            "start": np.array([0, nodes]),
            "end": np.array(end),
            "feature": np.array(feature),
            "threshold": draw.random(nodes).astype(np.float32),
            "missing_left": draw.random(nodes) < 0.5,
            "value": draw.random(nodes),
            "base": np.array(0.0),
        },
        1,
    )
    states = np.append(draw.random(20), [np.nan])[:, np.newaxis]
    own, other = (index.ravel() for index in np.indices((21, 21)))
    table = np.hstack([states[own], states[other]])
    np.testing.assert_array_equal(forest.predict(states, own, other), forest.evaluate(table))
