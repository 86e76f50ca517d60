"""How jobs of one node slow each other through its host: processors, memory, disk, PCIe, network.

A worker that runs at full speed asks for ``d_r`` of resource r, of which its node has ``c_r``:
its *part* is ``d_r / c_r``. The *load* of a resource is the sum of the parts of all workers on
the node. Where it is at most 1 each gets what it asks for, and nothing is slower: loading data
runs ahead of computing on the GPU, so a job that gets what it asks for does not wait. Beyond
that each gets its proportional share, ``d_r / load_r`` (processor sharing), and an iteration
cannot be shorter than its work on the scarcest resource takes::

    slowdown_host = max(1, load_r over the resources r that the job asks for)

It multiplies the slowdown that the job has on its GPU. That throughput is flat above a job's
need of processors and falls in proportion below it is what Synergy measured (Mohan et al.,
*Looking beyond GPUs for DNN scheduling on multi-tenant clusters*, OSDI 2022); jobs of one node
that share no GPU were measured to keep 0.65 to 1.0 of their throughput in Eva (Chang
and Venkataraman, EuroSys 2025).

Two things make the model careful. A job that is slowed on its GPU asks for less than its ``d``;
it counts with all of it. And where a resource is short, a job that hardly uses it is taken to be
slowed as much as one that lives on it. One thing is left out: the workers of one job alone never
slow each other, as its speed alone is what slowdowns are measured against. A worker's part is
therefore at most one of as many as the node's GPUs hold of the job.

What is unknown, of a node or of a workload, slows no job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.instance import HostResources, Metrics, Node, Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESOURCES: Final = tuple(HostResources.model_fields)
"""The resources of a host, in the order of the arrays."""

FULL: Final = 1 + 1e-3
"""The load from which on jobs are slowed: sums of rounded parts count as 1."""


def needs(workload: Workload) -> tuple[float, ...]:
    """Return what one worker asks for of each resource, 0 where that is unknown.

    PCIe and network follow from the metrics where ``host`` does not say them: the larger of both
    directions, as links carry as much each way at a time.
    """
    own, metrics = workload.host or HostResources(), workload.metrics or Metrics()
    measured = {
        "pcie_bytes_s": max(metrics.pcie_rx_bytes_s or 0.0, metrics.pcie_tx_bytes_s or 0.0),
        "net_bytes_s": max(metrics.net_rx_bytes_s or 0.0, metrics.net_tx_bytes_s or 0.0),
    }
    said = ((name, getattr(own, name)) for name in RESOURCES)
    return tuple(measured.get(name, 0.0) if value is None else value for name, value in said)


class Hosts:
    """What workers of workloads ask for on nodes, as parts of what these have.

    Parameters
    ----------
    nodes : sequence of Node
        N nodes.
    workloads : sequence of Workload
        W workloads.

    Attributes
    ----------
    asked : bool
        Whether any workload asks for anything that a node is known to have.
    """

    def __init__(self, nodes: Sequence[Node], workloads: Sequence[Workload]) -> None:
        has = [[getattr(node.host, name, None) or np.inf for name in RESOURCES] for node in nodes]
        capacity = np.array(has, dtype=np.float64).reshape(len(nodes), len(RESOURCES))
        need = np.array([needs(one) for one in workloads], dtype=np.float64)
        self._part = need.reshape(-1, len(RESOURCES)) / capacity[:, None, :]
        self._gpus = np.array([len(node.devices) for node in nodes], dtype=np.int64)
        self.asked = bool(self._part.any())

    def part(self, node: int | Ints, workload: int | Ints, workers: int | Ints) -> Floats:
        """Return the parts that one worker of a job with so many asks for, (..., resources).

        Arguments are indices and numbers, or arrays of one shape.
        """
        together = np.minimum(workers, self._gpus[node])
        largest = 1 / np.maximum(1, np.asarray(together))[..., None]
        part: Floats = np.minimum(self._part[node, workload], largest)
        return part


def host_slowdown(part: Floats, load: Floats) -> Floats:
    """Return the slowdown of jobs through their host (see the module's text).

    Parameters
    ----------
    part : float, shape (..., resources)
        What a worker asks for, as a part of what the node has.
    load : float, shape (..., resources)
        The sum of the parts of all workers on the node.
    """
    slowed = np.where((load > FULL) & (part > 0), load, 1.0)
    return np.asarray(slowed.max(axis=-1))
