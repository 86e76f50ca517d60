"""Model files survive a round trip, and their contents are checked on loading."""

import io
import json
import pickle
import random
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dovetail.instances.datasets import DataSet
from dovetail.instances.errors import InputError
from dovetail.predictors.fitted.about import About, TrainingData
from dovetail.predictors.fitted.model_file import UNITS, load_model, save_model
from dovetail.predictors.fitted.trained import TrainedPredictor
from tests.predictors.fitted import Margin, busy, fit, linear, member, register

DATA = DataSet.from_data(
    {
        "name": "made by hand",
        "profiles": [{"workload": "a", "gpu_model": "V100", "source": "bench"}],
        "measurements": [
            {"workloads": ["a", "b"], "gpu_model": "V100", "slowdown": [1.2, 1.4]},
        ],
    }
)
ABOUT = About(
    created="2026-11-21",
    training=TrainingData.of(DATA, "CC0"),
    held_out={"workload": {"mae": 0.08}},
)
WEIGHTS = "fits/0/member/weights.npy"


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    register(monkeypatch)


def predictor():
    old = fit(member(linear((0.1, 0.4)), "gpu_util"))
    seen = "sm_active", "share", "workload"
    one = member(linear((0.1, 1.0), (0.0, 0.2), (0.0, 0.0)), *seen, known=("a", "b"))
    power = member(linear((10.0, 20.0), base=100.0), "sm_active")
    new = fit(one, splits=[(0, 0), (30, 70)], bound=Margin(), power=power)
    return TrainedPredictor({"V100": new, "K80": old}, 0.8, ABOUT)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "a.dovetail"
    save_model(predictor(), path)
    return path


