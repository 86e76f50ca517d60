import numpy as np
import pytest

from dovetail.measuring.campaign import Windows
from dovetail.measuring.windows import (
    Answered,
    Steps,
    is_over,
    latency,
    most_pace,
    pace,
)


def chunks(*ends, n=1):
    return [Steps(at, n, 0.05) for at in ends]


def test_the_rate_is_that_of_whole_chunks_between_the_first_end_and_the_last():
    # Ends at 1, 2, 3, 5 lie in [0.5, 5.5]: 3 whole chunks of 10 iterations in 5 - 1 = 4 s. The
    # first chunk began before the window, and what ends at 6 is outside.
    found = pace(chunks(0.2, 1, 2, 3, 5, 6, n=10), 0.5, 5.5)
    assert found.iterations == 30
    assert found.iterations_s == pytest.approx(30 / 4)


def test_chunks_may_have_unequal_sizes():
    events = [Steps(0.0, 99, 0.0), Steps(1.0, 10, 1.0), Steps(3.0, 20, 2.0), Steps(4.0, 10, 1.0)]
    found = pace(events, 0.0, 4.0)
    # 40 iterations in 4 s, each chunk at exactly 10 a second: no error.
    assert (found.iterations, found.iterations_s) == (40, 10)
    assert found.relative_error == pytest.approx(0)


def test_the_error_of_three_chunks_by_hand():
    # Chunks of 1, 1, 4 s with one iteration each: mean 2, standard deviation sqrt(3), standard
    # error sqrt(3) / sqrt(3) = 1, half of the mean.
    found = pace(chunks(0, 1, 2, 6), 0, 6)
    assert found.relative_error == pytest.approx(0.5)


def test_neighbours_are_joined_into_batches():
    # 20 chunks of 1, 3, 1, 3, ... s in 10 batches of 4 s: the batches are equal, so no error is
    # left, where single chunks would give one.
    ends = np.cumsum([0, *([1, 3] * 10)])
    assert pace(chunks(*ends), 0, 40).relative_error == pytest.approx(0)


def test_a_window_with_less_than_three_whole_chunks_says_nothing():
    assert pace([], 0, 10) is None
    assert pace(chunks(1, 2, 3), 0, 10) is None
    assert pace(chunks(1, 2, 3, 4), 0, 10) is not None
    assert pace([Answered(1.0, 0.5, 0.5), Answered(2.0, 1.5, 1.5)], 0, 10) is None


def test_chunks_that_took_no_time_say_nothing():
    assert pace(chunks(1, 1, 1, 1), 0, 10) is None


def test_requests_are_timed_while_they_are_worked_on_and_waited_for_from_arrival():
    # Three requests arrive at 0: each takes 1 s of work, so they wait 1, 2 and 3 s; a fourth
    # comes after an idle gap. Busy: 4 requests in 4 s. What is answered at 20 is outside.
    events = [
        Answered(1.0, 0.0, 0.0),
        Answered(2.0, 0.0, 1.0),
        Answered(3.0, 0.0, 2.0),
        Answered(10.0, 9.0, 9.0),
        Answered(20.0, 11.0, 11.0),
    ]
    found = pace(events, 0.5, 12)
    assert (found.iterations, found.iterations_s) == (4, 1)
    assert found.latency.requests == 4
    assert found.latency.mean_s == (1 + 2 + 3 + 1) / 4


def test_percentiles_are_interpolated_as_numpy_does():
    # Latencies 1..5 s: rank 0.5 * 4 = 2 gives 3; rank 0.99 * 4 = 3.96 gives 4 + 0.96.
    found = latency([Answered(10.0 + k, 10.0, 10.0) for k in (3, 1, 5, 2, 4)])
    assert found.p50_s == pytest.approx(3)
    assert found.p99_s == pytest.approx(4.96)
    assert latency([]) is None


RULE = Windows(settle_s=1, least_s=3, most_s=10, relative_error=0.01)
STEADY = chunks(*np.arange(0, 20, 0.05))
JUMPY = chunks(*np.cumsum([0.01, 0.4] * 40))


