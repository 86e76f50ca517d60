"""The dense network as arrays: by hand, against the whole table, and from hostile files."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.instances.errors import InputError
from dovetail.papers.forms.network import BLOCK, Layer, Network, Ranges

# One feature of each job, from 0 to 4 in training.
BY_HAND = Network(
    Ranges(np.array([0.0, 0.0]), np.array([4.0, 4.0])),
    (
        Layer(np.array([[1.0, -1.0], [2.0, 1.0]]), np.array([0.0, 0.5])),
        Layer(np.array([[2.0], [1.0]]), np.array([1.0])),
    ),
    1.25,
)


def random_network(seed=0, features=3, sizes=(16, 8)):
    rng = np.random.default_rng(seed)
    widths = [2 * features, *sizes, 1]
    layers = tuple(
        Layer(rng.normal(size=(a, b)) / np.sqrt(a), rng.normal(size=b)) for a, b in pairwise(widths)
    )
    low = rng.normal(size=2 * features)
    return Network(Ranges(low, low + rng.uniform(0.5, 2, size=2 * features)), layers, -50.0)


def test_by_hand():
    # own 1 of 4 is 0.25, other 2 of 4 is 0.5
    # first layer: 0.25 * 1 + 0.5 * 2 = 1.25; 0.25 * -1 + 0.5 * 1 + 0.5 = 0.75
    # output: 2 * 1.25 + 0.75 + 1 = 4.25
    # the other way round: 0.5 + 2 * 0.25 = 1; -0.5 + 0.25 + 0.5 = 0.25; 2 + 0.25 + 1 = 3.25
    states = np.array([[1.0], [2.0]])
    found = BY_HAND.predict(states, np.array([0, 1]), np.array([1, 0]))
    assert found.tolist() == [4.25, 3.25]


def test_relu_cuts_and_the_floor_holds():
    # own 4 (1), other 0: first layer 1 and -1 + 0.5 = -0.5, cut to 0; output 2 + 1 = 3
    assert BY_HAND.of_table(np.array([[4.0, 0.0]])).tolist() == [3.0]
    # own -4 (-1, as far as counts), other 0: -1, cut to 0; 1 + 0.5 = 1.5; output 1.5 + 1 = 2.5
    assert BY_HAND.of_table(np.array([[-4.0, 0.0]])).tolist() == [2.5]
    # own 2 (0.5), other -4 (-1): 0.5 - 2 and -0.5 - 1 + 0.5, both cut; output 1, below the floor
    assert BY_HAND.of_table(np.array([[2.0, -4.0]])).tolist() == [1.25]


def test_far_out_counts_as_a_width_beyond_the_range():
    # 8 is a width of 4 beyond the range 0 to 4.
    near, far = BY_HAND.of_table(np.array([[8.0, 1.0], [1e300, 1.0]]))
    assert near == far


def test_a_feature_that_never_varied_has_no_influence():
    network = replace(BY_HAND, ranges=Ranges(np.array([0.0, 3.0]), np.array([4.0, 3.0])))
    found = network.of_table(np.array([[1.0, 3.0], [1.0, 3.5], [1.0, -1e9]]))
    # own 0.25, other 0: 0.25 and 0.25; output 0.5 + 0.25 + 1 = 1.75
    assert found.tolist() == [1.75] * 3


@pytest.mark.parametrize("rows", [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 3])
def test_states_and_table_say_the_same(rows):
    network = random_network()
    rng = np.random.default_rng(1)
    states = rng.normal(size=(40, 3))
    own, other = rng.integers(0, 40, size=(2, rows))
    table = np.hstack([states[own], states[other]])
    np.testing.assert_allclose(
        network.predict(states, own, other), network.of_table(table), rtol=0, atol=1e-12
    )


@given(st.permutations(range(60)), st.integers(0, 3))
def test_an_answer_does_not_depend_on_the_position_of_the_row(order, padding):
    network = random_network()
    states = np.random.default_rng(2).normal(size=(60, 3))
    own, other = np.arange(60), np.arange(60)[::-1]
    shuffled = np.array(order + [0] * padding)
    straight = network.predict(states, own, other)
    moved = network.predict(states[shuffled], np.arange(60), np.argsort(order)[other[order]])
    assert np.array_equal(moved, straight[order])
    assert np.array_equal(network.predict(states, other, own), straight[::-1])


def test_unknown_in_unknown_out():
    states = np.array([[1.0], [np.nan]])
    found = BY_HAND.predict(states, np.array([0, 0, 1]), np.array([0, 1, 0]))
    assert np.isnan(found).tolist() == [False, True, True]


def test_single_precision_is_close():
    network = random_network(sizes=(64, 64, 16))
    states = np.random.default_rng(3).normal(size=(50, 3))
    own, other = np.divmod(np.arange(2500), 50)
    full = network.predict(states, own, other)
    single = network.in_single_precision().predict(states, own, other)
    assert 0 < np.abs(full - single).max() < 1e-5


@pytest.mark.parametrize("network", [BY_HAND, BY_HAND.in_single_precision()])
def test_arrays_bring_the_network_back(network):
    again = Network.from_arrays(network.arrays(), 1)
    table = np.array([[1.0, 2.0], [3.0, 0.5]])
    assert np.array_equal(again.of_table(table), network.of_table(table))
    assert again.layers[0].weights.dtype == network.layers[0].weights.dtype


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights_0": None, "weights_1": None}, "weights_0: this array is required"),
        ({"low": None}, "low: this array is required"),
        ({"bias_1": None}, "bias_1: this array is required"),
        ({"weights_7": np.ones((1, 1))}, "weights_7: unknown array"),
        ({"code": np.ones(1)}, "code: unknown array"),
        ({"low": np.array([0.0, 5.0])}, "low: must be <= high"),
        ({"low": np.zeros(3)}, r"low: must have shape \(2,\), got \(3,\)"),
        ({"high": np.array([4.0, np.inf])}, "high: must be finite and at most 1e"),
        ({"weights_0": np.full((2, 2), np.nan)}, "weights_0: must be finite"),
        ({"weights_0": np.ones((2, 3))}, r"weights_0: must have shape \(2, 2\)"),
        ({"weights_1": np.ones((2, 2))}, r"weights_1: must have shape \(2, 1\)"),
        ({"bias_1": np.ones(2)}, r"bias_1: must have shape \(1,\), got \(2,\)"),
        ({"bias_0": np.ones(0), "weights_0": np.ones((2, 0))}, "weights_0: must have shape"),
        ({"floor": np.ones(1)}, r"floor: must have shape \(\), got \(1,\)"),
        ({"weights_1": np.array([["a"], ["b"]])}, "weights_1: must be numbers of 32 or 64"),
        ({"weights_1": np.ones((2, 1), object)}, "weights_1: must be numbers of 32 or 64"),
        ({"weights_1": np.ones((2, 1), np.float32)}, "weights_1, bias_1: must be float64"),
        (
            {"weights_0": np.full((2, 2), 1e20), "weights_1": np.full((2, 1), 1e20)},
            "weights_1: is so large that slowdowns could overflow",
        ),
    ],
)
def test_broken_arrays(change, message):
    arrays = {**BY_HAND.arrays(), **change}
    kept = {name: values for name, values in arrays.items() if values is not None}
    with pytest.raises(InputError, match=message):
        Network.from_arrays(kept, 1)


def test_states_of_another_number_of_features():
    with pytest.raises(InputError, match=r"low: must have shape \(4,\), got \(2,\)"):
        Network.from_arrays(BY_HAND.arrays(), 2)
