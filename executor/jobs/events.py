"""Everything that can happen in live mode. An event is journalled before anything is done for it.

``at_s`` is the service's clock: seconds, near the time since the epoch, that never go back
(``clock.ServiceClock``).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, TypeAdapter

from dovetail.executor.jobs.specs import JobSpec, Run, UserId
from dovetail.instances._record import Count, Name, NonNegative, Number, Positive, Record, Share
from dovetail.instances.datasets import Measurement, SoloProfile

Rank = Annotated[StrictInt, Field(ge=0)]
Reason = Annotated[str, Field(strict=True, min_length=1)]


class Event(Record):
    """Something that happened at a moment of the service's clock."""

    at_s: Number


# What people ask for.


class Submitted(Event):
    """A job was accepted under an id that no job had before.

    ``request`` names what was asked for and by whom, so that it is done once however often it is
    asked; empty where the asker gave it no key. Jobs of one request follow each other.
    """

    kind: Literal["submitted"] = "submitted"
    job: Name
    spec: JobSpec
    request: str = ""


class CancelRequested(Event):
    """Its owner or an administrator wants a job gone.

    ``grace_s``: killed after so many seconds, where that is shorter than the job's own grace.
    """

    kind: Literal["cancel_requested"] = "cancel_requested"
    job: Name
    by: Name
    grace_s: NonNegative | None = None


class HoldChanged(Event):
    """A job that waits is held, or released: one that is held does not start."""

    kind: Literal["hold_changed"] = "hold_changed"
    job: Name
    on: StrictBool
    by: Name


class PauseChanged(Event):
    """The processes of a job that runs are to be stopped where they are, or to go on."""

    kind: Literal["pause_changed"] = "pause_changed"
    job: Name
    on: StrictBool
    by: Name


class Edited(Event):
    """A job that waits is submitted otherwise from now on; its environment stays as it is."""

    kind: Literal["edited"] = "edited"
    job: Name
    spec: JobSpec
    by: Name


class DrainChanged(Event):
    """Devices (all where none is named) are to take no new jobs, or may again."""

    kind: Literal["drain_changed"] = "drain_changed"
    gpus: tuple[Name, ...] = ()
    on: StrictBool
    by: Name


# What was decided.


class Placed(Event):
    """A job is to start on these devices.

    ``profiling``: it runs alone there until its workload has a profile, and nobody may join.
    """

    kind: Literal["placed"] = "placed"
    run: Run
    profiling: StrictBool = False


class Reserved(Event):
    """These devices are kept for a job that waits; none are from now on where none are named.

    ``until_s``: when all of them are believed to be idle. Others may run there until then. It
    ends by itself once the job waits no more.
    """

    kind: Literal["reserved"] = "reserved"
    job: Name
    gpus: tuple[Name, ...] = ()
    until_s: Number = 0.0


class StopDecided(Event):
    """A run is to be stopped.

    ``then`` says what becomes of the job: ``wait`` for another start, or ``fail``.
    """

    kind: Literal["stop_decided"] = "stop_decided"
    run: Name
    reason: Reason
    then: Literal["wait", "fail"]


# What was seen of processes.


class RankStarted(Event):
    """A rank's process exists; ``pid_started`` (clock ticks since boot) tells it from others."""

    kind: Literal["rank_started"] = "rank_started"
    run: Name
    rank: Rank
    pid: Count | None = None
    pid_started: Rank | None = None


class RankReady(Event):
    """A rank is proven to run under its cap: attached to MPS, or on its cores."""

    kind: Literal["rank_ready"] = "rank_ready"
    run: Name
    rank: Rank


class RankRefused(Event):
    """A rank could not be started; it has never run and never will.

    ``later``: nothing is wrong with its job, and another run of it may start.
    """

    kind: Literal["rank_refused"] = "rank_refused"
    run: Name
    rank: Rank
    reason: Reason
    later: bool = False


