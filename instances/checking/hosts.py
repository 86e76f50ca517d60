"""The demand on the hosts of nodes and the slowdown by it, from the definition alone.

A worker asks for a fraction of a resource of its node, at most 1/k if the node's GPUs can hold k
workers of its job. If the fractions on a node sum to more than 1, jobs that ask for the resource
are slowed down by the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import fsum
from typing import TYPE_CHECKING

from dovetail.instances.instance import HostResources, Instance, Node, Workload

if TYPE_CHECKING:
    from dovetail.instances.checking.facts import JobOnGpus

FULL = 1.001
"""The sum of fractions above which jobs are slowed down."""

_OF_METRICS = {
    "pcie_bytes_s": ("pcie_rx_bytes_s", "pcie_tx_bytes_s"),
    "net_bytes_s": ("net_rx_bytes_s", "net_tx_bytes_s"),
}


class HostLoads:
    """The load of each resource of all nodes.

    Parameters
    ----------
    instance : Instance
        The round.
    placed : iterable of JobOnGpus
        The jobs that hold GPUs.
    """

    def __init__(self, instance: Instance, placed: Iterable[JobOnGpus]) -> None:
        self._nodes = {node.id: node for node in instance.cluster.nodes if node.host}
        self._node_of = {gpu: place.node for gpu, place in instance.places.items()}
        asked: dict[tuple[str, str], list[float]] = {}
        for each in placed if self._nodes else ():
            for gpu in each.share:
                for name, part in self.parts(each, gpu).items():
                    asked.setdefault((self._node_of[gpu], name), []).append(part)
        self.load = {key: fsum(parts) for key, parts in asked.items()}

    def parts(self, placed: JobOnGpus, gpu: str) -> Mapping[str, float]:
        """Return the fraction of each resource that the worker on a GPU asks for, if any."""
        node = self._nodes.get(self._node_of[gpu])
        if node is None or node.host is None:
            return {}
        most = 1 / min(placed.job.workers, len(node.devices))
        asked = _asked(node, placed.workload)
        return {name: min(part, most) for name, part in asked.items()}

    def slowdown(self, placed: JobOnGpus, gpu: str) -> float:
        """Return how much the host slows the worker of a job on a GPU."""
        node = self._node_of[gpu]
        loads = (self.load[node, name] for name in self.parts(placed, gpu))
        return max((load for load in loads if load > FULL), default=1.0)

    def node_of(self, gpu: str) -> str:
        """Return the id of a GPU's node."""
        return self._node_of[gpu]


def over_capacity(loads: HostLoads) -> Iterator[tuple[str, str, float]]:
    """Yield node, resource and load for each overloaded resource."""
    for (node, name), load in loads.load.items():
        if load > FULL:
            yield node, name, load


def _asked(node: Node, workload: Workload) -> dict[str, float]:
    found = {}
    for name in HostResources.model_fields:
        has, needs = getattr(node.host, name), _need(workload, name)
        if has and needs:
            found[name] = needs / has
    return found


def _need(workload: Workload, name: str) -> float:
    own = getattr(workload.host, name, None)
    if own is not None:
        return float(own)
    metrics = (getattr(workload.metrics, metric, None) for metric in _OF_METRICS.get(name, ()))
    return max((value for value in metrics if value is not None), default=0.0)
