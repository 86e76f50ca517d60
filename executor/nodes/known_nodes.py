"""The nodes that have answered once, kept over restarts, and their devices as one cluster."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from dovetail.executor.nodes.messages import Facts
from dovetail.executor.nodes.remote import Remote
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
    generation : int
        Grows whenever any of it changes.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._kept: dict[str, _Kept] = {}
        self.generation = 0
        for path in sorted(directory.glob(f"*{_ENDING}")):
            self._read(path)

    def nodes(self) -> Collection[str]:
        """Return the nodes that are known."""
        return [*self._kept]

    def of(self, node: str) -> tuple[Facts | None, str | None]:
        """Return what a node was when it answered last, and its rack."""
        kept = self._kept.get(node)
        return (kept.facts, kept.rack) if kept else (None, None)

    def note(self, remote: Remote) -> bool:
        """Keep what a node is, and where it stands, and return whether that is news."""
        if remote.facts is None or self.of(remote.id) == (remote.facts, remote.rack):
            return False
        kept = self._kept[remote.id] = _Kept(facts=remote.facts, rack=remote.rack)
        self.generation += 1
        try:
            write_data(kept.to_data(), self._directory / f"{remote.id}{_ENDING}")
        except InputError as error:
            _log.warning("what %s is cannot be kept: %s", remote.id, error)
        return True

    def forget(self, node: str) -> None:
        """Forget what a node was."""
        self._kept.pop(node, None)
        self.generation += 1
        (self._directory / f"{node}{_ENDING}").unlink(missing_ok=True)

    def _read(self, path: Path) -> None:
        node = path.name.removesuffix(_ENDING)
        try:
            self._kept[node] = _Kept.from_data(read_data(path), str(path))
        except InputError as error:
            _log.warning("what %s was is not known: %s", node, error)


def merged(remotes: Sequence[Remote]) -> Cluster:
    """Return the cluster of several nodes under the strictest of their rules.

    Its shares are those of any node; ``NodePool.allowed`` says which of them a model takes.
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
