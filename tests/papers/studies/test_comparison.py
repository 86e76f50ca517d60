"""Matchings chosen by predictions, by hand and on synthetic measurements."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from dovetail.instances.datasets import DataSet, Measurement
from dovetail.papers.studies.comparison import (
    complete_block,
    greedy,
    matching,
    matching_test,
    predicted_slowdown,
    study,
    worth,
)
from dovetail.papers.studies.evaluation import Coverage
from dovetail.papers.studies.tables import comparison_view
from dovetail.papers.studies.wording import verdict
from dovetail.predictors.fitted.rows import training_rows
from tests.predictors.measured import measured

# Greedy takes the 1.9 and is left with the 1.0; the best takes 1.8 + 1.8.
VALUE = np.array(
    [
        [np.nan, 1.9, 1.8, 1.1],
        [1.9, np.nan, 1.1, 1.8],
        [1.8, 1.1, np.nan, 1.0],
        [1.1, 1.8, 1.0, np.nan],
    ]
)


@pytest.fixture(scope="module")
def studied():
    data = measured(families=3)
    return study(data, ["constant", "hierarchical"], ("random", "family"), rounds=1)


def test_greedy_is_short_sighted():
    assert worth(VALUE, greedy(VALUE)) == pytest.approx(2.9)
    assert worth(VALUE, matching(VALUE)) == pytest.approx(3.6)


def test_jobs_that_may_not_pair_run_alone():
    value = np.full((4, 4), np.nan)
    value[0, 1] = value[1, 0] = 1.5
    # Two GPUs: one pair, and one of the two others alone.
    assert worth(value, matching(value)) == pytest.approx(2.5)


def pairs_of(*pairs, gpu_model="V100", share=None):
    return tuple(
        Measurement(workloads=tuple(pair), gpu_model=gpu_model, share=share, slowdown=(1.2, 1.4))
        for pair in pairs
    )


def test_the_block_is_complete():
    # abcd are complete; e lacks c, d; capped pairs and the smaller GPU model do not count.
    found = (
        *pairs_of("ab", "ac", "ad", "bc", "bd", "cd", "ea", "eb"),
        *pairs_of("ec", "ed", share=(50, 50)),
        *pairs_of("ec", "ed", gpu_model="A100"),
    )
    data = DataSet(name="d", measurements=found)
    block = complete_block(data, training_rows(data, ())[1])
    assert (block.gpu_model, block.names) == ("V100", ("a", "b", "c", "d"))
    assert block.rows.sum() == 12
    # 1 / 1.2 + 1 / 1.4
    assert block.value[0, 1] == block.value[1, 0] == pytest.approx(1 / 1.2 + 1 / 1.4)


def test_three_workloads_are_no_block():
    data = DataSet(name="d", measurements=pairs_of("ab", "ac", "bc"))
    assert complete_block(data, training_rows(data, ())[1]) is None


def test_the_truth_chooses_the_best_matching(studied):
    known = next(t for t in studied.tested if t.setting == "family")
    truth = replace(known, held=known.held._replace(slowdown=known.measured))
    truth = replace(truth, uppers=np.tile(known.measured, (len(known.confidences), 1)))
    np.testing.assert_allclose(predicted_slowdown(studied.block, truth), studied.block.slowdown)
    found = matching_test(studied.block, [truth], 0.9).models[0]
    assert found.throughput == pytest.approx(1.0)
    assert (found.chosen.job, found.chosen.pair, found.chosen.width) == (1.0, 1.0, 0.0)


def test_a_study_has_everything(studied):
    found = studied.comparison
    assert (found.workloads, found.families, found.pairs) == (6, 3, 21)
    assert {(e.model, e.setting) for e in found.evaluations} == {
        (model, setting)
        for model in ("constant", "hierarchical")
        for setting in ("random", "family")
    }
    assert found.best == "hierarchical"
    assert found.decisive == "family"
    test = found.matching
    assert test.workloads == 6
    assert 0 < test.random <= 1 + 1e-9
    assert 0 < test.greedy <= 1 + 1e-9
    assert all(0 < each.throughput <= 1 + 1e-9 for each in test.models)
    assert type(found).from_data(found.to_data()) == found


def weaker(comparison, setting, held):
    """Return a comparison in which bounds held for this part of the jobs in a setting."""
    found = Coverage(confidence=0.9, job=held, pair=held, width=0.1, bounded=1.0)
    evaluations = tuple(
        each.replace(coverage=found) if each.setting == setting else each
        for each in comparison.evaluations
    )
    return comparison.replace(evaluations=evaluations, matching=None)


@pytest.mark.parametrize(("setting", "new"), [("random", "pair"), ("family", "family")])
def test_a_promise_is_kept_only_where_it_is_in_every_setting(studied, setting, new):
    kept = weaker(weaker(studied.comparison, "random", 0.95), "family", 0.93)
    assert (
        "held for 93.0 % (new family, the weakest of the tested settings): kept."
        in verdict_text(kept)
    )
    broken = verdict_text(weaker(kept, setting, 0.6))
    assert f"held for 60.0 % (new {new}, the weakest of the tested settings): not kept." in broken


def test_a_setting_without_bounds_is_reported(studied):
    # Of three families, two support no bound for a third.
    found = verdict_text(studied.comparison)
    assert "The data are too few to bound 100.0 % of the jobs (new family" in found


def test_a_model_that_errs_more_than_a_constant_is_marked(studied):
    found = studied.comparison
    assert "Worse than a constant" not in verdict_text(found)
    evaluations = tuple(
        each.replace(accuracy=each.accuracy.replace(mae=0.841))
        if (each.model, each.setting) == ("hierarchical", "family")
        else each
        for each in found.evaluations
    )
    constant = found.of("constant", "family").accuracy.mae
    assert (
        "Worse than a constant, so not to be used there: hierarchical (new family: 0.841 instead "
        f"of {constant:.3f})."
    ) in verdict_text(found.replace(evaluations=evaluations))


def verdict_text(comparison):
    return " ".join(verdict(comparison))


@pytest.mark.parametrize(("width", "lines"), [(100, False), (99, False), (60, True), (40, True)])
def test_a_narrow_terminal_cuts_nothing_off(studied, width, lines):
    out = StringIO()
    Console(file=out, width=width, highlight=False).print(comparison_view(studied.comparison))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    words = " ".join(text.split())
    assert ("new family SMAPE" in words) == lines
    assert "wrongly accepted" in words
