"""The same round planned by simpler rules, for comparison with a plan."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.candidates.listing import candidate_groups
from dovetail.formulations.objectives import BUILT_IN, job_values
from dovetail.formulations.programs.placement import seat
from dovetail.formulations.rounds import Round
from dovetail.instances._frames import frame
from dovetail.instances._record import NonNegative, Number, Record, Text
from dovetail.instances.checking.checker import check
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.plan import Plan
from dovetail.solver.greedy import Rule, greedy_counts
from dovetail.solver.plans import assignments
from dovetail.solver.types import Limits
from dovetail.toolkit.wording import count, figure, two_digits

if TYPE_CHECKING:
    from pandas import DataFrame

RANDOM_RUNS = 5
"""Number of seeds over which random pairing is averaged."""

THIS_PLAN = "this plan"


class ComparedPlan(Record):
    """The result of one rule; a mean if it was tried with several seeds.

    Attributes
    ----------
    name : str
        The rule.
    placed, started : float
        Number of jobs that have GPUs, and of jobs among them that start now.
    placed_weight : float
        Total weight of the placed jobs.
    value : float
        Value of the plan's objective.
    throughput : float
        Sum over the placed jobs of weight x rate.
    worst_slowdown, mean_slowdown : float or None
        Over the placed jobs; None if there are none.
    gpus_used : float
        Number of GPUs with a job.
    gsla_violations : float
        Number of jobs over their gSLA, by the checker.
    """

    name: Text
    placed: NonNegative
    started: NonNegative
    placed_weight: NonNegative
    value: Number
    throughput: Number
    worst_slowdown: NonNegative | None
    mean_slowdown: NonNegative | None
    gpus_used: NonNegative
    gsla_violations: NonNegative


class PlanComparison(Record):
    """A plan compared with exclusive, greedy and random plans of the same round."""

    objective: ObjectiveName
    rows: tuple[ComparedPlan, ...]

    def to_frame(self) -> DataFrame:
        """Return a row for each rule, as a data frame of pandas."""
        return frame(map(dict, self.rows), ComparedPlan.model_fields)


def compare(instance: Instance, plan: Plan, *, seed: int = 0) -> PlanComparison:
    """Plan the same round by three simpler rules.

    Running jobs always stay where they are. Exclusive use gives jobs whole GPUs in queue
    order; greedy lets each job of the queue join where it adds most; random pairing lets it
    join anywhere that the constraints allow.

    Parameters
    ----------
    instance : Instance
        The round.
    plan : Plan
        A valid plan for it; all rules use its objective and its ``preempt``.
    seed : int
        The first seed of random pairing.

    Returns
    -------
    PlanComparison
        One row for the given plan, then one for each rule.

    Raises
    ------
    InputError
        When the instance lacks a field that the objective needs.
    """
    objective = plan.judged_by
    round_ = instance.preempted() if plan.preempt else instance
    groups = candidate_groups(job_values(Round.of(round_), objective))
    ways: tuple[tuple[str, Rule, int], ...] = (
        ("exclusive use", "alone", 1),
        ("queue-order greedy", "best", 1),
        (f"random pairing (mean of {RANDOM_RUNS})", "random", RANDOM_RUNS),
    )
    rows = [_row(THIS_PLAN, instance, plan, objective)]
    for name, rule, runs in ways:
        plans = (_planned(groups, rule, seed + run) for run in range(runs))
        rows.append(_mean([_row(name, round_, each, objective) for each in plans]))
    return PlanComparison(objective=objective, rows=tuple(rows))


def _planned(groups: Groups, rule: Rule, seed: int) -> Plan:
    counts = greedy_counts(groups, Limits(seed=seed), rule)
    return Plan(assignments=assignments(*seat(groups, counts)))


def _row(name: str, instance: Instance, plan: Plan, objective: ObjectiveName) -> ComparedPlan:
    found = check(instance, plan, objective)
    slowdowns = found.job_slowdown.values()
    return ComparedPlan(
        name=name,
        placed=len(plan.assignments),
        started=sum(plan.starts(a, instance.jobs_by_id[a.job].running) for a in plan.assignments),
        placed_weight=found.placed_weight,
        value=found.value or 0.0,
        throughput=check(instance, plan, "throughput").value or 0.0,
        worst_slowdown=max(slowdowns, default=None),
        mean_slowdown=fmean(slowdowns) if slowdowns else None,
        gpus_used=found.gpus_used,
        gsla_violations=sum(violation.rule == "gsla" for violation in found.violations),
    )


def _mean(rows: Sequence[ComparedPlan]) -> ComparedPlan:
    """Return the mean of rows of one name."""
    means = {
        field: _mean_of([getattr(row, field) for row in rows])
        for field in ComparedPlan.model_fields
        if field != "name"
    }
    return ComparedPlan.from_data({"name": rows[0].name, **means})


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def comparison_columns(comparison: PlanComparison) -> tuple[str, ...]:
    """Return the heads of the columns that `comparison_cells` fills."""
    weight = ("weight placed",) if BUILT_IN[comparison.objective].two_stage else ()
    # If the objective is the throughput itself, it already has a column.
    throughput = () if comparison.objective == "throughput" else ("throughput",)
    slowdowns = ("worst slowdown", "mean slowdown")
    value = comparison.objective
    return ("jobs placed", *weight, value, *throughput, *slowdowns, "GPUs used", "over gSLA")


def comparison_cells(comparison: PlanComparison, row: ComparedPlan) -> tuple[str, ...]:
    """Return the figures of a row of a comparison."""
    weight = (figure(row.placed_weight),) if BUILT_IN[comparison.objective].two_stage else ()
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
    values = BUILT_IN[objective]
    direction = "lower" if values.minimised or values.cheapest else "higher"
    among = " among plans that place the same weight" if values.two_stage else ""
    return f"{direction} is better{among}"