class RankEnded(Event):
    """A rank and all its processes are gone; ``status`` is negative for a signal.

    ``asked``: its run was being stopped, as the files of the run tell. ``ended_s``: when it
    ended, which is long before ``at_s`` if no service ran; pools give it in seconds since boot.
    """

    kind: Literal["rank_ended"] = "rank_ended"
    run: Name
    rank: Rank
    status: StrictInt
    asked: StrictBool = False
    ended_s: Number | None = None


class RankLost(Event):
    """Nobody can say whether a rank still runs: its device counts as busy."""

    kind: Literal["rank_lost"] = "rank_lost"
    run: Name
    rank: Rank
    reason: Reason


class RankGone(Event):
    """A rank is proven to run no more, and how it ended is not known."""

    kind: Literal["rank_gone"] = "rank_gone"
    run: Name
    rank: Rank
    reason: Reason


RankEvent = RankStarted | RankReady | RankRefused | RankEnded | RankLost | RankGone


# What was measured.


class Profiled(Event):
    """A run was measured alone for long enough."""

    kind: Literal["profiled"] = "profiled"
    run: Name
    profile: SoloProfile


class WorkloadKnown(Event):
    """The repository has the solo profile of a user's workload on the pool's devices."""

    kind: Literal["workload_known"] = "workload_known"
    uid: UserId
    workload: Name


class ProfileFailed(Event):
    """A run could not be measured alone (it reports no progress, say): its job never shares."""

    kind: Literal["profile_failed"] = "profile_failed"
    run: Name
    reason: Reason


class Measured(Event):
    """Runs that share a device were measured together.

    ``runs`` are in the order of ``measurement.workloads``; ``predicted`` is what was believed of
    each when they were put together, empty where nothing was.
    """

    kind: Literal["measured"] = "measured"
    runs: tuple[Name, ...]
    gpu: Name
    measurement: Measurement
    window_s: Positive
    predicted: tuple[Positive, ...] = ()


class Separated(Event):
    """Two runs shared a device, one broke its gSLA, and one of them is being stopped for it.

    ``runs``, ``workloads`` and ``shares`` are of the run over its gSLA and of the other;
    ``slowdown`` is how much the first was slowed, None where it stood still; with ``tail`` it is
    by how much the 99th percentile of its latency grew.
    """

    kind: Literal["separated"] = "separated"
    runs: tuple[Name, Name]
    gpu_model: Name
    workloads: tuple[Name, Name]
    shares: tuple[Share | None, Share | None]
    gsla: Positive
    slowdown: Positive | None
    tail: StrictBool = False

    def is_refuted_by(self, event: Measured) -> bool:
        """Tell whether other runs of both workloads kept the gSLA, at the same caps."""
        found = event.measurement
        values = found.p99 if self.tail else found.slowdown
        if found.gpu_model != self.gpu_model or set(self.runs) <= set(event.runs):
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
    """A run of a workload has loaded this library, which decides what shares it may have."""

    kind: Literal["library_seen"] = "library_seen"
    uid: UserId
    workload: Name
    library: Name


class Recorded(Event):
    """Profiles and measurements up to this sequence number of the journal are in the repository."""

    kind: Literal["recorded"] = "recorded"
    sequence: NonNegative


# What happened to devices and to the service.


class DeviceSick(Event):
    """A device may not be used until it is healed."""

    kind: Literal["device_sick"] = "device_sick"
    gpu: Name
    reason: Reason


class DeviceHealed(Event):
    """A device may be used again."""

    kind: Literal["device_healed"] = "device_healed"
    gpu: Name


class DevicesChanged(Event):
    """The pool has these devices from now on; runs on others go on."""

    kind: Literal["devices_changed"] = "devices_changed"
    gpus: tuple[Name, ...]


class ServiceStarted(Event):
    """A service took up the journal; ``boot`` is the kernel's boot id."""

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
    | Profiled
    | WorkloadKnown
    | ProfileFailed
    | Measured
    | Separated
    | LibrarySeen
    | Recorded
    | DeviceSick
    | DeviceHealed
    | DevicesChanged
    | ServiceStarted,
    Field(discriminator="kind"),
]

ANY_EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
"""Reads an event from plain data or JSON."""
