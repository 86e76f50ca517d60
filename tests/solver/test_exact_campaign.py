"""Tiny rounds of all features against enumeration: the quick form of the campaign."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from dovetail.instances.instance import Instance
from tests.solver.exact_campaign import Case, Fair, Loss, differences, differences_in

KEPT = Path(__file__).with_name("kept_rounds")
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


def kept(name, objective="throughput", own=None, solvers=("auto",), spans=False):
    """A round of an earlier campaign, which was found to be answered wrongly."""
    data = json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))
    return Case(Instance.from_data(data), objective, own, solvers, False, spans)


def test_a_running_job_that_no_job_would_join_without_a_loss_refutes_no_proof():
    count: Counter[str] = Counter()
    case = kept("910325", "completion", solvers=("auto", "matching"), spans=True)
    assert list(differences_in(case, "", count)) == []
    assert count["certificates"] == 2


@pytest.mark.parametrize(("name", "own"), [("7700428", Fair), ("7700603", Loss)])
def test_three_jobs_of_which_one_would_be_over_its_gsla_later_or_lack_gpus_refute_no_proof(
    name, own
):
    count: Counter[str] = Counter()
    assert list(differences_in(kept(name, own=own), "", count)) == []
    assert count["certificates"] == 1
