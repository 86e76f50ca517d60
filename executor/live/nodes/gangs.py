"""How a gang over several nodes starts: all of its parts stand at their gates, or none runs.

Two phases, with the controller as the coordinator: every node prepares its part, the node of
rank 0 first, since it decides where the gang meets; then all are told to commit. Until the first
is told, anything that goes wrong aborts all. After that nothing does: what can be started starts,
and a part that cannot be any more is told as such by its node.

Source: J. Gray, Notes on Data Base Operating Systems, 1978 (two-phase commit).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dovetail.executor.live.nodes.messages import Abort, AnyOrder, Commit, Prepare
from dovetail.executor.live.pools.parts import Meeting, Part


class ToNode(NamedTuple):
    """An order for a node."""

    node: str
    order: AnyOrder


@dataclass
class Gang:
    """The start of one gang.

    Parameters
    ----------
    parts : mapping of str to Part
        By node; without a meeting.
    due_s : float
        When all have to be prepared, on the controller's clock.
    """

    parts: Mapping[str, Part]
    due_s: float
    prepared: set[str] = field(default_factory=set)
    meeting: Meeting | None = None
    decided: bool = False

    def begin(self) -> Sequence[ToNode]:
        """Return what the node of rank 0 is told first."""
        first = next(node for node, part in self.parts.items() if 0 in part.ranks)
        return [ToNode(first, Prepare(part=self.parts[first]))]

    def note_prepared(self, node: str, meeting: Meeting | None) -> Sequence[ToNode]:
        """Take in that a part stands at its gates, and return what is to be done for it."""
        if self.decided or node in self.prepared:
            return []
        self.prepared.add(node)
        if self.meeting is None:
            self.meeting = meeting
            return [
                ToNode(other, Prepare(part=part._replace(meeting=meeting)))
                for other, part in self.parts.items()
                if other != node
            ]
        if self.prepared != self.parts.keys():
            return []
        self.decided = True
        return [ToNode(each, Commit(part=part)) for each, part in self.parts.items()]

    def give_up(self, reason: str) -> Sequence[ToNode]:
        """Abort all parts, unless they have been told to start."""
        if self.decided:
            return []
        self.decided = True
        return [ToNode(node, Abort(part=part, reason=reason)) for node, part in self.parts.items()]
