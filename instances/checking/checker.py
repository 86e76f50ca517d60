"""The validity and the value of a plan, by code that is independent of planning.

The checker shares no code with formulations, backends or policies: it reads any plan and compares
it with the definitions of the formats.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.instances._record import FrozenMapping, Record
from dovetail.instances.checking.claims import (
    false_claims,
    false_objective,
    false_status,
    false_waiting,
)
from dovetail.instances.checking.facts import JobOnGpus, Occupancy, Origin, Violation
from dovetail.instances.checking.reading import PlacedJobs, read_plan, running_jobs
from dovetail.instances.checking.rules import broken_rules, existing_breaches
from dovetail.instances.checking.values import objective_value, placed_weight, spanned
from dovetail.instances.errors import ArgumentError, require_type
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import OBJECTIVES, ObjectiveName
from dovetail.instances.plan import Plan
from dovetail.instances.requirements import require_fields

__all__ = ["CheckReport", "Origin", "Violation", "check", "violations_of_starts", "with_claims"]


class CheckReport(Record):
    """The checker's report.

    Attributes
    ----------
    valid : bool
        Whether there is no violation; warnings leave a plan valid.
    violations : tuple of Violation
        Broken rules and false claims.
    warnings : tuple of str
        Breaches among the running jobs that no plan can undo, and unchecked claims.
    objective : ObjectiveName
        The objective of ``value``.
    value : float or None
        The recomputed objective (the second stage of a two-stage objective); None if the slowdown
        of a placed job is not known.
    placed_weight : float
        Total weight of the placed jobs, including running ones.
    job_slowdown, job_bound : mapping of str to float
        For each placed job, the largest slowdown over its GPUs, and the largest bound that its
        gSLA is compared with; without jobs whose slowdown is not known.
    job_origin : mapping of str to Origin
        The origin of the slowdown of each job that shares a GPU; without jobs for which the
        instance gives none.
    gpu_memory_mib : mapping of str to float
        Memory in use on each GPU that holds a job, reserve included, in MiB.
    nodes_spanned, racks_spanned : int
        Nodes and racks of each placed job, summed over the jobs; all nodes without a rack count as
        one rack.
    gpus_used : int
        GPUs that hold a job.
    """

    valid: bool
    violations: tuple[Violation, ...]
    warnings: tuple[str, ...]
    objective: ObjectiveName
    value: float | None
    placed_weight: float
    job_slowdown: FrozenMapping[str, float]
    job_bound: FrozenMapping[str, float]
    job_origin: FrozenMapping[str, Origin]
    gpu_memory_mib: FrozenMapping[str, float]
    nodes_spanned: int
    racks_spanned: int
    gpus_used: int


def check(instance: Instance, plan: Plan, objective: ObjectiveName | None = None) -> CheckReport:
    """Check a plan against every rule, and recompute its figures.

    Parameters
    ----------
    instance : Instance
        The round that the plan answers.
    plan : Plan
        Any plan; its claims are verified, and it may omit them.
    objective : ObjectiveName, optional
        The objective to compute, which also decides whether the jct rule applies; by default the
        plan's own objective, or ``throughput`` if that is not a built-in one.

    Returns
    -------
    CheckReport
        Every violation, every warning and the recomputed figures.

    Raises
    ------
    ArgumentError
        When an argument has another type, or no built-in objective has this name.
    InputError
        When the instance lacks a field that the objective needs.
    """
    require_type("instance", instance, Instance)
    require_type("plan", plan, Plan)
    if objective is not None and objective not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise ArgumentError(f"objective must be one of {known}, got {objective!r}")
    problem = instance.preempted() if plan.preempt else instance
    name = objective or plan.judged_by
    require_fields(problem, name)
    before, after, reading = _occupancies(problem, plan)
    value = objective_value(after, name) if reading.complete else None
    weight = placed_weight(after)
    nodes, racks = spanned(after)
    held = {placed.job.id: placed for placed in running_jobs(instance)}
    violations = [*_broken(before, after, reading, plan, name, held), *false_status(plan)]
    warnings = list(existing_breaches(before))
    if plan.objective is not None and plan.objective.name == name:
        violations += false_objective(plan.objective, value, weight)
    elif plan.objective is not None:
        warnings.append(f"the plan's {plan.objective.name} was not checked, only {name} was")
    return CheckReport(
        valid=not violations,
        violations=tuple(violations),
        warnings=tuple(warnings),
        objective=name,
        value=value,
        placed_weight=weight,
        job_slowdown={job: effect.slowdown for job, effect in after.effects.items()},
        job_bound={job: effect.bound for job, effect in after.effects.items()},
        job_origin=after.origins,
        gpu_memory_mib={gpu: after.memory_mib(group) for gpu, group in after.gpus.items()},
        nodes_spanned=nodes,
        racks_spanned=racks,
        gpus_used=len(after.gpus),
    )


def violations_of_starts(instance: Instance, plan: Plan) -> list[Violation]:
    """Return the violations that `check` reports of a plan that only starts jobs.

    Such a plan claims no objective and stops no job. Nothing else is computed.
    """
    before, after, reading = _occupancies(instance, plan)
    return _broken(before, after, reading, plan, plan.judged_by, before.placed)


def _occupancies(instance: Instance, plan: Plan) -> tuple[Occupancy, Occupancy, PlacedJobs]:
    """Return the jobs on GPUs without and with those that a plan starts, and how it was read."""
    running = running_jobs(instance)
    reading = read_plan(instance, plan, running)
    before = Occupancy(instance, running)
    return before, Occupancy(instance, reading.placed, before), reading


def _broken(
    before: Occupancy,
    after: Occupancy,
    reading: PlacedJobs,
    plan: Plan,
    objective: ObjectiveName,
    held: Mapping[str, JobOnGpus],
) -> list[Violation]:
    """Return the broken rules and the false claims of assignments; ``held`` as before any stop."""
    broken = [*reading.violations, *broken_rules(before, after, objective)]
    return [*broken, *false_claims(held, after, plan, reading.assigned)]


def with_claims(report: CheckReport, instance: Instance, plan: Plan) -> CheckReport:
    """Add to a report the false claims that were added to the plan since.

    So a plan that is checked, completed with the recomputed value and checked again is read only
    once.

    Parameters
    ----------
    report : CheckReport
        The report on the same plan without objective, status and waiting jobs.
    instance : Instance
        The round that the plan answers, preempted if the plan preempts.
    plan : Plan
        The plan with these claims. Its objective is the report's, or a user's own objective.
    """
    violations = [*report.violations, *false_status(plan)]
    claim = plan.objective
    if claim is not None:
        value = report.value if claim.name == report.objective else None
        violations += false_objective(claim, value, report.placed_weight)
    if plan.waiting:
        violations += false_waiting(instance, plan)
    return report.model_copy(update={"violations": tuple(violations), "valid": not violations})
