"""Rounds drawn for calibration: observations of a pair, and the pairs that are picked."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from dovetail.predictors.fitted.planned import (
    BLIND,
    GANGS,
    HeldOutSlowdowns,
    Setting,
    WorkerRound,
    draw_round,
    outcome,
    partners,
    tables,
)
from dovetail.predictors.fitted.rows import DirectedRows, HeldOut
from dovetail.predictors.fitted.standing import (
    CO_RUNNER_OF_NEW_FAMILY,
    KNOWN,
    NEW,
    NEW_CO_RUNNER,
    NEW_FAMILY,
)
from tests.predictors.population import population

FREE = Setting(np.inf, 1.0)


def table(prediction, truth=None):
    prediction = np.asarray(prediction, dtype=float)
    count = len(prediction)
    return HeldOutSlowdowns(
        prediction,
        prediction if truth is None else np.asarray(truth, dtype=float),
        np.full_like(prediction, np.nan),
        np.zeros((count, count), dtype=np.int64),
        np.zeros(count, dtype=bool),
        np.arange(count),
    )


def singles(count):
    return WorkerRound(np.arange(count), np.arange(count))


def paired(jobs, of, setting, upper=None):
    upper = of.prediction if upper is None else np.asarray(upper, dtype=float)
    return partners(jobs, of, upper, setting, np.random.default_rng(0)).tolist()


def test_tables_say_what_was_seen():
    # a and b are of one family, c of another; the pair (b, c) was never measured.
    rows = DirectedRows(
        states=np.zeros((3, 1)),
        workload=np.arange(3),
        own=np.array([0, 0, 1, 2]),
        other=np.array([1, 2, 0, 0]),
        pair=np.array([0, 1, 0, 1]),
        slowdown=np.array([1.1, 1.2, 1.3, 1.4]),
        names=("a", "b", "c"),
        families=("f", "f", "g"),
    )
    known = HeldOut(
        np.arange(4), np.zeros(4, dtype=int), np.array([1.0, 2.0, 3.0, 4.0]), np.full(4, np.nan)
    )
    new = HeldOut(
        np.array([1, 3]), np.zeros(2, dtype=int), np.array([5.0, 6.0]), np.full(2, np.nan)
    )
    base, hidden = tables(rows, known, new)
    assert (base.standing == KNOWN).all()
    nan = np.nan
    np.testing.assert_equal(base.prediction, [[nan, 1, 2], [3, nan, nan], [4, nan, nan]])
    np.testing.assert_equal(base.truth, [[nan, 1.1, 1.2], [1.3, nan, nan], [1.4, nan, nan]])
    assert hidden.new.tolist() == [False, False, True]
    # A pair that the fold does not test keeps what the random folds said.
    np.testing.assert_equal(hidden.prediction, [[nan, 1, 5], [3, nan, nan], [6, nan, nan]])
    assert hidden.standing[0].tolist() == [KNOWN, KNOWN, CO_RUNNER_OF_NEW_FAMILY]
    assert hidden.standing[2].tolist() == [NEW_FAMILY] * 3
    # The same workload of a family that another pair has.
    _, variant = tables(rows._replace(families=("f", "f", "f")), known, new)
    assert variant.standing[0].tolist() == [KNOWN, KNOWN, NEW_CO_RUNNER]
    assert variant.standing[2].tolist() == [NEW] * 3


def test_of_pairs_at_several_splits_one_is_drawn():
    # a with b at two splits, both directions of each.
    rows = DirectedRows(
        states=np.zeros((4, 1)),
        workload=np.array([0, 0, 1, 1]),
        own=np.array([0, 1, 3, 2]),
        other=np.array([3, 2, 0, 1]),
        pair=np.array([0, 1, 0, 1]),
        slowdown=np.array([1.0, 2.0, 3.0, 4.0]),
        names=("a", "b"),
        families=("f", "g"),
    )
    known = HeldOut(np.arange(4), np.zeros(4, dtype=int), 10 * rows.slowdown, rows.slowdown / 10)
    found = set()
    for seed in range(8):
        (base,) = tables(rows, known, known.take(slice(0)), np.random.default_rng(seed))
        found.add((base.truth[0, 1], base.truth[1, 0]))
        np.testing.assert_allclose(base.prediction, 10 * base.truth)
        np.testing.assert_allclose(base.error, base.truth / 10)
    assert found == {(1.0, 3.0), (2.0, 4.0)}


def test_the_best_pairs_are_picked():
    # 0-1 and 2-3 gain 2 / 1.1 - 1 each; the others are worth nothing.
    of = table(np.where(np.kron(np.eye(2), np.ones((2, 2))) > 0, 1.1, 3.0))
    assert paired(singles(4), of, FREE) == [1, 0, 3, 2]


def test_the_bound_of_either_job_forbids_a_pair():
    of = table(np.full((2, 2), 1.1))
    upper = [[1.1, 1.6], [1.2, 1.1]]
    assert paired(singles(2), of, Setting(1.5, 1.0), upper) == [0, 1]
    assert paired(singles(2), of, Setting(1.6, 1.0), upper) == [1, 0]


def test_where_gpus_are_plenty_only_good_pairs_share():
    # Rates of a pair sum to 1.43. Two GPUs at a price of 0.5 leave 2 - 1 = 1, one shared 0.93.
    of = table(np.full((2, 2), 1.4))
    assert paired(singles(2), of, Setting(np.inf, 0.5)) == [0, 1]
    assert paired(singles(2), of, Setting(np.inf, 0.9)) == [1, 0]


def test_never_measured_or_of_one_gang_never_share():
    assert paired(singles(2), table(np.full((2, 2), np.nan)), FREE) == [0, 1]
    gang = WorkerRound(np.zeros(2, dtype=int), np.zeros(2, dtype=int))
    for setting in (FREE, BLIND):
        assert paired(gang, table([[1.0]]), setting) == [0, 1]


@pytest.mark.parametrize("seed", range(10))
def test_assignment_is_no_worse_than_the_best_matching(seed):
    draw = np.random.default_rng(seed)
    of = table(1 + draw.random((16, 16)))
    gain = 1 / of.prediction + 1 / of.prediction.T - 1
    graph = nx.Graph()
    graph.add_weighted_edges_from((a, b, gain[a, b]) for a in range(16) for b in range(a))
    best = nx.max_weight_matching(graph)
    partner = np.array(paired(singles(16), of, FREE))
    share = np.flatnonzero(partner != np.arange(16))
    value, most = gain[share, partner[share]].sum() / 2, sum(gain[a, b] for a, b in best)
    assert value >= most - 1e-9
    if value == pytest.approx(most, abs=1e-9):
        picked = {frozenset((a, int(partner[a]))) for a in share}
        assert {frozenset(pair) for pair in best} <= picked


def test_a_gang_is_as_slow_as_its_slowest_worker():
    # Job 0 has two workers, with jobs 1 and 2: slowdowns 1.3 and 1.5, predicted as 1.2 and 1.1
    # with spreads 0.1 and 0.2. 1.2 + 0.1 level reaches 1.5 at 3, 1.1 + 0.2 level at 2.
    of = table(np.full((3, 3), 1.0))
    of.prediction[0] = [1.0, 1.2, 1.1]
    truth = np.full((3, 3), 1.0)
    truth[0] = [1.0, 1.3, 1.5]
    spread = np.full((3, 3), 0.1)
    spread[0, 2] = 0.2
    jobs = WorkerRound(np.array([0, 0, 1, 2]), np.array([0, 0, 1, 2]))
    found = outcome(jobs, np.array([2, 3, 0, 1]), of._replace(truth=truth), spread)
    assert found.workers.tolist() == [2, 1, 1]
    np.testing.assert_allclose(found.needed, [2.0, 0.0, 0.0], atol=1e-12)


def test_rounds_have_gangs_and_new_workloads():
    one = population(0)
    base, first, *_ = tables(one.rows, one.known, one.new)
    draw = np.random.default_rng(0)
    for of in (base, first):
        jobs = draw_round(of, draw)
        assert np.unique(np.bincount(jobs.job)).tolist() == list(GANGS)
        assert of.new[jobs.workload].any() == of.new.any()
        assert all(len(set(jobs.workload[jobs.job == job])) == 1 for job in jobs.job)
