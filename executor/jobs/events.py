"""The events of live mode. An event is in the journal before it is acted on.

``at_s`` is the service's clock: seconds, near the time since the epoch, that never go back
(``clock.ServiceClock``).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, TypeAdapter

from dovetail.executor.jobs.specs import JobSpec, Run, UserId
from dovetail.instances._record import (
    Count,
    Name,
    NonNegative,
    Number,
    Positive,
    Record,
    SeatShare,
    Share,
)
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.slowdowns.entry import SharingMode

Rank = Annotated[StrictInt, Field(ge=0)]
Reason = Annotated[str, Field(strict=True, min_length=1)]


class Event(Record):
    """Something that happened at a moment of the service's clock."""

    at_s: Number


# Requests of users.


class Submitted(Event):
    """A job was accepted under an id that no job had before.

    ``request`` is the key of the request and its user, so that a repeated request is carried out
    once; empty if it had no key. The jobs of one request are submitted one after the other.
    """

    kind: Literal["submitted"] = "submitted"
    job: Name
    spec: JobSpec
    request: str = ""


class CancelRequested(Event):
    """A job is cancelled by its owner or an administrator.

    ``grace_s``: seconds until it is killed, if that is less than the job's own grace.
    """

    kind: Literal["cancel_requested"] = "cancel_requested"
    job: Name
    by: Name
    grace_s: NonNegative | None = None


class HoldChanged(Event):
    """A waiting job is held or released; a held job does not start."""

    kind: Literal["hold_changed"] = "hold_changed"
    job: Name
    on: StrictBool
    by: Name


class PauseChanged(Event):
    """The processes of a running job are suspended or resumed on request."""

    kind: Literal["pause_changed"] = "pause_changed"
    job: Name
    on: StrictBool
    by: Name


class Edited(Event):
    """The specification of a waiting job is replaced; its environment stays."""

    kind: Literal["edited"] = "edited"
    job: Name
    spec: JobSpec
    by: Name


class RestartDue(Event):
    """A service that has ended has rested for long enough, and may start again."""

    kind: Literal["restart_due"] = "restart_due"
    job: Name


class DrainChanged(Event):
    """Devices (all if none is named) are drained, so that they take no new jobs, or undrained."""

    kind: Literal["drain_changed"] = "drain_changed"
    gpus: tuple[Name, ...] = ()
    on: StrictBool
    by: Name


# Decisions.


class Placed(Event):
    """A start of a job on these devices was decided.

    ``profiling``: it runs alone there until its workload has a profile; no job may join it.
    """

    kind: Literal["placed"] = "placed"
    run: Run
    profiling: StrictBool = False


class Reserved(Event):
    """Devices are reserved for a waiting job; without devices, its reservation is withdrawn.

    ``until_s``: when all of them should be idle; other jobs may run there until then. The
    reservation ends when the job no longer waits.
    """

    kind: Literal["reserved"] = "reserved"
    job: Name
    gpus: tuple[Name, ...] = ()
    until_s: Number = 0.0


class StopDecided(Event):
    """A stop of a run was decided.

    ``then``: the job will ``wait`` for another start, or ``fail``.
    """

    kind: Literal["stop_decided"] = "stop_decided"
    run: Name
    reason: Reason
    then: Literal["wait", "fail"]


# Observations of processes.


class RankStarted(Event):
    """The process of a rank exists; ``pid_started`` (ticks since boot) and pid identify it."""

    kind: Literal["rank_started"] = "rank_started"
    run: Name
    rank: Rank
    pid: Count | None = None
    pid_started: Rank | None = None


class RankReady(Event):
    """A rank provably runs under its cap: attached to MPS, or on its cores."""

    kind: Literal["rank_ready"] = "rank_ready"
    run: Name
    rank: Rank


class RankRefused(Event):
    """A rank could not be started: it never ran and never will.

    ``later``: the job is not at fault, and another run of it may start.
    """

    kind: Literal["rank_refused"] = "rank_refused"
    run: Name
    rank: Rank
    reason: Reason
    later: bool = False


class RankEnded(Event):
    """A rank and all its processes are gone; ``status`` is negative for a signal.

    ``asked``: its run was being stopped, according to the files of the run. ``ended_s``: when it
    ended, which is long before ``at_s`` if no service ran; pools give it in seconds since boot.
    """

    kind: Literal["rank_ended"] = "rank_ended"
    run: Name
    rank: Rank
    status: StrictInt
    asked: StrictBool = False
    ended_s: Number | None = None


class RankLost(Event):
    """It is unknown whether a rank still runs; its device is treated as busy."""

    kind: Literal["rank_lost"] = "rank_lost"
    run: Name
    rank: Rank
    reason: Reason


class RankGone(Event):
    """A rank has provably ended; how it ended is unknown."""

    kind: Literal["rank_gone"] = "rank_gone"
    run: Name
    rank: Rank
    reason: Reason


RankEvent = RankStarted | RankReady | RankRefused | RankEnded | RankLost | RankGone


class IsolationLost(Event):
    """The kernel launches of an isolated run are not intercepted, or no longer.

    Runs with the share ``idle`` on its devices are stopped, including the run itself if it has
    co-runners. If it has not run yet, its job starts without isolation from then on.
    """

    kind: Literal["isolation_lost"] = "isolation_lost"
    run: Name
    reason: Reason


class IsolationRegained(Event):
    """The kernel launches of a run are intercepted, if they have not been before.

    Its processes have joined the scheduler in place of one that had ended. It is also reported,
    once, of an isolated run that a new service finds.
    """

    kind: Literal["isolation_regained"] = "isolation_regained"
    run: Name


