"""What an engine has to do: find nodes, have agents run there, and carry calls to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from dovetail.executor.live.nodes.calls import Method


class Sighted(NamedTuple):
    """What an engine says of a node.

    Attributes
    ----------
    rack : str or None
        Where the node stands.
    pilot : str or None
        The job of Slurm that lends it.
    leaving : str
        Why no new jobs are to be started there; empty: they are.
    """

    rack: str | None = None
    pilot: str | None = None
    leaving: str = ""


class NodeFinder(Protocol):
    """Finds nodes, has agents run there, and carries calls to them.

    Methods but ``start`` and ``taken_back`` return at once, and are called from several threads. A
    node keeps its id for as long as it keeps its agent's directory.

    Attributes
    ----------
    name : str
        ``ray``, ``slurm``: what the pool is called.
    """

    name: str

    def start(self) -> None:
        """Begin to find nodes; called once."""
        ...

    def nodes(self) -> Mapping[str, Sighted]:
        """Return the nodes that are known now, by id."""
        ...

    def awaited(self) -> Sequence[str]:
        """Return what has no nodes yet, though it is to have some, each in a few words."""
        ...

    def weigh(self, lacking: int, busy: Collection[str]) -> None:
        """Take in how many devices waiting jobs lack, and the nodes that keep runs."""
        ...

    def taken_back(self, node: str) -> str:
        """Return why a rank of a node, which failed just now, may have been ended with its node.

        Empty: it was not. It may take seconds.
        """
        ...

    def call(self, node: str, method: Method, text: str) -> Future[str]:
        """Have the agent of a node answer a call (``calls.said_by``); it may take for ever.

        What it answers is told by a thread that waits for nothing, or ``NoAnswerError``.
        """
        ...

    def close(self) -> None:
        """Let go; agents and their jobs run on."""
        ...
