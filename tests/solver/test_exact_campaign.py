"""Tiny rounds of all features against enumeration: the quick form of the campaign."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.solver.exact_campaign import differences

_EACH = 40


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(seed, marks=[pytest.mark.long] * (seed > 0))
        for seed in range(0, 100 * _EACH, _EACH)
    ],
)
def test_answers_bounds_ties_and_checks_are_those_of_enumeration(first):
    count: Counter[str] = Counter()
    found = [what for seed in range(first, first + _EACH) for what in differences(seed, count)]
    assert found == []
    assert count["optimal"] > _EACH / 2
