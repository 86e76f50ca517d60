"""Sets from pairs: cases by hand, and properties of every set."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dovetail.instances.errors import InputError
from dovetail.instances.slowdowns.sets import (
    LARGEST,
    capped_set_slowdown,
    set_slowdown,
    slowdown_at,
)
from dovetail.instances.slowdowns.shares import full_splits


def equal(slowdown, count):
    return np.full((count, count), slowdown)


def matrices(smallest=2, largest=5):
    return st.integers(smallest, largest).flatmap(
        lambda k: arrays.arrays(np.float64, (k, k), elements=st.floats(0.8, 4))
    )


def test_three_equal_jobs_by_hand():
    # s = 1.25: each asks for the resource in sqrt(0.25) = 0.5 of its iteration.
    # With one other, a co-runner keeps it busy (1 + 0.5) / 1.25 = 1.2 times as long.
    # With two: 1 + 2 * 0.25 * 1.2 = 1.6. (Think 0.5, serve 0.5 by mean-value analysis:
    # the queue of two is 2 / 1.25 * 0.5 * 1.5 = 1.2, and 0.5 + 0.5 * (1 + 1.2) = 1.6.)
    assert set_slowdown(equal(1.25, 3)) == pytest.approx([1.6, 1.6, 1.6])


def test_four_equal_jobs_by_hand():
    # With two others a co-runner is busy (1 + 2 * 0.5 * 1.2) / 1.6 = 1.375 times as long:
    # 1 + 3 * 0.25 * 1.375 = 2.03125.
    assert set_slowdown(equal(1.25, 4)) == pytest.approx([2.03125] * 4)


def test_three_unequal_jobs_by_hand():
    # s_01 = 1.16, s_10 = 1.01: sqrt(0.16 * 0.01) = 0.04, so both ask 0.2 of each other.
    # s_12 = s_21 = 1.25: they ask 0.5 of each other. Nothing between 0 and 2.
    # Job 0: co-runner 1 with 2 is busy (1 + 0.5) / 1.25 = 1.2: 1 + 0.16 * 1.2 = 1.192.
    # Job 1: co-runners 0 and 2 do not meet: 1 + 0.01 + 0.25 = 1.26.
    # Job 2: co-runner 1 with 0 is busy (1 + 0.2) / 1.01: 1 + 0.25 * 1.2 / 1.01.
    pairs = [[1.0, 1.16, 1.0], [1.01, 1.0, 1.25], [1.0, 1.25, 1.0]]
    assert set_slowdown(pairs) == pytest.approx([1.192, 1.26, 1 + 0.25 * 1.2 / 1.01])


@pytest.mark.parametrize("count", range(2, 7))
def test_jobs_that_take_turns_slow_each_other_by_their_number(count):
    assert set_slowdown(equal(2.0, count)) == pytest.approx([count] * count)


def test_alone_nothing_is_slow():
    assert set_slowdown([[np.nan]]).tolist() == [1.0]


@given(matrices(2, 2))
def test_a_pair_keeps_its_slowdowns(pairs):
    assert set_slowdown(pairs) == pytest.approx(np.maximum(1, [pairs[0, 1], pairs[1, 0]]))


@given(matrices())
def test_never_less_than_the_pairs_add_up_to(pairs):
    cost = np.maximum(0, pairs - 1)
    np.fill_diagonal(cost, 0)
    assert (set_slowdown(pairs) >= 1 + cost.sum(axis=1) - 1e-9).all()


@given(matrices(largest=4))
def test_a_job_that_slows_no_other_changes_nothing(pairs):
    count = len(pairs)
    larger = np.ones((count + 1, count + 1))
    larger[:count, :count] = pairs
    assert set_slowdown(larger) == pytest.approx([*set_slowdown(pairs), 1.0])


@given(matrices(3, 3))
def test_the_order_of_the_jobs_does_not_matter(pairs):
    found = set_slowdown(pairs)
    for order in itertools.permutations(range(3)):
        moved = set_slowdown(pairs[np.ix_(order, order)])
        assert moved == pytest.approx(found[list(order)])


@given(arrays.arrays(np.float64, (3, 2, 4, 4), elements=st.floats(0.8, 4)))
def test_many_sets_at_once(pairs):
    together = set_slowdown(pairs)
    for where in np.ndindex(3, 2):
        assert together[where].tolist() == set_slowdown(pairs[where]).tolist()


def test_an_unknown_pair_leaves_its_set_unknown_and_no_other():
    pairs = np.stack([equal(1.25, 3), equal(1.25, 3)])
    pairs[0, 0, 1] = np.nan
    found = set_slowdown(pairs)
    assert np.isnan(found[0]).all()
    assert found[1] == pytest.approx([1.6] * 3)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (LARGEST + 1, LARGEST + 1)])
def test_what_is_no_set_is_refused(shape):
    with pytest.raises(InputError, match="pair_slowdowns: must be square with at most 10 jobs"):
        set_slowdown(np.ones(shape))


@given(matrices(largest=4))
def test_the_largest_slowdown_of_what_may_be_left(pairs):
    """By each job the largest in every set with it."""
    everyone = range(len(pairs))
    most = [1.0] * len(pairs)
    for size in everyone:
        for left in map(list, itertools.combinations(everyone, size + 1)):
            for job, slowdown in zip(left, set_slowdown(pairs[np.ix_(left, left)]), strict=True):
                most[job] = max(most[job], slowdown)
    assert set_slowdown(pairs, last=True) == pytest.approx(most, rel=1e-12)


def test_what_a_cap_costs_a_job_alone_counts_once():
    # Each takes twice as long alone at its cap, and 1.1 times that with one other.
    pairs, alone = equal(2.2, 3), [2.0, 2.0, 2.0]
    once = 2.0 * set_slowdown(equal(1.1, 3))
    assert capped_set_slowdown(pairs, alone) == pytest.approx(once)
    assert slowdown_at(pairs, [30, 30, 30], alone=alone) == pytest.approx(once)
    # If it is not known, nothing is promised that does not hold.
    unknown = capped_set_slowdown(pairs, [np.nan] * 3)
    assert unknown == pytest.approx(set_slowdown(pairs))
    assert (unknown >= once).all()
    assert slowdown_at(pairs, [30, 30, 30]) == pytest.approx(unknown)


@pytest.mark.parametrize(
    ("caps", "jobs", "room", "found"),
    [
        ([10, 25, 50, 90], 3, 100, [(25, 25, 50)]),
        ([10, 25, 50, 90], 4, 100, [(25, 25, 25, 25)]),
        ([10, 50, 90], 3, 100, [(10, 10, 50)]),
        ([10, 25, 50, 90], 1, 50, [(50,)]),
        (range(10, 100, 10), 3, 100, [(30, 30, 40), (20, 40, 40), (20, 30, 50), (10, 40, 50)]),
        ([50, 90], 3, 100, []),
        ([], 3, 100, []),
    ],
)
def test_splits_leave_the_least_unused_and_the_most_even_come_first(caps, jobs, room, found):
    assert full_splits(caps, jobs, room) == found
