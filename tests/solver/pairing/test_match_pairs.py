"""The meaning of arguments and result of ``match_pairs``, on cases solved by hand."""

from __future__ import annotations

import pickle
import time
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from dovetail.instances.errors import DovetailError
from dovetail.solver.pairing import Prices, certificate_errors, match_pairs

from .instances import Case, enumerated, pair_values, random_case, random_cases

NAN = np.nan
TRIANGLE = np.array([[NAN, 5.0, 4.0], [5.0, NAN, 3.0], [4.0, 3.0, NAN]])


@pytest.mark.usefixtures("way")
def test_no_jobs():
    matching = match_pairs(np.zeros((0, 0)))
    assert (matching.value, matching.bound, matching.gap, matching.status) == (0, 0, 0, "optimal")
    assert matching.mate.shape == (0,)


@pytest.mark.usefixtures("way")
def test_one_job():
    assert match_pairs(np.zeros((1, 1))).mate.tolist() == [-1]
    assert match_pairs(np.zeros((1, 1)), np.array([2.0])).mate.tolist() == [0]
    assert match_pairs(np.zeros((1, 1)), np.array([2.0]), gpus=0).mate.tolist() == [-1]


@pytest.mark.usefixtures("way")
def test_two_jobs_share_where_gpus_are_short():
    pair, single = np.array([[NAN, 1.5], [1.5, NAN]]), np.ones(2)
    assert match_pairs(pair, single).mate.tolist() == [0, 1]
    assert match_pairs(pair, single, gpus=1).mate.tolist() == [1, 0]


@pytest.mark.usefixtures("way")
def test_triangle_needs_a_blossom():
    """The fractional optimum 6 takes half of each edge; the best matching is 5."""
    matching = match_pairs(TRIANGLE)
    assert matching.mate.tolist() == [1, 0, -1]
    assert (matching.value, matching.bound, matching.gap) == (5.0, 5.0, 0.0)
    assert len(matching.certificate.main[0].blossoms) == 1


@pytest.mark.usefixtures("way")
def test_whole_values_have_no_rounding_error():
    rng = np.random.default_rng(0)
    values = pair_values(rng, 40, "integers")
    assert match_pairs(values, np.full(40, 30.0), gpus=25).gap == 0.0


@pytest.mark.usefixtures("way")
def test_a_stored_zero_is_a_value():
    stored = sp.csr_array((np.zeros(2), ([0, 1], [1, 0])), shape=(2, 2))
    must = np.array([True, True])
    assert match_pairs(stored, required=must).mate.tolist() == [1, 0]
    absent = sp.csr_array((2, 2), dtype=float)
    assert match_pairs(absent, required=must).status == "infeasible"


@pytest.mark.usefixtures("way")
def test_required_jobs_are_placed_at_a_loss():
    pair = np.array([[NAN, -2.0], [-2.0, NAN]])
    free = match_pairs(pair, np.array([-3.0, 1.0]))
    assert (free.mate.tolist(), free.value) == ([-1, 1], 1.0)
    forced = match_pairs(pair, np.array([-3.0, 1.0]), required=np.array([True, False]))
    assert (forced.mate.tolist(), forced.value) == ([0, 1], -2.0)
    short = match_pairs(pair, np.array([-3.0, 1.0]), gpus=1, required=np.array([True, False]))
    assert (short.mate.tolist(), short.value) == ([1, 0], -2.0)


@pytest.mark.usefixtures("way")
def test_only_equal_sizes_pair():
    matching = match_pairs(np.ones((3, 3)), size=np.array([1, 2, 1]))
    assert matching.mate.tolist() == [2, -1, 0]


@pytest.mark.usefixtures("way")
def test_a_gang_takes_its_size():
    """3 GPUs: one gang of 2 and one job (2.5 + 1), or two jobs (2); the bound needs a knapsack."""
    single = np.array([2.5, 2.4, 1.0, 0.9])
    matching = match_pairs(np.full((4, 4), NAN), single, gpus=3, size=np.array([2, 2, 1, 1]))
    assert (matching.mate.tolist(), matching.value) == ([0, -1, 2, -1], 3.5)


@pytest.mark.usefixtures("way")
def test_float32_values_are_taken_as_they_are():
    values = pair_values(np.random.default_rng(1), 30, "floats").astype(np.float32)
    matching = match_pairs(values)
    assert matching.value == pytest.approx(match_pairs(values.astype(float)).value, abs=1e-12)


