"""The interface between live mode and a pool of devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.share_gate import ShareGate
from dovetail.instances.instance import Cluster

SAMPLE_S: Final = 1.0
"""Default number of seconds between two samples of the running jobs by the service."""


class Progress(NamedTuple):
    """The progress of a rank.

    Attributes
    ----------
    iterations : float
        Iterations done since its process started.
    at_s : float
        When the last iteration was done, in seconds of CLOCK_BOOTTIME: two readings give an exact
        rate, no matter when they are taken.
    total : float or None
        The total number of iterations, if the job reports it.
    latencies : tuple of (int, int)
        The latencies reported so far, as pairs of bucket number (ascending) and count
        (`dovetail_progress.latency_at` returns where a bucket begins).
    """

    iterations: float
    at_s: float
    total: float | None = None
    latencies: tuple[tuple[int, int], ...] = ()


class Usage(NamedTuple):
    """A reading of a device.

    Attributes
    ----------
    at_s : float
        When it was read, on the clock of ``Progress``.
    memory_mib : float or None
        Memory in use.
    energy_j : float or None
        A counter of energy that only grows; power is its difference over time.
    metrics : mapping of str to float
        Means since the previous reading, by the names of ``instances.instance.METRICS``.
    source : str
        The source of the metrics, in words: ``NVML GPM``, ``CPU time (stand-in)``.
    memory_by_run : mapping of str to float
        High-water mark of each resident run in MiB, if known.
    clock_mhz, temperature_c : float or None
        Its clock rate and temperature.
    throttled : tuple of str
        Why its clock rate is reduced.
    others : tuple of int
        Processes on it that do not belong to the pool.
    others_busy : float or None
        The fraction of the time since the previous reading that it spent on processes outside the
        pool, if these cannot be kept away.
    driver : str or None
        The version of its driver.
    uuid : str
        The UUID that NVIDIA's tools show; empty for devices without one.
    number : int or None
        Its number in the driver's order on its node.
    launches : mapping of str to int
        Kernel launches of isolated runs since its schedulers started, by category.
    escapes : mapping of str to str
        Their kernels that cannot be isolated at all, or not in some form, with the reason.
    memory_held_by : str
        What makes runs there keep to their memory limits, in words; empty if that is unknown.
    """

    at_s: float
    memory_mib: float | None = None
    energy_j: float | None = None
    metrics: Mapping[str, float] = {}
    source: str = ""
    memory_by_run: Mapping[str, float] = {}
    clock_mhz: float | None = None
    temperature_c: float | None = None
    throttled: tuple[str, ...] = ()
    others: tuple[int, ...] = ()
    others_busy: float | None = None
    driver: str | None = None
    uuid: str = ""
    number: int | None = None
    launches: Mapping[str, int] = {}
    escapes: Mapping[str, str] = {}
    memory_held_by: str = ""


class NodePool(Protocol):
    """Devices on which runs can be started, stopped and watched.

    No method waits for a job. ``poll`` reports events of ranks and devices. Methods are called
    from one thread, except ``prune``, ``log_path`` and ``log_lack``, which may be called from any
    thread at any time, even after ``release``.

    Attributes
    ----------
    name : str
        ``gpu``, ``cpu``, ``simulated``, ...: shown with all figures of the pool.
    notice : str
        One line for users on what figures of this pool are worth; empty for real GPUs.
    reserves : bool
        Whether a share is reserved for its run, so that runs share a device only with one each.
    """

    name: str
    notice: str
    reserves: bool

    @property
    def gate(self) -> ShareGate | None:
        """What is known of the shares of its devices, and how the service measures others.

        None if the service measures none here.
        """
        ...

    @property
    def awaited(self) -> str:
        """The source of further devices, in a few words; empty if there are no more."""
        ...

    @property
    def trouble(self) -> str:
        """Why it cannot watch or end runs, empty if it can."""
        ...

    def lack(self, devices: int) -> None:
        """Set how many devices the jobs that wait after a round lack."""
        ...

    def cluster(self) -> Cluster:
        """Return the devices, and the shares that may be used on them.

        They may change; then this is another object, and the function set by ``attach`` is called.
        ``poll`` reports no device that this method has not returned before.
        """
        ...

    def sharing(self, same_user: bool) -> str | None:
        """Return why runs of one user, or of two users, may never share a device; None: they may.

        An MPS server, for instance, serves one user at a time.
        """
        ...

    def library(self, run: Run) -> str:
        """Return the library that decides which shares compute correctly (cuBLAS on GPUs).

        It is looked up while the run runs; empty if it is unknown or does not matter.
        """
        ...

    def allowed(self, library: str, model: str) -> Collection[int]:
        """Return the shares of a device model that a program with this library may have."""
        ...

    def attach(self, wake: Callable[[], None]) -> None:
        """Set what to call, from any thread, as soon as ``poll`` has news."""
        ...

    def resume(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Resume the runs that should exist, and return other runs that were found.

        Called once, before any other method except ``cluster``. ``poll`` then reports every rank of
        the given runs (started, ended, lost, gone, ...), even if it was reported before; a rank of
        a released run is reported as over. A run without a trace is not reported: it will be
        launched.
        """
        ...

    def prelaunch(self, run: Run) -> None:
        """Prepare the start of a run as far as possible without running its programs.

        The launch follows once the start is durable. Without a launch the run is refused after a
        minute, through no fault of its job, or leaves no trace if this process ends.
        """
        ...

    def launch(self, run: Run) -> None:
        """Start every rank of the run that has no trace yet, all together or none."""
        ...

    def stop(self, run: str, grace_s: float) -> None:
        """End every rank of the run (ask, wait, terminate, kill); safe to repeat.

        A rank without a trace (the service may have been killed before the launch) is reported as
        refused and never started: a stopping run ends only when every rank is over.
        """
        ...

    def pause(self, run: str, on: bool) -> None:
        """Suspend every process of a run, or let it continue; safe to repeat."""
        ...

    def release(self, run: str) -> None:
        """Release the resources of an ended run. Its logs stay."""
        ...

    def poll(self) -> Sequence[AnyEvent]:
        """Return the events since the last call without waiting; the caller sets ``at_s``."""
        ...

    def progress(self, run: str) -> Sequence[Progress | None]:
        """Return the progress of each rank of a run; None for a rank that reports nothing."""
        ...

    def usage(self) -> Mapping[str, Usage]:
        """Return the usage of each device since the last call."""
        ...

    def log_path(self, run: str, rank: int) -> str | None:
        """Return the newest log file of a rank; older parts have ``.1``, ``.2``, ... appended.

        None if there is none yet. It reads only files, and no state that other methods change.
        """
        ...

    def log_lack(self, run: str, rank: int) -> str:
        """Return why the file of the last ``log_path`` may lack output; empty if it lacks none.

        It may be called from any thread at any time, as ``log_path``.
        """
        ...

    def prune(self, keep_s: float) -> None:
        """Remove the files of runs that ended longer ago or take too much of the disk.

        It may take a while, and is called from a separate thread.
        """
        ...

    def close(self) -> None:
        """Close the pool; the jobs keep running."""
        ...


def awaited_text(pool: NodePool) -> str:
    """Return a line about the devices that a pool awaits, empty if it awaits none."""
    awaited = pool.awaited
    return f"more devices are awaited from {awaited}" if awaited else ""
