"""A policy's decision as a plan, and why jobs wait, in the words of ``dovetail explain``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

from dovetail.executor.live.brain import QUEUED, Brain, JobState, LiveJob
from dovetail.executor.live.fair_share import whom_they_wait_for
from dovetail.formulations.problems import Problem
from dovetail.instances.checker import check
from dovetail.instances.errors import DovetailError
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Assignment, ObjectiveValue, Plan, Waiting
from dovetail.solver.explanations import explain, reasons
from dovetail.solver.policies import Decision, Start, State


def plan_of(
    instance: Instance,
    state: State,
    decision: Decision,
    policy: str,
    alone: Callable[[str], bool],
    before: Callable[[str], str],
    notice: str,
) -> Plan:
    """Return what a decision comes to: who runs on, who starts, and why the others wait.

    Parameters
    ----------
    instance : Instance
        The round that ``state`` poses.
    state : State
        What the policy decided on.
    decision : Decision
        Its answer.
    policy : str
        Its name.
    alone : callable
        Tells of a job's id whether it may start alone only.
    before : callable
        Tells of a job's id whose jobs come first for fair shares, empty where none do.
    notice : str
        What a reader has to know of the pool's figures.
    """
    stopped = {job.id for job in decision.stops}
    stay = [
        Assignment(job=job.id, gpus=job.gpus, share=job.share, sub_batch=job.sub_batch, start=False)
        for job in instance.jobs
        if job.gpus is not None and job.id not in stopped
    ]
    assigned = _beside_whom([*stay, *(_assignment(start, state) for start in decision.starts)])
    if stopped:
        assigned = [row.replace(start=True) for row in assigned]
    problem = instance.preempted() if stopped else instance
    report = check(problem, Plan(assignments=tuple(assigned)))
    told = [row.replace(slowdown=report.job_slowdown.get(row.job)) for row in assigned]
    value = report.value
    return Plan(
        instance=instance.name,
        solver=f"policy {policy}",
        preempt=bool(stopped),
        objective=None if value is None else ObjectiveValue(name="throughput", value=value),
        notes=(*filter(None, [notice]), *map(str, report.violations), *report.warnings),
        assignments=tuple(told),
        waiting=_reasons(problem, assigned, alone, before) if report.valid else (),
    )


def _reasons(
    problem: Instance,
    assigned: list[Assignment],
    alone: Callable[[str], bool],
    before: Callable[[str], str],
) -> tuple[Waiting, ...]:
    found = reasons(Problem(problem, "throughput"), assigned)
    return tuple(
        each.replace(
            reason=_live_reason(each.reason, problem, each.job, alone(each.job), before(each.job))
        )
        for each in found
    )


def _live_reason(reason: str, instance: Instance, job: str, alone: bool, before: str) -> str:
    """Return a reason of ``dovetail explain`` as it is meant of a job that is live.

    Of a job that may start ``alone`` only, it is no news that nothing is known of it beside others.
    One that is too large for the whole pool waits for devices that are to join. Where devices are
    short, those of a user with fewer come ``before`` it.
    """
    if reason.startswith("size: "):
        return "capacity: too few devices take jobs"
    if before and (alone or reason.startswith("capacity: ")):
        return f"fair share: first come jobs of {before}"
    if alone and reason.startswith("unknown: "):
        gang = instance.jobs_by_id[job].workers > 1
        return f"capacity: {'too few devices are' if gang else 'no device is'} idle"
    return reason


def _assignment(start: Start, state: State) -> Assignment:
    mode = state.modes[start.job.workload][start.mode]
    return Assignment(
        job=start.job.id,
        gpus=tuple(state.machines.gpu_ids[gpu] for gpu in start.gpus),
        share=start.shares or (None,) * len(start.gpus),
        sub_batch=mode.sub_batch,
        start=True,
    )


def _beside_whom(rows: list[Assignment]) -> list[Assignment]:
    """Return the assignments with the co-runners of each."""
    on: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for gpu in row.gpus:
            on[gpu].append(row.job)
    return [
        row.replace(
            co_runners=tuple(tuple(job for job in on[gpu] if job != row.job) for gpu in row.gpus)
        )
        for row in rows
    ]


def of_job(job: LiveJob, brain: Brain) -> str:
    """Return how a job stands and, if it waits, what keeps it that is no part of a round."""
    lines = [f"{job.id}: {job.state}" + (f", {job.why}" if job.why != job.state else "")]
    if job.state not in QUEUED:
        return lines[0]
    if job.alone_only:
        lines.append(f"it may run alone only: {job.alone_only}")
    elif job.state is JobState.SUBMITTED:
        lines.append("it starts alone: its workload has no profile yet")
    lines += [
        f"{name} takes no jobs: {device.sick or f'it {device.trouble}'}"
        for name, device in brain.devices.items()
        if device.present and device.trouble
    ]
    return "\n".join(lines)


def of_round(job: str, alone: bool, before: str, instance: Instance, plan: Plan) -> str:
    """Return why a job waits and what would let it start, or where it runs."""
    if job not in instance.jobs_by_id:
        return "it has no part in the round: it holds devices that the pool does not have"
    try:
        told = explain(instance, plan, job)
    except DovetailError as error:
        return f"no more can be said: {error}"
    reason = _live_reason(told.reason, instance, job, alone, before)
    remedies = [kept for kept in told.remedies if not (alone and kept.change.measured)]
    return "\n".join([reason, *(f"- {remedy.text}" for remedy in remedies)])


class Lacks(NamedTuple):
    """What jobs that wait cannot do without, in a few words.

    Attributes
    ----------
    brain : Brain
        Jobs and devices.
    closed : bool
        Whether no device takes jobs.
    dry_run : bool
        Whether nothing is started at all.
    before : dict of int to str
        Whose jobs come before each user's for fair shares, by uid.
    """

    brain: Brain
    closed: bool
    dry_run: bool
    before: Mapping[int, str]

    @classmethod
    def of(cls, brain: Brain, dry_run: bool) -> Self:
        """Look at the devices."""
        closed = all(device.trouble for device in brain.devices.values())
        return cls(brain, closed, dry_run, whom_they_wait_for(brain))

    def of_job(self, job: LiveJob) -> str:
        """Return what a job lacks; empty unless it waits."""
        if job.state not in QUEUED:
            return ""
        if self.dry_run:
            return "a service that starts jobs: this is a dry run"
        if self.closed:
            return "a device that takes jobs"
        devices = "an idle device" if job.spec.workers == 1 else f"{job.spec.workers} idle devices"
        if self.brain.may_share(job):
            devices = f"{devices}, or room beside others"
        before = self.before.get(job.spec.owner.uid)
        return f"fair share: {devices}, after jobs of {before}" if before else devices
