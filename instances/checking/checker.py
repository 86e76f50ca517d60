"""The validity and the value of a plan, by code that is independent of planning.

The checker shares no code with formulations, backends or policies: it reads any plan and compares
it with the definitions of the formats, and the plan's claims with its own results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isclose

from dovetail.instances._record import AnyShare, FrozenMapping, Record, listed
from dovetail.instances.checking.facts import (
    JobOnGpus,
    Occupancy,
    Origin,
    RuleName,
    Violation,
    on_gpus,
    running_jobs,
)
from dovetail.instances.checking.rules import (
    broken_rules,
    existing_breaches,
    objective_value,
    placed_weight,
    spanned,
)
from dovetail.instances.errors import ArgumentError, require_type
from dovetail.instances.instance import Instance, Job, jobs_of
from dovetail.instances.objectives import OBJECTIVES, ObjectiveName
from dovetail.instances.plan import Assignment, ObjectiveValue, Plan
from dovetail.instances.requirements import require_fields

__all__ = ["CheckReport", "Origin", "Violation", "check", "violations_of_starts", "with_claims"]

CLAIM_TOLERANCE = 1e-6
MINIMISED: frozenset[ObjectiveName] = frozenset({"slowdown", "sensitivity", "fewest"})


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
    violations = [*_broken(before, after, reading, plan, name, held), *_false_status(plan)]
    warnings = list(existing_breaches(before))
    if plan.objective is not None and plan.objective.name == name:
        violations += _false_objective(plan.objective, value, weight)
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
        gpu_memory_mib={gpu: group.memory_mib for gpu, group in after.gpus.items()},
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


def _occupancies(instance: Instance, plan: Plan) -> tuple[Occupancy, Occupancy, _PlacedJobs]:
    """Return the jobs on GPUs without and with those that a plan starts, and how it was read."""
    running = running_jobs(instance)
    reading = _read_plan(instance, plan, running)
    before = Occupancy(instance, running)
    return before, Occupancy(instance, reading.placed, before), reading


def _broken(
    before: Occupancy,
    after: Occupancy,
    reading: _PlacedJobs,
    plan: Plan,
    objective: ObjectiveName,
    held: Mapping[str, JobOnGpus],
) -> list[Violation]:
    """Return the broken rules and the false claims of assignments; ``held`` as before any stop."""
    broken = [*reading.violations, *broken_rules(before, after, objective)]
    return [*broken, *_false_claims(held, after, plan, reading.assigned)]


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
    violations = [*report.violations, *_false_status(plan)]
    claim = plan.objective
    if claim is not None:
        value = report.value if claim.name == report.objective else None
        violations += _false_objective(claim, value, report.placed_weight)
    if plan.waiting:
        violations += _false_waiting(instance, plan)
    return report.model_copy(update={"violations": tuple(violations), "valid": not violations})


@dataclass
class _PlacedJobs:
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


def _read_plan(instance: Instance, plan: Plan, running: Iterable[JobOnGpus]) -> _PlacedJobs:
    """Place the jobs of a plan beside the running ones; report impossible assignments."""
    reading = _PlacedJobs(placed=[*running])
    for assignment in plan.assignments:
        _read(instance, assignment, reading)
    for job in jobs_of(instance, "running"):
        if job.id not in reading.assigned:
            rule = f"runs on {listed(job.gpus or ())} but has no assignment"
            reading.violations.append(_violation("running", job.id, rule))
    return reading


def _read(instance: Instance, assignment: Assignment, reading: _PlacedJobs) -> None:
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
        reading.placed.append(on_gpus(instance, job, share, assignment.sub_batch))


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


def _held(job: Job) -> dict[str, AnyShare]:
    return dict(zip(job.gpus or (), job.shares, strict=True))


def _full(instance: Instance, job: Job) -> int | None:
    batch = instance.workloads[job.workload].batch
    return batch.size if batch is not None else None


def _share_text(share: Mapping[str, AnyShare]) -> str:
    return listed(f"{gpu} at {cap or 'no cap'}" for gpu, cap in share.items())


def _violation(rule: RuleName, job: str, message: str) -> Violation:
    return Violation(rule=rule, where=f"job {job}", message=message)


def _false_claims(
    running: Mapping[str, JobOnGpus],
    after: Occupancy,
    plan: Plan,
    assigned: dict[str, Assignment],
) -> Iterator[Violation]:
    """Yield the claims of a plan, other than its objective, that do not hold.

    ``running`` has the running jobs, including those that the plan may preempt.
    """
    if plan.instance is not None and plan.instance != after.instance.name:
        yield _false(f"made for instance {plan.instance}, not {after.instance.name}")
    if plan.nodes_spanned is not None and plan.nodes_spanned != (nodes := spanned(after)[0]):
        yield _false(f"claims nodes_spanned {plan.nodes_spanned}, recomputed {nodes}")
    for assignment in assigned.values():
        yield from _assignment(running.get(assignment.job), after, assignment)
    if plan.waiting:
        yield from _false_waiting(after.instance, plan)
    yield from _stops(running, plan, assigned)


def _false_objective(
    claim: ObjectiveValue, value: float | None, placed_weight: float
) -> Iterator[Violation]:
    """Yield the false claims about value, weight, bound and gap."""
    if value is not None and not _close(claim.value, value):
        yield _false(f"claims {claim.name} {claim.value:.10g}, recomputed {value:.10g}")
    if claim.placed_weight is not None and not _close(claim.placed_weight, placed_weight):
        rule = f"claims placed_weight {claim.placed_weight:.10g}"
        yield _false(f"{rule}, recomputed {placed_weight:.10g}")
    yield from _bound(claim)
    yield from _weight_bound(claim, placed_weight)


def _false_status(plan: Plan) -> Iterator[Violation]:
    """Yield a violation if a plan is called optimal without proof."""
    if plan.status != "optimal":
        return
    claim = plan.objective
    gap = None if claim is None else _gap(claim)
    if claim is None or gap is None:
        yield _false("status optimal without a bound that proves it")
    elif gap > CLAIM_TOLERANCE:
        yield _false(f"status optimal with gap {gap:.3g} > {CLAIM_TOLERANCE:g}")
    elif not _places_most(claim):
        yield _false("status optimal with placed_weight below placed_weight_bound")


def _assignment(held: JobOnGpus | None, after: Occupancy, claim: Assignment) -> Iterator[Violation]:
    placed, where = after.placed.get(claim.job), f"job {claim.job}"
    if placed is None:
        return
    effect = after.effects.get(claim.job)
    if claim.slowdown is not None and effect and not _close(claim.slowdown, effect.slowdown):
        rule = f"claims slowdown {claim.slowdown:.10g}, recomputed {effect.slowdown:.10g}"
        yield _false(rule, where)
    yield from _origin(after, claim)
    if claim.start and not placed.starting:
        yield _false("start: true of a running job", where)
    elif claim.start is False and not _stays(held, placed):
        rule = "start: false of a job that moves" if held else "start: false of a pending job"
        yield _false(rule, where)
    for gpu, names in zip(claim.gpus, claim.co_runners or (), strict=False):
        yield from _co_runners(after, claim.job, gpu, names)


def _stops(
    running: Mapping[str, JobOnGpus], plan: Plan, assigned: Mapping[str, Assignment]
) -> Iterator[Violation]:
    """Yield violations if ``stops`` is given but not exactly the running jobs that do not stay."""
    expected = {
        name: set(held.share)
        for name, held in running.items()
        if name not in assigned or (plan.preempt and assigned[name].start is not False)
    }
    for stop in plan.stops:
        where = f"job {stop.job}"
        if stop.job not in expected:
            yield _false("listed in stops, but it stays, waits or is listed before", where)
        elif set(stop.gpus) != expected.pop(stop.job):
            yield _false(f"stops on {listed(stop.gpus)}, but it runs elsewhere", where)
    for name in expected if plan.stops else ():
        yield _false("does not stay, and is not listed in stops", f"job {name}")


def _origin(after: Occupancy, claim: Assignment) -> Iterator[Violation]:
    found = after.origins.get(claim.job)
    source, confidence = (found.source, found.confidence) if found else (None, None)
    if claim.source is not None and (claim.source, claim.confidence) != (source, confidence):
        claimed = Origin(source=claim.source, confidence=claim.confidence)
        yield _false(
            f"claims that its slowdown is {claimed}; it is {found or 'as given'}",
            f"job {claim.job}",
        )


def _stays(held: JobOnGpus | None, placed: JobOnGpus) -> bool:
    return held is not None and (held.share, held.sub_batch) == (placed.share, placed.sub_batch)


def _co_runners(
    after: Occupancy, job: str, gpu: str, names: tuple[str, ...]
) -> Iterator[Violation]:
    there = after.gpus[gpu].ids if gpu in after.gpus else ()
    others = sorted([name for name in there if name != job])
    if sorted(names) != others:
        rule = f"claims co-runners on {gpu}: {listed(names) or 'none'}"
        yield _false(f"{rule}; recomputed: {listed(others) or 'none'}", f"job {job}")


def _false_waiting(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """Yield violations if ``waiting`` is not exactly the pending jobs without an assignment."""
    listed_jobs = Counter(waiting.job for waiting in plan.waiting)
    assigned = {assignment.job for assignment in plan.assignments}
    expected = {job.id for job in jobs_of(instance, "pending") if job.id not in assigned}
    for job, times in listed_jobs.items():
        if job not in expected:
            yield _false("listed as waiting, but it is no pending job left over", f"job {job}")
        elif times > 1:
            yield _false("listed as waiting more than once", f"job {job}")
    for job in sorted(expected - listed_jobs.keys()):
        yield _false("neither assigned nor listed as waiting", f"job {job}")


def _bound(claim: ObjectiveValue) -> Iterator[Violation]:
    gap = _gap(claim)
    if claim.bound is None or gap is None:
        if claim.gap is not None:
            yield _false(f"claims gap {claim.gap:.3g} without a bound")
        return
    if claim.gap is not None and abs(claim.gap - gap) > CLAIM_TOLERANCE:
        yield _false(f"claims gap {claim.gap:.6g}, value and bound give {gap:.6g}")
    beyond = claim.value < claim.bound if claim.name in MINIMISED else claim.value > claim.bound
    if beyond and gap > CLAIM_TOLERANCE and _places_most(claim):
        yield _false(f"value {claim.value:.10g} is beyond its bound {claim.bound:.10g}")


def _weight_bound(claim: ObjectiveValue, placed_weight: float) -> Iterator[Violation]:
    bound = claim.placed_weight_bound
    if bound is not None and placed_weight > bound and not _close(placed_weight, bound):
        yield _false(f"placed_weight {placed_weight:.10g} is beyond its bound {bound:.10g}")


def _gap(claim: ObjectiveValue) -> float | None:
    if claim.bound is None:
        return None
    largest = max(abs(claim.bound), abs(claim.value))
    return abs(claim.bound - claim.value) / largest if largest else 0.0


def _places_most(claim: ObjectiveValue) -> bool:
    """Return whether the claim is consistent with having placed the most weight."""
    weight, bound = claim.placed_weight, claim.placed_weight_bound
    return weight is None or bound is None or weight >= bound or _close(weight, bound)


def _close(a: float, b: float) -> bool:
    return isclose(a, b, rel_tol=CLAIM_TOLERANCE, abs_tol=1e-12)


def _false(message: str, where: str = "plan") -> Violation:
    return Violation(rule="claim", where=where, message=message)
