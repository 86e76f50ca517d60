"""Commands with a fitted model: the entries that they fill in, and their refusals."""

import json
from dataclasses import replace

import pytest

from dovetail.instances.files import read_instance, write_instance
from dovetail.predictors.fitted.model_file import save_model
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.predictors.fitted.training import fit
from tests.predictors.fitted import Margin, linear, member, register, simple
from tests.predictors.fitted import fit as fit_of
from tests.predictors.synthetic import GPU, synthetic
from tests.predictors.test_fill_fitted import SM, instance

BOTH = [(0, 0), (30, 70), (0, 30), (0, 70)]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write a model for V100, and an instance of four jobs there; return their paths."""
    register(monkeypatch)
    model, problem = tmp_path / "lab.dovetail", tmp_path / "instance.json"
    save_model(simple(Margin(), splits=BOTH), model)
    write_instance(instance("abcd", shares=[30, 70], max_jobs_per_gpu=3), problem)
    return model, problem


def notes(err):
    """Return the notes on standard error; each goes on in indented lines, of 80 columns at most."""
    assert max(map(len, err.splitlines())) <= 80
    return err.replace("\n  ", " ").splitlines()


def filled(run, problem, *options):
    status, out, err = run("predict", problem, *options)
    assert (status, err) == (0, "")
    return json.loads(out)["slowdowns"]


def test_predict_with_a_model(run, files):
    model, problem = files
    entries = filled(run, problem, "--model", model)
    assert len(entries) == 6 * 3
    assert entries[0] == {
        "pair": ["a", "b"],
        "slowdown": [1.25, 1.52],
        "upper": [1.34, 1.61],
        "gpu_model": "V100",
        "source": "model",
        "confidence": 0.9,
    }
    assert filled(run, problem, "--model", model, "--confidence", "0.5")[0]["upper"] == [1.3, 1.57]
    assert len(filled(run, problem, "--model", model, "--mixed")) == 6 * 7
    sets = [e for e in filled(run, problem, "--model", model, "--sets") if "set" in e]
    assert len(sets) == 4


def test_plan_with_a_model(run, files, tmp_path):
    model, problem = files
    status, out, err = run("plan", problem, "--model", model, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["status"] == "optimal"
    # One GPU for four jobs: without predictions only one of them runs.
    one = tmp_path / "one.json"
    data = instance("ab").to_data()
    data["cluster"]["nodes"][0]["gpu_count"] = 1
    one.write_text(json.dumps(data))
    values = [
        json.loads(run("plan", one, *more, "--json")[1])["objective"]["value"]
        for more in ((), ("--model", model))
    ]
    assert values == pytest.approx([1.0, 1 / 1.25 + 1 / 1.52])


def test_a_higher_confidence_keeps_gslas_more_strictly(run, files, tmp_path):
    model, _ = files
    data = instance("ab").to_data()
    data["cluster"]["nodes"][0]["gpu_count"] = 1
    for job in data["jobs"]:
        job["gsla"] = 1.6
    problem = tmp_path / "tight.json"
    problem.write_text(json.dumps(data))

    def placed(confidence):
        arguments = ("--model", model, "--confidence", confidence, "--json")
        return len(json.loads(run("plan", problem, *arguments)[1])["assignments"])

    # The bound of b is 1.52 + 0.1 * confidence.
    assert (placed(0.7), placed(0.9)) == (2, 1)


def test_shares_that_the_cluster_does_not_list_may_be_allowed(run, tmp_path, monkeypatch):
    register(monkeypatch)
    # Bounds without caps: 1.68 and 1.71; at 30/70 1.33 and 1.56, at 70/30 1.53 and 1.36.
    data = instance("ab").to_data()
    data["cluster"]["nodes"][0]["gpu_count"] = 1
    for job in data["jobs"]:
        job["gsla"] = 1.57
    problem, model = tmp_path / "tight.json", tmp_path / "splits.dovetail"
    problem.write_text(json.dumps(data))
    of_share = member(linear((0.1, 0.2), (0.5, 0.0)), "sm_active", "share")
    one = fit_of(of_share, bound=Margin(), splits=BOTH)
    save_model(TrainedPredictor({"V100": one}, confidence=0.9), model)
    status, out, err = run("plan", problem, "--model", model, "--json")
    assert status == 0
    assert len(json.loads(out)["assignments"]) == 1
    assert err == (
        "dovetail: may break gSLAs without caps: 1 pair: try SM shares (--shares,\n"
        "  cluster.shares)\n"
    )
    given = ("--model", model, "--shares", "30, 70", "--json")
    status, out, err = run("plan", problem, *given)
    assert (status, err) == (0, "")
    assert sorted(row["share"][0] for row in json.loads(out)["assignments"]) == [30, 70]
    plan, later = tmp_path / "plan.json", tmp_path / "later.json"
    plan.write_text(out)
    status, _, err = run("next", problem, plan, *given[:-1], "-o", later)
    assert (status, err) == (0, "")
    assert {tuple(job["share"]) for job in json.loads(later.read_text())["jobs"]} == {(30,), (70,)}
    for options in (("--shares", "30"), ("--shares", "0", "--model", model)):
        status, out, err = run("plan", problem, *options)
        assert (status, out) == (2, "")
        rule = "--shares needs --predictor or --model", "must be whole numbers from 1 to 100, got"
        assert any(words in err for words in rule)
    data["cluster"]["sharing"] = "time_sliced"
    problem.write_text(json.dumps(data))
    status, out, err = run("plan", problem, *given)
    assert (status, out) == (2, "")
    assert err == "dovetail: --shares: cluster.sharing time_sliced has no caps\n"


def test_a_gpu_model_that_was_not_fitted(run, files, tmp_path):
    model, _ = files
    problem = tmp_path / "other.json"
    write_instance(instance("ab", models=("A100",)), problem)
    status, out, err = run("predict", problem, "--model", model)
    assert (status, out) == (2, "")
    rule = "cluster.nodes: the predictor was fitted for V100 and not for A100"
    assert err == f"dovetail: {problem}: {rule}\n"
    (entry,) = filled(run, problem, "--model", model, "--as", "A100=V100")
    assert entry["gpu_model"] == "A100"
    status, _, err = run("predict", problem, "--model", model, "--as", "A100=H100")
    assert status == 2
    assert "gpu_model: must be one that the model was fitted for (V100), got 'H100'" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--model", "m", "--predictor", "analytic"),
            "--model: cannot be combined with --predictor",
        ),
        (
            ("--predictor", "analytic", "--confidence", "0.9"),
            "this model has no upper bounds, so it takes no confidence",
        ),
        (
            ("--predictor", "kernels", "--confidence", "1.2"),
            "--confidence: must be > 0 and < 1, got 1.2",
        ),
        (("--as", "A=B"), "--as needs --model"),
        (("--as", "A"), "must be GPU=FITTED, got 'A'"),
        (("--model", "absent"), "absent: cannot be read: no such file or directory"),
        (("--model", "INSTANCE"), "is not a model file"),
        (("--model", "MODEL", "--confidence", "1"), "confidence: must be > 0 and < 1, got 1.0"),
        (("--model", "MODEL", "--confidence", "nan"), "confidence: must be > 0 and < 1, got nan"),
        (("--model", "MODEL", "--confidence", "0"), "confidence: must be > 0 and < 1, got 0.0"),
    ],
)
@pytest.mark.parametrize("command", ["predict", "plan"])
def test_mistakes_are_reported_in_one_line(run, files, command, options, message):
    model, problem = files
    known = {"MODEL": model, "INSTANCE": problem}
    status, out, err = run(command, problem, *(known.get(option, option) for option in options))
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_workloads_that_stay_unknown_are_named_up_to_ten(run, files, tmp_path):
    model, _ = files
    sm = {**SM, **{f"w{k:02}": None for k in range(13)}}
    problem, output = tmp_path / "new.json", tmp_path / "filled.json"
    write_instance(instance(list(sm), sm=sm), problem)
    status, _, err = run("predict", problem, "--model", model, "-o", output)
    assert status == 0
    named = ", ".join(f"w{k:02}" for k in range(10))
    assert notes(err) == [f"dovetail: unknown: pairs of {named}, ... (3 more) (no sm_active)"]
    assert len(read_instance(output).slowdowns) == 6


def test_shares_that_the_model_does_not_know_are_named(run, files, tmp_path):
    _, problem = files
    model = tmp_path / "uncapped"
    save_model(simple(), model)
    output = tmp_path / "filled.json"
    status, _, err = run("predict", problem, "--model", model, "--mixed", "-o", output)
    assert status == 0
    splits = "30/70, 70/30, no cap/30, 30/no cap, no cap/70, 70/no cap"
    assert notes(err) == [f"dovetail: unknown: pairs at {splits} (the model was not fitted on any)"]


def test_a_confidence_is_a_matter_of_the_model(run, files):
    model, problem = files
    status, _, err = run("predict", problem, "--model", model, "--confidence", "2")
    assert status == 2
    assert err == f"dovetail: {model}: confidence: must be > 0 and < 1, got 2.0\n"


def test_a_model_without_bounds_takes_no_confidence(run, files, tmp_path):
    _, problem = files
    model = tmp_path / "boundless"
    save_model(simple(splits=BOTH), model)
    assert "upper" not in filled(run, problem, "--model", model)[0]
    status, _, err = run("predict", problem, "--model", model, "--confidence", "0.9")
    assert status == 2
    assert "this model has no upper bounds" in err


def synthetic_instance(path, jobs):
    """Write an instance of jobs (workload, workers) with the synthetic workloads."""
    found = synthetic().instance(GPU, 8, memory_mib=16000.0)
    listed = [
        {"id": f"j{k}", "workload": workload, "workers": workers}
        for k, (workload, workers) in enumerate(jobs)
    ]
    write_instance(found.replace(jobs=listed, slowdowns=()), path)
    return path


@pytest.fixture(scope="module")
def fitted_model(tmp_path_factory):
    """Fit a real model with real bounds on synthetic workloads, without what was measured."""
    path = tmp_path_factory.mktemp("model") / "synthetic.model"
    made = fit(synthetic(), "analytic")
    save_model(replace(made, fits={GPU: replace(made.fits[GPU], evidence=None)}), path)
    return path


def test_jobs_whose_promise_cannot_be_kept_run_alone(run, fitted_model, tmp_path):
    jobs = [("f0 b0", 1), ("f1 b0", 1), ("f2 b0", 8)]
    problem = synthetic_instance(tmp_path / "problem.json", jobs)
    status, out, err = run("predict", problem, "--model", fitted_model, "--confidence", "0.9")
    assert (status, err) == (0, "")
    assert len(json.loads(out)["slowdowns"]) == 3
    # Six families, the new one taken to break a quarter: 1 - 0.25 / 7 = 0.9642 at most.
    status, out, err = run("predict", problem, "--model", fitted_model, "--confidence", "0.99")
    assert (status, out) == (2, "")
    assert "confidence: must be" in err
    assert err.count("\n") == 1


def test_a_gsla_a_gang_cannot_get_is_reported_and_the_rest_is_filled(run, fitted_model, tmp_path):
    jobs = [("f0 b0", 1), ("f1 b0", 1), ("f2 b0", 64)]
    problem = synthetic_instance(tmp_path / "problem.json", jobs)
    status, out, err = run("predict", problem, "--model", fitted_model, "--confidence", "0.95")
    assert status == 0
    assert {tuple(e["pair"]) for e in json.loads(out)["slowdowns"]} == {("f0 b0", "f1 b0")}
    assert "64 workers" in err
    assert len(notes(err)) == 1


def test_doubts_about_estimates_are_one_line_each(run, tmp_path):
    names = [f"w{k:03}" for k in range(120)]
    data = instance(names, sm=dict.fromkeys(names, 0.5)).to_data()
    for k, workload in enumerate(data["workloads"].values()):
        workload["metrics"] = {"gpu_util": 0.3 if k < 60 else 0.8}
    for job in data["jobs"]:
        job["gsla"] = 2.0
    problem = tmp_path / "i.json"
    problem.write_text(json.dumps(data))
    status, out, err = run("predict", problem, "--predictor", "analytic")
    assert status == 0
    assert "slowdowns" not in json.loads(out)
    assert notes(err) == [
        "dovetail: assumed: sm_active by gpu_util (120 workloads), "
        "dram_active by sm_active (120 workloads), pcie_rx_bytes_s by sm_active (120 workloads)",
        "dovetail: without a bound: 7,140 pairs that may not share: measure some, and fit a "
        "--model on them",
    ]
    status, out, err = run("predict", problem)
    assert (status, len(json.loads(out)["slowdowns"])) == (0, 7140)
    assert notes(err) == [
        "dovetail: assumed: kernel_mean_s by 25 µs (120 workloads), "
        "sm_active by 0.7 of the busy time (120 workloads), dram_active by 0.3 sm_active "
        "(120 workloads), throughput at shares by a roofline (120 workloads)",
        "dovetail: may break gSLAs without caps: 7,140 pairs: try SM shares (--shares, "
        "cluster.shares)",
    ]


def test_a_world_is_predicted_for_all_of_its_workloads(run, tmp_path):
    data = instance("abc").to_data()
    data["jobs"] = []
    problem = tmp_path / "world.json"
    problem.write_text(json.dumps(data))
    status, out, err = run("predict", problem)
    assert (status, len(json.loads(out)["slowdowns"])) == (0, 10)
    assert len(notes(err)) == 1
    assert err.startswith("dovetail: assumed: ")
