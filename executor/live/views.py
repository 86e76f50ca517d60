"""Views of the service, its jobs and its devices, as returned by the HTTP API.

They are plain data classes: a client need not repeat the service's checks, and starts faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dovetail.executor.jobs.states import JobState, MeaningEnum


class Chosen(NamedTuple):
    """Which jobs to list; None does not restrict.

    Attributes
    ----------
    user, name, state : str or None
        Only jobs of this user, of this name, in this state.
    within_s : float or None
        Only jobs that ended in the last ``within_s`` seconds.
    before : str or None
        Only jobs submitted before this job.
    limit : int or None
        At most this many jobs, the last submitted ones.
    """

    user: str | None = None
    name: str | None = None
    state: str | None = None
    within_s: float | None = None
    before: str | None = None
    limit: int | None = None


EVERY: Final = Chosen()

LISTED_CHARACTERS: Final = 200
"""Characters of a job's command in lists; a single job that is not over shows all of it."""

MOST_LISTED: Final = 1000
"""Jobs in a list; the client reads longer lists page by page."""


@dataclass(frozen=True, kw_only=True)
class StepView:
    """A line of a job's history; ``at_s`` is in seconds since the epoch."""

    at_s: float
    state: JobState
    why: str


@dataclass(frozen=True, kw_only=True)
class JobView:
    """A job as its owner sees it; times are in seconds since the epoch.

    ``launches`` and ``escapes`` count all isolated jobs on its devices; ``capped`` says why it has
    an SM share.

    Of a service: ``replica`` is its number among ``replicas`` that are not over; ``ready`` says
    whether it has just answered a probe (None: it has none); ``restarts`` counts its starts after
    the first, and ``quick_ends`` its last ends in a row that came soon after a start; ``again_s``
    is when it starts again; ``address`` is ``NODE:PORT`` of its first worker. The latencies
    ``p99_s`` (now; None if there were too few requests), ``p99_alone_s`` and ``p99_promised_s``
    (the one alone times its gSLA) are those of any job that reports latencies;
    ``requests_per_s`` is 0 if it had no requests.
    """

    id: str
    name: str | None = None
    owner: str
    uid: int
    command: tuple[str, ...]
    cwd: str = ""
    workload: str
    workers: int
    workers_per_node: int | None = None
    workers_together: int | None = None
    priority: str
    nice: int = 0
    gsla: float | None = None
    isolation: str | None = None
    unisolated: str = ""
    launches: Mapping[str, int] = field(default_factory=dict)
    escapes: Mapping[str, str] = field(default_factory=dict)
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
    shares: tuple[int | str | None, ...] = ()
    capped: str = ""
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
    predicted_by: str = ""
    memory_mib: float | None = None
    memory_percent: float | None = None
    memory_limit_mib: float | None = None
    memory_used_mib: float | None = None
    memory_held_by: str = ""
    estimate_s: float | None = None
    energy_j: float | None = None
    device_s: float | None = None
    walltime_s: float | None = None
    retries: int = 0
    requeue: bool = True
    grace_s: float = 0.0
    checkpoint_s: float | None = None
    stops_apart_s: float | None = None
    public_log: bool = False
    output: str | None = None
    error: str | None = None
    log: str = ""
    held: str = ""
    awaits: tuple[str, ...] = ()
    index: int | None = None
    service: bool = False
    replica: int | None = None
    replicas: int | None = None
    ready: bool | None = None
    restarts: int = 0
    quick_ends: int = 0
    again_s: float | None = None
    node: str | None = None
    port: int | None = None
    address: str = ""
    probe: str | None = None
    p99_s: float | None = None
    p99_alone_s: float | None = None
    p99_promised_s: float | None = None
    requests_per_s: float | None = None
    history: tuple[StepView, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PartView:
    """The part of a device's time and power that one of its jobs answers for.

    The sources are ``measured``, ``modelled``, or ``equal`` parts for lack of figures.
    """

    job: str
    time: float
    time_source: str
    power_w: float | None = None
    power_source: str = ""


@dataclass(frozen=True, kw_only=True)
class DeviceView:
    """A device and its jobs; ``measuring`` is the share that the service measures there."""

    id: str
    node: str
    rack: str | None = None
    model: str
    memory_mib: float
    jobs: tuple[str, ...] = ()
    measuring: int | None = None
    used_mib: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    uuid: str = ""
    number: int | None = None
    parts: tuple[PartView, ...] = ()
    trouble: str = ""


@dataclass(frozen=True, kw_only=True)
class EvidenceView:
    """How far the service is with the shares that it measures itself."""

    state: str
    text: str
    gpu: str | None = None
    share: int | None = None
    library: str | None = None
    since_s: float | None = None
    left: tuple[int, ...] = ()


class Wait(MeaningEnum):
    """What a waiting job lacks, in classes."""

    HELD = "held", "its release"
    REST = "rest", "the end of its rest: it is a service that has ended and starts again"
    DEPENDENCY = "dependency", "the end of other jobs"
    ARRAY_LIMIT = "array_limit", "other jobs of its array"
    SERVICE = "service", "a service that starts jobs: a dry run, a full disk, a failing policy"
    NO_DEVICE = "no_device", "a device that takes jobs"
    ORDER = "order", "jobs of another user, or with a lower nice, that come first"
    IDLE_DEVICE = "idle_device", "idle devices: it may not share yet"
    SM_SHARE = "sm_share", "idle devices, or a proven SM share beside others"
    ROOM = "room", "idle devices, or room beside others"


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Figures over all jobs; counts are since the start of the service.

    ``decisions`` has the number of decisions by the least of `DECISION_BOUNDS_S` that their time
    did not exceed (infinity: none), ``decisions_s`` the sum of their times. ``oldest_wait_s`` is
    the longest time for which a job has competed for devices.
    """

    waiting: Mapping[Wait, int]
    oldest_wait_s: float
    ended: Mapping[JobState, int]
    restarts: int
    broken: int
    decisions: Mapping[float, int]
    decisions_s: float


DECISION_BOUNDS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Times of decisions are counted between these."""


@dataclass(frozen=True, kw_only=True)
class ServiceView:
    """The service as a whole."""

    pool: str
    notice: str
    policy: str
    version: str
    pid: int
    directory: str
    started_s: float
    now_s: float
    sequence: int
    jobs: Mapping[str, int]
    decide_s: float | None = None
    gap: float | None = None
    dry_run: bool = False
    trouble: str = ""
    evidence: EvidenceView | None = None
    devices: tuple[DeviceView, ...] = ()


HORIZON_S: Final = 3600.0
"""Seconds that an ``HourAhead`` covers."""


@dataclass(kw_only=True)
class ExpectedStay:
    """A job on devices, for some time from now.

    Attributes
    ----------
    job : str
        The job.
    gpus : tuple of str
        Its devices.
    shares : tuple
        Its share on each.
    from_s, to_s : float
        From when to when, in seconds from now; infinity if the end is unknown or later.
    by : str
        From what its end is known: ``rate`` (measured), ``estimate`` (its owner's), ``service``
        (it has none), or empty.
    starts : bool
        Whether it has not begun.
    """

    job: str
    gpus: tuple[str, ...]
    shares: tuple[int | str | None, ...]
    from_s: float
    to_s: float
    by: str
    starts: bool


class HourAhead(NamedTuple):
    """The next hour.

    Attributes
    ----------
    made_s : float
        When it was made, on the service's clock.
    stays : tuple of ExpectedStay
        Jobs on devices, by their beginnings.
    waiting : tuple of str
        Jobs that do not start within the hour, as far as it was rolled forward.
    until_s : float
        Up to which moment starts are known.
    why : str
        Why it is not known further; empty if it is known for the hour.
    """

    made_s: float
    stays: tuple[ExpectedStay, ...]
    waiting: tuple[str, ...]
    until_s: float
    why: str
