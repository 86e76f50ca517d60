"""The part of a run that is on this node: which of its ranks, and where its gang meets."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.executor.jobs.specs import Run


class Rendezvous(NamedTuple):
    """Where the ranks of a gang find each other: ``MASTER_ADDR`` and ``MASTER_PORT``."""

    address: str
    port: int


class Part(NamedTuple):
    """Ranks of a run that are kept here; they have the numbers that they have in the gang.

    Attributes
    ----------
    run : Run
        With all its seats, those of other nodes included.
    ranks : tuple of int
        Those kept here, in order.
    rendezvous : Rendezvous or None
        Where the gang meets; None where that is decided here when it is launched.
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
    """A part of a run waits at the start barrier, and nothing of it has run.

    It starts when it is committed, and ends without a trace when it is aborted.

    Attributes
    ----------
    run : str
        The run's id.
    ranks : tuple of int
        Those of its ranks that wait at the start barrier.
    rendezvous : Rendezvous or None
        Where its gang meets, for the other parts; None for a run of one rank.
    """

    run: str
    ranks: tuple[int, ...]
    rendezvous: Rendezvous | None
