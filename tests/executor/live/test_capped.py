"""When a job that starts alone should take a cap."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dovetail.executor.live.capped import Partner, best_cap, expected_rate


def test_a_job_that_nobody_joins_runs_at_its_rate_alone():
    assert expected_rate(0.8, 100.0, 0.01, []) == 0.8
    assert expected_rate(0.8, 100.0, 0.0, [Partner(1.0, 1.5, 1.5)]) == 0.8


def test_a_job_that_is_joined_at_once_runs_at_the_rate_of_the_pair():
    # 1 / 1.25 + 1 / 2 = 1.3
    assert expected_rate(1.0, 100.0, 1e9, [Partner(1.0, 1.25, 2.0)]) == pytest.approx(1.3)


def test_in_between_the_closed_form_is_worked_out():
    # r = 1, w = 100, l = 0.01: t = 100 (1 - 1/e), L = 100 / e; m = p = 1.25.
    # (t + 2 L) / (t + 1.25 L)
    t, left = 100 * (1 - math.exp(-1)), 100 * math.exp(-1)
    found = expected_rate(1.0, 100.0, 0.01, [Partner(1.0, 1.25, 1.25)])
    assert found == pytest.approx((t + 2 * left) / (t + 1.25 * left))


def test_newcomers_that_may_not_join_are_not_counted():
    partner = Partner(0.25, 1.25, 1.25)
    alone = Partner(1.0, 1.25, 1.25)
    assert expected_rate(1.0, 100.0, 0.04, [partner]) == pytest.approx(
        expected_rate(1.0, 100.0, 0.01, [alone])
    )


def test_the_closed_form_is_what_drawn_stays_come_to():
    draw = np.random.default_rng(0)
    alone, work_s, rate = 0.8, 100.0, 0.02
    partners = [Partner(0.3, 1.2, 1.6), Partner(0.7, 1.5, 1.1)]
    arrival = draw.exponential(1 / rate, 200_000)
    which = draw.choice(2, 200_000, p=[0.3, 0.7])
    mine, theirs = (np.array([p[k] for p in partners])[which] for k in (1, 2))
    alone_s = np.minimum(arrival, work_s / alone)
    left_s = work_s - alone * alone_s
    done = alone * alone_s + left_s * (1 + mine / theirs)
    held = alone_s + left_s * mine
    expected = expected_rate(alone, work_s, rate, partners)
    assert expected == pytest.approx(done.sum() / held.sum(), rel=0.005)


PAIRS = {None: [Partner(1.0, 1.9, 1.9)], 50: [Partner(1.0, 1.4, 1.4)]}
"""Without caps two are hardly better than one after the other; at 50/50 they are."""


def test_a_cap_is_taken_where_a_partner_comes_soon_and_only_there():
    alone = {None: 1.0, 50: 0.8}
    assert best_cap(alone, PAIRS, 1000.0, 1.0).share == 50
    assert best_cap(alone, PAIRS, 1000.0, 1e-6).share is None


def test_no_cap_is_taken_for_nothing():
    same = {None: [Partner(1.0, 1.4, 1.4)], 50: [Partner(1.0, 1.4, 1.4)]}
    assert best_cap({None: 1.0, 50: 1.0}, same, 1000.0, 1.0).share is None