@pytest.mark.usefixtures("way")
def test_same_seed_same_matching():
    values = pair_values(np.random.default_rng(2), 60, "two values")
    single = np.ones(60)
    first, second = (match_pairs(values, single, gpus=20, seed=4) for _ in range(2))
    assert first.mate.tolist() == second.mate.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pair_value": np.zeros((2, 3))}, r"pair_value must be a square matrix, got shape"),
        ({"pair_value": np.zeros(3)}, r"pair_value must be a square matrix, got shape"),
        (
            {"pair_value": np.array([[0.0, 1.0], [2.0, 0.0]])},
            r"pair_value must be symmetric, got 2.0 at \[1, 0\] and 1.0 at \[0, 1\]",
        ),
        ({"pair_value": np.array([[0.0, NAN], [2.0, 0.0]])}, "pair_value must be symmetric"),
        ({"pair_value": np.array([[0.0, 2.0], [NAN, 0.0]])}, "pair_value must be symmetric"),
        ({"pair_value": np.array([[0, np.inf], [np.inf, 0]])}, "pair_value must be less than inf"),
        ({"pair_value": sp.csr_array([[0.0, 1.0], [2.0, 0.0]])}, "pair_value must be symmetric"),
        ({"single_value": np.ones(2)}, r"single_value must have shape \(3,\), got \(2,\)"),
        ({"single_value": np.array([1, np.inf, 1])}, "single_value must be less than inf"),
        ({"gpus": -1}, "gpus must be a whole number >= 0 or None, got -1"),
        ({"gpus": 1.5}, "gpus must be a whole number >= 0 or None, got 1.5"),
        ({"gpus": np.inf}, "gpus must be a whole number >= 0 or None, got inf"),
        ({"gpus": NAN}, "gpus must be a whole number >= 0 or None, got nan"),
        ({"size": np.array([1, 0, 1])}, "size must be whole numbers from 1 to .*, got 0 at 1"),
        ({"size": np.array([1, 1.5, 1])}, "size must be whole numbers .*, got 1.5 at 1"),
        ({"size": np.array([1, NAN, 1])}, "size must be whole numbers .*, got nan at 1"),
        ({"size": np.array([1, np.inf, 1])}, "size must be whole numbers .*, got inf at 1"),
        ({"size": np.array([1, 2**62, 1])}, f"from 1 to {2**40}, got {2**62} at 1"),
        ({"size": [1, 2**70, 1]}, f"from 1 to {2**40}, got {2**70} at 1"),
        ({"pair_value": np.full((3, 3), 1.7e308)}, "must be 0 or from 1e-250 .*, got 1.7e.308"),
        ({"pair_value": np.full((3, 3), 5e-324)}, "must be 0 or from 1e-250 .*, got 5e-324"),
        ({"single_value": np.full(3, 1.7e308)}, "must be 0 or from 1e-250 .*, got 1.7e.308"),
        ({"size": np.ones(4)}, r"size must have shape \(3,\), got \(4,\)"),
        ({"required": np.ones(3)}, "required must be a boolean array"),
        ({"time_limit": -1.0}, "time_limit must be >= 0 or None, got -1.0"),
        ({"pair_value": [["a", "b"], ["b", "a"]]}, "pair_value must be numbers, got <U1"),
        ({"previous": 3}, "previous must be a Prices, got an int"),
        ({"previous": Prices(0.0, np.zeros(2))}, "previous must have prices of 3 jobs, got 2"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message) as refused:
        match_pairs(**{"pair_value": TRIANGLE, **arguments})
    assert isinstance(refused.value, DovetailError)


def test_numbers_of_numpy_are_taken():
    limits = {"gpus": np.float32(2), "time_limit": np.float32(60)}
    found = match_pairs(TRIANGLE, np.ones(3), size=np.array([1.0, 2.0, 1.0]), **limits)
    assert found.status == "optimal"


@pytest.mark.parametrize(
    ("size", "status"),
    [([10**8] * 4, "optimal"), ([10**8, 2 * 10**8] * 2, "optimal"), ([10**8, 10**8 - 1] * 2, "")],
)
def test_memory_does_not_grow_with_the_sizes(size, status):
    """Sizes are divided by their common divisor; otherwise the gap stays and is reported."""
    arguments = (np.full((4, 4), 3.0), np.full(4, 2.0), 25 * 10**7, np.array(size))
    tracemalloc.start()
    found = match_pairs(*arguments)
    assert certificate_errors(found, *arguments) == []
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert found.status == status or found.bound >= enumerated(Case(*arguments))


@pytest.mark.usefixtures("way")
def test_previous_prices_lead_to_the_same_optimum():
    rng = np.random.default_rng(6)
    n, kept = 120, 110
    values = pair_values(rng, n + 10, "floats", absent=0.2)
    single = rng.random(n + 10) * 2
    size = rng.choice([1, 2], n + 10)
    old = np.arange(n)
    last = match_pairs(values[np.ix_(old, old)], single[old], 60, size[old])
    now = np.concatenate([rng.choice(n, kept, replace=False), np.arange(n, n + 10)])
    prices = last.prices.reindexed(np.where(now < n, now, -1))
    arguments = (values[np.ix_(now, now)], single[now], 60, size[now])
    warm = match_pairs(*arguments, previous=prices)
    assert warm.value == pytest.approx(match_pairs(*arguments).value, rel=1e-8)
    assert certificate_errors(warm, *arguments) == []
    again = match_pairs(*arguments, previous=warm)
    assert again.value == pytest.approx(warm.value, rel=1e-8)


