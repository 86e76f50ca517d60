"""An instance whose GPUs are shared in several ways, as one instance for each way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dovetail.instances.instance import Cluster, Instance, Node
from dovetail.instances.slowdowns.entry import MODES, SharingMode
from dovetail.instances.slowdowns.shares import BEST_EFFORT, NO_CAP, share_code


def of_each_mode(instance: Instance) -> Iterator[Instance]:
    """Yield the instance once for each way in which jobs share its GPUs, in the order of ``MODES``.

    Each has the GPUs that are shared in that way, the entries that hold there and the jobs that
    may share there, all waiting. An instance whose GPUs are all shared as its cluster says is
    yielded as it is.
    """
    cluster = instance.cluster
    if cluster.modes == (cluster.sharing,):
        yield instance
        return
    for mode in MODES:
        part = _part(cluster, mode)
        jobs = [job.waiting for job in instance.jobs if job.sharing in (None, mode)]
        if any(node.devices for node in part.nodes) and (jobs or not instance.jobs):
            known = instance.slowdowns
            sets = [k for k, entry in known.sets.items() if entry.mode == mode]
            rows = np.asarray(known.mode == MODES.index(mode))
            yield instance.replace(cluster=part, jobs=jobs, slowdowns=known.select(rows, sets))


def _part(cluster: Cluster, mode: SharingMode) -> Cluster:
    """Return the GPUs of a cluster that are shared in one way."""
    uncapped = (NO_CAP, BEST_EFFORT)
    shares = [s for s in cluster.shares if mode == "mps" or share_code(s) in uncapped]
    nodes = (_only(cluster, node, mode) for node in cluster.nodes)
    return cluster.replace(sharing=mode, shares=shares, nodes=[node for node in nodes if node])


def _only(cluster: Cluster, node: Node, mode: SharingMode) -> Node | None:
    """Return a node with its GPUs that are shared in one way; None if it has none."""
    if node.gpu is not None:
        alike = cluster.sharing_on(node.gpu) == mode
        return node.replace(gpu=node.gpu.replace(sharing=None)) if alike else None
    gpus = [gpu for gpu in node.devices if cluster.sharing_on(gpu) == mode]
    return node.replace(gpus=[gpu.replace(sharing=None) for gpu in gpus]) if gpus else None
