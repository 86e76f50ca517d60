"""Upper bounds: arithmetic by hand, and coverage on populations with known truth."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from dovetail.instances.errors import InputError
from dovetail.predictors.fitted.bounds import (
    BrokenBounds,
    Calibration,
    calibrate,
    coverage,
)
from dovetail.predictors.fitted.planned import (
    BLIND,
    GANGS,
    Setting,
    draw_round,
    outcome,
    partners,
    tables,
)
from dovetail.predictors.fitted.standing import (
    CO_RUNNER_OF_NEW_FAMILY,
    KNOWN,
    NEW,
    NEW_CO_RUNNER,
    NEW_FAMILY,
    STANDINGS,
    novelty,
    standings,
)
from tests.predictors.population import population


def evidence(*groups):
    """Return counts of groups, each (misses at levels 0, 1 and 2) of 10 jobs."""
    misses = np.array([groups] * len(GANGS), dtype=float).reshape(len(GANGS), len(groups), 3)
    return BrokenBounds(
        tuple(f"g{k}" for k in range(len(groups))), misses, np.full_like(misses, 10.0)
    )


def by_hand(worst=0.4):
    """Return spreads 0.1 + 0.5 (prediction - 1), levels 0, 1, 2; two groups."""
    return Calibration(
        spread=np.tile([0.1, 0.5], (5, 1)),
        levels=np.array([0.0, 1.0, 2.0]),
        evidence=(
            evidence((6, 2, 0), (4, 1, 0)),
            evidence((5, 5, 5)),
            evidence(),
            evidence(),
            evidence((6, 2, 0), (4, 1, 0)),
        ),
        worst=worst,
    )


def test_risk_by_hand():
    # (0.6 + 0.4 + 0.4) / 3, (0.2 + 0.1 + 0.4) / 3, (0 + 0 + 0.4) / 3. Of a family never seen
    # nothing is assumed: (0.6 + 0.4 + 1) / 3 and so on.
    np.testing.assert_allclose(by_hand().risk[KNOWN, 0], [1.4 / 3, 0.7 / 3, 0.4 / 3])
    np.testing.assert_allclose(by_hand().risk[NEW_CO_RUNNER, 0], [0.9 / 2] * 3)
    np.testing.assert_allclose(by_hand().risk[NEW_FAMILY, 0], [2.0 / 3, 1.3 / 3, 1.0 / 3])
    np.testing.assert_allclose(by_hand().risk[NEW, 0], [1.0] * 3)


def test_a_group_of_few_jobs_counts_for_less():
    # One job that broke its bound weighs a tenth: 1.1 groups, of which 0.1 * 1 + 1 * 0 broken.
    found = BrokenBounds(("a", "b"), np.array([[[1.0], [0.0]]]), np.array([[[1.0], [10.0]]]))
    np.testing.assert_allclose(found.risk(0.5), [[(0.1 + 0.5) / 2.1]])


def test_bound_by_hand():
    # 0.75 needs a risk of 0.25, so level 1: 1.4 + (0.1 + 0.5 * 0.4); below 1 the spread is 0.1.
    bound = by_hand().upper([1.4, 0.9, np.nan], KNOWN, 0.75)
    np.testing.assert_allclose(bound, [1.7, 1.0, np.nan])
    np.testing.assert_allclose(by_hand().upper(1.4, KNOWN, 0.5), 1.4)


def test_a_bound_by_standard_errors_by_hand():
    found = evidence((6, 2, 0), (4, 1, 0))
    one = Calibration(np.zeros((5, 2)), np.arange(3.0), (found,) * 5, worst=0.4)
    # Level 1, but a new workload has no less than the normal quantile of 0.75 or 0.86.
    error = np.array([0.2, 0.2])
    assert one.upper([1.5, 1.5], KNOWN, 0.75, error=error) == pytest.approx(1.5 * np.exp(0.2))
    assert one.level(NEW, 0.75) == 1
    assert one.level(NEW, 0.4) == 0
    low = Calibration(np.zeros((5, 2)), np.array([0.5, 0.6, 0.7]), (found,) * 5, worst=0.4)
    assert low.level(KNOWN, 0.86) == 0.7
    assert low.level(NEW, 0.86) == pytest.approx(1.0803, abs=1e-4)
    # What is measured later is counted in the same standard errors: ln(1.9 / 1.5) / 0.2 = 1.18.
    later = one.updated([1.5], [1.9], [NEW], ["g0"], error=error[:1])
    assert later.evidence[NEW].misses[0, 0].tolist() == [7, 3, 0]


def test_what_the_data_cannot_support_is_refused():
    one = by_hand()
    assert one.largest_confidence(KNOWN) == pytest.approx(1 - 0.4 / 3)
    # Three families: 0.4 / 4 <= 0.13.
    rule = (
        r"at most 0\.8666 \(what 2 families .*: known workloads, 1 worker\), got 0\.87; pairs of 3 "
    )
    with pytest.raises(InputError, match=rule):
        one.level(KNOWN, 0.87)
    # Half of the bounds are broken, however many families there are.
    with pytest.raises(InputError, match=r"at most 0\.55 .*got 0\.6; no number of families"):
        one.level(NEW_CO_RUNNER, 0.6)
    with pytest.raises(InputError, match=r"must be above 0 .* got 0$"):
        one.upper(1.2, KNOWN, 0.0)
    # Nothing is known of new workloads here; that leaves the others their bounds.
    assert one.largest_confidence(NEW) == 0
    np.testing.assert_array_equal(one.upper([1.2, 1.2], [KNOWN, NEW], 0.5), [1.2, np.nan])


def test_gangs_beyond_the_table_add_up_their_risks():
    # 16 workers are two gangs of 8: half of 0.5 each, so the level of 0.75.
    one = by_hand()
    assert one.level(KNOWN, 0.5, 8) == 0
    assert one.level(KNOWN, 0.5, 9) == one.level(KNOWN, 0.5, 16) == 1
    with pytest.raises(InputError, match="workers"):
        one.level(KNOWN, 0.5, 0)


def test_standing():
    # Measured; of its family; of a family never measured.
    new = novelty(np.array([True, False, False]), np.array([0, 0, 1]))
    assert new.tolist() == [0, 1, 2]
    assert standings(new[:, None], new).tolist() == [
        [KNOWN, NEW_CO_RUNNER, CO_RUNNER_OF_NEW_FAMILY],
        [NEW, NEW, NEW_FAMILY],
        [NEW_FAMILY, NEW_FAMILY, NEW_FAMILY],
    ]


def test_update_by_hand():
    # 1.35 is (1.35 - 1.2) / 0.2 = 0.75 spreads above 1.2: broken at level 0 only. 1.9 at all.
    one = by_hand().updated([1.2, 1.2, 1.2], [1.35, 1.9, np.nan], KNOWN * np.ones(3), "abc")
    found = one.evidence[KNOWN]
    assert found.groups == ("g0", "g1", "a", "b")
    assert found.misses[0, 2:].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert (found.jobs[0, 2:] == 1).all()
    assert (found.jobs[1:, 2:] == 0).all()
    again = by_hand().updated([1.2], [1.35], [KNOWN], ["g1"])
    assert again.evidence[KNOWN].misses[0, 1].tolist() == [5, 1, 0]
    assert again.evidence[KNOWN].jobs[0, 1].tolist() == [11, 11, 11]


def test_bounds_widen_with_bad_news_and_narrow_with_good():
    one, many = calibrated(), np.full(400, 1.2)
    where, names = np.full(400, NEW), [f"n{k % 20}" for k in range(400)]
    bad = one.updated(many, many + 0.4, where, names)
    good = one.updated(many, many, where, names)
    assert good.level(NEW, 0.9) < one.level(NEW, 0.9) < bad.level(NEW, 0.9)


@cache
def calibrated(seed=0, **options):
    one = population(seed)
    return calibrate(one.rows, one.known, one.new, rounds=6, seed=seed, **options)


def test_bounds_rise_with_confidence_and_workers():
    value, where = np.linspace(0.9, 2, 12), np.arange(12) % 3
    before = value
    for confidence in (0.5, 0.8, 0.9, 0.95):
        for workers in (1, 2, 3, 4, 8, 9):
            here = calibrated().upper(value, where, confidence, workers)
            assert (here >= calibrated().upper(value, where, confidence)).all()
        here = calibrated().upper(value, where, confidence)
        assert (here >= before).all()
        before = here


def test_same_data_same_calibration():
    one = population(0)
    again = calibrate(one.rows, one.known, one.new, rounds=6)
    for name, values in again.arrays().items():
        np.testing.assert_array_equal(values, calibrated().arrays()[name])


def test_arrays_are_the_calibration():
    arrays = calibrated().arrays()
    assert all(values.dtype.kind in "fiu" for values in arrays.values())
    again = Calibration.from_arrays(arrays)
    assert again.evidence[NEW].groups == calibrated().evidence[NEW].groups
    for name, values in again.arrays().items():
        np.testing.assert_array_equal(values, arrays[name])
    empty = Calibration.from_arrays(by_hand().arrays())
    assert empty.evidence[NEW].groups == ()


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("spread", None, "must be an array of numbers"),
        ("spread", np.zeros((2, 2)), "must have shape"),
        ("spread", np.full((5, 2), -1.0), "must be finite and >= 0"),
        ("levels", np.array(["a"]), "must be an array of numbers"),
        ("levels", np.array([2.0, 1.0]), "must have shape"),
        ("levels", np.array([0.0, 2.0, 1.0]), "must rise"),
        ("worst", np.array([1.5]), "must be <= 1"),
        ("worst", np.array([np.nan]), "must be finite"),
        ("misses_0", np.full((4, 2, 3), 11.0), "must be <= jobs_0"),
        ("jobs_1", np.zeros((4, 2, 3)), "must have shape"),
        ("groups_0", np.array([255], dtype=np.uint8), "must be names in UTF-8"),
        ("groups_2", None, "must be names in UTF-8"),
    ],
)
def test_broken_arrays(name, value, rule):
    arrays = dict(by_hand().arrays())
    del arrays[name]
    if value is not None:
        arrays[name] = value
    with pytest.raises(InputError, match=rule):
        Calibration.from_arrays(arrays)


def kept(calibration, seed, confidence, setting, workers=1):
    """Return the part of jobs that kept their bound for each standing, in rounds of a seed."""
    one = population(seed)
    found = [[] for _ in STANDINGS]
    draw = np.random.default_rng(seed)
    for k, of in enumerate(tables(one.rows, one.known, one.new)):
        spread = calibration.spreads(of.prediction, of.standing)
        upper = calibration.upper(of.prediction, of.standing, confidence)
        for _ in range(10 if k else 60):
            jobs = draw_round(of, draw)
            came = outcome(jobs, partners(jobs, of, upper, setting, draw), of, spread)
            for code in range(len(STANDINGS)):
                which = (came.standing == code) & (came.workers == workers)
                level = calibration.level(code, confidence, workers)
                found[code] += (came.needed[which] <= level).tolist()
    return [float(np.mean(part)) for part in found]


@pytest.mark.parametrize("confidence", [0.8, 0.9])
def test_blind_bounds_hold_where_nothing_is_picked(confidence):
    blind = calibrated(settings=(BLIND,), worst=0.0)
    for seed in (11, 12):
        assert kept(blind, seed, confidence, BLIND)[KNOWN] == pytest.approx(confidence, abs=0.03)


@pytest.mark.parametrize("setting", [Setting(np.inf, 1.0), Setting(1.3, 0.8)])
def test_picking_breaks_blind_bounds_and_not_corrected_ones(setting):
    # Picking the best of 31 co-runners by a noisy prediction picks noise.
    for seed in (11, 12, 13):
        assert kept(calibrated(settings=(BLIND,)), seed, 0.9, setting)[KNOWN] < 0.86
        assert kept(calibrated(), seed, 0.9, setting)[KNOWN] >= 0.9


@pytest.mark.slow
def test_new_workloads_and_gangs_of_other_populations():
    # The errors of 20 families are 20 draws, so one population says little; four have 80.
    for workers in (1, 4):
        found = [kept(calibrated(s), 20 + s, 0.9, Setting(1.5, 1.0), workers) for s in range(4)]
        assert (np.mean(found, axis=0) >= 0.88).all()


def test_model_without_an_answer_for_new_workloads():
    one = population(0)
    silent = one.new._replace(slowdown=np.full_like(one.new.slowdown, np.nan))
    found = calibrate(one.rows, one.known, silent, rounds=1)
    assert found.largest_confidence(NEW) == found.largest_confidence(NEW_CO_RUNNER) == 0
    assert found.largest_confidence(KNOWN) > 0.9


def test_coverage_by_hand():
    # Bounds 1.2; three of four jobs and one of two pairs keep them.
    slowdown, upper = np.full((2, 2), 1.0), np.full((2, 2), 1.2)
    truth = np.array([[1.1, 1.2], [1.3, 1.0]])
    found = coverage(slowdown, upper, truth)
    assert (found.jobs, found.pairs, found.width, found.tested) == (0.75, 0.5, 1.2, 2)
    assert coverage(slowdown, upper, truth, np.array([False, True])).jobs == 0.5
    assert coverage(slowdown, upper, truth, np.array([0, 0, 1])).pairs == pytest.approx(2 / 3)
    nothing = coverage(slowdown, upper, truth, np.array([], dtype=int))
    assert nothing.tested == 0
    assert np.isnan(nothing.jobs)
