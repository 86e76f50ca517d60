"""What a run supervisor asks of the pool that its run belongs to."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.parts import Part, Rendezvous
from dovetail.executor.pools.processes import Process
from dovetail.executor.pools.run_files import RunFiles
from dovetail.executor.pools.start_barrier import ForkServer


class Bounds(NamedTuple):
    """What a rank is kept within from before its program runs.

    Attributes
    ----------
    cpus : tuple of int
        Cores it may run on; empty = all.
    cgroups : tuple of str
        ``cgroup.procs`` files that it enters.
    """

    cpus: tuple[int, ...] = ()
    cgroups: tuple[str, ...] = ()


class Hooks(Protocol):
    """What kinds of local pools do differently.

    All are called from the run's own thread, so they may take their time, but not for ever.
    """

    @property
    def fork_server(self) -> ForkServer:
        """What makes the shims of ranks."""
        ...

    def rank_spec(self, part: Part, rank: int, files: RunFiles) -> dict[str, object]:
        """Return what the shim of a rank is to run; LaunchError where it cannot be."""
        ...

    def rendezvous(self, part: Part) -> Rendezvous | None:
        """Return where the gang of a part meets; None for a run of one rank."""
        ...

    def is_ready(self, run: Run, rank: int, pid: int) -> bool:
        """Return whether a rank is proven to run under its cap; asked again until it is."""
        ...

    def before_kill(self, run: Run, rank: int) -> None:
        """Do what has to be done before the processes of a rank are killed."""
        ...

    def members(self, run: Run, rank: int) -> list[Process]:
        """Return processes that belong to a rank by other signs than token and session."""
        ...
