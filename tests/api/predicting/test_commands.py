"""``dovetail predictors`` from end to end."""

from __future__ import annotations

import json
import sys
from functools import partial

import pytest

from dovetail.instances.datasets import Repository, write_dataset
from dovetail.predictors.fitted.model_file import save_model
from tests.predictors.fitted import simple
from tests.predictors.measured import measured


@pytest.fixture
def run(run):
    """Run a command for predictors."""
    return partial(run, "predictors")


@pytest.fixture
def folder(tmp_path):
    def written(data):
        path = tmp_path / "data"
        write_dataset(data, path)
        return path

    return written


def test_show_of_no_model_is_one_line(run, tmp_path):
    status, out, err = run("show", tmp_path / "none")
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_the_licence_is_kept_in_the_model(run, folder, tmp_path):
    model = tmp_path / "lab.dovetail"
    fitted = ("fit", folder(measured()), "--model", "constant", "-o", model)
    assert run(*fitted, "--licence", "evaluation only")[0] == 0
    assert "licence evaluation only" in " ".join(run("show", model)[1].split())
    shown = json.loads(run("show", model, "--json")[1])
    assert shown["about"]["training"]["licence"] == "evaluation only"


@pytest.mark.parametrize("licence", ["", " ", "a" * 201, "two\nlines"])
def test_a_licence_is_one_line(run, folder, tmp_path, licence):
    model = tmp_path / "lab.dovetail"
    status, out, err = run("fit", folder(measured()), "--licence", licence, "-o", model)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "data: licence: must" in err
    assert not model.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", "DATA", "--model", "constant", "-o", "TABLE"),
        ("update", "MODEL", "DATA", "-o", "TABLE"),
        ("fit", "REPOSITORY", "--model", "constant", "-o", "REPOSITORY"),
    ],
)
def test_what_is_read_is_never_overwritten(run, folder, tmp_path, arguments):
    data = folder(measured())
    known = {
        "DATA": data,
        "TABLE": data / "pairs.csv",
        "REPOSITORY": tmp_path / "measured.db",
        "MODEL": tmp_path / "lab.dovetail",
    }
    Repository(known["REPOSITORY"]).append(measured().profiles, measured().measurements)
    save_model(simple(), known["MODEL"])
    output = known[arguments[-1]]
    before = output.read_bytes()
    status, out, err = run(*(known.get(argument, argument) for argument in arguments))
    assert (status, out) == (2, "")
    assert err == f"dovetail: {output}: is another file of this command, too\n"
    assert output.read_bytes() == before


@pytest.mark.parametrize("seed", ["-1", "4294967296", "one"])
def test_a_seed_that_no_library_takes(run, folder, seed):
    status, out, err = run("fit", folder(measured()), "-o", "none", "--seed", seed)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"--seed: must be a whole number >= 0 and < 4294967296, got '{seed}'" in err


def test_fit_names_the_path_of_the_data(run, folder, tmp_path):
    path = folder(measured().replace(measurements=()))
    status, out, err = run("fit", path, "-o", tmp_path / "none")
    assert (status, out) == (2, "")
    assert err == f"dovetail: {path}: measurements: must have at least one measured pair\n"


def test_auto_without_the_extra_says_what_to_install(run, folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    status, out, err = run("fit", folder(measured()), "-o", tmp_path / "none")
    assert (status, out) == (2, "")
    assert err.startswith("dovetail: fitting hierarchical needs sklearn")
    assert "pip install './dovetail[train]'" in err


def test_the_longest_name_of_a_gpu_model(run, folder, tmp_path):
    path, model = folder(measured(gpu_models=("G" * 200,))), tmp_path / "lab.dovetail"
    assert run("fit", path, "--model", "constant", "-o", model)[0] == 0
    assert run("show", model)[0] == 0
