"""What was measured is not predicted: pairs, workloads by name, and other GPU models."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dovetail.instances.datasets import DataSet, Measurement, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.metrics import Metrics
from dovetail.predictors import in_doubt, predict
from dovetail.predictors.fitted import evidence
from dovetail.predictors.fitted.evidence import Evidence, codes
from dovetail.predictors.fitted.model_file import load_model, save_model
from dovetail.predictors.fitted.repeats import repeats_of
from dovetail.predictors.fitted.training import fit, update
from tests.predictors.synthetic import GPU, synthetic
from tests.predictors.test_model_file import parts, refused, rewrite

ODD = (1.9, 2.3)
"""Slowdowns that no other pair would make a model predict."""


@pytest.fixture(scope="module")
def data():
    """Return synthetic pairs, one of which is far off what its workloads do otherwise."""
    found = synthetic()
    first, *rest = (m for m in found.measurements if m.workloads != ("f0 b0", "f1 b0"))
    odd = first.replace(workloads=("f0 b0", "f1 b0"), slowdown=ODD)
    failed = first.replace(workloads=("f2 b0", "f3 b0"), slowdown=None)
    kept = [m for m in (first, *rest) if m.workloads != failed.workloads]
    return found.replace(measurements=(*kept, odd, failed))


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "m"
    save_model(fit(data), path)
    return load_model(path)


def problem(names, workloads=None, gsla=None, workers=1, gpu_model=GPU):
    node = {"id": "n", "gpu_count": 4, "gpu": {"model": gpu_model, "memory_mib": 8000}}
    return Instance.from_data(
        {
            "name": "p",
            "cluster": {"nodes": [node]},
            "workloads": workloads or {name: {"memory_mib": 1000} for name in names},
            "jobs": [
                {"id": f"j{k}", "workload": name, "workers": workers}
                | ({} if gsla is None else {"gsla": gsla})
                for k, name in enumerate(names)
            ],
        }
    )


def test_a_measured_pair_has_what_was_measured_and_a_bound_of_its_noise(model):
    (entry,) = predict(problem(["f0 b0", "f1 b0"]), model).slowdowns
    assert (entry.slowdown, entry.source, entry.confidence) == (ODD, "measured", 0.9)
    assert entry.upper == pytest.approx([repeats_of([s]).upper for s in ODD], abs=1e-4)
    # A bound of a prediction would be far above, since the model errs by so much.
    plain = replace(model, fits={GPU: replace(model.fits[GPU], evidence=None)})
    (guessed,) = predict(problem(["f0 b0", "f1 b0"]), plain).slowdowns
    assert guessed.source == "model"
    assert guessed.slowdown != ODD
    (other,) = predict(problem(["f0 b0", "f1 b0"]), model, confidence=0.5).slowdowns
    assert other.slowdown == ODD
    assert other.upper < entry.upper


def test_the_slowest_worker_of_a_gang_stays_below_its_bound(model):
    (one,) = predict(problem(["f0 b0", "f1 b0"]), model).slowdowns
    (gang,) = predict(problem(["f0 b0", "f1 b0"], workers=2), model).slowdowns
    assert gang.slowdown == one.slowdown
    assert gang.upper == pytest.approx([repeats_of([s], 0.95).upper for s in ODD], abs=1e-4)


def test_a_pair_that_did_not_run_together_gets_no_number(model):
    assert predict(problem(["f2 b0", "f3 b0"]), model).slowdowns == ()


def test_a_table_has_the_same_numbers(model, data):
    workloads = {name: Workload(memory_mib=1) for name in ("f1 b0", "f0 b0", "f2 b0", "f3 b0")}
    table = model.predict_table(workloads, [(0, 0)], GPU)
    rows = np.indices((4, 4)).reshape(2, -1).T
    found = model.predict(workloads, rows, np.zeros_like(rows), GPU)
    np.testing.assert_allclose(table.slowdown.reshape(-1), found.slowdown[:, 0], rtol=1e-6)
    np.testing.assert_allclose(table.upper.reshape(-1), found.upper[:, 0], rtol=1e-6)
    assert table.slowdown[1, 0, 0] == np.float32(ODD[0])
    assert math.isnan(table.slowdown[2, 3, 0])
    assert found.measured.all()


def test_repeats_are_averaged_as_speeds(data):
    again = Measurement(workloads=("f1 b0", "f0 b0"), gpu_model=GPU, slowdown=(2.5, 2.1))
    found = Evidence.of(data.merged(DataSet(name="d", measurements=[again])), GPU)
    cells = found.cells(["f0 b0", "f1 b0"], {}, 0.9)
    # 1.9 and 2.1: the mean of the speeds.
    (cell,) = cells.found(codes(0, 0, 1, 0, 2))[1]
    assert cells.slowdown[cell] == pytest.approx(2 / (1 / 1.9 + 1 / 2.1))


def test_a_workload_with_a_name_from_the_data_is_that_workload(model, data):
    """By name alone it is predicted as with its whole profile."""
    names = ["f0 b0", "f4 b1", "new"]
    known = data.workloads(GPU)
    new = {"memory_mib": 1000, "metrics": {"sm_active": 0.4, "dram_active": 0.2}}
    profiled = {
        name: known[name].replace(memory_mib=1000).to_data() if name in known else new
        for name in names
    }
    by_name = {name: {"memory_mib": 1000} if name in known else new for name in names}
    assert (
        predict(problem(names, by_name), model).slowdowns
        == predict(problem(names, profiled), model).slowdowns
    )


def test_figures_of_the_instance_count_where_it_has_some():
    profile = SoloProfile(
        workload="a", gpu_model=GPU, metrics={"sm_active": 0.5}, throughput=10.0, family="f"
    )
    capped = profile.replace(share=50, throughput=8.0, metrics=None)
    found = Evidence.of(DataSet(name="d", profiles=[profile, capped]), GPU)
    own = Workload(memory_mib=7, metrics=Metrics(sm_active=0.9), family="g")
    assert found.described("b", own) == own
    described = found.described("a", own)
    assert described == own.replace(throughput={100: 10.0, 50: 8.0})
    curve = own.replace(throughput={100: 20.0, 25: 5.0})
    assert found.described("a", curve) == curve


def test_what_a_model_has_learnt_is_carried_along(model, data):
    new = Measurement(workloads=("f2 b0", "f4 b0"), gpu_model=GPU, slowdown=(3.1, 3.2))
    others = [m for m in data.measurements if m.workloads != new.workloads]
    before = fit(data.replace(measurements=others))
    after = update(before, data.replace(measurements=[*others, new])).predictor
    (entry,) = predict(problem(["f2 b0", "f4 b0"]), after).slowdowns
    assert (entry.slowdown, entry.source) == ((3.1, 3.2), "measured")


def test_another_gpu_model_has_neither_measurements_nor_bounds(model):
    taken = model.standing_in({"other": GPU})
    filled = predict(problem(["f0 b0", "f1 b0"], gpu_model="other"), taken)
    (entry,) = filled.slowdowns
    assert (entry.source, entry.upper) == ("estimate", None)
    assert entry.slowdown != ODD
    # So no gSLA may rest on it.
    promised = problem(["f0 b0", "f1 b0"], gsla=3.0, gpu_model="other")
    assert predict(promised, taken).slowdowns == ()
    assert in_doubt(promised, taken) == (("f0 b0", "f1 b0"),)
    assert len(predict(problem(["f0 b0", "f1 b0"], gsla=3.0), taken).slowdowns) == 1


def test_measured_pairs_support_any_confidence(model):
    (entry,) = predict(problem(["f0 b0", "f1 b0"]), model, confidence=0.9999).slowdowns
    assert entry.source == "measured"
    assert predict(problem(["f2 b0", "x"]), model, confidence=0.9999).slowdowns == ()
    with pytest.raises(InputError, match="confidence: must be at most"):
        predict(problem(["x", "y"]), model, confidence=0.9999)


def test_large_data_are_not_carried(data, monkeypatch, tmp_path):
    monkeypatch.setattr(evidence, "MOST_RECORDS", len(data.profiles) + len(data.measurements) - 1)
    assert Evidence.of(data, GPU) is None
    save_model(fit(data), tmp_path / "m")
    assert load_model(tmp_path / "m").fits[GPU].evidence is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "fits[0].data.fits/0/data.json: must be UTF-8 text"),
        (b"{", "fits[0].data"),
        (b"[]", "fits[0].data: must be"),
        (b'{"name": "d", "measurements": [{"workloads": ["a"]}]}', "fits[0].data.measurements[0]"),
        (
            b'{"name": "d", "profiles": [{"workload": "a", "gpu_model": "other"}]}',
            "fits[0].data.gpu_model: must be of 'made-up' only, got 'other'",
        ),
        (
            b'{"name": "d", "measurements": [{"workloads": ["a", "b"], "gpu_model": "made-up", '
            b'"slowdown": [2, 2], "mode": "time_sliced"}]}',
            "fits[0].data.measurements: must be of mode mps only",
        ),
        (None, "fits/0/data.json: this part is missing"),
    ],
)
def test_data_that_cannot_be(model, tmp_path, content, message):
    path = tmp_path / "m"
    save_model(model, path)
    rewrite(path, {"fits/0/data.json": content})
    refused(path, message)


def test_a_file_of_the_first_format_has_no_data(model, tmp_path):
    path = tmp_path / "m"
    save_model(model, path)
    header = parts(path)["model.json"]
    assert b'"data": true' in header
    rewrite(
        path,
        {
            "model.json": header.replace(b'"data": true', b'"data": false').replace(
                b"dovetail-model/2", b"dovetail-model/1"
            ),
            "fits/0/data.json": None,
        },
    )
    loaded = load_model(path)
    assert loaded.fits[GPU].evidence is None
    (entry,) = predict(problem(["f0 b0", "f1 b0"]), loaded).slowdowns
    assert entry.source == "model"
