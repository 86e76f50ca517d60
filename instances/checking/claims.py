"""The claims of a plan, compared with the checker's results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import isclose

from dovetail.instances._record import listed
from dovetail.instances.checking.facts import JobOnGpus, Occupancy, Origin, Violation
from dovetail.instances.checking.values import spanned
from dovetail.instances.instance import Instance, jobs_of
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.plan import Assignment, ObjectiveValue, Plan

CLAIM_TOLERANCE = 1e-6
MINIMISED: frozenset[ObjectiveName] = frozenset({"slowdown", "sensitivity"})


def false_claims(
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
        yield from false_waiting(after.instance, plan)
    yield from _stops(running, plan, assigned)


def false_objective(
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


def false_status(plan: Plan) -> Iterator[Violation]:
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
    others = sorted(name for name in there if name != job)
    if sorted(names) != others:
        rule = f"claims co-runners on {gpu}: {listed(names) or 'none'}"
        yield _false(f"{rule}; recomputed: {listed(others) or 'none'}", f"job {job}")


def false_waiting(instance: Instance, plan: Plan) -> Iterator[Violation]:
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
