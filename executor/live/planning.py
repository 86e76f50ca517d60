"""A policy's decision as a plan, and why jobs wait, as ``dovetail explain`` has it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple, Self

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import QUEUED, JobState
from dovetail.executor.live.fair_share import Precedence
from dovetail.executor.state_instance import starting, staying
from dovetail.formulations.problems import Problem
from dovetail.instances._record import listed
from dovetail.instances.checker import CheckReport, check
from dovetail.instances.errors import DovetailError, InputError
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.plan import Assignment, ObjectiveValue, Plan, Waiting
from dovetail.solver.explanations import explain, reasons
from dovetail.solver.policies.policy import Decision, RoundProof
from dovetail.solver.policies.state import State

_NAMED: Final = 4
"""Devices and jobs that are named; of more, only the number."""


def plan_of(
    instance: Instance,
    state: State,
    decision: Decision,
    policy: str,
    objective: ObjectiveName,
    alone: Callable[[str], bool],
    before: Callable[[str], tuple[str, str] | None],
    notice: str,
) -> Plan:
    """Return the plan of a decision: running jobs, starts, and why the others wait.

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
    objective : ObjectiveName
        What it optimises. A decision that breaks a rule of the objective is valued as throughput.
    alone : callable
        Returns whether the job of an id may start alone only.
    before : callable
        Returns for the job of an id the rule by which a user's jobs come first, and the user.
    notice : str
        A caveat about the pool's figures.
    """
    stopped = {job.id for job in decision.stops}
    stay = [row for row in staying(instance) if row.job not in stopped]
    assigned = _with_co_runners([*stay, *(starting(state, start) for start in decision.starts)])
    problem = instance.preempted() if stopped else instance
    report = _judged(instance, Plan(assignments=tuple(assigned), preempt=bool(stopped)), objective)
    rows = [row.replace(slowdown=report.job_slowdown.get(row.job)) for row in assigned]
    value = report.value
    return Plan(
        instance=instance.name,
        solver=f"policy {policy}",
        preempt=bool(stopped),
        objective=None if value is None else ObjectiveValue(name=report.objective, value=value),
        notes=(
            *filter(None, [notice, _proven(decision.proof)]),
            *map(str, report.violations),
            *report.warnings,
        ),
        assignments=tuple(rows),
        waiting=(
            _reasons(Problem.of(problem, report.objective), assigned, alone, before)
            if report.valid
            else ()
        ),
    )


def _judged(instance: Instance, plan: Plan, objective: ObjectiveName) -> CheckReport:
    """Return a plan's report under an objective, or under throughput where it breaks its rules."""
    with suppress(InputError):
        report = check(instance, plan, objective)
        if report.valid:
            return report
    return check(instance, plan)


def _proven(proof: RoundProof | None) -> str:
    """Return what a policy proved about the starts that it weighed, which need not be all."""
    if proof is None or math.isnan(proof.gap):
        return ""
    jobs = f"{proof.jobs} waiting job{'s' * (proof.jobs != 1)}"
    return f"the policy proved a gap of {proof.gap:.2%} among the starts of {jobs} that it weighed"


def _reasons(
    problem: Problem,
    assigned: list[Assignment],
    alone: Callable[[str], bool],
    before: Callable[[str], tuple[str, str] | None],
) -> tuple[Waiting, ...]:
    return tuple(
        each.replace(
            reason=_live_reason(
                each.reason, problem.round.instance, each.job, alone(each.job), before(each.job)
            )
        )
        for each in reasons(problem, assigned)
    )


def _live_reason(
    reason: str, instance: Instance, job: str, alone: bool, before: tuple[str, str] | None
) -> str:
    """Return a reason of ``dovetail explain`` in terms of live mode.

    A job that may start ``alone`` only lacks an idle device, not predictions. A job too large for
    the pool waits for devices that may join. If devices are short, the users ``before`` it count.
    """
    if reason.startswith("size: "):
        return "capacity: too few devices take jobs"
    if before and (alone or reason.startswith("capacity: ")):
        rule, user = before
        return f"{rule}: first come jobs of {user}"
    if alone and reason.startswith("unknown: "):
        gang = instance.jobs_by_id[job].workers > 1
        return f"capacity: {'too few devices are' if gang else 'no device is'} idle"
    return reason


