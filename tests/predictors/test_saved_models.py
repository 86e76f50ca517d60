"""Every model of the core, through a model file and back, and with its arrays tampered."""

import random
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from dovetail.instances.datasets import DataSet
from dovetail.instances.errors import InputError
from dovetail.instances.metrics import METRICS
from dovetail.predictors.estimators.registry import MODELS, spec
from dovetail.predictors.fitted.archive import packed, unpacked
from dovetail.predictors.fitted.bounds import calibrate
from dovetail.predictors.fitted.fits import FittedForm, ModelFit
from dovetail.predictors.fitted.folds import family_folds, held_out, random_folds
from dovetail.predictors.fitted.model_file import load_model, save_model
from dovetail.predictors.fitted.planned import BLIND
from dovetail.predictors.fitted.rows import training_rows
from dovetail.predictors.fitted.trained import TrainedPredictor

GPU = "V100"
NAMES = [f"w{k}" for k in range(7)]


def data_set():
    """Return made-up profiles and slowdowns of every pair of seven workloads."""
    draw = np.random.default_rng(0)
    rates = [name for name in METRICS if "bytes" in name]
    profiles = [
        {
            "workload": name,
            "gpu_model": GPU,
            "metrics": {m: float(draw.random()) * (1e9 if m in rates else 1) for m in METRICS},
            "metrics_variance": {m: float(draw.random()) for m in METRICS},
            "throughput": 100.0 + 10 * k,
            "power_w": 200.0,
            "memory_mib": 1000.0 * (k + 1),
            "memory_mean_mib": 900.0 * (k + 1),
            "duration_s": 60.0,
        }
        for k, name in enumerate(NAMES)
    ]
    pairs = [(a, b) for k, a in enumerate(NAMES) for b in NAMES[k:]]
    measured = [
        {"workloads": [a, b], "gpu_model": GPU, "slowdown": [float(s)] * 2}
        if a == b
        else {"workloads": [a, b], "gpu_model": GPU, "slowdown": [float(s), float(s) + 0.1]}
        for (a, b), s in zip(pairs, 1 + draw.random(len(pairs)), strict=True)
    ]
    return DataSet.from_data({"name": "made up", "profiles": profiles, "measurements": measured})


@pytest.fixture(scope="module", params=MODELS)
def fitted(request):
    """Fit a model; skip where its library is not installed."""
    pytest.importorskip("sklearn")
    return made(request.param)


def made(name):
    """Return a predictor of one model, and workloads that it knows."""
    data, model = data_set(), spec(name)
    features, rows = training_rows(data, model.features, partial=model.partial)
    form = model.build(0).fit(rows.table, rows.slowdown).to_form()
    member = FittedForm(name, features, form)
    fit = ModelFit(member, rows.names, ((0, 0),), (0.5, 5.0))
    return TrainedPredictor({GPU: fit}), data.workloads(GPU)


def answers(predictor, workloads):
    first, second = np.triu_indices(len(workloads))
    pairs = np.stack([first, second], axis=1)
    return predictor.predict(workloads, pairs, np.zeros_like(pairs), GPU).slowdown


