"""The part of a run that is on this node: its ranks, and where its gang meets."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.executor.jobs.specs import Run


class Rendezvous(NamedTuple):
    """Where the ranks of a gang find each other: ``MASTER_ADDR`` and ``MASTER_PORT``."""

    address: str
    port: int


class Part(NamedTuple):
    """The ranks of a run that are kept on this node, with their numbers in the gang.

    Attributes
    ----------
    run : Run
        The run with all its seats, including seats on other nodes.
    ranks : tuple of int
        The ranks kept here, in order.
    rendezvous : Rendezvous or None
        Where the gang meets; None if this node decides it at the launch.
    """

    run: Run
    ranks: tuple[int, ...]
    rendezvous: Rendezvous | None = None

    @property
    def whole(self) -> bool:
        """Whether every rank of the run is kept here."""
        return len(self.ranks) == len(self.run.seats)


def whole(run: Run) -> Part:
    """Return a run as a part that has all its ranks."""
    return Part(run, tuple(range(len(run.seats))))


class PreparedPart(NamedTuple):
    """A part of a run that waits at the start barrier; none of its ranks has run.

    It starts when it is committed, and ends without a trace when it is aborted.

    Attributes
    ----------
    run : str
        The run's id.
    ranks : tuple of int
        The ranks that wait at the start barrier.
    rendezvous : Rendezvous or None
        Where its gang meets, for the other parts; None for a run of one rank.
    """

    run: str
    ranks: tuple[int, ...]
    rendezvous: Rendezvous | None
