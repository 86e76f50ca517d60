"""Views of jobs and devices, made from the state machine and the readings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import HOLDING, OVER, QUEUED, WATCHED
from dovetail.executor.jobs.words import brief
from dovetail.executor.live.live import NOTHING, Live, RunReading
from dovetail.executor.live.parts import RoundsForUsers
from dovetail.executor.live.views import (
    LISTED_CHARACTERS,
    Chosen,
    DeviceView,
    JobView,
    StepView,
)
from dovetail.instances._record import shown
from dovetail.instances.errors import InputError


def listed(
    machine: StateMachine,
    over: bool,
    chosen: Chosen,
    now_s: float,
    named: Callable[[LiveJob], str | None],
) -> list[LiveJob]:
    """Return the chosen jobs: only jobs that are not over, or all.

    ``named`` returns the name of a job if it may be shown.

    Raises
    ------
    InputError
        If ``before`` names a job that never existed.
    """
    before = math.inf
    if chosen.before is not None:
        said = re.fullmatch(r"j([1-9]\d{0,17})", chosen.before, re.ASCII)
        if said is None or int(said[1]) > machine.submitted:
            raise InputError(f"must be the id of a job, got {shown(chosen.before)}", "before")
        before = int(said[1])

    def fits(job: LiveJob) -> bool:
        ended_s = job.since_s if job.state in OVER else -math.inf
        ended = chosen.within_s is None or ended_s >= now_s - chosen.within_s
        asked = over or chosen.within_s is not None or chosen.state is not None
        return (
            (asked or job.state not in OVER)
            and ended
            and chosen.user in (None, job.spec.owner.name)
            and chosen.name in (None, named(job))
            and chosen.state in (None, job.state)
            and int(job.id[1:]) < before
        )

    last = islice(filter(fits, reversed(machine.jobs.values())), chosen.limit)
    return [*last][::-1]


def job_views(
    live: Live, rounds: RoundsForUsers, jobs: Iterable[LiveJob], history: bool = False
) -> list[JobView]:
    """Return the views of jobs; with ``history``, they include the jobs' histories."""
    residents = live.machine.residents()
    found = []
    for job in jobs:
        seen = NOTHING
        if job.run is not None and job.state not in QUEUED:
            of_runs = live.readings.now if job.state in HOLDING else live.readings.readings
            seen = of_runs.get(job.run.id, NOTHING)
        capped = rounds.why_capped(job) if job.state in HOLDING else ""
        waiting_for = rounds.waiting_for(job) if job.state in QUEUED else ""
        found.append(_job_view(job, residents, seen, waiting_for, capped, history))
    return found


def _job_view(
    job: LiveJob,
    residents: Mapping[str, list[LiveJob]],
    seen: RunReading,
    waiting_for: str,
    capped: str,
    history: bool,
) -> JobView:
    spec, run = job.spec, job.run
    seats = run.seats if run is not None else ()
    others = [
        tuple(other.id for other in residents.get(seat.gpu, ()) if other is not job)
        for seat in seats
        if job.state in HOLDING
    ]
    return JobView(
        id=job.id,
        name=spec.name,
        owner=spec.owner.name,
        uid=spec.owner.uid,
        command=spec.command if history else brief(spec.command, LISTED_CHARACTERS),
        cwd=spec.cwd,
        workload=spec.workload,
        workers=spec.workers,
        priority=spec.priority,
        nice=spec.nice,
        gsla=spec.gsla,
        isolation=spec.isolation,
        unisolated=job.unisolated,
        state=job.state,
        why=job.why,
        waiting_for=waiting_for,
        submitted_s=job.submitted_s,
        since_s=job.since_s,
        started_s=next((step.at_s for step in job.history if step.state in WATCHED), None),
        ended_s=job.since_s if job.state in OVER else None,
        runs=job.runs,
        run=run.id if run is not None else None,
        gpus=tuple(seat.gpu for seat in seats),
        shares=tuple(seat.share for seat in seats),
        capped=capped,
        co_runners=tuple(others),
        pids=tuple(rank.pid for rank in job.ranks),
        statuses=tuple(rank.status for rank in job.ranks),
        walltime_s=spec.walltime_s,
        retries=spec.retries,
        grace_s=spec.grace_s,
        checkpoint_s=spec.checkpoint_s,
        stops_apart_s=spec.stops_apart_s,
        public_log=spec.public_log,
        output=spec.output,
        error=spec.error,
        held=job.held,
        awaits=tuple(job.awaits),
        index=spec.index,
        history=tuple(StepView(**step._asdict()) for step in job.history) if history else (),
        memory_mib=spec.memory_mib,
        **seen._asdict(),
    )


_FOR_OTHERS: Final = (
    *("id", "owner", "uid", "workers", "priority", "nice", "gsla", "isolation", "state"),
    *("waiting_for", "submitted_s", "since_s", "started_s", "ended_s", "runs", "run", "gpus"),
    *("shares", "co_runners", "slowdown", "predicted", "upper", "predicted_by", "memory_mib"),
    *("memory_used_mib", "walltime_s", "retries", "grace_s", "checkpoint_s", "stops_apart_s"),
    *("public_log", "held", "awaits"),
)


def for_others(job: JobView) -> JobView:
    """Return the view of a job for other users of a private service.

    It has only the fields of ``_FOR_OTHERS``, which show why devices are busy and for how long. It
    does not show what the job is, nor texts that might say so.
    """
    kept = {name: getattr(job, name) for name in _FOR_OTHERS}
    history = tuple(replace(step, why=step.state.value) for step in job.history)
    return JobView(command=(), workload="", why=job.state.value, history=history, **kept)


def device_views(live: Live) -> tuple[DeviceView, ...]:
    """Return the views of a pool's devices."""
    machine, seen = live.machine, live.readings
    residents, present = machine.residents(), machine.shares.present
    found = []
    for node, gpu in ((at, gpu) for at in live.devices.cluster.nodes for gpu in at.devices):
        used = seen.usage.get(gpu.id)
        found.append(
            DeviceView(
                id=gpu.id,
                node=node.id,
                rack=node.rack,
                model=gpu.model,
                memory_mib=gpu.memory_mib,
                jobs=tuple(job.id for job in residents.get(gpu.id, ())),
                measuring=present.share if present and present.gpu == gpu.id else None,
                used_mib=used.memory_mib if used else None,
                power_w=seen.power_w.get(gpu.id),
                energy_j=used.energy_j if used else None,
                metrics=used.metrics if used else {},
                source=used.source if used else "",
                trouble=machine.devices[gpu.id].trouble if gpu.id in machine.devices else "",
            )
        )
    return tuple(found)
