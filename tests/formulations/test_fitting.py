"""Gangs without room are in no group, even if some of their workers would fit."""

from __future__ import annotations

import tracemalloc

import pytest

from dovetail.instances.instance import Instance
from dovetail.solver.rounds import solve
from tests.data import small
from tests.forms import groups_of
from tests.oracle import optimum

AA = {"pair": ["a", "a"], "slowdown": [1.25, 1.25]}
GANG = {"id": "gang", "workers": 3}


def placeable(instance: Instance) -> set[str]:
    found = groups_of(instance)
    return {instance.jobs[k].id for k in found.job}


def test_a_gang_larger_than_the_cluster():
    assert placeable(small([GANG, {"id": "j"}], [AA], gpus=2)) == {"j"}
    assert placeable(small([GANG, {"id": "j"}], [AA], gpus=3)) == {"gang", "j"}


def test_gpus_of_two_models_are_not_counted_together():
    nodes = [{"id": f"n{k}", "gpu_count": k, "gpu": {"model": f"M{k}"}} for k in (1, 2)]
    for node in nodes:
        node["gpu"]["memory_mib"] = 16000
    data = small([GANG], [AA]).to_data()
    data["cluster"]["nodes"] = nodes
    assert placeable(Instance.from_data(data)) == set()


@pytest.mark.parametrize(("sharing", "names"), [("partial", {"gang", "r"}), ("whole", {"r"})])
def test_gpus_of_running_jobs_count_where_gangs_may_share_in_part(sharing, names):
    running = {"id": "r", "state": "running", "gpus": ["g-0"]}
    instance = small([running, GANG], [AA], gpus=3)
    cluster = instance.cluster.replace(gang_sharing=sharing)
    assert placeable(instance.replace(cluster=cluster)) == names


@pytest.mark.parametrize("solver", ["auto", "matching", "cpsat", "highs", "greedy"])
def test_memory_does_not_grow_with_workers_that_never_run(solver):
    instance = small([{"id": "huge", "workers": 20_000}, {"id": "j"}], [AA], gpus=2)
    tracemalloc.start()
    result = solve(instance, "throughput", solver)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.objective == 1
    assert most < 100e6


@pytest.mark.parametrize("objective", ["slowdown", "sensitivity", "energy", "fewest"])
@pytest.mark.parametrize("workers", [1, 5])
@pytest.mark.parametrize("solver", ["auto", "matching", "networkx", "cpsat", "highs"])
def test_the_weight_of_a_job_without_room_does_not_hide_the_others(objective, workers, solver):
    # Once the weights were rounded to whole numbers whose scale the largest of all set.
    jobs = [
        {"id": "huge", "workload": "b", "weight": 1e9, "workers": workers},
        {"id": "j", "weight": 1e-3},
        {"id": "k", "weight": 1e-3},
    ]
    data = small(jobs, [{**AA, "power_w": 300}], gpus=2).to_data()
    for name in data["workloads"]:
        data["workloads"][name]["power_w"] = 100
    data["workloads"]["b"]["memory_mib"] = 1 if workers > 1 else 99_999
    data["cluster"]["gang_sharing"] = "whole"
    instance = Instance.from_data(data)
    result = solve(instance, objective, solver)
    assert {a.job for a in result.plan.assignments} == {"j", "k"}
    assert result.status == "optimal"
    assert result.objective == pytest.approx(optimum(instance, objective).value)
