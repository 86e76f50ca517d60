"""What models of papers see of pairs that are held out: nothing, however they are measured."""

from pathlib import Path

import numpy as np
import pytest

from dovetail.papers.importers.lucid import lucid_data
from dovetail.papers.predictors import tensorshare
from dovetail.papers.predictors.tensorshare import TensorShareRegressor
from dovetail.predictors.estimators.registry import FittingTask
from dovetail.predictors.fitted.folds import fitted
from dovetail.predictors.fitted.rows import training_rows
from tests.predictors.synthetic import synthetic
from tests.predictors.test_folds import doubled, error, splits_of_two_gpu_models

LUCID = Path(__file__).parents[4] / "shared" / "data" / "lucid"
CORE = ("constant", "hierarchical")
TREES = ("castor", "coscheml", "sm_allocation")


@pytest.mark.parametrize("model", TREES)
def test_measuring_again_makes_no_model_look_better(model):
    # Noise that no model can foresee; one that has seen a pair can repeat it.
    data = synthetic(noise=0.15)
    assert error(doubled(data), model) == pytest.approx(error(data, model), rel=0.1)


@pytest.mark.skipif(
    not LUCID.exists(), reason=f"no data at {LUCID}: python benchmarks/fetch_data.py"
)
@pytest.mark.parametrize(
    "model",
    ["castor", *(pytest.param(name, marks=pytest.mark.long) for name in (*TREES[1:], *CORE))],
)
def test_measuring_lucid_again_makes_no_model_look_better(model):
    data = lucid_data(str(LUCID))
    assert error(doubled(data), model) == pytest.approx(error(data, model), rel=0.1)


def test_the_network_is_stopped_by_pairs_that_it_does_not_learn_from():
    # Nothing but noise to learn, every row four times: a copy held back rewards knowing it.
    draw = np.random.default_rng(0)
    table, slowdown = draw.uniform(size=(60, 4)), draw.normal(2, 0.1, size=60)
    copies = np.tile(np.arange(60), 4)
    network = TensorShareRegressor(
        (64, 32), learning_rate_init=0.01, max_iter=400, n_iter_no_change=20
    )
    grouped = network.fit(table[copies], slowdown[copies], copies).n_iter_
    assert grouped < network.fit(table[copies], slowdown[copies]).n_iter_ / 2


class Spy(TensorShareRegressor):
    """The network, which notes what it is fitted and tuned on instead."""

    def fit(self, X, y, pairs=None):  # noqa: N803
        self.seen = [(len(y), pairs)]
        return self

    def transferred(self, X, y, frozen=1, pairs=None):  # noqa: N803
        self.seen.append((len(y), pairs))
        return self


SPEC = tensorshare.SPEC._replace(features=("share",), build=lambda _: Spy(), least=1)


def test_the_network_gets_the_pair_of_each_row():
    _, rows = training_rows(splits_of_two_gpu_models(), ("share",))
    ((_, pairs),) = fitted(SPEC, rows).seen
    assert np.array_equal(pairs, rows.workload_pair)


def test_of_another_gpu_model_only_workloads_that_are_not_hidden_count():
    both = splits_of_two_gpu_models()
    model = SPEC.prepare(SPEC, FittingTask(both, "A100", 0), {"from": "V100"})
    _, rows = training_rows(both, ("share",), ["A100"])
    ends = np.stack([rows.own_workload, rows.other_workload])
    # Five workloads have 15 pairs at 3 splits, four have 10.
    for hidden, expected in (((), [90, 90]), ((0,), [60, 60])):
        made = fitted(model, rows.take(~np.isin(ends, hidden).any(axis=0)))
        assert [count for count, _ in made.seen] == expected
