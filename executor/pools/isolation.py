"""What a GPU pool asks of a way to isolate runs that share a GPU.

A way of isolation is a plugin ``isolation.NAME``: a function that takes a directory for its files
and returns an ``Isolation``. The pool takes the first that works on the machine; where there is
none, no pair is isolated. For each GPU and user with isolated runs there is one *scheduler*, which
outlives the service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from dovetail.instances.errors import DovetailError


class IsolationError(DovetailError):
    """A run cannot be isolated now."""


class SchedulerStatus(NamedTuple):
    """What a scheduler says of itself.

    Attributes
    ----------
    pids : frozenset of int
        The processes that it isolates.
    launches : mapping of str to int
        Their kernel launches since it began, by what they are counted as.
    escapes : mapping of str to str
        Their kernels that cannot be isolated, or not in some form, and why.
    """

    pids: frozenset[int]
    launches: Mapping[str, int]
    escapes: Mapping[str, str]


class Isolation(Protocol):
    """Isolates latency-critical runs from those that run in their idle time.

    GPUs are named by UUID, and users by uid.
    """

    def why_not(self) -> str | None:
        """Return why runs cannot be isolated on this machine, in one line, or None if they can."""

    def environment(
        self, uuid: str, uid: int, latency: bool, given: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Start a GPU's scheduler if it does not run, and return what an isolated rank needs.

        Parameters
        ----------
        uuid, uid
            The GPU and the rank's user.
        latency : bool
            Whether its launches are those that others wait for.
        given : mapping of str to str
            The job's own environment.

        Raises
        ------
        IsolationError
            If the rank cannot be isolated.
        """

    def ensure(self, uuid: str, uid: int) -> None:
        """Start a GPU's scheduler for a user unless one answers; one that hangs is replaced.

        Raises
        ------
        IsolationError
            If it does not start.
        """

    def status(self, uuid: str, uid: int) -> SchedulerStatus | None:
        """Return the status of a GPU's scheduler for a user, or None if none answers."""

    def began_s(self, uuid: str, uid: int) -> float | None:
        """Return when that scheduler began, in seconds since boot, or None if none runs."""
