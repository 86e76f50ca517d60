"""The hooks through which a run supervisor calls its pool, overridden by each kind of pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.runs.files import Part, Rendezvous, RunFiles
from dovetail.executor.pools.runs.processes import ProcessId


class Bounds(NamedTuple):
    """The limits of a rank that are set before its program runs.

    Attributes
    ----------
    cpus : tuple of int
        Cores it may run on; empty = all.
    cgroups : tuple of str
        Entry files of the cgroups that it joins.
    """

    cpus: tuple[int, ...] = ()
    cgroups: tuple[str, ...] = ()


class Hooks:
    """The hooks of a run supervisor.

    All but ``released`` are called from threads of the runs, several at a time for different runs,
    and may take seconds; ``released`` is called from the service's thread.

    Attributes
    ----------
    quick_hooks : bool
        Whether ``rank_environment`` and ``rank_bounds`` never wait, so any thread may call them.
    """

    quick_hooks = False

    def rank_spec(self, part: Part, rank: int, files: RunFiles) -> dict[str, object]:
        """Return the specification for the shim of a rank; LaunchError if it cannot be run."""
        raise NotImplementedError

    def rendezvous(self, part: Part) -> Rendezvous | None:
        """Return where the gang of a part meets; None for a run of one rank."""
        raise NotImplementedError

    def rank_environment(self, run: Run, rank: int) -> Mapping[str, str]:
        """Return the variables that a rank needs for its device.

        Raises
        ------
        LaunchError
            When the rank cannot be started; then no rank of the run is started.
        """
        return {}

    def rank_bounds(self, run: Run, rank: int) -> Bounds:
        """Return the cores and cgroups of a rank; LaunchError if it cannot be started."""
        return Bounds()

    def is_ready(self, run: Run, rank: int, pid: int) -> bool:
        """Return whether a rank is proven to run under its cap; called repeatedly until True."""
        return True

    def before_kill(self, run: Run, rank: int) -> None:
        """Do everything that must precede the kill of a rank's processes."""

    def members(self, run: Run, rank: int) -> list[ProcessId]:
        """Return processes of a rank that are known by other signs than token and session."""
        return []

    def released(self, run: Run) -> None:
        """Release the pool's resources of a run that has ended."""
