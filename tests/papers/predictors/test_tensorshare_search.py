"""The search over structures: reproducible by trials, bounded by time, judged on new families."""

import sys
from time import process_time

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs the extra train")
pytest.importorskip("optuna", reason="needs the extra train")

from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.papers.predictors.tensorshare import TABLE_4, TensorShareRegressor
from dovetail.papers.predictors.tensorshare_search import search

QUICK = TensorShareRegressor(max_iter=3)


def synthetic(families=6, rows=120):
    """Rows of a synthetic GPU: each family has its own place among the features."""
    rng = np.random.default_rng(0)
    places = rng.uniform(size=(families, 2))
    pair = rng.integers(0, families, size=(rows, 2))
    table = np.hstack([places[pair[:, 0]], places[pair[:, 1]]])
    slowdown = 1 + table[:, 0] * table[:, 2] + table[:, 1] * table[:, 3]
    names = np.array([f"family {k}" for k in range(families)])
    return table, slowdown, names[pair]


def test_reproducible_when_bounded_by_trials():
    first = search(*synthetic(), trials=4, base=QUICK, most_layers=4, seed=1)
    again = search(*synthetic(), trials=4, base=QUICK, most_layers=4, seed=1)
    other = search(*synthetic(), trials=4, base=QUICK, most_layers=4, seed=2)
    assert first.trials == again.trials
    assert first.best.get_params() == again.best.get_params()
    assert first.trials != other.trials


def test_the_best_has_the_least_error_and_is_not_fitted():
    found = search(*synthetic(), trials=5, base=QUICK, most_layers=3)
    best = min(found.trials, key=lambda trial: trial.smape)
    assert found.best.hidden_layer_sizes == best.hidden_layer_sizes
    assert found.best.learning_rate_init == best.learning_rate_init
    assert found.best.batch_size == best.batch_size
    assert found.best.solver == best.solver
    assert found.best.max_iter == QUICK.max_iter
    assert not hasattr(found.best, "network_")
    assert all(1 <= len(trial.hidden_layer_sizes) <= 3 for trial in found.trials)


def test_error_is_that_on_families_not_seen():
    # Pairs of the third family run at 3, all others at 1: easily learned from rows of all three.
    # Each part is one family with 50 of the 90 rows. Those of the third, fitted on rows that
    # are all 1, are a third of the rows tested and have an error of 2 * (3 - 1) / (3 + 1) = 1.
    families = np.array([[a, b] for a in range(3) for b in range(3) for _ in range(10)])
    third = families == 2
    slowdown = np.where(third.any(axis=1), 3.0, 1.0)
    found = search(
        third.astype(float),
        slowdown,
        families,
        trials=4,
        base=TensorShareRegressor(),
        most_layers=1,
    )
    assert min(trial.smape for trial in found.trials) == pytest.approx(1 / 3, abs=0.05)


def test_table_4_is_tried_first():
    found = search(*synthetic(), trials=1, base=QUICK)
    assert found.trials[0].hidden_layer_sizes == TABLE_4
    assert found.trials[0].solver == "adam"


def test_both_optimisers_are_tried():
    found = search(*synthetic(), trials=12, base=QUICK, most_layers=2)
    assert {trial.solver for trial in found.trials} == {"adam", "sgd"}


def test_time_is_kept_and_too_little_of_it_leaves_table_4():
    start = process_time()
    found = search(*synthetic(), seconds=0.05, base=TensorShareRegressor(max_iter=10_000))
    assert process_time() - start < 10
    assert found.trials == ()
    assert found.best.hidden_layer_sizes == TABLE_4


def test_progress_is_reported():
    reports = []
    search(
        *synthetic(), trials=3, base=QUICK, most_layers=2, progress=lambda *now: reports.append(now)
    )
    assert [count for count, _ in reports] == [1, 2, 3]
    assert reports[0][1] >= reports[1][1] >= reports[2][1] > 0


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        ({"seconds": 0}, "seconds: must be > 0 and finite, got 0"),
        ({"seconds": float("nan")}, "seconds: must be > 0 and finite, got nan"),
        ({"trials": 0}, "trials: must be >= 1, got 0"),
        ({"most_layers": 20}, "most_layers: must be between 1 and 19, got 20"),
    ],
)
def test_bounds_out_of_range(bound, message):
    with pytest.raises(InputError, match=message):
        search(*synthetic(), **bound)


def test_one_family_cannot_be_held_out():
    with pytest.raises(InputError, match="families: must have pairs without and pairs with"):
        search(*synthetic(families=1), trials=1)


def test_without_optuna(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UnsupportedError, match=r"needs optuna: pip install './dovetail\[train\]'"):
        search(*synthetic(), trials=1)
