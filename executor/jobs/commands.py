"""What the state machine wants done; every command may be carried out again after a crash."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.executor.jobs.specs import Run


class Launch(NamedTuple):
    """Start every rank of a run that has no trace yet; a rank is never started twice."""

    run: Run


class Stop(NamedTuple):
    """End every rank of a run: ask, wait for ``grace_s``, terminate, kill."""

    run: str
    grace_s: float


class Pause(NamedTuple):
    """Stop every process of a run where it is, or let it go on; neither ends it."""

    run: str
    on: bool


class Release(NamedTuple):
    """A run is over: give back its ports, cgroups and daemons. Logs stay."""

    run: str


Command = Launch | Stop | Pause | Release
