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


def test_a_running_job_that_no_job_would_join_without_a_loss_refutes_no_proof():
    count: Counter[str] = Counter()
    assert list(differences(910325, count)) == []
    assert count["certificates"] == 2


@pytest.mark.parametrize("seed", [7700428, 7700603])
def test_three_jobs_of_which_one_would_be_over_its_gsla_later_or_lack_gpus_refute_no_proof(seed):
    count: Counter[str] = Counter()
    assert list(differences(seed, count)) == []
    assert count["certificates"] == 1
