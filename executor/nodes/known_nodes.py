"""The nodes that have answered once, kept over restarts, and their devices as one cluster."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from dovetail.executor.nodes.messages import Facts
from dovetail.executor.nodes.remote import Remote
from dovetail.instances._record import Name, Record
from dovetail.instances.errors import InputError
from dovetail.instances.files import read_data, write_data
from dovetail.instances.instance import Cluster, Node

_log = logging.getLogger(__name__)


class KnownNode(Record):
    """What a node was when it last answered, and its rack; the file of a node."""

    facts: Facts | None = None
    rack: Name | None = None


def read_known(directory: Path) -> dict[str, KnownNode]:
    """Return the nodes that have a file in a directory; one that is damaged is left out."""
    found = {}
    for path in sorted(directory.glob("*.json")):
        try:
            found[path.stem] = KnownNode.from_data(read_data(path), str(path))
        except InputError as error:
            _log.warning("what %s was is not known: %s", path.stem, error)
    return found


def write_known(directory: Path, node: str, known: KnownNode) -> None:
    """Keep what a node is, where there is room for that."""
    try:
        write_data(known.to_data(), directory / f"{node}.json")
    except InputError as error:
        _log.warning("what %s is cannot be kept: %s", node, error)


def merged(remotes: Sequence[Remote]) -> Cluster:
    """Return the cluster of several nodes under the strictest of their rules.

    Its shares are those of any node; ``NodesPool.allowed`` returns those that a model takes.
    """
    known = [remote for remote in remotes if remote.facts]
    clusters = [remote.facts.cluster for remote in known if remote.facts]
    if not clusters:
        return Cluster(nodes=())
    return Cluster(
        max_jobs_per_gpu=min(one.max_jobs_per_gpu for one in clusters),
        shares=tuple(sorted({share for one in clusters for share in one.shares})),
        share_sum=min(one.share_sum for one in clusters),
        start_capped=any(one.start_capped for one in clusters),
        gang_sharing="whole" if any(one.gang_sharing == "whole" for one in clusters) else "partial",
        reserve_mib=max(one.reserve_mib for one in clusters),
        per_process_mib=max(one.per_process_mib for one in clusters),
        nodes=tuple(Node(id=one.id, rack=one.rack, gpus=one.devices()) for one in known),
    )
