"""The interface between live mode and a pool of devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.specs import Run
from dovetail.instances.instance import Cluster

SAMPLE_S: Final = 1.0
"""Seconds between two looks of the service at what runs, unless asked otherwise."""


class Progress(NamedTuple):
    """The progress of a rank.

    Attributes
    ----------
    iterations : float
        Done since its process began.
    at_s : float
        When the last of them was done, seconds of CLOCK_BOOTTIME: two readings make an exact
        rate, whenever they are taken.
    total : float or None
        Iterations in all, where the job says so.
    latencies : tuple of (int, int)
        The latencies reported so far: the numbers of their buckets, ascending, and how many are
        in each (`dovetail_progress.latency_at` tells where a bucket begins).
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
        In use now.
    energy_j : float or None
        A counter that only grows; power is its difference over time.
    metrics : mapping of str to float
        Means since the reading before, by the names of ``instances.instance.METRICS``.
    source : str
        Where the metrics come from, in words: ``NVML GPM``, ``CPU time (stand-in)``.
    memory_by_run : mapping of str to float
        High-water mark of each resident run in MiB, if it is known.
    clock_mhz, temperature_c : float or None
        Now.
    throttled : tuple of str
        Why its clocks are lowered now.
    others : tuple of int
        Processes on it that are none of the pool's.
    others_busy : float or None
        The part of the time since the reading before that it gave to processes that are none of
        the pool's, where these cannot be kept away.
    driver : str or None
        The version of its driver.
    launches : mapping of str to int
        Kernel launches of isolated runs by what they are counted as, since its schedulers started.
    escapes : mapping of str to str
        Their kernels that cannot be isolated, or not in some form, and why.
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
    launches: Mapping[str, int] = {}
    escapes: Mapping[str, str] = {}


class NodePool(Protocol):
    """Devices on which runs can be started, stopped and watched.

    No method waits for a job. ``poll`` reports what happens, as events about ranks and devices.
    Methods are called from one thread, except ``prune`` and ``log_path``, which may be called from
    any thread at any time, even after ``release``.

    Attributes
    ----------
    name : str
        ``gpu``, ``cpu``, ``simulated``, ...: shown wherever figures of the pool are.
    notice : str
        One line on what figures of this pool are worth, for people; empty for real GPUs.
    """

    name: str
    notice: str

    @property
    def awaited(self) -> str:
        """What will bring more devices, in a few words; empty: these are all."""
        ...

    @property
    def trouble(self) -> str:
        """What keeps it from watching or ending runs; empty: nothing does."""
        ...

    def lack(self, devices: int) -> None:
        """Take in how many devices the jobs lack that wait after a round."""
        ...

    def cluster(self) -> Cluster:
        """Return the devices, and the shares that may be used on them.

        They may become others; then what ``attach`` set is called. ``poll`` tells of no device that
        has not been here before.
        """
        ...

    def sharing(self, same_user: bool) -> str | None:
        """Return why runs of one user, or of two users, may never share a device; None: they may.

        An MPS server, for instance, serves one user at a time.
        """
        ...

    def library(self, run: Run) -> str:
        """Return the library that decides which shares compute right for a run (cuBLAS on GPUs).

        It is looked for while the run runs; empty where it is not known, or does not matter.
        """
        ...

    def allowed(self, library: str, model: str) -> Collection[int]:
        """Return the shares of a device model that a program with this library may have."""
        ...

    def attach(self, wake: Callable[[], None]) -> None:
        """Set what to call, from any thread, as soon as ``poll`` has news."""
        ...

    def resume(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Take up the runs that should exist, and return what was found beyond them.

        Called once, before anything else but ``cluster``. ``poll`` then reports every rank of the
        given runs (started, ended, lost, gone, ...), again if it was reported before; one that was
        released is reported as over. A run with no trace is not reported; it will be launched.
        """
        ...

    def prelaunch(self, run: Run) -> None:
        """Prepare the start of a run as far as possible before any of its programs runs.

        The launch follows once the start is durable. Without it the run is refused, through no
        fault of its job, after a minute, or leaves no trace if this process ends.
        """
        ...

    def launch(self, run: Run) -> None:
        """Start every rank of the run that has no trace yet, all or none at the same time."""
        ...

    def stop(self, run: str, grace_s: float) -> None:
        """End every rank of the run (ask, wait, terminate, kill); calling it again is harmless.

        A rank with no trace (the service may have been killed before it was launched) is reported
        as refused, and never started: a stopping run ends only when every rank is over.
        """
        ...

    def pause(self, run: str, on: bool) -> None:
        """Stop every process of a run where it is, or let it go on; again harmless."""
        ...

    def release(self, run: str) -> None:
        """Give back what an ended run held. Logs stay."""
        ...

    def poll(self) -> Sequence[AnyEvent]:
        """Return at once what has happened since the last call; the caller sets ``at_s``."""
        ...

    def progress(self, run: str) -> Sequence[Progress | None]:
        """Return how far each rank of a run is; None for a rank that reports nothing."""
        ...

    def usage(self) -> Mapping[str, Usage]:
        """Return what each device has been doing since the last call."""
        ...

    def log_path(self, run: str, rank: int) -> str | None:
        """Return the newest log file of a rank; older parts have ``.1``, ``.2``, ... appended.

        None where there is none yet. It looks at files only, at nothing that other methods change.
        """
        ...

    def prune(self, keep_s: float) -> None:
        """Remove what is left of runs that ended longer ago, or that takes too much of the disk.

        It may take a while, and is called from a thread of its own.
        """
        ...

    def close(self) -> None:
        """Let go of everything but the jobs: they run on."""
        ...


def awaited_text(pool: NodePool) -> str:
    """Return a line on the devices that a pool awaits; empty if it awaits none."""
    awaited = pool.awaited
    return f"more devices are awaited from {awaited}" if awaited else ""
