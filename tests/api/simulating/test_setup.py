"""From options to a simulation: GPU models, run times, load, formats."""

import json
from pathlib import Path

import pytest

from dovetail.cli.main import main
from dovetail.cli.parser import parser
from dovetail.instances.datasets import DataSet, Measurement, SoloProfile, write_dataset
from dovetail.simulating.setup import request

RATES = {"k80": 2.0, "v100": 8.0}
"""Iterations/s of a, alone. b does half of them on a v100, and a quarter on a k80."""


@pytest.fixture
def gavel(tmp_path, monkeypatch):
    """A trace of Gavel's, 800 steps of a on one GPU, and the data set of its throughputs."""
    monkeypatch.chdir(tmp_path)
    rates = {model: {"('a', 1)": {"null": rate}} for model, rate in RATES.items()}
    Path("simulation_throughputs.json").write_text(json.dumps(rates))
    rows = ["\t".join(("a", "cmd", "-n", "1", "800", str(at), "1")) for at in (0, 100)]
    Path("t.trace").write_text("\n".join(rows) + "\n")
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
    return "t.trace", "--world", "gv", "--nodes", "2", "--gpus-per-node", "1"


def asked(*arguments):
    return request(parser().parse_args(["simulate", *map(str, arguments)]))


@pytest.mark.parametrize(("model", "duration_s"), [("v100", 100), ("k80", 400)])
def test_run_times_of_gavel_are_those_on_the_first_named_gpu_model(gavel, model, duration_s):
    # 800 steps at 8 or at 2 iterations/s.
    requested = asked(*gavel, "--gpu-model", model)
    assert [job.duration_s for job in requested.setup.trace.jobs] == [duration_s] * 2
    assert requested.facts["run times"] == f"hold on {model}"


@pytest.mark.parametrize(("models", "duration_s"), [("v100,k80", 100), ("k80,v100", 400)])
def test_in_a_mixed_cluster_speeds_are_relative_to_where_run_times_hold(gavel, models, duration_s):
    setup = asked(*gavel, "--gpu-model", models).setup
    first, second = models.split(",")
    assert setup.trace.jobs[0].duration_s == duration_s
    speed = setup.world.workloads["a"].speed
    assert speed == {first: 1.0, second: RATES[second] / RATES[first]}


def test_run_times_of_gavel_on_a_model_that_it_does_not_know_are_reported(gavel):
    requested = asked(gavel[0], "--nodes", 1, "--gpu-model", "A100")
    assert requested.setup.trace.jobs[0].duration_s == 100
    rest = "used for A100 too, where they are not known"
    assert requested.facts["run times"] == f"hold on v100; {rest}"
    # The synthetic world writes it V100.
    assert asked(gavel[0], "--nodes", 1).facts["run times"] == "hold on v100"


def test_run_times_hold_where_an_instance_has_speed_1(gavel):
    # A cluster of K80s only, with speeds relative to a V100's.
    world = {
        "format": "dovetail-instance/1",
        "name": "slow",
        "cluster": {
            "nodes": [{"id": "n", "gpu_count": 1, "gpu": {"model": "K80", "memory_mib": 1}}]
        },
        "workloads": {"a": {"memory_mib": 0, "speed": {"K80": 0.25, "V100": 1.0}}},
        "jobs": [],
        "slowdowns": [],
    }
    Path("slow.json").write_text(json.dumps(world))
    requested = asked(gavel[0], "--world", "slow.json")
    assert requested.setup.trace.jobs[0].duration_s == 100
    assert requested.facts["run times"] == "hold on v100"


def test_workloads_that_never_share_are_counted(gavel):
    pairs = "workload_1,slowdown_1,workload_2,slowdown_2,gpu_model\n{}a,1.5,a,1.5,v100\n"
    for rows, text in (
        ("", "; 1 of the workloads have no pair and never share"),
        ("a,1.2,b,1.3,v100\n", ""),
    ):
        Path("gv/pairs.csv").write_text(pairs.format(rows))
        world = asked(*gavel, "--gpu-model", "v100").facts["world"]
        assert world == f"gv: 2 workloads, {1 + bool(rows)} slowdowns of pairs{text}"


def test_a_world_in_which_nothing_may_share_says_so(gavel):
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
    said = asked(gavel[0], "--world", "w.json").facts["world"]
    assert said == "w.json: 2 workloads, 0 slowdowns of pairs; no two workloads may share"
    assert main(["predict", "w.json", "-o", "filled.json"]) == 0
    said = asked(gavel[0], "--world", "filled.json").facts["world"]
    assert said == ("filled.json: 2 workloads, 3 slowdowns of pairs; 3 estimates without a bound")


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_of_several_gpu_models_of_a_data_set_one_has_to_be_named(gavel, capsys, command):
    assert main([command, *gavel]) == 2
    message = "dovetail: --gpu-model: must name one or more of k80, v100: gv has several\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("models", "load"),
    [
        # Two jobs of 100 s in 100 s on two GPUs of speed 1.
        ("v100", "1.00"),
        # The second GPU does a quarter: 200 / (100 x 1.25).
        ("v100,k80", "1.60"),
        # 800 / (100 x (1 + 4)).
        ("k80,v100", "1.60"),
    ],
)
def test_the_load_counts_a_gpu_by_its_speed(gavel, models, load):
    text = asked(*gavel, "--gpu-model", models).facts["load"]
    assert text == f"{load} x what the GPUs can do while jobs arrive"


def test_the_load_counts_a_gpu_by_all_workloads_where_some_are_drawn(gavel):
    rows = ["id,arrival_s,workers,duration_s", "x,0,1,100", "y,100,1,100"]
    Path("t.csv").write_text("\n".join(rows))
    # A k80 does a at 2 / 8 and b at 0.5 / 4 of a v100: 200 / (100 x (1 + 0.1875)).
    text = asked("t.csv", *gavel[1:], "--gpu-model", "v100,k80").facts["load"]
    assert text.startswith("1.68 x")


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_of_jobs_larger_than_the_cluster_the_remedies_are_reported(gavel, capsys, command):
    Path("t.csv").write_text("id,arrival_s,workers,duration_s,workload\nx,0,3,100,a\n")
    assert main([command, "t.csv", *gavel[1:], "--gpu-model", "v100"]) == 2
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
    message = "dovetail: --cores-per-gpu: only traces in the format swf count cores\n"
    assert capsys.readouterr().err == message
