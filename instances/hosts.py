"""How jobs on one node slow each other through its host: processors, memory, disk, PCIe, network.

A worker at full speed asks for ``d_r`` of resource r, of which its node has ``c_r``: its *part* is
``d_r / c_r``. The *load* of a resource is the sum of the parts of all workers on the node. If it
is at most 1, each worker gets what it asks for, and none is slower: loading data runs ahead of
computing on the GPU, so such a job does not wait. Above 1, each gets its proportional share, ``d_r
/ load_r`` (processor sharing), and an iteration takes at least as long as its work on the scarcest
resource::

    slowdown_host = max(1, load_r over the resources r that the job asks for)

It multiplies the slowdown that the job has on its GPU. Synergy measured that throughput is flat
above a job's need of processors and proportional below it (Mohan et al., *Looking beyond GPUs for
DNN scheduling on multi-tenant clusters*, OSDI 2022); Eva measured that jobs on one node that share
no GPU keep 0.65 to 1.0 of their throughput (Chang and Venkataraman, EuroSys 2025).

The model is conservative in two ways. A job that is slowed on its GPU asks for less than its
``d``; it is counted in full. And if a resource is scarce, a job that hardly uses it is slowed as
much as one that depends on it. One effect is left out: the workers of a job never slow each other,
as slowdowns are relative to its speed alone. A worker's part is therefore at most 1/k if the
node's GPUs can hold k workers of its job.

Unknown resources of a node or a workload slow no job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.instance import HostResources, Node, Workload
from dovetail.instances.metrics import Metrics

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESOURCES: Final = tuple(HostResources.model_fields)
"""The resources of a host, in the order of the arrays."""

FULL: Final = 1 + 1e-3
"""The load above which jobs are slowed: sums of rounded parts are treated as 1."""


def needs(workload: Workload) -> tuple[float, ...]:
    """Return the need of one worker for each resource, 0 if unknown.

    PCIe and network follow from the metrics if ``host`` does not give them: the larger of both
    directions, as links are full duplex.
    """
    own, metrics = workload.host or HostResources(), workload.metrics or Metrics()
    measured = {
        "pcie_bytes_s": max(metrics.pcie_rx_bytes_s or 0.0, metrics.pcie_tx_bytes_s or 0.0),
        "net_bytes_s": max(metrics.net_rx_bytes_s or 0.0, metrics.net_tx_bytes_s or 0.0),
    }
    said = ((name, getattr(own, name)) for name in RESOURCES)
    return tuple(measured.get(name, 0.0) if value is None else value for name, value in said)


class Hosts:
    """The needs of workers of workloads on nodes, as parts of the nodes' resources.

    Parameters
    ----------
    nodes : sequence of Node
        N nodes.
    workloads : sequence of Workload
        W workloads.

    Attributes
    ----------
    asked : bool
        Whether any workload needs a known resource of a node.
    """

    def __init__(self, nodes: Sequence[Node], workloads: Sequence[Workload]) -> None:
        has = [[getattr(node.host, name, None) or np.inf for name in RESOURCES] for node in nodes]
        capacity = np.array(has, dtype=np.float64).reshape(len(nodes), len(RESOURCES))
        need = np.array([needs(one) for one in workloads], dtype=np.float64)
        self._part = need.reshape(-1, len(RESOURCES)) / capacity[:, None, :]
        self._gpus = np.array([len(node.devices) for node in nodes], dtype=np.int64)
        self.asked = bool(self._part.any())

    def part(self, node: int | Ints, workload: int | Ints, workers: int | Ints) -> Floats:
        """Return the parts that one worker of a job with ``workers`` asks for, (..., resources).

        The arguments are indices and numbers, or arrays of one shape.
        """
        together = np.minimum(workers, self._gpus[node])
        largest = 1 / np.maximum(1, np.asarray(together))[..., None]
        part: Floats = np.minimum(self._part[node, workload], largest)
        return part


def host_slowdown(part: Floats, load: Floats) -> Floats:
    """Return the slowdown of jobs through their host (see the module).

    Parameters
    ----------
    part : float, shape (..., resources)
        The need of a worker, as a part of the node's resources.
    load : float, shape (..., resources)
        The sum of the parts of all workers on the node.
    """
    slowed = np.where((load > FULL) & (part > 0), load, 1.0)
    return np.asarray(slowed.max(axis=-1))