def _with_co_runners(rows: list[Assignment]) -> list[Assignment]:
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


def of_job(job: LiveJob, machine: StateMachine) -> str:
    """Return the state of a job and, if it waits, what it waits for besides the round."""
    lines = [f"{job.id}: {job.state}" + (f", {job.why}" if job.why != job.state else "")]
    if job.state not in QUEUED:
        return lines[0]
    if job.barred:
        return f"{lines[0]}\nit waits for {_barred(job)}"
    if job.alone_only:
        lines.append(f"it may run alone only: {job.alone_only}")
    elif job.state is JobState.SUBMITTED:
        lines.append("it starts alone: its workload has no profile yet")
    return "\n".join([*lines, *_taking_none(machine, machine.devices)])


def _barred(job: LiveJob) -> str:
    """Return what a job waits for other than devices."""
    need = [name for name in job.awaits if name in job.spec.after]
    ends = [name for name in job.awaits if name not in need]
    return ", and ".join(
        filter(
            None,
            [
                f"its release (held by {job.held}: dovetail release {job.id})" if job.held else "",
                f"{_few(need)} to finish" if need else "",
                f"{_few(ends)} to end" if ends else "",
                f"others of its array, of which {job.spec.most_running} may run at once"
                if job.crowded
                else "",
            ],
        )
    )


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _taking_none(machine: StateMachine, devices: Iterable[str]) -> list[str]:
    """Return which of these devices of the pool take no jobs, a line for each reason."""
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


def of_round(
    job: str, alone: bool, before: tuple[str, str] | None, instance: Instance, plan: Plan
) -> str:
    """Return why a job waits and what would let it start, or where it runs."""
    if job not in instance.jobs_by_id:
        return "it has no part in the round: it holds devices that the pool does not have"
    try:
        found = explain(instance, plan, job)
    except DovetailError as error:
        return f"no more can be said: {error}"
    reason = _live_reason(found.reason, instance, job, alone, before)
    remedies = [kept for kept in found.remedies if not (alone and kept.change.measured)]
    return "\n".join([reason, *(f"- {remedy.text}" for remedy in remedies)])


class Lacks(NamedTuple):
    """What waiting jobs lack, in a few words.

    Attributes
    ----------
    machine : StateMachine
        Jobs and devices.
    closed : bool
        Whether no device takes jobs.
    dry_run : bool
        Whether nothing is started at all.
    before : Precedence
        The order of users.
    unused : str
        The idle devices that take no jobs; empty if there are none.
    """

    machine: StateMachine
    closed: bool
    dry_run: bool
    before: Precedence
    unused: str

    @classmethod
    def of(cls, machine: StateMachine, dry_run: bool) -> Self:
        """Read the devices."""
        closed = all(device.trouble for device in machine.devices.values())
        held = machine.residents()
        idle = [name for name in machine.devices if not held[name]]
        unused = "; ".join(_taking_none(machine, idle))
        return cls(machine, closed, dry_run, Precedence.of(machine), unused)

    def of_job(self, job: LiveJob) -> str:
        """Return what a job lacks; empty unless it waits."""
        if job.state not in QUEUED:
            return ""
        if job.barred:
            return _barred(job)
        if self.dry_run:
            return "a service that starts jobs: this is a dry run"
        return "; ".join(filter(None, [self._devices_for(job), self.unused]))

    def _devices_for(self, job: LiveJob) -> str:
        if self.closed:
            return "a device that takes jobs"
        if job.id in self.machine.reserved:
            gpus = self.machine.reserved[job.id].gpus
            named = ", ".join(gpus) if len(gpus) <= _NAMED else f"{len(gpus)} devices"
            return f"{named}: reserved for it, as it has waited too long"
        devices = "an idle device" if job.spec.workers == 1 else f"{job.spec.workers} idle devices"
        if self.machine.may_share(job):
            devices = f"{devices}, or room next to others"
        before = self.before.ahead(job)
        return f"{before[0]}: {devices}, after jobs of {before[1]}" if before else devices
