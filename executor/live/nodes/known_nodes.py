"""The nodes that have answered once, kept over restarts, and their devices as one cluster."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dovetail.executor.live.nodes.finding import Sighted
from dovetail.executor.live.nodes.messages import Facts
from dovetail.executor.live.nodes.remote import Remote
from dovetail.instances._record import Name, Record
from dovetail.instances.errors import InputError
from dovetail.instances.files import read_data, write_data
from dovetail.instances.instance import Cluster, Node

_log = logging.getLogger(__name__)

_ENDING: Final = ".json"


class _Kept(Record):
    """The file of a node."""

    facts: Facts
    rack: Name | None = None


class KnownNodes:
    """Facts of nodes: a controller that starts knows the devices of those that do not answer.

    Attributes
    ----------
    facts, racks : dict
        By node.
    generation : int
        Grows whenever any of it changes.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.facts: dict[str, Facts] = {}
        self.racks: dict[str, str | None] = {}
        self.generation = 0
        for path in sorted(directory.glob(f"*{_ENDING}")):
            self._read(path)

    def note(self, remote: Remote, where: Sighted | None) -> bool:
        """Keep what a node is, and return whether that is news."""
        rack = where.rack if where else self.racks.get(remote.id)
        known = (self.facts.get(remote.id), self.racks.get(remote.id))
        if remote.facts is None or known == (remote.facts, rack):
            return False
        self.facts[remote.id], self.racks[remote.id] = remote.facts, rack
        self.generation += 1
        kept = _Kept(facts=remote.facts, rack=rack)
        try:
            write_data(kept.to_data(), self._directory / f"{remote.id}{_ENDING}")
        except InputError as error:
            _log.warning("what %s is cannot be kept: %s", remote.id, error)
        return True

    def forget(self, node: str) -> None:
        """Forget what a node was."""
        self.facts.pop(node, None)
        self.racks.pop(node, None)
        self.generation += 1
        (self._directory / f"{node}{_ENDING}").unlink(missing_ok=True)

    def _read(self, path: Path) -> None:
        node = path.name.removesuffix(_ENDING)
        try:
            kept = _Kept.from_data(read_data(path), str(path))
        except InputError as error:
            _log.warning("what %s was is not known: %s", node, error)
            return
        self.facts[node], self.racks[node] = kept.facts, kept.rack


def merged(nodes: Sequence[tuple[Remote, str | None]]) -> Cluster:
    """Return the cluster of several nodes, each with its rack, under the strictest of their rules.

    Its shares are those of any node; ``NodePool.allowed`` says which of them a model takes.
    """
    known = [(remote, rack, remote.facts.cluster) for remote, rack in nodes if remote.facts]
    clusters = [cluster for _, _, cluster in known]
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
        nodes=tuple(
            Node(id=remote.id, rack=rack, gpus=remote.devices()) for remote, rack, _ in known
        ),
    )
