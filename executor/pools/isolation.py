"""The interface between a GPU pool and a plugin that isolates runs sharing a GPU.

The plugin is registered as ``isolation.NAME``: a function that takes a directory for its files and
returns an ``Isolation``. The pool uses the first one that works on the machine; without one, no
pair is isolated. There is one *scheduler* for each GPU and user with isolated runs, which outlives
the service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from dovetail.instances.errors import DovetailError


class IsolationError(DovetailError):
    """A run cannot be isolated now."""


class SchedulerStatus(NamedTuple):
    """The status that a scheduler reports.

    Attributes
    ----------
    pids : frozenset of int
        The processes that it isolates.
    launches : mapping of str to int
        Their kernel launches since the scheduler started, by category.
    escapes : mapping of str to str
        Their kernels that cannot be isolated at all, or not in some form, with the reason.
    kernels : int or None
        The kernels that they have launched since then; None if that is unknown.
    """

    pids: frozenset[int]
    launches: Mapping[str, int]
    escapes: Mapping[str, str]
    kernels: int | None = None


class Isolation(Protocol):
    """Isolates latency-critical runs from the runs in their idle time.

    GPUs are named by UUID, and users by uid.
    """

    def why_not(self) -> str | None:
        """Return why runs cannot be isolated on this machine, in one line, or None if they can."""

    def environment(
        self, uuid: str, uid: int, latency: bool, given: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Start a GPU's scheduler if needed, and return the variables of an isolated rank.

        Parameters
        ----------
        uuid, uid
            The GPU and the rank's user.
        latency : bool
            Whether other runs wait for the rank's launches.
        given : mapping of str to str
            The job's own environment.

        Raises
        ------
        IsolationError
            If the rank cannot be isolated.
        """

    def ensure(self, uuid: str, uid: int) -> None:
        """Start a GPU's scheduler for a user unless one answers; replace one that hangs.

        Raises
        ------
        IsolationError
            If it does not start.
        """

    def end(self, uuid: str, uid: int) -> None:
        """End a GPU's scheduler for a user, if one runs; its processes go on without isolation."""

    def status(self, uuid: str, uid: int) -> SchedulerStatus | None:
        """Return the status of a GPU's scheduler for a user, or None if none answers."""

    def began_s(self, uuid: str, uid: int) -> float | None:
        """Return when that scheduler started, in seconds since boot, or None if none runs."""