def test_a_loaded_model_says_the_same(fitted, tmp_path):
    predictor, workloads = fitted
    assert not any(predictor.lacks(name, w) for name, w in workloads.items())
    path = tmp_path / "model.dovetail"
    save_model(predictor, path)
    before, after = answers(predictor, workloads), answers(load_model(path), workloads)
    assert np.isfinite(before).all()
    np.testing.assert_array_equal(before, after)
    save_model(load_model(path), tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_tables_and_rows_agree(fitted):
    predictor, workloads = fitted
    table = predictor.predict_table(workloads, [(0, 0)]).slowdown[..., 0]
    first, second = np.triu_indices(len(workloads))
    expected = np.stack([table[first, second], table[second, first]], axis=1)
    np.testing.assert_allclose(answers(predictor, workloads), expected, rtol=1e-6)


@pytest.fixture(scope="module")
def calibrated():
    """Return the constant model with bounds that were calibrated on the made-up data."""
    pytest.importorskip("sklearn")
    data, model = data_set(), spec("constant")
    features, rows = training_rows(data, model.features)
    known, new = (held_out(model, rows, fold(rows)) for fold in (random_folds, family_folds))
    bound = calibrate(rows, known, new, settings=(BLIND,))
    form = model.build(0).fit(rows.table, rows.slowdown).to_form()
    fit = ModelFit(FittedForm("constant", features, form), rows.names, ((0, 0),), (0.5, 5.0), bound)
    return TrainedPredictor({GPU: fit}, 0.6), data.workloads(GPU)


def test_bounds_are_saved_too(calibrated, tmp_path):
    predictor, workloads = calibrated
    path = tmp_path / "model.dovetail"
    save_model(predictor, path)
    pairs, shares = np.array([[0, 1], [7, 2]]), np.zeros((2, 2), dtype=np.int64)
    known = {**workloads, "new": workloads["w0"]}
    before, after = (p.predict(known, pairs, shares) for p in (predictor, load_model(path)))
    assert (before.upper >= before.slowdown).all()
    np.testing.assert_array_equal(before.upper, after.upper)
    gangs = replace(predictor, workers={"w1": 8}).predict(known, pairs, shares).upper
    assert gangs[0, 1] >= before.upper[0, 1]


def test_a_confidence_that_the_data_cannot_support_gives_no_bound(calibrated):
    predictor, workloads = calibrated
    pairs, shares = np.array([[0, 1]]), np.zeros((1, 2), dtype=np.int64)
    found = replace(predictor, confidence=0.999).predict(workloads, pairs, shares)
    assert np.isfinite(found.slowdown).all()
    assert np.isnan(found.upper).all()


def tampered(values, draw):
    """Return an array with a few other numbers in it, or of another shape or kind."""
    changed = values.copy()
    choice = draw.randrange(6)
    if choice == 0:
        return changed.reshape(-1)[: max(0, changed.size - 1)]
    if choice == 1:
        return np.concatenate([changed.reshape(-1), changed.reshape(-1)[:1]])
    if choice == 2:
        return changed.astype(draw.choice([np.float32, np.float64, np.int64, np.bool_]))
    odd = [0, 1, -1, 2**31, 2**62] if changed.dtype.kind in "iub" else [np.nan, np.inf, -1e300, 0]
    for _ in range(draw.choice([1, 1, 3]) if changed.size else 0):
        place = np.unravel_index(draw.randrange(changed.size), changed.shape)
        with np.errstate(all="ignore"):
            changed[place] = np.array(draw.choice(odd)).astype(changed.dtype)
    return changed


def tamper(predictor, workloads, place, arrays, path, times):
    """Load the model so often, one of these arrays tampered: an error in a line, or numbers."""
    draw = random.Random(3)
    save_model(predictor, path)
    parts = unpacked(path.read_bytes())
    for _ in range(times):
        name = draw.choice(sorted(arrays))
        entry = f"{place}/{name}.npy"
        other = unpacked(packed({entry: tampered(np.asarray(arrays[name]), draw)}))[entry]
        with zipfile.ZipFile(path, "w") as archive:
            for part, content in {**parts, entry: other}.items():
                archive.writestr(part, content)
        message = ""
        try:
            found = answers(load_model(path), workloads)
        except InputError as error:
            message = str(error)
        assert "\n" not in message
        assert message or not np.isinf(found).any()


casts = pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
often = pytest.mark.parametrize("times", [50, pytest.param(500, marks=pytest.mark.slow)])


@casts
@often
def test_tampered_forms_are_refused_or_give_numbers(fitted, tmp_path, times):
    predictor, workloads = fitted
    arrays = predictor.fits[GPU].member.form.arrays()
    tamper(predictor, workloads, "fits/0/member", arrays, tmp_path / "model.dovetail", times)


@casts
@often
def test_tampered_bounds_are_refused_or_give_numbers(calibrated, tmp_path, times):
    predictor, workloads = calibrated
    arrays = predictor.fits[GPU].bound.arrays()
    tamper(predictor, workloads, "fits/0/bound", arrays, tmp_path / "model.dovetail", times)