def test_a_window_ends_when_all_are_stable_but_not_before_least_nor_after_most():
    assert not is_over(RULE, 0, 2.9, [STEADY])
    assert is_over(RULE, 0, 3.0, [STEADY])
    assert not is_over(RULE, 0, 3.0, [STEADY, JUMPY])
    assert not is_over(RULE, 0, 9.9, [STEADY, JUMPY])
    assert is_over(RULE, 0, 10.0, [STEADY, JUMPY])


def test_a_window_grows_while_a_worker_has_not_done_three_chunks():
    slow = chunks(0, 8, 16, 24)
    assert not is_over(RULE, 0, 23.9, [STEADY, slow])
    assert is_over(RULE, 0, 24.0, [STEADY, slow])
    # At most to five times its greatest length, and no longer than there is time.
    assert not is_over(RULE, 0, 49.9, [STEADY, []])
    assert is_over(RULE, 0, 50.0, [STEADY, []])
    assert not is_over(RULE, 0, 19.9, [STEADY, []], until=20.0)
    assert is_over(RULE, 0, 20.0, [STEADY, []], until=20.0)


def test_the_most_that_can_have_been_done_has_two_chunks_that_were_not_reported():
    # Chunks of 10 end at 2 and 6; what ends at 0.5 and 12 is outside: (20 + 20) / 10.
    assert most_pace(chunks(0.5, 2, 6, 12, n=10), 10, 1, 11) == 4
    assert most_pace([], 10, 0, 50) == 0.4


def test_a_window_counts_from_its_start():
    assert not is_over(RULE, 5, 7.9, [STEADY])
    assert is_over(RULE, 5, 8.0, [STEADY])


def test_a_few_chunks_do_not_end_a_window_however_equal_they_are():
    slow = chunks(*np.arange(0, 20, 0.5))
    # At 4.9 s there were ends at 0, 0.5, ..., 4.5: 9 whole chunks; at 5.0 s 10.
    assert not is_over(RULE, 0, 4.9, [slow])
    assert is_over(RULE, 0, 5.0, [slow])


def simulated(draw, correlation, deviation):
    """Return chunks of 50 ms on average, whose times are an autoregressive series of order 1."""
    noise = draw.normal(0, deviation * np.sqrt(1 - correlation**2), 300)
    times = [draw.normal(0, deviation)]
    for shock in noise:
        times.append(correlation * times[-1] + shock)
    return chunks(*np.cumsum(0.05 * (1 + np.array(times))))


def measured(events):
    """Return when the rule ends a window, looked at four times a second, and the pace in it."""
    now = 0.25
    while not is_over(RULE, 0, now, [events]):
        now += 0.25
    return now, pace(events, 0, now)


@pytest.mark.parametrize(
    ("correlation", "deviation", "covered", "within_s"),
    [(0.0, 0.05, 0.88, 3.5), (0.0, 0.1, 0.80, 6.0), (0.5, 0.05, 0.78, 4.5), (0.5, 0.02, 0.80, 3.0)],
)
def test_on_simulated_noise_the_rule_gives_about_the_error_that_it_promises(
    correlation, deviation, covered, within_s
):
    draw = np.random.default_rng(7)
    found = [measured(simulated(draw, correlation, deviation)) for _ in range(150)]
    errors = np.array([one.iterations_s / 20 - 1 for _, one in found])
    claimed = np.array([one.relative_error for _, one in found])
    # A normal error lies within two standard errors in 95 % of cases; looking again and again,
    # and what is left of the correlation, cost a part of that.
    assert np.mean(np.abs(errors) < 2 * claimed) > covered
    assert np.sqrt(np.mean(errors**2)) < 1.4 * RULE.relative_error
    assert np.mean([now for now, _ in found]) <= within_s


def test_single_chunks_would_claim_half_of_the_error_of_correlated_noise():
    draw = np.random.default_rng(7)
    series = [simulated(draw, 0.8, 0.05) for _ in range(150)]
    rates = [pace(events, 0, 10) for events in series]
    real = np.std([one.iterations_s / 20 for one in rates])
    claimed = np.mean([one.relative_error for one in rates])
    single = 0.05 / np.sqrt(200)
    # Theory: sqrt((1 + 0.8) / (1 - 0.8)) = 3 times what independent chunks would have.
    assert real / single == pytest.approx(3, rel=0.15)
    assert 0.75 * real < claimed < 1.1 * real
