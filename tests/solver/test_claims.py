"""Every claim that a job would start, tried by code of its own: the quick form of the campaign."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.solver.claims_campaign import false_claims, round_of


def test_a_job_that_would_start_does_when_it_is_tried():
    count: Counter[str] = Counter()
    assert list(false_claims(*round_of(2), 2, count)) == []
    assert count["would start"] > 3


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_so_it_does_in_many_rounds(seed):
    assert list(false_claims(*round_of(seed), seed, Counter())) == []
