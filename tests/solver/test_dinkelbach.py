"""Dinkelbach's method on three points by hand."""

from __future__ import annotations

import pytest

from dovetail.solver.stages import best_ratio
from dovetail.solver.types import Limits, Maximum

POINTS = {"cheap": (1.0, 1.0), "large": (6.0, 4.0), "best": (5.0, 3.0)}
"""Their N and D: ratios 1, 1.5 and 5/3."""


def search(start="cheap", gap=0.0, stopped="complete", slack=0.0, points=POINTS):
    asked = []

    def terms(found):
        return points[found.counts]

    def maximise(t, best):
        asked.append(t)
        found = max(points, key=lambda p: points[p][0] - t * points[p][1])
        value = points[found][0] - t * points[found][1]
        return Maximum(counts=found, bound=value + slack, stopped=stopped)

    first = Maximum(counts=start, bound=float("inf"), stopped="time_limit")
    return best_ratio(first, terms, maximise, least=1.0, limits=Limits(gap=gap)), asked


def test_prices_rise_to_the_best_ratio():
    # At 1: 0, 2, 2, so large; at 1.5: -0.5, 0, 0.5, so best; at 5/3 nothing is above 0.
    found, asked = search()
    assert asked == pytest.approx([1, 1.5, 5 / 3])
    assert (found.counts, found.stopped) == ("best", "complete")
    assert found.bound == pytest.approx(5 / 3)


def test_it_may_begin_at_the_best():
    found, asked = search(start="best")
    assert (found.counts, len(asked)) == ("best", 1)


def test_a_bound_on_the_difference_bounds_the_ratio():
    # Cut short at the first price with 2 + 0.5 as the bound: no ratio exceeds 1 + 2.5 / 1.
    found, _ = search(stopped="time_limit", slack=0.5)
    assert (found.counts, found.stopped) == ("large", "time_limit")
    assert found.bound == pytest.approx(3.5)


def test_it_stops_within_the_gap():
    # Slack 0.1 at 5/3 leaves a bound of 5/3 + 0.1: within 10 %, though never complete.
    found, _ = search(start="best", gap=0.1, stopped="time_limit", slack=0.1)
    assert (found.counts, found.stopped) == ("best", "complete")
    assert found.bound == pytest.approx(5 / 3 + 0.1)


def test_nothing_in_use():
    found, asked = search(start="none", points={"none": (0.0, 0.0)})
    assert (found.counts, found.bound, asked) == ("none", 0.0, [])
