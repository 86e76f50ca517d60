"""Ties between plans of equal value, as the checker counts nodes and racks."""

from __future__ import annotations

import pytest

from dovetail.instances.checking.checker import check
from dovetail.instances.instance import Instance
from dovetail.solver.rounds import solve

GPU = {"model": "A", "memory_mib": 16000}


def gang_of_two(*racks):
    """Return a gang and nodes of one GPU each in these racks, None for none."""
    nodes = [
        {"id": f"n{k}", "gpu_count": 1, "gpu": GPU} | ({"rack": rack} if rack else {})
        for k, rack in enumerate(racks)
    ]
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "ties",
            "cluster": {"nodes": nodes},
            "workloads": {"w": {"memory_mib": 10000}},
            "jobs": [{"id": "g", "workload": "w", "workers": 2}],
            "slowdowns": [],
        }
    )


@pytest.mark.parametrize(
    ("racks", "fewest"),
    [
        ((None, None, "r"), 1),
        (("r", None, None), 1),
        ((None, "r", None), 1),
        ((None, "r", "s"), 2),
        (("r", None, "r"), 1),
    ],
)
def test_nodes_without_a_rack_form_one_together(racks, fewest):
    instance = gang_of_two(*racks)
    plan = solve(instance).plan
    assert plan.tie_break == "proven"
    assert check(instance, plan).racks_spanned == fewest


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("solver", ["auto", "highs", "greedy"])
def test_a_node_without_gpus_takes_no_part(solver, at):
    instance = gang_of_two("r", "r")
    nodes = [node.to_data() for node in instance.cluster.nodes]
    nodes.insert(at, {"id": "drained", "gpus": []})
    data = instance.to_data()
    data["cluster"]["nodes"] = nodes
    with_drained = Instance.from_data(data)
    plan, other = solve(with_drained, solver=solver).plan, solve(instance, solver=solver).plan
    assert plan.assignments == other.assignments
    assert plan.tie_break == other.tie_break
