"""Commands of the state machine to a pool; each may be carried out again after a crash."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.executor.jobs.specs import Run


class Launch(NamedTuple):
    """Start every rank of a run that has no trace yet; a rank is never started twice."""

    run: Run


class StopRun(NamedTuple):
    """End every rank of a run: ask, wait for ``grace_s``, terminate, kill."""

    run: str
    grace_s: float


class Pause(NamedTuple):
    """Suspend or resume every process of a run."""

    run: str
    on: bool


class Release(NamedTuple):
    """A run is over: give back its ports, cgroups and daemons. Logs stay."""

    run: str


Command = Launch | StopRun | Pause | Release
