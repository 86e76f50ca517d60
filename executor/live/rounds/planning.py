"""A policy's decision as a plan, and why jobs wait, for ``dovetail plan`` and ``explain``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, Self

from dovetail.executor.live.rounds.fair_share import MOST_IN_ROUND
from dovetail.executor.second_opinion import starting, staying, with_sets
from dovetail.formulations.budget import UNLIMITED, Budget
from dovetail.formulations.objectives import job_values
from dovetail.formulations.rounds import Round
from dovetail.instances.checking.checker import CheckReport, check
from dovetail.instances.errors import DovetailError, InputError
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.plan import Assignment, ObjectiveValue, Plan
from dovetail.solver.explaining.explanations import explain, reasons
from dovetail.solver.policies.policy import Decision, RoundProof
from dovetail.solver.policies.state import State


class PlannedDecision(NamedTuple):
    """A decision with all the data that its plan and its reasons depend on; immutable.

    Attributes
    ----------
    instance : Instance
        The round.
    assigned : tuple of Assignment
        Assignments of the running jobs that stay, and of the starts.
    preempt : bool
        Whether jobs are stopped.
    policy : str
        Name of the policy.
    objective : ObjectiveName
        Objective of the policy. If the decision breaks a rule of the objective, its value is the
        throughput.
    proof : RoundProof or None
        The policy's proof.
    notice : str
        A caveat about the pool's figures.
    alone : frozenset of str
        Jobs that may start alone only.
    before : mapping of str to (str, str)
        For jobs that do not come first: the rule, and the user whose jobs do.
    """

    instance: Instance
    assigned: tuple[Assignment, ...]
    preempt: bool
    policy: str
    objective: ObjectiveName
    proof: RoundProof | None
    notice: str = ""
    alone: frozenset[str] = frozenset()
    before: Mapping[str, tuple[str, str]] = {}

    @classmethod
    def of(
        cls,
        instance: Instance,
        state: State,
        decision: Decision,
        policy: str,
        objective: ObjectiveName,
    ) -> Self:
        """Return the decision of a policy on the state of a round."""
        instance = with_sets(instance, state, decision.starts)
        stopped = {job.id for job in decision.stops}
        stay = [row for row in staying(instance) if row.job not in stopped]
        starts = [starting(state, start) for start in decision.starts]
        assigned = tuple(_with_co_runners([*stay, *starts]))
        return cls(instance, assigned, bool(stopped), policy, objective, decision.proof)

    def for_user(self, name: str) -> Self:
        """Return the decision with the names of one user's workloads only; others are numbered."""
        others = (label for label in self.instance.workloads if not _is_shown(label, name))
        new = {label: f"another's ({k})" for k, label in enumerate(others, 1)}
        return self._replace(instance=_renamed(self.instance, new))


def _is_shown(label: str, name: str) -> bool:
    """Return whether a label (``Category.label``) names no other user's workload."""
    return "/" not in label or label.startswith(f"{name}/")


def _renamed(instance: Instance, new: Mapping[str, str]) -> Instance:
    """Return a round with renamed workloads."""
    return instance.replace(
        workloads={new.get(name, name): each for name, each in instance.workloads.items()},
        jobs=tuple(
            job.model_copy(update={"workload": new.get(job.workload, job.workload)})
            for job in instance.jobs
        ),
        slowdowns=instance.slowdowns.renamed(new),
    )


def plan_of(choice: PlannedDecision, budget: Budget = UNLIMITED) -> Plan:
    """Return the plan of a decision: running jobs, starts, and why the others wait.

    If the budget does not suffice for a job, its reason says only that.
    """
    instance, assigned = choice.instance, choice.assigned
    problem = instance.preempted() if choice.preempt else instance
    bare = Plan(assignments=assigned, preempt=choice.preempt)
    report = _judged(instance, bare, choice.objective)
    rows = [_with_facts(row, report) for row in assigned]
    value = report.value
    plan = Plan(
        instance=instance.name,
        solver=f"policy {choice.policy}",
        preempt=choice.preempt,
        objective=None if value is None else ObjectiveValue(name=report.objective, value=value),
        notes=(
            *filter(None, [choice.notice, _proven(choice.proof)]),
            *map(str, report.violations),
            *report.warnings,
        ),
        assignments=tuple(rows),
    )
    plan = plan.replace(stops=plan.leaving(instance.jobs))
    if not report.valid:
        return plan
    found = reasons(job_values(Round.of(problem), report.objective), assigned, budget, plan.stops)
    return plan.replace(
        waiting=tuple(
            each.replace(reason=_live_reason(each.reason, each.job, choice)) for each in found
        )
    )


def _with_facts(row: Assignment, report: CheckReport) -> Assignment:
    """Return an assignment with its job's slowdown and the source of that."""
    origin = report.job_origin.get(row.job)
    return row.replace(
        slowdown=report.job_slowdown.get(row.job),
        source=origin.source if origin else None,
        confidence=origin.confidence if origin else None,
    )


def _judged(instance: Instance, plan: Plan, objective: ObjectiveName) -> CheckReport:
    """Return a plan's report for an objective, or for throughput if it breaks that one's rules."""
    with suppress(InputError):
        report = check(instance, plan, objective)
        if report.valid:
            return report
    return check(instance, plan)


def _proven(proof: RoundProof | None) -> str:
    """Return the gap that a policy proved for the jobs it considered; empty if none."""
    if proof is None or math.isnan(proof.gap):
        return ""
    jobs = f"{proof.jobs} waiting job{'s' * (proof.jobs != 1)}"
    gap = f"a gap of {100 * proof.gap:.2f} %"
    return f"the policy proved {gap} for the starts of the {jobs} that it considered"


def _live_reason(reason: str, job: str, choice: PlannedDecision) -> str:
    """Return a reason of ``dovetail explain`` in terms of live mode.

    A job that may start only alone lacks an idle device, not predictions. A job too large for the
    pool waits for devices that may join. If devices are short, the order of users is the reason.
    """
    alone = job in choice.alone
    if reason.startswith("size: "):
        return "capacity: too few devices take jobs"
    if job in choice.before and (alone or reason.startswith("capacity: ")):
        rule, user = choice.before[job]
        return f"{rule}: waits for jobs of {user}"
    if alone and reason.startswith("unknown: "):
        gang = choice.instance.jobs_by_id[job].workers > 1
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


def of_choice(job: str, choice: PlannedDecision, plan: Plan, budget: Budget = UNLIMITED) -> str:
    """Return why a job waits and what would let it start, or where it runs."""
    if job not in choice.instance.jobs_by_id:
        return (
            "it is not in the round: it holds devices that the pool does not have, or very many "
            f"jobs wait, of which about the first {MOST_IN_ROUND:,} are in the round, an equal "
            "share for each user"
        )
    try:
        # The policy may decide differently, so nothing is solved here.
        found = explain(choice.instance, plan, job, budget, trials_s=0.0)
    except DovetailError as error:
        return f"no further explanation: {error}"
    reason = _live_reason(found.reason, job, choice)
    alone = job in choice.alone
    remedies = [kept for kept in found.remedies if not (alone and kept.change.measured)]
    more = ["- more was not examined: the time limit was reached"] if budget.passed else []
    return "\n".join([reason, *(f"- {remedy.text}" for remedy in remedies), *more])
