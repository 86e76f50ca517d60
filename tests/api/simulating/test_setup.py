"""From options to a simulation: GPU models, run times, load, formats."""

import json
from pathlib import Path

import pytest

from dovetail.cli.main import main, parser
from dovetail.instances.datasets import DataSet, Measurement, SoloProfile, write_dataset
from dovetail.simulating.facts import facts
from dovetail.simulating.setup import request

RATES = {"k80": 2.0, "v100": 8.0}
"""Iterations/s of a, alone. b does half of them on a v100, and a quarter on a k80."""

IN_WORLD = ("--world", "gv", "--nodes", "2", "--gpus-per-node", "1")


@pytest.fixture
def given(tmp_path, monkeypatch):
    """A trace of two jobs of a that take 100 s on one GPU, and a data set of two GPU models."""
    monkeypatch.chdir(tmp_path)
    rows = [f"job-{k},{at},1,100,a" for k, at in enumerate((0, 100))]
    Path("t.csv").write_text("\n".join(["id,arrival_s,workers,duration_s,workload", *rows]))
    write_data_set()
    return "t.csv", *IN_WORLD


def write_data_set():
    profiles = [
        SoloProfile(workload=name, gpu_model=model, throughput=rate / slower)
        for model, rate in RATES.items()
        for name, slower in (("a", 1), ("b", 2 if model == "v100" else 4))
    ]
    pairs = [
        Measurement(workloads=("a", "b"), gpu_model=model, slowdown=(1.5, 1.5)) for model in RATES
    ]
    data = DataSet(name="gv", profiles=tuple(profiles), measurements=tuple(pairs))
    write_dataset(data, "gv")


def asked(*arguments):
    return request(parser().parse_args(["simulate", *map(str, arguments)]))


def told(*arguments):
    return facts(asked(*arguments), "exact", [])


def test_workloads_that_never_share_are_counted(given):
    pairs = "workload_1,slowdown_1,workload_2,slowdown_2,gpu_model\n{}a,1.5,a,1.5,v100\n"
    for rows, text in (
        ("", ("2, 1 never shares", "1 pair")),
        ("a,1.2,b,1.3,v100\n", ("2", "2 pairs")),
    ):
        Path("gv/pairs.csv").write_text(pairs.format(rows))
        said = told(*given, "--gpu-model", "v100")
        assert (said["world"], said["workloads"], said["slowdowns"]) == ("gv", *text)


def test_a_world_in_which_nothing_may_share_says_so(given):
    node = {"id": "n", "gpu_count": 1, "gpu": {"model": "v100", "memory_mib": 1}}
    metrics = {"memory_mib": 0, "metrics": {"gpu_util": 0.3}}
    world = {
        "format": "dovetail-instance/1",
        "name": "w",
        "cluster": {"nodes": [node]},
        "workloads": {"a": metrics, "b": metrics},
        "jobs": [],
    }
    Path("w.json").write_text(json.dumps(world))
    said = told(given[0], "--world", "w.json")
    assert (said["workloads"], said["slowdowns"]) == ("2, 2 never share", "0 pairs")
    assert main(["predict", "w.json", "-o", "filled.json"]) == 0
    said = told(given[0], "--world", "filled.json")
    assert said["workloads"] == "2"
    assert said["slowdowns"] == "3 pairs, 3 estimates without a bound"
    world["cluster"]["assumed"] = {"pair": 1.25, "sets": "product"}
    Path("w.json").write_text(json.dumps(world))
    said = told(given[0], "--world", "w.json")
    assert (said["workloads"], said["slowdowns"]) == ("2", "0 pairs")
    assert said["declared"] == (
        "1.25 for pairs without an entry, the product of their pairs for larger sets without one; "
        "taken as true (cluster.assumed)"
    )


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_of_several_gpu_models_of_a_data_set_one_has_to_be_named(given, capsys, command):
    assert main([command, *given]) == 2
    message = "dovetail: --gpu-model: must name one or more of k80, v100: gv has several\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("models", "load"),
    [
        # Two jobs of 100 s in 100 s on two GPUs of speed 1.
        ("v100", "1.00"),
        # The second GPU does a quarter: 200 / (100 x 1.25).
        ("v100,k80", "1.60"),
        # The second GPU does four times as much: 200 / (100 x 5).
        ("k80,v100", "0.40"),
    ],
)
def test_the_load_counts_a_gpu_by_its_speed(given, models, load):
    text = told(*given, "--gpu-model", models)["load"]
    assert text == f"{load} x what the GPUs can do"


def test_the_load_counts_a_gpu_by_all_workloads_where_some_are_drawn(given):
    rows = ["id,arrival_s,workers,duration_s", "x,0,1,100", "y,100,1,100"]
    Path("t.csv").write_text("\n".join(rows))
    # A k80 does a at 2 / 8 and b at 0.5 / 4 of a v100: 200 / (100 x (1 + 0.1875)).
    text = told("t.csv", *given[1:], "--gpu-model", "v100,k80")["load"]
    assert text.startswith("1.68 x")


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_of_jobs_larger_than_the_cluster_the_remedies_are_reported(given, capsys, command):
    Path("t.csv").write_text("id,arrival_s,workers,duration_s,workload\nx,0,3,100,a\n")
    assert main([command, "t.csv", *given[1:], "--gpu-model", "v100"]) == 2
    rule = "must be <= 2 (GPUs of one model that hold workload 'a'), got 3 for job 'x'"
    remedies = "take a larger cluster (--nodes) or leave such jobs out (--max-workers)"
    assert f"jobs[0].workers: {rule}; {remedies}\n" in capsys.readouterr().err


def test_cores_of_a_trace_in_swf_make_gpus(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    job = "1 0 -1 60 16 -1 -1 16 -1 -1 1 1 1 -1 -1 -1 -1 -1\n"
    Path("t.swf").write_text(job)
    assert [job.workers for job in asked("t.swf", "--nodes", 2).setup.trace.jobs] == [16]
    assert [
        job.workers for job in asked("t.swf", "--nodes", 1, "--cores-per-gpu", 6).setup.trace.jobs
    ] == [3]
    (tmp_path / "o.csv").write_text("job,submit,gpus,seconds\n7,2020-04-01,2,60\n")
    named = "id=job,arrival_s=submit,workers=gpus,duration_s=seconds"
    assert [
        job.id for job in asked("o.csv", "--nodes", 1, "--columns", named).setup.trace.jobs
    ] == ["7"]
    assert main(["simulate", "library:lab-day", "--cores-per-gpu", "6"]) == 2
    message = "dovetail: --cores-per-gpu: is for a trace file, got library:lab-day\n"
    assert capsys.readouterr().err == message


def test_options_of_another_format_are_refused_with_those_that_take_them(given, capsys):
    assert main(["simulate", *given, "--gpu-model", "v100", "--cores-per-gpu", "6"]) == 2
    rule = "is an option of swf, got a trace in the format csv"
    assert capsys.readouterr().err == f"dovetail: --cores-per-gpu: {rule}\n"
