"""Gangs take the fewest nodes, and of these the ones of one rack: small cases by hand."""

import pytest

from dovetail.formulations.rounds import Machines
from dovetail.instances.instance import Cluster
from dovetail.solver.policies.placement import fewest_nodes


def machines(*racks, each=4):
    nodes = [
        {"id": f"n{k}", "gpu_count": each, "gpu": {"model": "M", "memory_mib": 100}}
        | ({"rack": rack} if rack else {})
        for k, rack in enumerate(racks)
    ]
    return Machines(Cluster.from_data({"nodes": nodes}))


@pytest.mark.parametrize(
    ("counts", "workers", "nodes"),
    [
        # Two whole nodes hold it, and of those of one rack, too.
        ({0: 4, 1: 4, 2: 4, 3: 4}, 8, [0, 2]),
        ({0: 3, 1: 4, 2: 4, 3: 4}, 8, [1, 3]),
        # Rack b would hold it on three nodes only: fewer nodes come first.
        ({0: 4, 1: 2, 2: 1, 3: 3, 5: 3}, 7, [0, 3]),
        # Of two racks that do, the one that has less left over.
        ({0: 4, 1: 4, 2: 4, 3: 4, 5: 2}, 8, [0, 2]),
        # No rack holds it: the fullest nodes, and of as full ones those of the fuller rack.
        ({0: 4, 1: 4, 2: 4, 3: 4, 5: 4}, 16, [1, 3, 5, 0]),
    ],
)
def test_racks(counts, workers, nodes):
    assert fewest_nodes(counts, workers, machines("a", "b", "a", "b", "c", "b")) == nodes


def test_without_racks_the_fullest_nodes_come_first():
    assert fewest_nodes({0: 1, 1: 3, 2: 2, 3: 3}, 5, machines(*[None] * 4)) == [1, 3]
