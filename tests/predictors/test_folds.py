"""Measurements of two workloads are never on both sides of a split."""

import itertools

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs the extra train")

from dovetail.instances.datasets import DataSet, Measurement
from dovetail.predictors.fitted.folds import random_folds
from dovetail.predictors.fitted.rows import training_rows
from dovetail.predictors.fitted.training import prepared, tried
from tests.predictors.synthetic import synthetic

FAST = ("constant", "hierarchical")


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
