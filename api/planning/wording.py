"""The wording of plans, in the terminal and in the report alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from dovetail.instances.objectives import ObjectiveName
from dovetail.planning.views import LOWER_IS_BETTER, TWO_STAGE, PlacedJob, PlannedWorker, PlanView
from dovetail.toolkit.wording import count, figure, number, percent, two_digits

if TYPE_CHECKING:
    # Importing these at run time would import the solvers.
    from dovetail.instances.plan import ObjectiveValue, Plan
    from dovetail.planning.comparison import ComparedPlan, PlanComparison

STARTS = "starts"
OBJECTIVE_MEANINGS: Mapping[ObjectiveName, str] = {
    "throughput": "sum of weight x rate over the placed jobs",
    "slowdown": "weighted sum of job slowdowns, after placing as much weight as possible",
    "sensitivity": "weighted sum of job slowdowns by sensitivity, "
    "after placing as much weight as possible",
    "jct": "sum of weight x rate / remaining time over the placed jobs",
    "completion": "seconds of weighted completion time that the starts save against waiting",
    "energy": "work per watt, after placing as much weight as possible",
}


def objective(laid_out: PlanView) -> str:
    """Return the objective of a plan, and its meaning."""
    ours, claim = laid_out.report.objective, laid_out.plan.objective
    if claim is None or claim.name == ours:
        return f"{ours}: {OBJECTIVE_MEANINGS[ours]}"
    return f"{claim.name}: a class of the user; the checker computes {ours}"


def proof(plan: Plan) -> str:
    """Return the status of a plan and its meaning."""
    if plan.status is None or plan.objective is None:
        return "checked and valid; no proof of how good it is"
    if plan.status == "optimal":
        return "optimal: no plan does better, proven"
    ended = _ENDED.get(plan.stopped or "", "")
    return f"{plan.status}: valid; {ended}{_range(plan.objective)}"


_ENDED: Final = {
    "time_limit": "the time limit ended the search; ",
    "interrupted": "the search was interrupted; ",
    "gap_reached": "the gap is small enough; ",
}


def so_far(name: str, value: float, bound: float | None) -> str:
    """Return the progress of a search: the best value so far and the gap to the proven bound."""
    if bound is None:
        return f"{name} {figure(value)}, no bound yet"
    most = max(abs(bound), abs(value))
    return f"{name} {figure(value)}, gap {percent(abs(bound - value) / most if most else 0.0)}"


def origin(placed: PlacedJob) -> str:
    """Return the origin of a placed job's slowdown; empty if the instance does not say."""
    return "" if placed.origin is None else str(placed.origin)


def origins(laid_out: PlanView) -> str:
    """Return the origins of the slowdowns; empty if all are measured or have none.

    The proof is that no plan does better by these numbers, right or wrong.
    """
    found = Counter(map(origin, laid_out.placed))
    if not any(each.origin and each.origin.source != "measured" for each in laid_out.placed):
        return ""
    counts = (f"{words}: {number(jobs, 'job')}" for words, jobs in sorted(found.items()) if words)
    return f"{'; '.join(counts)} (the proof holds for these numbers)"


def verified(plan: Plan) -> str:
    """Return what was verified about a plan, and how."""
    found, claim = plan.verification, plan.objective
    if found is None:
        return "nothing beyond the check that every plan passes"
    if claim is None or claim.bound is None:
        return "the plan by the checker; there is no bound to verify"
    if found.pairs is None:
        return f"the plan by the checker; not its bound: {plan.solver} left no certificate of it"
    pairs = number(found.pairs, "pair")
    return f"plan by the checker, bound and gap by a certificate, against all {pairs} of jobs"


def _range(claim: ObjectiveValue) -> str:
    """Return the proven range of the best plan's value."""
    weight, most = claim.placed_weight, claim.placed_weight_bound
    if weight is not None and most is not None and most > weight:
        return f"the most weight a plan can place is {figure(weight)} to {figure(most)}"
    if claim.bound is None:
        return "how much better another plan could be is not known"
    low, high = sorted((claim.value, claim.bound))
    return f"the best possible {claim.name} is {figure(low)} to {figure(high)}"


def comparison_columns(comparison: PlanComparison) -> tuple[str, ...]:
    """Return the heads of the columns that `comparison_cells` fills."""
    weight = ("weight placed",) if comparison.objective in TWO_STAGE else ()
    # If the objective is the throughput itself, it already has a column.
    throughput = () if comparison.objective == "throughput" else ("throughput",)
    slowdowns = ("worst slowdown", "mean slowdown")
    value = comparison.objective
    return ("jobs placed", *weight, value, *throughput, *slowdowns, "GPUs used", "over gSLA")


def comparison_cells(comparison: PlanComparison, row: ComparedPlan) -> tuple[str, ...]:
    """Return the figures of a row of a comparison."""
    weight = (figure(row.placed_weight),) if comparison.objective in TWO_STAGE else ()
    throughput = () if comparison.objective == "throughput" else (figure(row.throughput),)
    return (
        count(row.placed),
        *weight,
        figure(row.value),
        *throughput,
        two_digits(row.worst_slowdown),
        two_digits(row.mean_slowdown),
        count(row.gpus_used),
        count(row.gsla_violations),
    )


def better(objective: ObjectiveName) -> str:
    """Return whether a higher or a lower value of an objective is better."""
    direction = "lower" if objective in LOWER_IS_BETTER else "higher"
    among = " among plans that place the same weight" if objective in TWO_STAGE else ""
    return f"{direction} is better{among}"


def mark(seat: PlannedWorker) -> str:
    """Return the change that the plan makes to a job."""
    return seat.placed.change


def node_spans(amount: int) -> str:
    """Return the total number of nodes that jobs span, and how it is counted."""
    return f"{amount} (sum over the placed jobs of the nodes they are on)"
