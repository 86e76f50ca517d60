"""A policy's decision as a plan, and why jobs wait, as ``dovetail explain`` has it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

from dovetail.executor.state_instance import starting, staying
from dovetail.formulations.problems import Problem
from dovetail.instances.checker import CheckReport, check
from dovetail.instances.errors import DovetailError, InputError
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.plan import Assignment, ObjectiveValue, Plan, Stop, Waiting
from dovetail.solver.explanations import explain, reasons
from dovetail.solver.policies.policy import Decision, RoundProof
from dovetail.solver.policies.state import State


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
    plan = Plan(
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
    )
    plan = plan.replace(stops=plan.leaving(instance.jobs))
    if not report.valid:
        return plan
    asked = Problem.of(problem, report.objective)
    return plan.replace(waiting=_reasons(asked, assigned, plan.stops, alone, before))


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
    stops: tuple[Stop, ...],
    alone: Callable[[str], bool],
    before: Callable[[str], tuple[str, str] | None],
) -> tuple[Waiting, ...]:
    return tuple(
        each.replace(
            reason=_live_reason(
                each.reason, problem.round.instance, each.job, alone(each.job), before(each.job)
            )
        )
        for each in reasons(problem, assigned, stops=stops)
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
