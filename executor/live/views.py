"""What the service shows of itself: the records that every face is made of."""

from __future__ import annotations

from pydantic import Field

from dovetail.executor.live.brain import JobState
from dovetail.instances._record import FrozenMapping, Name, Record


class StepView(Record):
    """A line of a job's history; ``at_s`` is in seconds since the epoch."""

    at_s: float
    state: JobState
    why: str


class JobView(Record):
    """A job as its owner sees it.

    Times are in seconds since the epoch. ``slowdown`` is measured: its rate alone over its rate
    now; ``predicted`` and ``upper`` are what was believed when it was placed. ``iterations`` are
    those of its slowest rank in this run, ``rate`` per second. Of a job that is over they are the
    last that were seen, slowdowns those while it shared; a service that was started again since
    has none.
    """

    id: Name
    name: str | None = None
    owner: Name
    uid: int
    command: tuple[str, ...]
    cwd: str = ""
    workload: Name
    workers: int
    priority: str
    gsla: float | None = None
    state: JobState
    why: str
    waiting_for: str = ""
    submitted_s: float
    since_s: float
    started_s: float | None = None
    ended_s: float | None = None
    runs: int = 0
    run: str | None = None
    gpus: tuple[str, ...] = ()
    shares: tuple[int | None, ...] = ()
    co_runners: tuple[tuple[str, ...], ...] = ()
    pids: tuple[int | None, ...] = ()
    statuses: tuple[int | None, ...] = ()
    iterations: float | None = None
    total: float | None = None
    rate: float | None = None
    solo_rate: float | None = None
    slowdown: float | None = None
    predicted: float | None = None
    upper: float | None = None
    memory_mib: float | None = None
    walltime_s: float | None = None
    retries: int = 0
    grace_s: float = 0.0
    public_log: bool = False
    history: tuple[StepView, ...] = ()


class DeviceView(Record):
    """A device and who is on it; ``trouble`` says why it takes no new jobs, empty where it does."""

    id: Name
    node: Name
    rack: Name | None = None
    model: Name
    memory_mib: float
    jobs: tuple[str, ...] = ()
    used_mib: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    metrics: FrozenMapping[str, float] = Field({})
    source: str = ""
    trouble: str = ""


class ServiceView(Record):
    """The service as a whole. ``decide_s`` is how long its last decision took."""

    pool: Name
    notice: str
    policy: Name
    version: Name
    pid: int
    directory: str
    started_s: float
    now_s: float
    sequence: int
    jobs: FrozenMapping[str, int]
    decide_s: float | None = None
    gap: float | None = None
    dry_run: bool = False
    trouble: str = ""
    devices: tuple[DeviceView, ...] = ()
