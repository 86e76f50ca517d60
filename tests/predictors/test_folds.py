"""Measurements of two workloads are never on both sides of a split."""

import itertools
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs the extra train")

from dovetail.instances.datasets import DataSet, Measurement
from dovetail.instances.importers.lucid import lucid_data
from dovetail.papers.predictors.tensorshare import TensorShare
from dovetail.predictors.estimators.constant import Median
from dovetail.predictors.estimators.registry import ModelSpec, spec
from dovetail.predictors.folds import fitted, random_folds
from dovetail.predictors.rows import training_rows
from dovetail.predictors.training import prepared, tried
from tests.predictors.synthetic import synthetic

LUCID = Path(__file__).parents[3] / "shared" / "data" / "lucid"
FAST = ("constant", "hierarchical", "castor", "coscheml", "sm_allocation")


def doubled(data, noise=0.02):
    """Return the data set with every measurement once more, turned round, with noise."""
    draw = np.random.default_rng(1)
    again = (
        m.replace(
            workloads=m.workloads[::-1],
            share=m.share and m.share[::-1],
            slowdown=tuple(s * (1 + noise * draw.standard_normal()) for s in m.slowdown[::-1]),
        )
        for m in data.measurements
    )
    return data.replace(measurements=(*data.measurements, *again))


def error(data, model):
    """Return the mean absolute error on new pairs."""
    what = prepared(data, model)
    held = tried(what, random_folds(what.rows), 0).held
    return np.abs(held.slowdown - what.rows.slowdown[held.row]).mean()


def pairs(rows, which):
    """Return the unordered pairs of workloads of some rows."""
    ends = zip(rows.own_workload[which].tolist(), rows.other_workload[which].tolist(), strict=True)
    return {frozenset(pair) for pair in ends}


@pytest.mark.parametrize("model", FAST)
def test_measuring_again_makes_no_model_look_better(model):
    # Noise that no model can foresee; one that has seen a pair can repeat it.
    data = synthetic(noise=0.15)
    assert error(doubled(data), model) == pytest.approx(error(data, model), rel=0.1)


@pytest.mark.skipif(
    not LUCID.exists(), reason=f"no data at {LUCID}: python benchmarks/fetch_data.py"
)
@pytest.mark.parametrize(
    "model", ["castor", *(pytest.param(name, marks=pytest.mark.long) for name in FAST)]
)
def test_measuring_lucid_again_makes_no_model_look_better(model):
    data = lucid_data(str(LUCID))
    assert error(doubled(data), model) == pytest.approx(error(data, model), rel=0.1)


def splits_of_two_gpu_models():
    """Return the pairs of five workloads at three splits on two GPU models, some turned round."""
    measured = (
        Measurement(workloads=pair, gpu_model=gpu, share=share, slowdown=(1.1, 1.2))
        for a, b in itertools.combinations_with_replacement("abcde", 2)
        for pair, gpu in (((a, b), "V100"), ((b, a), "A100"))
        for share in (None, (50, 50), (30, 70))
    )
    return DataSet(name="splits", measurements=tuple(measured))


def test_all_that_is_measured_of_two_workloads_is_held_out_together():
    _, rows = training_rows(splits_of_two_gpu_models(), ("share",))
    tested = [test for _, test in random_folds(rows)]
    assert np.sum(tested, axis=0).tolist() == [1] * len(rows.slowdown)
    for test in tested:
        assert not pairs(rows, test) & pairs(rows, ~test)


def test_the_network_is_stopped_by_pairs_that_it_does_not_learn_from():
    # Nothing but noise to learn, every row four times: a copy held back rewards knowing it.
    draw = np.random.default_rng(0)
    table, slowdown = draw.uniform(size=(60, 4)), draw.normal(2, 0.1, size=60)
    copies = np.tile(np.arange(60), 4)
    network = TensorShare((64, 32), learning_rate_init=0.01, max_iter=400, n_iter_no_change=20)
    grouped = network.fit(table[copies], slowdown[copies], copies).n_iter_
    assert grouped < network.fit(table[copies], slowdown[copies]).n_iter_ / 2


def test_a_model_that_holds_rows_back_gets_the_pair_of_each_row():
    _, rows = training_rows(splits_of_two_gpu_models(), ("share",))
    received = []

    class Spy(Median):
        def fit(self, X, y, pairs=None):  # noqa: N803
            received.append(pairs)
            return super().fit(X, y)

    fitted(ModelSpec(("share",), lambda _: Spy(), holds_back=True), rows)
    assert np.array_equal(received[0], rows.workload_pair)
    assert spec("tensorshare").holds_back


def test_of_another_gpu_model_only_workloads_that_are_not_hidden_count():
    both = splits_of_two_gpu_models()
    _, source = training_rows(both, ("share",), ["V100"])
    _, rows = training_rows(both, ("share",), ["A100"])
    counts = []

    class Spy(Median):
        def fit(self, X, y, pairs=None):  # noqa: N803
            counts.append(len(y))
            return super().fit(X, y)

        def transferred(self, X, y, frozen=1, pairs=None):  # noqa: N803
            counts.append(len(y))
            return self

    model = ModelSpec(("share",), lambda _: Spy(), holds_back=True, source=source)
    ends = np.stack([rows.own_workload, rows.other_workload])
    # Five workloads have 15 pairs at 3 splits, four have 10.
    for hidden, expected in (((), [90, 90]), ((0,), [60, 60])):
        counts.clear()
        fitted(model, rows.take(~np.isin(ends, hidden).any(axis=0)))
        assert counts == expected
