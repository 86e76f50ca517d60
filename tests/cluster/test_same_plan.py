"""The same jobs on the same devices make the same plan on nodes, on a machine and simulated."""

from __future__ import annotations

from functools import partial

import pytest

from dovetail.cluster.pool import NodesPool
from dovetail.executor.pools.cpu import CpuPool
from dovetail.instances.instance import Node
from tests.cluster.agents import finder, start_agents
from tests.executor.live.test_same_plan import planned, simulated
from tests.executor.pools.test_cpu_pool import TWO_CORES


def on_nodes(directory, agents, racks=()):
    found = finder(agents)
    found.racks = dict(zip(found.known, racks, strict=False))
    return NodesPool(directory, found)


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    started = start_agents(tmp_path_factory.mktemp("agents"), 1, "cpu:devices=2")
    three = start_agents(tmp_path_factory.mktemp("three"), 3, "cpu:devices=2")
    yield started, three
    for agent in (*started, *three):
        agent.end()


@TWO_CORES
def test_of_a_machine_and_a_node(agents, tmp_path):
    _, local = planned(tmp_path / "local", lambda path: CpuPool(path, devices=2))
    _, node = planned(tmp_path / "node", partial(on_nodes, agents=agents[0]))
    assert local == node


@TWO_CORES
def test_of_three_nodes_in_racks_and_a_simulation(agents, tmp_path):
    racks = ("r1", "r2", "r1")
    cluster, nodes = planned(tmp_path / "nodes", partial(on_nodes, agents=agents[1], racks=racks))
    assert [node.rack for node in cluster.nodes] == [*racks]
    renamed = cluster.replace(
        nodes=tuple(
            Node(
                id=f"m{k}",
                rack=node.rack,
                gpus=tuple(gpu.replace(id=f"m{k}-{j}") for j, gpu in enumerate(node.devices)),
            )
            for k, node in enumerate(cluster.nodes)
        )
    )
    _, simulation = planned(tmp_path / "simulation", partial(simulated, cluster=renamed))
    assert nodes == simulation