# Measurements.


class Profiled(Event):
    """A run was measured alone for long enough."""

    kind: Literal["profiled"] = "profiled"
    run: Name
    profile: SoloProfile


class WorkloadKnown(Event):
    """The repository has a solo profile of a user's workload on the devices of the pool."""

    kind: Literal["workload_known"] = "workload_known"
    uid: UserId
    workload: Name


class ProfileFailed(Event):
    """A run could not be measured alone (it reports no progress, say); its job never shares."""

    kind: Literal["profile_failed"] = "profile_failed"
    run: Name
    reason: Reason


class Measured(Event):
    """Runs that share a device were measured together.

    ``runs`` are in the order of ``measurement.workloads``; ``predicted`` are the slowdowns
    predicted when they were placed, empty if there were none.
    """

    kind: Literal["measured"] = "measured"
    runs: tuple[Name, ...]
    gpu: Name
    measurement: Measurement
    window_s: Positive
    predicted: tuple[Positive, ...] = ()


class Separated(Event):
    """Two runs shared a device, one exceeded its gSLA, and one of the two is stopped.

    ``runs``, ``workloads`` and ``shares`` name the run over its gSLA first, then the other run.
    ``slowdown`` belongs to the first run and is None if it made no progress; with ``tail`` it is
    the growth of the 99th percentile of its latency. ``mode`` is how they shared the device.
    """

    kind: Literal["separated"] = "separated"
    runs: tuple[Name, Name]
    gpu_model: Name
    workloads: tuple[Name, Name]
    shares: tuple[SeatShare | None, SeatShare | None]
    gsla: Positive
    slowdown: Positive | None
    tail: StrictBool = False
    mode: SharingMode = "mps"

    def is_refuted_by(self, event: Measured) -> bool:
        """Return whether other runs of both workloads kept the gSLA at the same caps."""
        found = event.measurement
        values = found.p99 if self.tail else found.slowdown
        elsewhere = (found.gpu_model, found.mode) != (self.gpu_model, self.mode)
        if elsewhere or set(self.runs) <= set(event.runs):
            return False
        if values is None or len(found.workloads) != len(self.workloads):
            return False
        sides = (
            (found.workloads, found.shares, values[0]),
            (found.workloads[::-1], found.shares[::-1], values[1]),
        )
        slowed = [
            slow for names, caps, slow in sides if (names, caps) == (self.workloads, self.shares)
        ]
        return bool(slowed) and all(slow is not None and slow <= self.gsla for slow in slowed)


class LibrarySeen(Event):
    """A run of a workload has loaded this library, on which its allowed shares depend.

    ``python``: a Python that has the library and may be used to measure shares; empty if none is
    known.
    """

    kind: Literal["library_seen"] = "library_seen"
    uid: UserId
    workload: Name
    library: Name
    python: str = ""


class MeasuringBegun(Event):
    """The service begins to measure whether a share of an idle device computes correctly.

    ``library`` is the one whose products are compared. The run belongs to no job.
    """

    kind: Literal["measuring_begun"] = "measuring_begun"
    run: Name
    gpu: Name
    gpu_model: Name
    library: Name
    share: Share


class MeasuringStopped(Event):
    """The measuring of a share is stopped before its end."""

    kind: Literal["measuring_stopped"] = "measuring_stopped"
    run: Name
    reason: Reason


class MeasuringEnded(Event):
    """The measuring of a share is over.

    ``outcome``: the share computes ``right`` or ``wrong``, which is in the repository; it was
    ``stopped``, which is no fault; or it has ``failed``, and nothing is measured for a while.
    """

    kind: Literal["measuring_ended"] = "measuring_ended"
    run: Name
    outcome: Literal["right", "wrong", "stopped", "failed"]
    reason: Reason


class Recorded(Event):
    """Profiles and measurements up to this event number are in the repository.

    ``drifts`` names the pairs whose recent measurements differ from the believed slowdowns.
    """

    kind: Literal["recorded"] = "recorded"
    sequence: NonNegative
    drifts: tuple[Reason, ...] = ()


# Devices and the service.


class DeviceSick(Event):
    """A device must not be used until it is healed."""

    kind: Literal["device_sick"] = "device_sick"
    gpu: Name
    reason: Reason


class DeviceHealed(Event):
    """A device may be used again."""

    kind: Literal["device_healed"] = "device_healed"
    gpu: Name


class DevicesChanged(Event):
    """The devices of the pool have changed; runs on removed devices continue."""

    kind: Literal["devices_changed"] = "devices_changed"
    gpus: tuple[Name, ...]


class ServiceStarted(Event):
    """A service has opened the journal; ``boot`` is the boot id of the kernel."""

    kind: Literal["service_started"] = "service_started"
    boot: Name
    pool: Name
    gpus: tuple[Name, ...]
    version: Name


AnyEvent = Annotated[
    Submitted
    | CancelRequested
    | HoldChanged
    | PauseChanged
    | Edited
    | RestartDue
    | DrainChanged
    | Placed
    | Reserved
    | StopDecided
    | RankStarted
    | RankReady
    | RankRefused
    | RankEnded
    | RankLost
    | RankGone
    | IsolationLost
    | IsolationRegained
    | Profiled
    | WorkloadKnown
    | ProfileFailed
    | Measured
    | Separated
    | LibrarySeen
    | MeasuringBegun
    | MeasuringStopped
    | MeasuringEnded
    | Recorded
    | DeviceSick
    | DeviceHealed
    | DevicesChanged
    | ServiceStarted,
    Field(discriminator="kind"),
]

ANY_EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
"""Reads an event from plain data or JSON."""
