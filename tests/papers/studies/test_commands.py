"""``dovetail predictors evaluate`` and ``report``, and ``fit`` with options of a paper's model."""

from __future__ import annotations

import json
import sys

import pytest

from dovetail.papers.predictors import tensorshare
from dovetail.predictors.fitted.model_file import load_model, save_model
from tests.api.predicting.test_commands import folder as folder
from tests.api.predicting.test_commands import run as run
from tests.predictors.fitted import simple
from tests.predictors.measured import measured


def test_evaluate_prints_a_verdict_and_tables(run, folder):
    path = folder(measured(families=2))
    status, out, err = run("evaluate", path, "--models", "constant")
    assert (status, err) == (0, "")
    assert "constant errs least for workloads of a family that was never measured" in " ".join(
        out.split()
    )
    assert max(map(len, out.splitlines())) <= 100
    for title in ("errors of predictions", "wrongly accepted", "how often the bounds held"):
        assert title in out


def test_json_is_the_comparison(run, folder):
    path = folder(measured(families=2))
    status, out, _ = run("evaluate", path, "--models", "constant", "--json")
    found = json.loads(out)
    assert (status, found["pairs"], found["workloads"]) == (0, 10, 4)
    assert [each["setting"] for each in found["evaluations"]] == ["random", "family"]


def test_report_writes_the_page(run, folder, tmp_path):
    page = tmp_path / "page.html"
    path = folder(measured(families=2))
    status, out, err = run("report", path, "--models", "constant", "-o", page)
    assert (status, out, err) == (0, f"data: report -> {page}\n", "")
    assert "<h1>constant predicts" in page.read_text()


@pytest.mark.parametrize(
    ("data", "options", "rule"),
    [
        (measured(), ("--models", "magic"), "model must be one of constant,"),
        (measured(), ("--gpu-model", "K80"), "--gpu-model: must be a GPU model of the data (V100)"),
        (measured(), ("--confidence", "2"), "must be > 0 and < 1, got '2'"),
        (measured().replace(measurements=()), (), "must have at least one measured pair"),
    ],
)
def test_a_mistake_is_one_line(run, folder, data, options, rule):
    status, out, err = run("evaluate", folder(data), *options)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert rule in err


def test_no_data_is_one_line(run, tmp_path):
    status, out, err = run("evaluate", tmp_path / "none")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "none" in err


def test_a_failed_report_writes_nothing(run, folder, tmp_path):
    page = tmp_path / "page.html"
    assert run("report", folder(measured()), "--models", "magic", "-o", page)[0] == 2
    assert not page.exists()


def test_one_workload_can_be_shown(run, folder):
    one = measured(families=1)
    status, out, _ = run("evaluate", folder(one), "--models", "constant", "--json")
    reasons = [each["reason"] for each in json.loads(out)["not_applicable"]]
    assert status == 0
    assert any("needs at least two families" in reason for reason in reasons)


def test_without_the_extra_it_says_what_to_install(run, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    status, out, err = run("evaluate", folder(measured()), "--models", "hierarchical")
    assert (status, out) == (2, "")
    assert "pip install './dovetail[train]'" in err


def test_of_all_models_those_that_lack_a_package_are_left_out(run, folder, monkeypatch):
    names = "dovetail.predictors.estimators.registry.model_names"
    monkeypatch.setattr(names, lambda: ("constant", "castor"))
    monkeypatch.delitem(sys.modules, "dovetail.papers.predictors.castor", raising=False)
    monkeypatch.setitem(sys.modules, "xgboost", None)
    status, out, err = run("evaluate", folder(measured(families=2)), "--json")
    assert (status, json.loads(out)["not_applicable"]) == (0, [])
    hint = "fitting castor needs xgboost: pip install './dovetail[train]'"
    assert err == f"dovetail: left out: {hint}\n"


@pytest.mark.parametrize("seed", ["-1", "4294967296", "one"])
def test_a_seed_that_no_library_takes(run, folder, seed):
    status, out, err = run("evaluate", folder(measured()), "--models", "constant", "--seed", seed)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"--seed: must be a whole number >= 0 and < 4294967296, got '{seed}'" in err


def test_data_without_any_error_can_be_drawn(run, folder, tmp_path):
    data = measured(families=2)
    even = [found.replace(slowdown=(1.0, 1.0)) for found in data.measurements]
    path = folder(data.replace(measurements=tuple(even)))
    page = tmp_path / "page.html"
    assert run("report", path, "--models", "constant", "-o", page)[0] == 0
    assert "nan" not in page.read_text()


def few_on_a_new_gpu_model():
    """Return all pairs of eight workloads on a V100, and every fifth of them on an A100."""
    both = measured(("V100", "A100"))
    pairs = len(both.measurements) // 2
    return both.replace(measurements=(*both.measurements[:pairs], *both.measurements[pairs::5]))


def test_fit_from_another_gpu_model(run, folder, tmp_path, monkeypatch):
    def small(seed):
        return tensorshare.TensorShareRegressor(
            (32, 16), learning_rate_init=0.01, random_state=seed
        )

    monkeypatch.setattr(tensorshare, "SPEC", tensorshare.SPEC._replace(build=small))
    path, model = folder(few_on_a_new_gpu_model()), tmp_path / "lab.dovetail"
    options = ("--model", "tensorshare", "--confidence", "0.5", "-o", model, "--json")
    errors = []
    for more in (("--gpu-model", "A100"), ("--from", "V100")):
        status, _, err = run("fit", path, *more, *options)
        assert (status, err) == (0, "")
        held_out = load_model(model).about.held_out
        assert load_model(model).gpu_models == ("A100",)
        errors.append(held_out["A100: random"]["mae"])
    alone, transferred = errors
    assert transferred < 0.7 * alone


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (("--from", "H100"), "--from: must be a GPU model of the data (V100, A100), got 'H100'"),
        (
            ("--from", "V100", "--gpu-model", "V100"),
            "--from: must be another GPU model than those to fit for, got 'V100'",
        ),
        (
            ("--from", "V100", "--model", "constant"),
            "model 'constant' has no option 'from': it has none",
        ),
    ],
)
def test_fit_from_what_is_no_source(run, folder, tmp_path, options, rule):
    path = folder(few_on_a_new_gpu_model())
    model = ("--model", "tensorshare", "-o", tmp_path / "none")
    status, out, err = run("fit", path, *model, *options)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert rule in err


@pytest.mark.parametrize("read", ["table", "model"])
def test_a_report_never_overwrites_what_is_read(run, folder, tmp_path, read):
    data, model = folder(measured()), tmp_path / "lab.dovetail"
    save_model(simple(), model)
    output = {"table": data / "pairs.csv", "model": model}[read]
    before = output.read_bytes()
    status, out, err = run("report", data, "--models", "constant", "--model", model, "-o", output)
    assert (status, out) == (2, "")
    assert err == f"dovetail: {output}: is another file of this command, too\n"
    assert output.read_bytes() == before
