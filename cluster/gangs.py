"""The start of gangs over several nodes: every part starts, or none does.

This is a two-phase commit with the controller as the coordinator. First every node brings its part
to the start barrier; the node of rank 0 goes first, because it chooses the rendezvous. Then all
parts start. A failure before the decision to start aborts all parts. After it, every part that can
start does, and a node reports a part that cannot.

Source: J. Gray, Notes on Data Base Operating Systems, 1978 (two-phase commit).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from dovetail.cluster.remote import Remote
from dovetail.executor.pools.runs.files import Part
from dovetail.executor.system.clock import boot_s

GANG_S: Final = 45.0
"""Seconds within which all parts of a gang must reach the start barrier."""


class _PreparingGang(NamedTuple):
    parts: Mapping[str, Part]
    first: str
    due_s: float


class Gangs:
    """The gangs that are being prepared, by run.

    Parameters
    ----------
    remotes : mapping of str to Remote
        The nodes.
    want : callable
        Receives a node, a part and changes of its want (``Remote.want``).
    """

    def __init__(self, remotes: Mapping[str, Remote], want: Callable[..., None]) -> None:
        self._remotes, self._want = remotes, want
        self._gangs: dict[str, _PreparingGang] = {}

    def begin(self, run: str, parts: Mapping[str, Part]) -> None:
        """Prepare a gang, whose parts are given by node."""
        first = next(node for node, part in parts.items() if 0 in part.ranks)
        self._gangs[run] = _PreparingGang(parts, first, boot_s() + GANG_S)
        self._want(first, parts[first], phase="prepare")

    def is_open(self, run: str) -> bool:
        """Return whether the start of a gang has not been decided yet."""
        return run in self._gangs

    def give_up(self, run: str, reason: str) -> bool:
        """Abort all parts of a gang and return true, unless its start has been decided."""
        gang = self._gangs.pop(run, None)
        for node, part in gang.parts.items() if gang else ():
            self._want(node, part, phase="abort", reason=reason)
        return gang is not None

    def advance(self) -> Iterator[tuple[str, str]]:
        """Take the next step of every gang; yield gangs that cannot start, with the reason."""
        for run, gang in [*self._gangs.items()]:
            reason = self._why_not(run, gang)
            if reason:
                yield run, reason
            else:
                self._advance(run, gang)

    def _why_not(self, run: str, gang: _PreparingGang) -> str:
        silent = [node for node in gang.parts if self._remotes[node].silent]
        if silent:
            return f"{silent[0]} does not answer"
        if boot_s() > gang.due_s:
            waited = ", ".join(sorted(gang.parts.keys() - self._prepared(run, gang)))
            return f"it was not prepared within {GANG_S:g} s on {waited}"
        return ""

    def _advance(self, run: str, gang: _PreparingGang) -> None:
        prepared = self._prepared(run, gang)
        if gang.first in prepared:
            rendezvous = self._remotes[gang.first].state.prepared[run]
            for node, part in gang.parts.items():
                if node != gang.first and self._remotes[node].wants[run].phase != "prepare":
                    self._want(node, part._replace(rendezvous=rendezvous), phase="prepare")
        # An agent whose last call failed may have died, and its part with it.
        if prepared == gang.parts.keys() and not any(self._remotes[n].doubted for n in prepared):
            del self._gangs[run]
            for node, part in gang.parts.items():
                self._want(node, part, phase="commit")

    def _prepared(self, run: str, gang: _PreparingGang) -> set[str]:
        """Return the nodes that reported their part at the start barrier."""
        return {node for node in gang.parts if run in self._remotes[node].state.prepared}
