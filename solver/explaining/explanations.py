"""Why jobs wait, and what would let them start.

The *reason* of a waiting job is the limit that keeps it off its most promising GPUs while every
other job stays where the plan has put it (only shares of jobs that start in the same plan may
change). For a gang of W the W best GPUs of one model are considered, and the last of them decides.

==========  ================================================================================
size        no GPU model of the cluster has enough GPUs for the gang
memory      a GPU has too little memory for the job, or for it and the jobs it would join
gsla        it, or a job it would join, would be slowed more than its owner accepts
host        a resource of its node other than GPUs (such as processor cores) is in use
jct         sharing would not let the two end earlier on average (objective ``jct`` only)
completion  they would end later than all jobs, each alone (objective ``completion`` only)
objective   a rule of a user's own objective keeps it from sharing
unknown     no slowdown is known with any job that it could join
sharing     it, or a job it would join, shares only GPUs that are shared in another way
closed      running jobs on the GPU break a limit already, so that nothing may join
capacity    none of these: it could start, or start in place of another job, but the plan
            is worth more without it
stopped     it runs, and the plan makes it wait (``preempt``): the sentence says why
==========  ================================================================================

GPUs are ranked from the most to the least promising: no limit keeps the job off (the least slowdown
first); the GPU is full, but there is no limit in place of one of its jobs; a gSLA or memory is the
limit (the least sum of relative differences first; the larger part names the reason); the objective
is the limit; the same two on a full GPU in place of one of its jobs; no slowdown is known; the
GPU is shared in a way that one of the jobs excludes; gangs that share only as a whole hold the GPU;
it is closed. If the reason is a full GPU, the sentence
also has the figures of the best GPU with room, if only figures keep the job off it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from dovetail.formulations.arrays import Bools
from dovetail.formulations.budget import UNLIMITED, Budget
from dovetail.formulations.candidates.groups import Groups, Kinds, score
from dovetail.formulations.candidates.listing import candidate_groups
from dovetail.formulations.objectives import job_values
from dovetail.formulations.rounds import Round
from dovetail.formulations.values import JobValues
from dovetail.instances._record import Name, Record, Text, listed, shown
from dovetail.instances.checking.checker import CheckReport, check
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.plan import Assignment, Nearest, Plan, Stop, Waiting
from dovetail.solver.explaining.findings import Finder
from dovetail.solver.explaining.remedies import Change, Remedies, Remedy, StartVerdict
from dovetail.solver.explaining.wording import (
    Category,
    Wording,
    accepting,
    figure,
    of_stopped,
    reasons,
)
from dovetail.solver.registry import Auto
from dovetail.solver.stages import bounded
from dovetail.solver.types import OPTIMAL_GAP, Choice, Limits, relative_gap

__all__ = ["Category", "Change", "Explanation", "Remedy", "explain", "explain_waiting"]


TRIALS_S = 20.0
"""Seconds that solving changed rounds may take by default."""

_SHARE = 0.5
"""The fraction of the remaining time that one solve may take."""

_MARGIN = 2 * OPTIMAL_GAP
"""The relative amount by which a value must exceed a bound: plans within a gap are equally good."""

_ROUNDING = 1e-12
"""Relative error of a sum of weights."""


class Explanation(Record):
    """Why one job waits under a plan, or where it runs.

    Attributes
    ----------
    job : str
        The id of the job.
    category : Category or None
        Why it waits; None if it is placed.
    reason : str
        Why it waits or where it runs, in one line.
    nearest : Nearest, optional
        The co-runner that came closest to letting it start.
    remedies : tuple of Remedy
        Changes that would or could let it start while the rest of the plan stays, the smallest
        first; none for a placed job.
    """

    job: Name
    category: Category | None
    reason: Text
    nearest: Nearest | None = None
    remedies: tuple[Remedy, ...] = ()


def explain(
    instance: Instance,
    plan: Plan,
    job_id: str,
    budget: Budget = UNLIMITED,
    trials_s: float = TRIALS_S,
    services: Collection[str] = (),
) -> Explanation:
    """Return why a job waits and what would let it start, or where it runs.

    Parameters
    ----------
    instance : Instance
        The round that the plan answers.
    plan : Plan
        A valid plan from any source; its objective is used, by default ``throughput``.
    job_id : str
        The job.
    budget : Budget
        When to stop; remedies that are not tried by then are left out.
    trials_s : float
        Seconds for solving changed rounds: a remedy is certain only if this proves it, otherwise it
        is called possible.
    services : collection of str
        Running jobs without an end, which must be cancelled to leave.

    Raises
    ------
    InputError
        When there is no such job, the plan is not valid, or the instance lacks a field that
        the objective needs.
    """
    problem, objective, report = _checked(instance, plan)
    if job_id not in problem.jobs_by_id:
        raise InputError(
            f"must be one of ({listed(problem.jobs_by_id)}), got {shown(job_id)}", "job"
        )
    placed = {row.job: row for row in plan.assignments}
    if job_id in placed:
        return _placed(problem, plan, placed[job_id], report)
    stop = next((stop for stop in plan.leaving(instance.jobs) if stop.job == job_id), None)
    # Rounds under a user's own objective cannot be solved by its name.
    known = plan.objective is None or plan.objective.name == objective
    trials = Trials(min(trials_s, budget.left_s) if known else 0.0, placed)
    return _waiting(problem, plan.assignments, job_id, objective, stop, trials, budget, services)


def explain_waiting(instance: Instance, plan: Plan) -> tuple[Waiting, ...]:
    """Return why each job that the plan does not place waits, in the order of the instance.

    Parameters and errors are those of ``explain``.
    """
    problem, objective, _ = _checked(instance, plan)
    stops = plan.leaving(instance.jobs)
    return reasons(job_values(Round.of(problem), objective), plan.assignments, stops=stops)


def _checked(instance: Instance, plan: Plan) -> tuple[Instance, ObjectiveName, CheckReport]:
    """Return the round, the objective and the report of a valid plan."""
    problem = instance.preempted() if plan.preempt else instance
    objective = plan.judged_by
    # Other claims of the plan may be wrong without affecting the explanation.
    rows = [row.replace(slowdown=None, co_runners=None) for row in plan.assignments]
    bare = Plan(assignments=tuple(rows), preempt=plan.preempt)
    report = check(instance, bare, objective)
    if not report.valid:
        raise InputError(f"the plan is not valid: {report.violations[0]}", "assignments")
    return problem, objective, report


def _placed(instance: Instance, plan: Plan, row: Assignment, report: CheckReport) -> Explanation:
    job = instance.jobs_by_id[row.job]
    slowdown, bound = report.job_slowdown[job.id], report.job_bound[job.id]
    shares = set(row.shares)
    share = f" at share {row.shares[0]}" if len(shares) == 1 and None not in shares else ""
    others = [r.job for r in plan.assignments if r is not row and set(r.gpus) & set(row.gpus)]
    together = f"with {listed(others, 3)}" if others else "alone"
    verb = "starts" if plan.starts(row, job.running) else "keeps running"
    limit = "no gSLA" if job.gsla is None else f"gSLA {figure(job.gsla)}"
    what = "at most" if job.priority == "batch" else "p99 times"
    up_to = "" if bound == slowdown else f", {what} {accepting(bound):.2f}"
    origin = report.job_origin.get(job.id)
    if origin is not None:
        up_to += f" ({origin})"
    text = (
        f"{verb} {together} on {listed(row.gpus, 4)}{share}: "
        f"slowdown {slowdown:.2f}{up_to}; {limit}"
    )
    return Explanation(job=job.id, category=None, reason=text)


def _waiting(
    instance: Instance,
    assignments: Sequence[Assignment],
    job_id: str,
    objective: ObjectiveName,
    stop: Stop | None,
    trials: Trials,
    budget: Budget,
    services: Collection[str],
) -> Explanation:
    finder = Finder(job_values(Round.of(instance), objective), assignments)
    index = list(instance.jobs_by_id).index(job_id)
    category, reason, nearest = of_stopped(stop, Wording(finder).reason(index))
    return Explanation(
        job=job_id,
        category=category,
        reason=reason,
        nearest=nearest,
        remedies=Remedies(finder, index, objective, trials, services).ranked(budget),
    )


class Trials:
    """Solves changed rounds until a budget is used up.

    It is not enough that a plan with the job is best: any plan of equal value may be returned. If
    no plan without the job comes near the value of one with it, every optimal plan has it.

    Parameters
    ----------
    seconds : float
        For all rounds together; without time nothing is sure.
    placed : collection of str
        The jobs that the explained plan places.
    """

    def __init__(self, seconds: float, placed: Collection[str]) -> None:
        self._budget = Budget.of(seconds)
        self._late = StartVerdict(False, ", not solved in time" if seconds else "")
        self._placed = placed

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        return self._budget.passed

    def of(self, values: JobValues, job: int) -> StartVerdict:
        """Return whether every best plan of a round starts the job with this index."""
        best = self._solved(lambda limits: Auto().solve(values, limits))
        if best is None:
            return self._late
        placed = best.groups.placed(best.counts)
        if not placed[job]:
            return self._instead(values, best, placed)
        without = self._solved(
            lambda limits: Auto().best(_without(values, job, limits.budget), limits)
        )
        if without is None:
            return self._late
        if _exceeds(values, best, without):
            return StartVerdict(True, "")
        return StartVerdict(False, ", but an equally good plan may leave it out")

    def _solved(self, solve: Callable[[Limits], Choice]) -> Choice | None:
        """Return the best choice, or None if the time ran out."""
        if self.over:
            return None
        choice = bounded(solve(Limits(self._budget.part(_SHARE))))
        return None if self.over else choice

    def _instead(self, values: JobValues, choice: Choice, placed: Bools) -> StartVerdict:
        """Return the verdict on what a best plan does instead of starting the job."""
        if relative_gap(choice.bound, choice.value) > OPTIMAL_GAP:
            return self._late
        ids = values.round.jobs.ids
        fresh = [ids[k] for k in np.flatnonzero(placed).tolist() if ids[k] not in self._placed]
        does = f"starts {listed(fresh, 3)} in its place" if fresh else "leaves it out"
        return StartVerdict(False, f", but a best plan {does}")


def _without(values: JobValues, job: int, budget: Budget) -> Groups:
    """Return the candidate groups without those of one queued job, which is apart from its kind."""
    kinds = Kinds.of(values.round, values).without(job)
    every = candidate_groups(values, budget, kinds=kinds)
    return every.take(np.bincount(every.group_of_member, every.job == job, len(every)) == 0)


def _exceeds(values: JobValues, best: Choice, without: Choice) -> bool:
    """Return whether a plan is worth more than any plan without the job can be."""
    if values.two_stage:
        weight = score(best.groups, best.counts).weight
        if weight > without.weight_bound * (1 + _MARGIN):
            return True
        if weight < without.weight_bound * (1 - _ROUNDING):
            return False
    return best.value > without.bound + _MARGIN * max(abs(best.value), abs(without.bound))
