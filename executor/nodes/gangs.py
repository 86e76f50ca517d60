"""How a gang over several nodes starts: all of its parts stand at the start barrier, or none runs.

Two phases, with the controller as the coordinator: every node prepares its part, the node of
rank 0 first, since it decides where the gang meets; then all are told to commit. Until the first
is told, anything that goes wrong aborts all. After that nothing does: what can be started starts,
and a part that cannot be any more is told as such by its node.

Source: J. Gray, Notes on Data Base Operating Systems, 1978 (two-phase commit).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dovetail.executor.nodes.messages import Abort, AnyOrder, Commit, Prepare
from dovetail.executor.pools.parts import Part, Rendezvous
from dovetail.executor.system.clock import boot_s

GANG_S: Final = 45.0
"""Seconds in which all parts of a gang have to stand at the start barrier."""


@dataclass
class _Gang:
    parts: Mapping[str, Part]
    due_s: float
    decided: bool = False
    rendezvous: Rendezvous | None = None
    prepared: set[str] = field(default_factory=set)


class Gangs:
    """The gangs that have been launched, by run.

    Parameters
    ----------
    order : callable
        Takes a node and an order for it.
    """

    def __init__(self, order: Callable[[str, AnyOrder], None]) -> None:
        self._order = order
        self._gangs: dict[str, _Gang] = {}
        self._doubted: set[str] = set()

    def begin(self, run: str, parts: Mapping[str, Part]) -> None:
        """Start a gang, whose parts are given by node and have no rendezvous yet."""
        self._gangs[run] = _Gang(parts, boot_s() + GANG_S)
        first = next(node for node, part in parts.items() if 0 in part.ranks)
        self._order(first, Prepare(part=parts[first]))

    def go_on(self, run: str, parts: Mapping[str, Part]) -> None:
        """Start what is prepared of a gang that an earlier controller had committed."""
        gang = self._gangs[run] = _Gang(parts, boot_s())
        self._commit(gang)

    def has(self, run: str) -> bool:
        """Tell whether a gang has been launched."""
        return run in self._gangs

    def is_open(self, run: str) -> bool:
        """Tell whether a gang may still be given up."""
        gang = self._gangs.get(run)
        return gang is not None and not gang.decided

    def note_prepared(self, run: str, node: str, rendezvous: Rendezvous | None) -> None:
        """Take in that a part stands at the start barrier."""
        gang = self._gangs.get(run)
        if gang is None or gang.decided or node in gang.prepared:
            return
        gang.prepared.add(node)
        if gang.rendezvous is None:
            gang.rendezvous = rendezvous
            for other, part in gang.parts.items():
                if other != node:
                    self._order(other, Prepare(part=part._replace(rendezvous=rendezvous)))
        self._commit_if_certain(gang)

    def _commit_if_certain(self, gang: _Gang) -> None:
        """Commit a gang if all parts are prepared and no node of it is in doubt."""
        if gang.prepared == gang.parts.keys() and self._doubted.isdisjoint(gang.parts):
            self._commit(gang)

    def _commit(self, gang: _Gang) -> None:
        gang.decided = True
        for node, part in gang.parts.items():
            self._order(node, Commit(part=part))

    def doubt(self, node: str) -> None:
        """Note that a node does not answer: its agent may have died after it prepared its parts."""
        self._doubted.add(node)

    def trust(self, node: str) -> None:
        """Take in that a node answers, and start the gangs that have waited for that."""
        if node in self._doubted:
            self._doubted.discard(node)
            for gang in self._gangs.values():
                if not gang.decided:
                    self._commit_if_certain(gang)

    def lost_prepared(self, node: str) -> list[str]:
        """Return the gangs that lost a prepared part with the former agent of a node."""
        return [run for run, g in self._gangs.items() if not g.decided and node in g.prepared]

    def give_up(self, run: str, reason: str) -> bool:
        """Abort all parts and return true, unless they have been told to start."""
        if not self.is_open(run):
            return False
        gang = self._gangs[run]
        gang.decided = True
        for node, part in gang.parts.items():
            self._order(node, Abort(part=part, reason=reason))
        return True

    def hopeless(self, is_silent: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
        """Yield the gangs that have to be given up by now, each with the reason."""
        for run, gang in [*self._gangs.items()]:
            if gang.decided:
                continue
            silent = next(filter(is_silent, gang.parts), None)
            if silent is not None:
                yield run, f"{silent} does not answer"
            elif boot_s() > gang.due_s:
                waited = ", ".join(sorted(gang.parts.keys() - gang.prepared))
                yield run, f"it was not prepared within {GANG_S:g} s on {waited}"

    def forget(self, run: str) -> None:
        """Forget a gang."""
        self._gangs.pop(run, None)
