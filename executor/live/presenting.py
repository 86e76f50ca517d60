"""Views of jobs and devices, made from what the brain knows and what is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.executor.live.brain import HOLDING, OVER, Brain, JobState, LiveJob
from dovetail.executor.live.planning import waiting_for
from dovetail.executor.live.pools.pool import Usage
from dovetail.executor.live.views import DeviceView, JobView, StepView
from dovetail.instances.instance import Cluster

_RUNS = frozenset({JobState.PROFILING, JobState.RUNNING})


def job_views(brain: Brain, jobs: Iterable[LiveJob], history: bool = False) -> list[JobView]:
    """Return how jobs stand."""
    residents = brain.residents()
    return [
        _job_view(job, residents, history).replace(waiting_for=waiting_for(job, brain))
        for job in jobs
    ]


def _job_view(job: LiveJob, residents: Mapping[str, list[LiveJob]], history: bool) -> JobView:
    spec = job.spec
    holds = job.run is not None and job.state in HOLDING
    seats = job.run.seats if job.run is not None else ()
    others = [
        tuple(other.id for other in residents.get(seat.gpu, ()) if other is not job)
        for seat in seats
        if holds
    ]
    return JobView(
        id=job.id,
        name=spec.name,
        owner=spec.owner.name,
        uid=spec.owner.uid,
        command=spec.command,
        workload=spec.workload,
        workers=spec.workers,
        priority=spec.priority,
        gsla=spec.gsla,
        state=job.state,
        why=job.why,
        submitted_s=job.submitted_s,
        since_s=job.since_s,
        started_s=_first(job, _RUNS),
        ended_s=job.since_s if job.state in OVER else None,
        runs=job.runs,
        run=job.run.id if job.run is not None else None,
        gpus=tuple(seat.gpu for seat in seats),
        shares=tuple(seat.share for seat in seats),
        co_runners=tuple(others),
        pids=tuple(rank.pid for rank in job.ranks),
        statuses=tuple(rank.status for rank in job.ranks),
        memory_mib=spec.memory_mib,
        public_log=spec.public_log,
        history=tuple(StepView(at_s=s.at_s, state=s.state, why=s.why) for s in job.history)
        if history
        else (),
    )


def _first(job: LiveJob, states: frozenset[JobState]) -> float | None:
    """Return when a job first came to one of the states."""
    return next((step.at_s for step in job.history if step.state in states), None)


def device_views(
    brain: Brain, cluster: Cluster, usage: Mapping[str, Usage]
) -> tuple[DeviceView, ...]:
    """Return how the devices stand."""
    residents = brain.residents()
    found = []
    for gpu in (gpu for node in cluster.nodes for gpu in node.devices):
        used = usage.get(gpu.id)
        found.append(
            DeviceView(
                id=gpu.id,
                model=gpu.model,
                memory_mib=gpu.memory_mib,
                jobs=tuple(job.id for job in residents.get(gpu.id, ())),
                used_mib=used.memory_mib if used else None,
                energy_j=used.energy_j if used else None,
                metrics=used.metrics if used else {},
                source=used.source if used else "",
                trouble=brain.devices[gpu.id].trouble if gpu.id in brain.devices else "",
            )
        )
    return tuple(found)