def test_reindexing_marks_new_jobs():
    prices = Prices(1.0, np.array([3.0, 4.0])).reindexed(np.array([1, -1, 0]))
    np.testing.assert_array_equal(prices.job, [4.0, NAN, 3.0])
    assert prices.partner is None
    assert prices.pairs is None
    with pytest.raises(ValueError, match="index must be from -1 to 2"):
        prices.reindexed(np.array([3]))
    with pytest.raises(ValueError, match="partner must hold 2 indices"):
        Prices(1.0, np.ones(2), np.array([0, 2]))
    with pytest.raises(ValueError, match="the smaller first"):
        Prices(1.0, np.ones(2), None, np.array([[1], [0]]))


def test_prices_of_a_round_out_of_time_start_the_next():
    values = pair_values(np.random.default_rng(4), 200, "floats")
    arguments = (values, np.ones(200), 60)
    late = match_pairs(*arguments, time_limit=0.0)
    matching = match_pairs(*arguments, previous=late)
    assert matching.value == match_pairs(*arguments).value


@pytest.mark.parametrize("factor", [1e15, 1e-15])
def test_prices_of_another_magnitude_start_a_round(factor):
    values = pair_values(np.random.default_rng(4), 40, "floats")
    last = match_pairs(values, np.ones(40), 12).prices
    far = Prices(last.gpu * factor, last.job * factor)
    matching = match_pairs(values, np.ones(40), 12, previous=far)
    assert matching.value == pytest.approx(match_pairs(values, np.ones(40), 12).value, rel=1e-8)
    with pytest.raises(ValueError, match="gpu must be a number"):
        Prices(np.nan, np.ones(2))


def test_reindexing_carries_partners_and_pairs():
    partner, pairs = np.array([1, 0, 2, -1]), np.array([[0, 0, 1], [1, 3, 2]])
    prices = Prices(1.0, np.ones(4), partner, pairs).reindexed(np.array([2, -1, 1, 0]))
    assert prices.partner is not None
    assert prices.pairs is not None
    assert prices.partner.tolist() == [0, -1, 3, 2]
    assert sorted(prices.pairs.T.tolist()) == [[0, 2], [2, 3]]


def test_prices_hold_the_working_graph_and_survive_pickling():
    values = pair_values(np.random.default_rng(3), 150, "floats")
    arguments = (values, np.ones(150), 60)
    prices = match_pairs(*arguments).prices
    assert prices.partner is not None
    assert prices.pairs is not None
    assert (prices.pairs[0] < prices.pairs[1]).all()
    assert prices.pairs.shape[1] < 150 * 149 // 4
    again = pickle.loads(pickle.dumps(prices))
    np.testing.assert_array_equal(again.pairs, prices.pairs)
    assert match_pairs(*arguments, previous=again).value == match_pairs(*arguments).value


@pytest.mark.usefixtures("way")
def test_previous_never_changes_what_is_proven():
    """Start rounds from prices of fewer jobs, of other values, limits and orders."""
    rng = np.random.default_rng(11)
    for case in random_cases(seed=12, count=150, most=8):
        n = case.pair_value.shape[0]
        other = random_case(rng, int(rng.integers(1, 9)))
        prices = match_pairs(**other.arguments()).prices
        index = rng.integers(-1, other.pair_value.shape[0], n)
        matching = match_pairs(**case.arguments(), previous=prices.reindexed(index))
        again = match_pairs(**case.arguments(), previous=matching)
        optimum = enumerated(case)
        for found in (matching, again):
            assert certificate_errors(found, **case.arguments()) == []
            if optimum == -np.inf:
                assert found.status == "infeasible"
            else:
                assert found.status == "optimal"
                assert found.value == pytest.approx(optimum, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("limit", [0.0, 0.01, 0.03, 0.1, 0.3])
def test_time_limit_leaves_a_valid_solution_and_a_true_bound(limit):
    rng = np.random.default_rng(8)
    n = 700
    values = pair_values(rng, n, "separable", absent=0.05)
    size = rng.choice([1, 2, 4], n)
    arguments = (values, np.ones(n), n // 2, size)
    match_pairs(values[:90, :90], np.ones(90), 45, size[:90])
    began = time.process_time()
    matching = match_pairs(*arguments, time_limit=limit)
    assert time.process_time() - began < 2 * limit + 10.0  # the first call loads numba
    assert matching.status in ("optimal", "feasible")
    assert certificate_errors(matching, *arguments) == []
