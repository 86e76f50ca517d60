"""The simulated gate: classes, shared waits, and levels by idle times."""

import numpy as np
import pytest

from benchmarks.isolation.simulated.gate import TOP, Groups, IdleTimes, class_of


def _levels(seconds):
    times = IdleTimes()
    for one in seconds:
        times.add(one)
    return [times.level(border) for border in range(TOP + 1)]


@pytest.mark.parametrize(
    ("microseconds", "expected"),
    [(0.5, 1), (2, 1), (2.1, 2), (31.6, 5), (32, 5), (33, 6), (1e9, TOP)],
)
def test_classes(microseconds, expected):
    assert class_of(microseconds * 1e-6) == expected


class TestGroups:
    def test_short_kernels_share_a_wait_up_to_the_bound(self):
        groups = Groups(30e-6)
        assert [groups.wait(12e-6) for _ in range(5)] == [5, None, 5, None, 5]

    def test_long_and_unknown_kernels_have_their_own(self):
        groups = Groups(30e-6)
        waits = [groups.wait(one) for one in (5e-6, 100e-6, 5e-6, None, 5e-6, 5e-6)]
        assert waits == [5, 7, 5, TOP, 5, None]

    def test_measured_ones_have_their_own_at_their_class(self):
        groups = Groups(30e-6)
        waits = [groups.wait(5e-6), groups.wait(5e-6, apart=True), groups.wait(5e-6)]
        assert waits == [5, class_of(5e-6), 5]


class TestLevels:
    def test_all_begin_while_nothing_is_known(self):
        assert _levels([]) == [TOP] * (TOP + 1)

    def test_after_regular_idle_times_nothing_long_begins_shortly_before_a_request(self):
        levels = _levels([6e-3] * 100)
        # From 2.0 ms on one of 2.0 ms ends before 4.1 ms; no request has come so early.
        assert levels[11] == 11
        # From 4.1 to 8.2 ms all came, at some moment of it: a tenth of them within 0.4 ms.
        assert levels[12] == 8
        # Whatever takes longer than all idle times may begin at their begin; later than ever
        # before, nothing is known.
        assert levels[0] == levels[13] == TOP

    def test_memoryless_requests_keep_nothing_out(self):
        """Waiting does not help: they are as likely later."""
        drawn = np.random.default_rng(1).exponential(4e-3, 4000)
        levels = _levels(drawn)
        assert levels[0] == TOP

    def test_short_pauses_within_bursts_are_let_pass(self):
        rng = np.random.default_rng(2)
        drawn = np.where(rng.random(2000) < 0.8, 15e-6, rng.exponential(50e-3, 2000))
        levels = _levels(drawn)
        # Long kernels wait until the pause is longer than those of a burst.
        assert levels[0] <= class_of(15e-6)
        assert levels[5] >= class_of(1e-3)

    def test_old_idle_times_are_forgotten(self):
        levels = _levels([20e-6] * 3000 + [50e-3] * 3000)
        assert levels[0] >= class_of(10e-3)
