"""Simulations of papers' traces whose run times depend on the GPU model."""

import json
from pathlib import Path

import pytest

from dovetail.simulating.facts import facts
from tests.api.simulating.test_setup import IN_WORLD, RATES, asked, write_data_set


@pytest.fixture
def gavel(tmp_path, monkeypatch):
    """A trace of Gavel's, 800 steps of a on one GPU, and the data set of its throughputs."""
    monkeypatch.chdir(tmp_path)
    rates = {model: {"('a', 1)": {"null": rate}} for model, rate in RATES.items()}
    Path("simulation_throughputs.json").write_text(json.dumps(rates))
    rows = ["\t".join(("a", "cmd", "-n", "1", "800", str(at), "1")) for at in (0, 100)]
    Path("t.trace").write_text("\n".join(rows) + "\n")
    write_data_set()
    return "t.trace", *IN_WORLD


@pytest.mark.parametrize(("model", "duration_s"), [("v100", 100), ("k80", 400)])
def test_run_times_of_gavel_are_those_on_the_first_named_gpu_model(gavel, model, duration_s):
    # 800 steps at 8 or at 2 iterations/s.
    requested = asked(*gavel, "--gpu-model", model)
    assert [job.duration_s for job in requested.setup.trace.jobs] == [duration_s] * 2
    assert facts(requested, "exact", [])["run times"] == f"of {model}"


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
    rest = "also for A100 where none are known"
    assert facts(requested, "exact", [])["run times"] == f"of v100; {rest}"
    # The synthetic world writes it V100.
    assert facts(asked(gavel[0], "--nodes", 1), "exact", [])["run times"] == "of v100"


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
    assert facts(requested, "exact", [])["run times"] == "of v100"
