"""Rates: by hand, and against their definition."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.executor.live.observation.records import Sample, rate_of


def even(rate, seconds, start_s=0.0, step_s=1.0):
    count = round(seconds / step_s)
    return [Sample(start_s + k * step_s, k * step_s * rate) for k in range(count + 1)]


def test_an_even_counter_has_its_rate_without_noise_or_drift():
    found = rate_of(even(3.0, 80), 0.0)
    assert found.per_s == pytest.approx(3.0)
    assert found.noise == pytest.approx(0.0, abs=1e-12)
    assert found.drift == pytest.approx(0.0, abs=1e-12)
    assert (found.iterations, found.seconds) == (240.0, 80.0)


def test_what_came_before_does_not_count():
    samples = [*even(1.0, 40), *(Sample(40 + k, 40 + 5.0 * k) for k in range(1, 41))]
    assert rate_of(samples, 40.0).per_s == pytest.approx(5.0)
    assert rate_of(samples, 40.0).seconds == 40.0


def test_a_pause_in_one_piece_does_not_move_the_rate():
    # 2/s for 30 s, nothing for 10 s, 2/s for 40 s: the mean is 140 / 80 = 1.75.
    samples = [Sample(t, 2.0 * t) for t in range(31)]
    samples += [Sample(t, 60.0 + 2.0 * (t - 40)) for t in range(41, 81)]
    found = rate_of(samples, 0.0)
    assert found.per_s == pytest.approx(2.0)
    assert found.noise > 0.03


def test_a_rate_that_falls_drifts():
    # Four pieces at 4/s, then four at 3/s: the median of all is 3.5, the drift 3 / 4 - 1.
    samples = [Sample(t, 4.0 * t) for t in range(41)]
    samples += [Sample(40 + t, 160 + 3.0 * t) for t in range(1, 41)]
    found = rate_of(samples, 0.0)
    assert found.drift == pytest.approx(-0.25)
    assert found.per_s == pytest.approx(3.5)


def test_the_noise_is_the_standard_error_of_a_median():
    # Eight pieces of 10 s with these rates; the median of 1.0 and 1.02 is 1.01.
    rates = [1.0, 1.1, 0.9, 1.04, 1.02, 0.95, 1.05, 0.98]
    samples = [Sample(0.0, 0.0)]
    for rate in rates:
        samples.append(Sample(samples[-1].at_s + 10, samples[-1].iterations + 10 * rate))
    found = rate_of(samples, 0.0)
    expected = math.sqrt(math.pi / 2) * stdev(rates) / math.sqrt(8) / 1.01
    assert found.noise == pytest.approx(expected)


def test_few_long_iterations_have_a_rate_but_no_noise():
    found = rate_of([Sample(0, 1), Sample(30, 2), Sample(60, 3)], 0.0)
    assert found.per_s == pytest.approx(1 / 30)
    assert found.noise == math.inf
    assert found.drift == math.inf


@pytest.mark.parametrize("samples", [[], [Sample(1.0, 5.0)], [Sample(1.0, 5.0), Sample(2.0, 5.0)]])
def test_no_rate_is_reported_where_there_is_none(samples):
    assert rate_of(samples, 0.0) is None


@given(st.lists(st.tuples(st.floats(0.01, 5), st.integers(0, 9)), min_size=1, max_size=80))
def test_the_pieces_cover_the_whole_time(steps):
    samples = [Sample(0.0, 0.0)]
    for gap_s, count in steps:
        samples.append(Sample(samples[-1].at_s + gap_s, samples[-1].iterations + count))
    found = rate_of(samples, 0.0)
    if found is not None:
        assert found.seconds == samples[-1].at_s
        assert found.iterations == samples[-1].iterations
        assert 0 < found.per_s < math.inf


def test_the_reported_noise_is_the_true_noise():
    """The spread of 400 estimates, and the mean of the errors that they state."""
    rng = random.Random(5)
    found = []
    for _ in range(400):
        samples = [Sample(0.0, 0.0)]
        while samples[-1].at_s < 80:
            step_s = rng.gammavariate(4, 0.25)
            samples.append(Sample(samples[-1].at_s + step_s, samples[-1].iterations + 1))
        found.append(rate_of(samples, 0.0))
    spread = stdev(rate.per_s for rate in found) / fmean(rate.per_s for rate in found)
    assert fmean(rate.noise for rate in found) == pytest.approx(spread, rel=0.2)