def parts(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewrite(path, changes=None, **header):
    """Write the file again with other parts (None: without) and other fields of the header."""
    found = parts(path)
    described = json.loads(found["model.json"])
    described.update(header)
    found["model.json"] = json.dumps(described).encode()
    found.update(changes or {})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in found.items():
            if content is not None:
                archive.writestr(name, content)


def npy(values, **options):
    buffer = io.BytesIO()
    np.save(buffer, values, **options)
    return buffer.getvalue()


def refused(path, message):
    with pytest.raises(InputError) as caught:
        load_model(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert message in text
    assert "\n" not in text


def test_what_is_saved_is_loaded(saved):
    loaded = load_model(saved)
    assert (loaded.confidence, loaded.about) == (0.8, ABOUT)
    assert loaded.gpu_models == ("V100", "K80")
    workloads = {"a": busy(0.3), "b": busy(0.4), "c": busy(0.5)}
    pairs = np.array([[0, 1], [0, 2], [2, 2]])
    for shares in (np.zeros((3, 2), dtype=np.int64), np.tile([30, 70], (3, 1))):
        for gpu_model in predictor().gpu_models:
            before = predictor().predict(workloads, pairs, shares, gpu_model)
            after = load_model(saved).predict(workloads, pairs, shares, gpu_model)
            for name in before._fields:
                np.testing.assert_array_equal(getattr(before, name), getattr(after, name))


def test_the_same_model_gives_the_same_bytes(saved, tmp_path):
    again = tmp_path / "again"
    save_model(load_model(saved), again)
    assert again.read_bytes() == saved.read_bytes()


def test_what_is_inside_can_be_looked_at(saved):
    found = parts(saved)
    header = json.loads(found["model.json"])
    assert header["format"] == "dovetail-model/2"
    assert header["units"] == dict(UNITS)
    assert header["about"]["training"]["sha256"] == DATA.fingerprint
    assert header["about"]["training"]["licence"] == "CC0"
    assert header["about"]["training"]["sources"] == ["bench"]
    assert header["fits"][0]["member"]["features"] == ["sm_active", "share", "workload"]
    assert np.load(io.BytesIO(found[WEIGHTS])).shape == (2, 3)


def test_nothing_is_left_behind_when_it_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        save_model(predictor(), tmp_path / "absent" / "model")
    assert not list(tmp_path.iterdir())


class Payload:
    """Unpickled, this makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("dress", ["bare", "npy", "object array"])
def test_a_pickle_is_refused_and_not_run(saved, tmp_path, dress):
    trap = tmp_path / "trap"
    payload = Payload(trap)
    content = {
        "bare": pickle.dumps(payload),
        "npy": npy(np.zeros(1))[:128] + pickle.dumps(payload),
        "object array": npy(np.array([payload], dtype=object), allow_pickle=True),
    }[dress]
    pickle.loads(pickle.dumps(payload))
    assert trap.exists()
    trap.unlink()
    rewrite(saved, {WEIGHTS: content})
    refused(saved, "fits[0].member.weights: must h" if dress == "object array" else "must ")
    assert not trap.exists()


def test_a_model_that_is_a_pickle(tmp_path):
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Payload(tmp_path / "trap")))
    refused(path, "is not a model file")
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (WEIGHTS, None, f"{WEIGHTS}: this part is missing"),
        ("model.json", None, "is not a model file: it has no model.json"),
        ("../../evil.py", b"print()", "'../../evil.py': is no part of a model file"),
        ("/tmp/evil", b"", "'/tmp/evil': is no part of a model file"),
        ("fits/0/member/more.npy", npy(np.zeros(1)), "is no part of a model file"),
        (WEIGHTS, b"", "fits[0].member.weights: must be an array in npy format 1.0"),
        (WEIGHTS, npy(np.zeros((2, 3), ">f8")), "must hold bool, uint8, int64, float32 or float64"),
        (WEIGHTS, npy(np.zeros((2, 3), "<c16")), "float32 or float64, got '<c16'"),
        (WEIGHTS, npy(np.zeros((2, 3), [("x", "f8")])), "must be an array in npy format 1.0"),
        (WEIGHTS, npy(np.zeros((2, 3), order="F")), "must be an array in npy format 1.0"),
        (WEIGHTS, npy(np.zeros((2, 3)))[:-1], "must have 48 bytes of shape (2, 3), got 47"),
        (WEIGHTS, npy(np.zeros((2, 3))) + b"x", "must have 48 bytes of shape (2, 3), got 49"),
        (WEIGHTS, npy(np.zeros((1, 1, 1, 1, 1))), "must have at most 4 dimensions, got 5"),
        (WEIGHTS, npy(np.zeros((2, 2))), "weights: must have shape (2, 3), got (2, 2)"),
        (WEIGHTS, npy(np.zeros((2, 3), np.float32)), "weights: must have shape (2, 3)"),
        (WEIGHTS, npy(np.full((2, 3), np.nan)), "member.weights: must be finite"),
        ("model.json", b"{", "is not valid JSON"),
        ("model.json", b"[]", "must be a mapping"),
        ("model.json", b"\xff", "model.json: must be UTF-8 text"),
        ("model.json", b"[" * 100_000, "must not be nested so deeply"),
    ],
)
def test_parts_that_cannot_be(saved, name, content, message):
    rewrite(saved, {name: content})
    refused(saved, message)


def test_an_array_that_claims_to_be_huge(saved):
    small = npy(np.zeros((2, 3)))
    rewrite(saved, {WEIGHTS: small.replace(b"(2, 3), }      ", b"(999999999,)}  ")})
    refused(saved, "must be an array in npy format 1.0")
    rewrite(saved, {WEIGHTS: small.replace(b"(2, 3), }        ", b"(999999999,), }  ")})
    refused(saved, "must have 7999999992 bytes")


def test_bools_other_than_true_and_false(saved):
    rewrite(saved, {WEIGHTS: npy(np.zeros(2, np.bool_))[:-2] + b"\x01\x02"})
    refused(saved, "must hold true and false only")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "format",
            "dovetail-model/3",
            "format: must be 'dovetail-model/2', got 'dovetail-model/3' (a newer Dovetail may",
        ),
        ("format", None, "format: must be 'dovetail-model/2', got null"),
        ("units", {**UNITS, "memory": "MB"}, "units.memory: must be 'MiB', got 'MB'"),
        ("units", {}, "units.fractions: must be '0 to 1', got null"),
        ("units", {**UNITS, "time": "s"}, "units.time: must be null, got 's'"),
        ("confidence", 1.0, "confidence: must be < 1, got 1.0"),
        ("fits", [], "fits: must have 1 or more items"),
        ("about", {"training": {"name": "x"}}, "about.training.sha256: this field is required"),
        ("run", "rm -rf", "run: unknown field"),
    ],
)
def test_headers_that_cannot_be(saved, field, value, message):
    rewrite(saved, **{field: value})
    refused(saved, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpu_model": "K80"}, "fits[1].gpu_model: GPU models must differ, got 'K80' twice"),
        ({"limits": [3.0, 1.0]}, "fits[0].limits: must be 0 < lowest <= highest"),
        ({"splits": [[0, 101]]}, "fits[0].splits[0][1]: must be <= 100, got 101"),
        ({"member": None}, "fits[0].member"),
    ],
)
def test_fits_that_cannot_be(saved, change, message):
    fits = json.loads(parts(saved)["model.json"])["fits"]
    rewrite(saved, fits=[{**fits[0], **change}, fits[1]])
    refused(saved, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"form": "pickle"},
            "fits[0].member.form: must be a form that is installed (analytic, constant, hierarchy, "
            "kernels, linear), got 'pickle'",
        ),
        (
            {"form": "os"},
            "must be a form that is installed (analytic, constant, ",
        ),
        ({"features": ["__class__"]}, "fits[0].member.features: must be one of workload"),
        ({"features": ["sm_active", "share"]}, "weights: must have shape (2, 2), got (2, 3)"),
        ({"arrays": ["../weights"]}, "fits[0].member.arrays[0]: "),
        ({"arrays": ["base"]}, "'fits/0/member/weights.npy': is no part of a model file"),
    ],
)
def test_members_that_cannot_be(saved, change, message):
    fits = json.loads(parts(saved)["model.json"])["fits"]
    fits[0]["member"].update(change)
    rewrite(saved, fits=fits)
    refused(saved, message)


def test_files_that_are_no_models(tmp_path, saved):
    path = tmp_path / "other"
    refused(path, "cannot be read: no such file")
    path.write_bytes(b"")
    refused(path, "is not a model file")
    path.write_text("format: dovetail-instance/1")
    refused(path, "is not a model file")
    path.write_bytes(saved.read_bytes()[:-5])
    refused(path, "is damaged or cut short")


def test_a_part_twice(saved):
    with zipfile.ZipFile(saved, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("model.json", "{}")
    refused(saved, "must have every part once")


def test_other_ways_of_packing(saved):
    found = parts(saved)
    with zipfile.ZipFile(saved, "w", zipfile.ZIP_BZIP2) as archive:
        for name, content in found.items():
            archive.writestr(name, content)
    refused(saved, "must be packed with deflate")


def test_a_small_file_that_would_unpack_to_much(saved, monkeypatch):
    monkeypatch.setattr("dovetail.predictors.fitted.archive.MOST_BYTES", 2**20)
    rewrite(saved, {WEIGHTS: b"\x00" * 2**22})
    assert saved.stat().st_size < 2**14
    refused(saved, "must hold at most 1 MiB, got 4 MiB")


def test_a_file_that_lies_about_its_size(saved):
    raw = bytearray(saved.read_bytes())
    # Of the last entry in the directory: the unpacked size, 24 bytes behind its signature.
    entry = raw.rfind(b"PK\x01\x02")
    raw[entry + 24 : entry + 28] = struct.pack("<I", 10)
    saved.write_bytes(raw)
    refused(saved, "is damaged or cut short")


def test_a_directory_of_too_many_parts(saved):
    rewrite(saved, {f"x{k}": b"" for k in range(10_001)})
    refused(saved, "must have at most 10000 parts")


def attempt(path):
    """Load a file that was tampered with: it is refused in one line, or a predictor."""
    message = ""
    try:
        loaded = load_model(path)
    except InputError as error:
        message = str(error)
    if message:
        assert "\n" not in message
        return False
    workloads = {"a": busy(0.3), "b": busy(0.4)}
    rows = np.array([[0, 1]]), np.array([[0, 0]])
    for gpu_model in loaded.gpu_models:
        found = loaded.predict(workloads, *rows, gpu_model).slowdown
        assert np.isnan(found).all() or np.isfinite(found).all()
    return True


def test_flipped_and_missing_bytes(saved, tmp_path):
    raw, draw = saved.read_bytes(), random.Random(1)
    path = tmp_path / "flipped"
    for _ in range(600):
        tampered = bytearray(raw)
        for _ in range(draw.choice([1, 1, 2, 8])):
            tampered[draw.randrange(len(raw))] = draw.randrange(256)
        if draw.random() < 0.2:
            del tampered[draw.randrange(len(raw)) :]
        path.write_bytes(tampered)
        attempt(path)


def test_every_byte_of_the_directory_flipped(saved, tmp_path):
    raw, path = saved.read_bytes(), tmp_path / "flipped"
    begin = raw.find(b"PK\x01\x02")
    for place in range(begin, len(raw)):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 0xFF]) + raw[place + 1 :])
        attempt(path)


ODD = [None, True, -1, 0, 1.5, 1e308, 2**70, "", "x", "\ud800", [], {}, [[]], {"a": 1}, "../x"]


def edited(value, draw):
    """Return JSON data with one random place replaced, removed or doubled."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.15:
        return draw.choice(ODD)
    places = list(value) if isinstance(value, dict) else list(range(len(value)))
    place = draw.choice(places)
    changed = value.copy()
    if draw.random() < 0.15:
        del changed[place]
    else:
        changed[place] = edited(value[place], draw)
    return changed


def test_headers_edited_at_random(saved):
    found, draw = parts(saved), random.Random(2)
    header = json.loads(found["model.json"])
    loaded = 0
    for _ in range(400):
        text = json.dumps(edited(header, draw)).encode()
        with zipfile.ZipFile(saved, "w") as archive:
            for name, content in {**found, "model.json": text}.items():
                archive.writestr(name, content)
        loaded += attempt(saved)
    assert loaded > 0
