"""TensorShare's delta predictor: scikit-learn's checks, mirrored answers, transfer."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs the extra train")

from sklearn.neural_network import MLPRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

from dovetail.instances.datasets import DataSet, Measurement, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.papers.forms.network import Network
from dovetail.papers.importers.gavel import import_gavel
from dovetail.papers.predictors.tensorshare import TABLE_4, TensorShareRegressor
from dovetail.predictors.estimators.registry import spec
from dovetail.predictors.fitted.rows import training_rows

GAVEL = Path(__file__).parents[3] / "shared/data/gavel/simulation_throughputs.json.gz"
SMALL = {"hidden_layer_sizes": (32, 16), "learning_rate_init": 0.01}


@parametrize_with_checks(
    [TensorShareRegressor(hidden_layer_sizes=(16,), learning_rate_init=0.01, max_iter=50)]
)
def test_estimator_checks(estimator, check):
    check(estimator)


def synthetic(seed, rows, memory=1.0):
    """Rows of a synthetic GPU: two resources, of which the second is contended ``memory`` times.

    The features are those of compute and memory for own and for the co-runner.
    """
    rng = np.random.default_rng(seed)
    table = rng.uniform(size=(rows, 4))
    contended = 0.8 * table[:, 0] * table[:, 2] + memory * table[:, 1] * table[:, 3]
    return table, 1 + contended + rng.normal(scale=0.02, size=rows)


def mean_error(fitted, table, slowdown):
    return np.abs(fitted.predict(table) - slowdown).mean()


def test_table_4_has_the_parameters_of_the_paper():
    table, slowdown = synthetic(0, 40)
    network = TensorShareRegressor(max_iter=1).fit(np.hstack([table, table]), slowdown).network_
    counts = [layer.weights.size + layer.bias.size for layer in network.layers]
    # MLP_1, MLP_2, five times MLP_3-7, MLP_8, MLP_9, MLP_10; the output is one of two, 34 / 2.
    assert counts == [2304, 8224, *[1056] * 5, 33_792, 65_600, 1040, 17]
    assert len(TABLE_4) == 10


def test_learns_a_synthetic_gpu():
    fitted = TensorShareRegressor(**SMALL).fit(*synthetic(0, 800))
    table, slowdown = synthetic(1, 400)
    # The noise alone has a mean error of 0.02 * sqrt(2 / pi) = 0.016; a constant's is 0.2.
    assert mean_error(fitted, table, slowdown) < 0.03


def test_the_paper_s_structure_learns():
    fitted = TensorShareRegressor(max_iter=40).fit(*synthetic(0, 400))
    assert mean_error(fitted, *synthetic(1, 400)) < 0.06


def test_predicts_what_scikit_learn_s_network_predicts():
    table, slowdown = synthetic(0, 100)
    fitted = TensorShareRegressor(hidden_layer_sizes=(8, 4), max_iter=5).fit(table, slowdown)
    network = fitted.network_
    reference = MLPRegressor(hidden_layer_sizes=(8, 4), max_iter=1)
    reference.partial_fit(table, slowdown)
    reference.coefs_ = [layer.weights for layer in network.layers]
    reference.intercepts_ = [layer.bias for layer in network.layers]
    expected = reference.predict(network.ranges.scaled(table))
    np.testing.assert_allclose(fitted.predict(table), np.maximum(expected, slowdown.min()))


def test_form_predicts_the_same_mirrored_and_for_a_pair_with_itself():
    table, slowdown = synthetic(0, 100)
    fitted = TensorShareRegressor(**SMALL, max_iter=5).fit(table, slowdown)
    states = np.random.default_rng(1).uniform(size=(9, 2))
    own, other = np.divmod(np.arange(81), 9)
    form = Network.from_arrays(fitted.to_form().arrays(), 2)
    found = form.predict(states, own, other)
    expected = fitted.predict(np.hstack([states[own], states[other]]))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    mirrored = form.predict(states, other, own)
    assert np.array_equal(mirrored.reshape(9, 9), found.reshape(9, 9).T)
    assert len(set(form.predict(states, np.array([4, 4]), np.array([4, 4])))) == 1


def test_the_seed_decides():
    table, slowdown = synthetic(0, 100)

    def predicted(seed):
        return (
            TensorShareRegressor(**SMALL, max_iter=5, random_state=seed)
            .fit(table, slowdown)
            .predict(table)
        )

    assert np.array_equal(predicted(1), predicted(1))
    assert not np.array_equal(predicted(1), predicted(2))


def test_validation_rows_stop_the_training_and_the_best_weights_are_kept():
    # The slowdown is noise: soon the rows learned say nothing of the others.
    rng = np.random.default_rng(0)
    table, slowdown = rng.uniform(size=(200, 4)), rng.normal(2, 0.1, size=200)
    patient = TensorShareRegressor(**SMALL, max_iter=400, n_iter_no_change=20).fit(table, slowdown)
    assert patient.n_iter_ < 400
    best = patient.n_iter_ - 20
    stopped = TensorShareRegressor(**SMALL, max_iter=best).fit(table, slowdown)
    assert np.array_equal(patient.predict(table), stopped.predict(table))


def test_no_slowdown_below_the_least_of_training():
    table, slowdown = synthetic(0, 60)
    fitted = TensorShareRegressor(**SMALL).fit(table, slowdown)
    assert fitted.predict(np.full((1, 4), -10.0)) >= slowdown.min()
    assert np.isfinite(fitted.predict(np.array([[1e300, -1e300, 1e300, -1e300]]))).all()


def test_constant_columns_and_a_constant_slowdown():
    table = np.hstack([synthetic(0, 60)[0], np.full((60, 1), 7.0)])
    fitted = TensorShareRegressor(**SMALL).fit(table, np.full(60, 1.5))
    np.testing.assert_allclose(fitted.predict(table), 1.5, atol=0.05)
    moved = table.copy()
    moved[:, 4] = -3.0
    assert np.array_equal(fitted.predict(table), fitted.predict(moved))


def test_few_rows_are_learned_without_validation_rows():
    table, slowdown = synthetic(0, 7)
    fitted = TensorShareRegressor(**SMALL, max_iter=300, n_iter_no_change=300).fit(table, slowdown)
    assert mean_error(fitted, table, slowdown) < 0.02


def test_an_odd_number_of_columns_is_no_pair():
    table, slowdown = synthetic(0, 30)
    fitted = TensorShareRegressor(**SMALL, max_iter=1).fit(table[:, :3], slowdown)
    with pytest.raises(InputError, match="must have as many columns for both jobs, got 3"):
        fitted.to_form()


def test_registered():
    assert spec("tensorshare").build(3).get_params()["random_state"] == 3


def test_transfer_keeps_the_first_layer_bit_for_bit_and_changes_the_others():
    first = TensorShareRegressor(**SMALL).fit(*synthetic(0, 300))
    before = {name: values.copy() for name, values in first.network_.arrays().items()}
    tuned = first.transferred(*synthetic(2, 60, memory=2.0)).network_.arrays()
    unchanged = {name for name in before if np.array_equal(before[name], tuned[name])}
    assert unchanged == {"low", "high", "floor", "weights_0", "bias_0"} - (
        set() if tuned["floor"] == before["floor"] else {"floor"}
    )
    after = first.network_.arrays()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_transfer_with_few_rows_beats_training_on_them():
    # A second synthetic GPU on which the memory is contended more; 40 rows of it, four seeds.
    first = TensorShareRegressor(**SMALL).fit(*synthetic(0, 500))
    test = synthetic(99, 400, memory=1.6)
    tuned, scratch = [], []
    for seed in range(4):
        few = synthetic(10 + seed, 40, memory=1.6)
        tuned += [mean_error(first.transferred(*few, frozen=layers), *test) for layers in (1, 2)]
        scratch.append(
            mean_error(TensorShareRegressor(**SMALL, random_state=seed).fit(*few), *test)
        )
    assert max(tuned) < min(scratch)
    assert max(tuned) < mean_error(first, *test)


@pytest.mark.parametrize("frozen", [0, 3])
def test_transfer_freezes_some_layers_and_not_all(frozen):
    table, slowdown = synthetic(0, 30)
    fitted = TensorShareRegressor(**SMALL, max_iter=1).fit(table, slowdown)
    with pytest.raises(InputError, match=f"frozen: must be between 1 and 2, got {frozen}"):
        fitted.transferred(table, slowdown, frozen=frozen)


@pytest.mark.skipif(
    not GAVEL.exists(), reason=f"no data at {GAVEL}: python benchmarks/fetch_data.py"
)
@pytest.mark.slow
def test_transfer_with_few_measured_pairs_beats_training_on_them():
    # From Gavel's K80 to its P100 with 10 of the 340 pairs, mean of four draws. The only
    # profile there is is the throughput.
    settings = {"max_iter": 150}
    old, new = gavel("k80"), gavel("p100")
    first = TensorShareRegressor(**settings).fit(old.table, old.slowdown)
    tuned, scratch, unchanged = [], [], []
    for seed in range(4):
        few = np.random.default_rng(seed).permutation(new.pair.max() + 1)[:10]
        chosen = np.isin(new.pair, few)
        learned, test = new.take(chosen), new.take(~chosen)
        again = TensorShareRegressor(**settings, random_state=seed).fit(
            learned.table, learned.slowdown
        )
        for errors, fitted in (
            (tuned, first.transferred(learned.table, learned.slowdown)),
            (scratch, again),
            (unchanged, first),
        ):
            errors.append(mean_error(fitted, test.table, test.slowdown))
    assert np.mean(tuned) < np.mean(scratch)
    assert np.mean(tuned) < np.mean(unchanged)


def gavel(device):
    """Return the rows of one of Gavel's devices."""
    instance = import_gavel(str(GAVEL), device, 1)
    data = DataSet(
        name=device,
        profiles=[
            SoloProfile(workload=name, gpu_model=device, throughput=workload.throughput[100])
            for name, workload in instance.workloads.items()
        ],
        measurements=[
            Measurement(workloads=entry.pair, gpu_model=device, slowdown=entry.slowdown)
            for entry in instance.slowdowns
        ],
    )
    return training_rows(data, ["log_throughput"])[1]
