"""From a plan's assignments to placed jobs, and the violations of those that cannot be placed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dovetail.instances._record import AnyShare, listed
from dovetail.instances.checking.facts import JobOnGpus, RuleName, Violation
from dovetail.instances.instance import Instance, Job, jobs_of
from dovetail.instances.plan import Assignment, Plan


@dataclass
class PlacedJobs:
    """The jobs that hold GPUs under a plan.

    Running jobs are on the GPUs given by the instance, regardless of the plan. ``complete`` is
    False if a job could not be placed because the plan names it or its GPUs incorrectly.
    """

    assigned: dict[str, Assignment] = field(default_factory=dict)
    placed: list[JobOnGpus] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    complete: bool = True

    def refuse(self, violation: Violation) -> None:
        """Record an assignment that leaves its job unplaced."""
        self.violations.append(violation)
        self.complete = False


def read_plan(instance: Instance, plan: Plan, running: Iterable[JobOnGpus]) -> PlacedJobs:
    """Place the jobs of a plan beside the running ones; report impossible assignments."""
    reading = PlacedJobs(placed=[*running])
    for assignment in plan.assignments:
        _read(instance, assignment, reading)
    for job in jobs_of(instance, "running"):
        if job.id not in reading.assigned:
            rule = f"runs on {listed(job.gpus or ())} but has no assignment"
            reading.violations.append(_violation("running", job.id, rule))
    return reading


def running_jobs(instance: Instance) -> list[JobOnGpus]:
    """Return the running jobs on the GPUs that they hold."""
    return [
        _placed(instance, job, _held(job), job.sub_batch) for job in jobs_of(instance, "running")
    ]


def _read(instance: Instance, assignment: Assignment, reading: PlacedJobs) -> None:
    job = instance.jobs_by_id.get(assignment.job)
    unknown = [gpu for gpu in assignment.gpus if gpu not in instance.places]
    if job is None:
        reading.refuse(_violation("claim", assignment.job, "the instance has no such job"))
    elif job.id in reading.assigned:
        reading.refuse(_violation("claim", job.id, "assigned more than once"))
    elif job.running:
        reading.assigned[job.id] = assignment
        reading.violations += _moved(instance, job, assignment)
    elif unknown:
        reading.assigned[job.id] = assignment
        reading.refuse(_violation("gang", job.id, f"the cluster has no GPU {listed(unknown)}"))
    else:
        reading.assigned[job.id] = assignment
        share = dict(zip(assignment.gpus, assignment.shares, strict=True))
        reading.placed.append(_placed(instance, job, share, assignment.sub_batch))


def _moved(instance: Instance, job: Job, assignment: Assignment) -> list[Violation]:
    """Report a running job whose GPUs, shares or sub-batch the plan changes."""
    held, planned = _held(job), dict(zip(assignment.gpus, assignment.shares, strict=True))
    if planned != held or len(assignment.gpus) != job.workers:
        rule = f"runs on {_share_text(held)}, planned on {_share_text(planned)}"
        return [_violation("running", job.id, rule)]
    full = _full(instance, job)
    now, then = job.sub_batch or full, assignment.sub_batch or full
    if now != then:
        return [_violation("running", job.id, f"runs at sub-batch {now}, planned at {then}")]
    return []


def _placed(
    instance: Instance, job: Job, share: Mapping[str, AnyShare], sub_batch: int | None
) -> JobOnGpus:
    workload = instance.workloads[job.workload]
    return JobOnGpus(job, workload, share, sub_batch or _full(instance, job))


def _held(job: Job) -> dict[str, AnyShare]:
    return dict(zip(job.gpus or (), job.shares, strict=True))


def _full(instance: Instance, job: Job) -> int | None:
    batch = instance.workloads[job.workload].batch
    return batch.size if batch is not None else None


def _share_text(share: Mapping[str, AnyShare]) -> str:
    return listed(f"{gpu} at {cap or 'no cap'}" for gpu, cap in share.items())


def _violation(rule: RuleName, job: str, message: str) -> Violation:
    return Violation(rule=rule, where=f"job {job}", message=message)
