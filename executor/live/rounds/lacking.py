"""What waiting jobs lack and why runs have SM shares, as ``queue`` and ``explain`` show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Self

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import QUEUED, JobState
from dovetail.executor.live.beliefs import SEEN
from dovetail.executor.live.job_beliefs import JobBeliefs
from dovetail.executor.live.rounds.fair_share import Precedence
from dovetail.instances._record import listed
from dovetail.instances.slowdowns.shares import caps_of
from dovetail.instances.slowdowns.slowdown_table import UNCAPPED

_NAMED: Final = 4
"""Devices and jobs that are listed by name; the rest are only counted."""


def of_job(job: LiveJob, beliefs: JobBeliefs, stalled: str) -> str:
    """Return the state of a job and, if it waits, what it lacks apart from a start in the round.

    ``stalled`` is what the service lacks for any start, or empty.
    """
    machine = beliefs.machine
    lines = [f"{job.id}: {job.state}" + (f", {job.why}" if job.why != job.state else "")]
    if job.state not in QUEUED:
        capped = why_capped(beliefs, job)
        return f"{lines[0]}\nit has an SM share: {capped}" if capped else lines[0]
    if job.barred:
        return f"{lines[0]}\nit waits for {_barred(job)}"
    if job.alone_only:
        lines.append(f"it may run alone only: {job.alone_only}")
    elif job.state is JobState.SUBMITTED:
        lines.append("it starts alone: its workload has no profile yet")
    elif waits_for_shares(beliefs, job):
        lines.append(
            "it waits for an idle device, or for jobs with which it was measured: beside others "
            "it needs an SM share, and none is proven for it yet"
        )
    elif needs_shares(beliefs, job):
        lines.append(
            "beside a job with which it never ran without SM shares, it and that job need one "
            "from their starts"
        )
    if stalled:
        lines.append(f"no job starts: each waits for {stalled}")
    if own := _reserved_for(machine, job):
        lines.append(own)
    else:
        lines += _reserved(machine, _idle(machine))
    return "\n".join([*lines, *_taking_none(machine, machine.devices)])


def _barred(job: LiveJob) -> str:
    """Return what a job waits for, other than devices."""
    need = [name for name in job.awaits if name in job.spec.after]
    ends = [name for name in job.awaits if name not in need]
    return ", and ".join(
        filter(
            None,
            [
                f"its release (held by {job.held}: dovetail release {job.id})" if job.held else "",
                f"{_few(need)} to finish" if need else "",
                f"{_few(ends)} to end" if ends else "",
                f"other jobs of its array (at most {job.spec.most_running} may run at a time)"
                if job.crowded
                else "",
            ],
        )
    )


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _taking_none(machine: StateMachine, devices: Iterable[str]) -> list[str]:
    """Return which of these devices of the pool take no jobs, one line per reason."""
    by_reason: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in devices:
        device = machine.devices[name]
        if device.present and device.trouble:
            by_reason[device.sick, device.trouble].append(name)
    return [
        f"{listed(names)} take no jobs: {sick or f'each {trouble}'}"
        if len(names) > 1
        else f"{names[0]} takes no jobs: {sick or f'it {trouble}'}"
        for (sick, trouble), names in by_reason.items()
    ]


def _idle(machine: StateMachine) -> list[str]:
    """Return the devices without jobs."""
    held = machine.residents()
    return [name for name in machine.devices if not held[name]]


def _reserved_for(machine: StateMachine, job: LiveJob) -> str:
    """Return which devices are reserved for a job, and why; empty if none."""
    if job.id not in machine.reserved:
        return ""
    gpus = machine.reserved[job.id].gpus
    named = ", ".join(gpus) if len(gpus) <= _NAMED else f"{len(gpus)} devices"
    latency = job.spec.priority == "latency"
    why = "latency-critical jobs come first" if latency else "it has waited too long"
    return f"{named}: reserved for it because {why}"


def _reserved(machine: StateMachine, idle: list[str]) -> Iterator[str]:
    """Yield which of these idle devices are reserved, and for which job."""
    for job, one in machine.reserved.items():
        if names := [name for name in one.gpus if name in idle]:
            verb = "are" if len(names) > 1 else "is"
            yield f"{listed(names, _NAMED)} {verb} idle, and reserved for {job}"


class Lacks(NamedTuple):
    """What waiting jobs lack, in a few words.

    Attributes
    ----------
    beliefs : JobBeliefs
        Jobs, devices, and beliefs about them.
    closed : bool
        Whether no device takes jobs.
    dry_run : bool
        Whether no job is started at all.
    stalled : str
        What the service lacks for any start, or empty.
    before : Precedence
        The order of users.
    unused : str
        The idle devices that take no jobs, and why; empty if there are none.
    kept : str
        The idle devices that are reserved, and for which jobs; empty if there are none.
    """

    beliefs: JobBeliefs
    closed: bool
    dry_run: bool
    stalled: str
    before: Precedence
    unused: str
    kept: str

    @classmethod
    def of(cls, beliefs: JobBeliefs, dry_run: bool, stalled: str) -> Self:
        """Return the present state of devices, reservations and users."""
        machine = beliefs.machine
        closed = all(device.trouble for device in machine.devices.values())
        idle = _idle(machine)
        unused = "; ".join(_taking_none(machine, idle))
        kept = "; ".join(_reserved(machine, idle))
        return cls(beliefs, closed, dry_run, stalled, Precedence.of(machine), unused, kept)

    @property
    def machine(self) -> StateMachine:
        """Jobs and devices."""
        return self.beliefs.machine

    def of_job(self, job: LiveJob) -> str:
        """Return what a waiting job lacks; empty for other jobs."""
        if job.state not in QUEUED:
            return ""
        if job.barred:
            return _barred(job)
        if self.dry_run:
            return "a service that starts jobs: this is a dry run"
        if self.stalled:
            return self.stalled
        kept = "" if job.id in self.machine.reserved else self.kept
        return "; ".join(filter(None, [self._devices_for(job), self.unused, kept]))

    def _devices_for(self, job: LiveJob) -> str:
        if self.closed:
            return "a device that takes jobs"
        if own := _reserved_for(self.machine, job):
            return own
        devices = "an idle device" if job.spec.workers == 1 else f"{job.spec.workers} idle devices"
        if self.machine.may_share(job):
            devices = f"{devices}, or room beside other jobs"
            if waits_for_shares(self.beliefs, job):
                devices = f"{devices} once an SM share is proven for it"
        before = self.before.ahead(job)
        return f"{before[0]}: {devices}, after jobs of {before[1]}" if before else devices


# SM shares.


def why_capped(beliefs: JobBeliefs, job: LiveJob) -> str:
    """Return why a run has an SM share, if a co-runner is the reason; empty if none is."""
    if job.run is None or beliefs.cluster.uncapped:
        return ""
    residents = beliefs.machine.residents()
    never = {
        other.id: None
        for seat in job.run.seats
        for other in (residents[seat.gpu] if caps_of([seat.share]) else ())
        if other is not job and not _ran_uncapped(beliefs, job, other, seat.gpu)
    }
    if not never:
        return ""
    return f"it never ran without one beside {listed(list(never), _NAMED)}"


def _ran_uncapped(beliefs: JobBeliefs, job: LiveJob, other: LiveJob, gpu: str) -> bool:
    found = beliefs.pair(job, other, UNCAPPED, beliefs.devices.models[gpu])
    return found is not None and found.kind in SEEN


def needs_shares(beliefs: JobBeliefs, job: LiveJob) -> bool:
    """Return whether a job runs without an SM share only beside jobs it was measured with."""
    return not beliefs.cluster.uncapped and beliefs.machine.may_share(job)


def waits_for_shares(beliefs: JobBeliefs, job: LiveJob) -> bool:
    """Return whether no SM share is proven for a job that needs one beside others."""
    return needs_shares(beliefs, job) and not any(
        caps_of(beliefs.allowed(job.spec, model)) for model in beliefs.models
    )
