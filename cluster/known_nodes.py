"""The files of nodes that have ever answered, and the devices of all nodes as one cluster."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from dovetail.cluster.messages import AgentFacts
from dovetail.cluster.remote import Remote
from dovetail.instances._record import Name, Record
from dovetail.instances.errors import InputError
from dovetail.instances.files import read_data, write_data
from dovetail.instances.instance import Cluster, Node
from dovetail.instances.slowdowns.shares import share_code

_log = logging.getLogger(__name__)


class KnownNode(Record):
    """The file of a node: the last facts of its agent, and its rack."""

    facts: AgentFacts | None = None
    rack: Name | None = None


def read_known(directory: Path) -> dict[str, KnownNode]:
    """Return the nodes that have a valid file in a directory."""
    found = {}
    for path in sorted(directory.glob("*.json")):
        try:
            found[path.stem] = KnownNode.from_data(read_data(path), str(path))
        except InputError as error:
            _log.warning("node %s is unknown until it answers: %s", path.stem, error)
    return found


def write_known(directory: Path, node: str, known: KnownNode) -> None:
    """Write the file of a node; only log an error, such as a full disk."""
    try:
        write_data(known.to_data(), directory / f"{node}.json")
    except InputError as error:
        _log.warning("the file of node %s cannot be written: %s", node, error)


def merged(remotes: Sequence[Remote]) -> Cluster:
    """Return the cluster of several nodes, under the strictest rule of any of them.

    Its shares are the union of the nodes' shares; ``NodesPool.allowed`` returns the shares of a
    device model. ``idle`` is among them if any node isolates: on another one, the first start of an
    isolated run is refused, and the next is without isolation.
    """
    known = [remote for remote in remotes if remote.facts]
    clusters = [remote.facts.cluster for remote in known if remote.facts]
    if not clusters:
        return Cluster(nodes=())
    return Cluster(
        # Where nodes differ, jobs share no GPU at all: `NodesPool.sharing`.
        sharing="mps" if any(one.sharing == "mps" for one in clusters) else "time_sliced",
        max_jobs_per_gpu=min(one.max_jobs_per_gpu for one in clusters),
        shares=tuple(sorted({share for one in clusters for share in one.shares}, key=share_code)),
        share_sum=min(one.share_sum for one in clusters),
        start_capped=any(one.start_capped for one in clusters),
        uncapped=all(one.uncapped for one in clusters),
        gang_sharing="whole" if any(one.gang_sharing == "whole" for one in clusters) else "partial",
        reserve_mib=max(one.reserve_mib for one in clusters),
        per_process_mib=max(one.per_process_mib for one in clusters),
        nodes=tuple(Node(id=one.id, rack=one.rack, gpus=one.devices()) for one in known),
    )
