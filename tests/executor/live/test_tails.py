"""Percentiles from histograms, compared with numpy's from the latencies themselves."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dovetail.executor.live.observation.records import LEAST_LATENCIES, Tails, tail_of
from dovetail.executor.pools.pool import Progress
from dovetail.executor.pools.progress_hook.dovetail_progress import bucket_of

BUCKET = 2 ** (1 / 32)
DRAWS = {
    "lognormal": lambda rng, n: rng.lognormal(-4.0, 1.0, n),
    "exponential": lambda rng, n: rng.exponential(0.01, n),
    "pareto": lambda rng, n: 0.002 * (1 + rng.pareto(2.0, n)),
    "two modes": lambda rng, n: np.where(rng.random(n) < 0.03, 0.5, 0.01),
    "constant": lambda rng, n: np.full(n, 0.0123),
}


def counted(latencies):
    return Counter(map(bucket_of, latencies))


def progress(latencies):
    return Progress(1.0, 0.0, None, tuple(sorted(counted(latencies).items())))


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("size", [LEAST_LATENCIES, 5_000, 100_000])
def test_a_p99_is_numpy_s_to_within_a_bucket(name, size):
    latencies = DRAWS[name](np.random.default_rng(7), size)
    found = tail_of(counted(latencies))
    # Between two of the latencies, numpy interpolates; the histogram takes the upper one's bucket.
    low, high = (np.percentile(latencies, 99, method=way) for way in ("lower", "higher"))
    assert low / BUCKET <= found.p99_s <= high * BUCKET
    assert found.least_s <= found.p99_s


@pytest.mark.parametrize("name", ["lognormal", "exponential", "pareto"])
def test_the_lower_bound_is_below_the_true_percentile_as_often_as_it_says(name):
    rng = np.random.default_rng(11)
    truth = np.percentile(DRAWS[name](rng, 2_000_000), 99)
    samples = [DRAWS[name](rng, 1_000) for _ in range(400)]
    kept = [tail_of(counted(sample)).least_s <= truth for sample in samples]
    # At most 16 of 1,000 are above it in 97.3 % of all cases (binomial), of 400 in 95 % or more.
    assert np.mean(kept) >= 0.95


def test_a_stretch_of_time_is_the_difference_of_two_histograms():
    rng, tails = np.random.default_rng(5), Tails()
    slow, fast = rng.lognormal(0.0, 1.0, 2_000), rng.lognormal(-5.0, 0.3, 2_000)
    for k in range(9):
        tails.note(float(k), [progress([*slow[: 500 * k], *fast[: max(0, 500 * (k - 4))]])])
    assert tails.since(4.0).p99_s == pytest.approx(np.percentile(fast, 99), rel=0.03)
    assert tails.since(0.0).p99_s > 1.0
    assert tails.since(8.0) is None
    assert tails.since(99.0) is None


def test_all_ranks_count_and_one_that_is_silent_is_waited_for():
    tails, many, few = Tails(), progress([0.01] * 990), progress([1.0] * 60)
    nothing = progress([])
    tails.note(0.0, [nothing, nothing])
    assert not tails.reported
    tails.note(1.0, [many, None])
    assert tails.since(0.0) is None
    tails.note(2.0, [many, few])
    assert tails.reported
    assert tails.since(0.0).p99_s == pytest.approx(1.0, rel=0.03)


def test_too_few_latencies_and_histograms_that_cannot_be_are_no_tail():
    assert tail_of({3: LEAST_LATENCIES - 1}) is None
    assert tail_of({}) is None
    assert tail_of({3: LEAST_LATENCIES + 1, 4: -1}) is None
    assert tail_of({10**9: LEAST_LATENCIES}) is None
    assert tail_of({3: LEAST_LATENCIES}) is not None


def test_long_ago_is_kept_more_coarsely():
    tails = Tails()
    for k in range(20_000):
        tails.note(float(k), [Progress(1.0, 0.0, None, ((400, 10 * k), (500, max(0, k - 19_000))))])
    # One in eleven is slow in the last 1,000 seconds, none before.
    assert tails.since(19_900.0).p99_s == pytest.approx(tails.since(19_500.0).p99_s, rel=0.01)
    assert tails.since(0.0).p99_s < tails.since(19_500.0).p99_s
