"""Every claim that a job would start, tried by code of its own: the quick form of the campaign."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.solver.claims_campaign import false_claims, round_of


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.long), 7])
def test_a_job_that_would_start_does_when_it_is_tried(seed):
    count: Counter[str] = Counter()
    assert list(false_claims(*round_of(seed), seed, count)) == []
    assert count["would start"] > 3
