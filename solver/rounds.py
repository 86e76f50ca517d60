"""One round: from an instance to a checked plan."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import combinations_with_replacement, islice
from numbers import Integral, Real
from pathlib import Path
from typing import NamedTuple, TypeGuard

import numpy as np

from dovetail.formulations.arrays import Ints
from dovetail.formulations.budget import Budget
from dovetail.formulations.candidates.groups import idle_counts
from dovetail.formulations.candidates.listing import candidate_groups
from dovetail.formulations.candidates.sites import plan_value
from dovetail.formulations.objectives import Objective, job_values, objective_name
from dovetail.formulations.programs.integer_program import build
from dovetail.formulations.programs.placement import place
from dovetail.formulations.rounds import Round
from dovetail.formulations.values import JobValues
from dovetail.instances._record import listed
from dovetail.instances.builder import InstanceBuilder
from dovetail.instances.checking.checker import CheckReport, check, with_claims
from dovetail.instances.errors import ArgumentError, InputError, UnsupportedError, require_type
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import OBJECTIVES
from dovetail.instances.plan import Assignment, ObjectiveValue, Plan, Stopped
from dovetail.instances.reading.contents import write_text
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.solver.backends.milp import model_text
from dovetail.solver.explaining.wording import reasons
from dovetail.solver.outside import path_of
from dovetail.solver.pairing.compilation import can_compile
from dovetail.solver.plans import assignments
from dovetail.solver.registry import Solver, round_solver, solver_named
from dovetail.solver.result import Result, RoundPrices
from dovetail.solver.stages import bounded
from dovetail.solver.tie_break import assigned
from dovetail.solver.types import (
    MATCHING,
    OPTIMAL_GAP,
    Backend,
    Choice,
    Limits,
    Progress,
    Watch,
    relative_gap,
)

_NAMED = 3
"""Maximum number of pairs with unknown slowdown that a note names."""

_MODEL_TOLERANCE = 1e-9
"""Relative amount below the placed weight that a written model requires, for rounding in sums."""

_SAME_VALUE = 1e-9
"""Relative difference up to which two values are treated as equal: rounding in sums."""

_SEARCH = 0.8
"""The fraction of the time limit that the search may take if reasons are wanted, less the time to
check the plan."""

_LEAST_SEARCH = 0.5
"""The fraction that the search may take in any case."""

_CHECKING_S = 1.5e-4
"""Seconds per job, on one core, to turn a choice into a plan and check it."""

_LATE, _LATE_S = 1.1, 0.2
"""A plan has a note if it took longer than this factor times the limit plus these seconds."""


def solve(
    instance: Instance | InstanceBuilder,
    objective: Objective = "throughput",
    solver: str | Solver | Backend = "auto",
    time_limit: float | Budget | None = None,
    gap: float = 0.0,
    seed: int = 0,
    preempt: bool = False,
    previous: Result | None = None,
    explain: bool = True,
    progress: Progress | None = None,
) -> Result:
    """Return the best plan for an instance, with its proof.

    Parameters
    ----------
    instance : Instance or InstanceBuilder
        The round's problem.
    objective : str or type
        ``throughput``, ``slowdown``, ``sensitivity``, ``jct``, ``energy``, ``completion`` or
        ``fewest``; or a subclass of ``dovetail.JobValues``.
    solver : str, Solver or Backend
        ``auto``, a solver's name (``dovetail.solver.registry.SOLVERS``), or a solver, of rounds
        or of integer programs.
    time_limit : float or Budget, optional
        Seconds after which the best plan so far is returned, with its proven gap; by default
        there is no limit, so that the answer is the same on every machine. A budget may be on a
        clock that another thread or a signal interrupts.
    gap : float
        Relative gap at which the search may stop.
    seed : int
        Seed of all random choices, >= 0. The same instance, options and seed give the same plan
        unless the time limit ended the search.
    preempt : bool
        Make running jobs pending again, so that they may move or wait; those of priority
        ``latency`` stay. None moves if that gains nothing; otherwise as few processes as possible
        move (``fewest_moves``).
    previous : Result, optional
        Result of the last round under this objective, which may have had other jobs. The search
        starts from its prices, which saves time. Its tables of slowdowns are used again if this
        instance was made from that one by ``Instance.with_jobs`` or ``Instance.after``. Value and
        bound are the same without it; among plans of equal value, another one may be returned.
    explain : bool
        Give the reason why each waiting job waits (``Plan.waiting``). In large rounds this takes
        most of the time; ``dovetail.solver.explaining.explanations.explain`` computes one on
        request. Under a time limit, a fifth of the time is kept for the reasons, and jobs that were
        not reached have a reason that says so.
    progress : callable, optional
        Called from time to time with the name of the optimised quantity, its value in the best plan
        so far, and a proven bound on it, or None.

    Raises
    ------
    ArgumentError
        When an argument has another type or is out of range.
    InputError
        When the instance lacks a field that the objective needs.
    UnsupportedError
        When the objective or solver is unknown, the solver cannot take this instance, or a user's
        class breaks a rule: its arguments, what it returns, or a bound below the value of a known
        plan.
    """
    started = time.monotonic()
    instance = instance.instance() if isinstance(instance, InstanceBuilder) else instance
    _check_arguments(instance, objective, time_limit, gap, seed)
    if previous is not None:
        require_type("previous", previous, Result)
    prices = (
        previous and previous.prices and previous.prices.of(instance, objective_name(objective))
    )
    due = time_limit if isinstance(time_limit, Budget) else Budget.of(time_limit)
    seconds = due.left_s if due.is_limited else None
    search = _search_budget(due, len(instance.jobs), explain)
    limits = Limits(search, float(gap), int(seed), previous=prices or None)
    chosen = solver_named(solver) if isinstance(solver, str) else round_solver(solver)
    book = previous.book if previous else None
    pending = instance.preempted() if preempt else instance
    values = job_values(Round.of(pending, book), objective)
    watch = progress and Watch(progress, values.name, values.sign)
    choice = chosen.solve(values, replace(limits, watch=watch))
    if not isinstance(choice, Choice):
        rule = f"must return a Choice, got {type(choice).__name__}"
        raise UnsupportedError(f"{path_of(chosen)}.solve {rule}")
    choice = bounded(choice)
    reasons_due = due if explain else None
    preempted = Round.of(instance, values.round.slowdowns) if preempt else None
    outcome = _Outcome(values, choice, limits, preempted, reasons_due, started)
    result = outcome.result(partial(_staying, instance, objective, values.round, chosen, limits))
    return _with_lateness(result, seconds)


def _search_budget(due: Budget, jobs: int, explain: bool) -> Budget:
    """Return the search's part of a budget, which leaves time for the steps after it."""
    if not due.left_s or not due.is_limited:
        return due
    checking = jobs * _CHECKING_S / due.left_s
    return due.part(max(_LEAST_SEARCH, (_SEARCH if explain else 1.0) - checking))


def _staying(
    instance: Instance, objective: Objective, preempted: Round, chosen: Solver, limits: Limits
) -> tuple[Assignment, ...]:
    """Return the best plan in which running jobs stay, empty if that round has no answer.

    Running jobs may lack a field that the objective needs, or make the round unsuitable for the
    solver.
    """
    try:
        values = job_values(Round.of(instance, preempted.slowdowns), objective)
        choice = chosen.solve(values, limits)
    except (InputError, UnsupportedError):
        return ()
    return assigned(choice, limits)[0]


def _with_origin(row: Assignment, report: CheckReport) -> Assignment:
    """Return an assignment with the source of its slowdown, as found by the checker."""
    found = report.job_origin.get(row.job)
    if found is None:
        return row
    return row.replace(source=found.source, confidence=found.confidence)


def _with_lateness(result: Result, limit: float | None) -> Result:
    """Return a result with a note if it took much longer than allowed."""
    if (
        limit is None
        or result.stopped == "interrupted"
        or result.runtime_s <= _LATE * limit + _LATE_S
    ):
        return result
    took = f"the plan took {result.runtime_s:.1f} s, {limit:g} s were allowed"
    note = f"{took}: steps in progress were finished"
    return replace(result, plan=result.plan.replace(notes=(*result.plan.notes, note)))


def _check_arguments(
    instance: object, objective: object, time_limit: object, gap: object, seed: object
) -> None:
    require_type("instance", instance, Instance)
    if objective not in OBJECTIVES and not callable(objective):
        known = ", ".join(OBJECTIVES)
        raise UnsupportedError(f"objective must be one of {known}, got {objective!r}")
    limited = time_limit is not None and not isinstance(time_limit, Budget)
    if limited and not (_is_number(time_limit) and 0 <= time_limit < math.inf):
        raise ArgumentError(f"time_limit must be a number of seconds >= 0, got {time_limit!r}")
    if not (_is_number(gap) and 0 <= gap < 1):
        raise ArgumentError(f"gap must be >= 0 and < 1, got {gap!r}")
    if not (isinstance(seed, Integral) and int(seed) >= 0):
        raise ArgumentError(f"seed must be a whole number >= 0, got {seed!r}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real)


@dataclass(frozen=True)
class _Outcome:
    """Turns a choice of groups into a checked result."""

    values: JobValues
    choice: Choice
    limits: Limits
    before: Round | None
    """The round with its running jobs in place, if they are pending in the round."""
    reasons_due: Budget | None
    started: float

    @property
    def instance(self) -> Instance:
        return self.values.round.instance

    def result(self, staying: Callable[[], tuple[Assignment, ...]]) -> Result:
        plan = self._plan(*assigned(self.choice, self.limits, self.before))
        report = self._report(plan)
        if report.valid and self._may_be_in_vain(plan):
            plan, report = self._with_gain(plan, report, staying())
        if report.valid:
            plan = self._with_results(plan, report)
            report = with_claims(report, self.instance, plan)
        if not report.valid:
            return self._nothing_starts(report)
        return self._result(plan)

    def _may_be_in_vain(self, plan: Plan) -> bool:
        """Return whether a plan moves running jobs, with time left to check if that gains."""
        if self.before is None or self.choice.in_queue_order or self.limits.passed:
            return False
        stay = {row.job for row in plan.assignments if not row.start}
        return any(job.running and job.id not in stay for job in self.before.instance.jobs)

    def _with_gain(
        self, plan: Plan, report: CheckReport, staying: tuple[Assignment, ...]
    ) -> tuple[Plan, CheckReport]:
        """Return the plan, or the one in which running jobs stay if the plan gains nothing."""
        kept = self._plan(staying, proven=False)
        found = self._report(kept)
        if not found.valid:
            return plan, report
        values = self.values
        if values.two_stage and (more := self._weight(plan) - self._weight(kept)):
            return (plan, report) if more > 0 else (kept, found)
        mine, other = self._value(kept, found), self._value(plan, report)
        if math.isclose(mine, other, rel_tol=_SAME_VALUE) or (mine < other) == (values.sign < 0):
            return kept, found
        return plan, report

    def _weight(self, plan: Plan) -> Fraction:
        """Return the exact placed weight of a plan, so that even the lightest job counts."""
        jobs = self.instance.jobs_by_id
        return sum((Fraction(repr(jobs[row.job].weight)) for row in plan.assignments), Fraction())

    def _plan(self, rows: tuple[Assignment, ...], proven: bool, notes: Sequence[str] = ()) -> Plan:
        return Plan(
            instance=self.instance.name,
            solver=self.choice.solver,
            seed=self.limits.seed,
            preempt=self.before is not None,
            tie_break="proven" if proven else "heuristic",
            notes=(
                *notes,
                *(n for n in (self.choice.note,) if n),
                *_uncompiled(self.choice.solver),
                *_unknown_notes(self.instance),
            ),
            assignments=rows,
        )

    @property
    def _given(self) -> Instance:
        """The instance with its running jobs in place."""
        return self.before.instance if self.before else self.instance

    def _report(self, plan: Plan) -> CheckReport:
        return check(self._given, plan, self.values.judged_by)

    def _with_results(self, plan: Plan, report: CheckReport) -> Plan:
        """Return a valid plan with its value, bound, warnings and reasons."""
        values = self.values
        sign = values.sign
        value = self._value(plan, report)
        # Adding 0 makes a negative zero a positive one.
        bound = None if math.isinf(self.choice.bound) else sign * self.choice.bound + 0.0
        gap = None if bound is None else relative_gap(bound, value)
        weight_bound = self.choice.weight_bound
        objective = ObjectiveValue(
            name=values.name,
            value=value,
            bound=bound,
            gap=gap,
            placed_weight=report.placed_weight if values.two_stage else None,
            placed_weight_bound=(
                max(weight_bound, report.placed_weight)
                if values.two_stage and not math.isinf(weight_bound)
                else None
            ),
        )
        short = relative_gap(objective.placed_weight_bound or 0.0, objective.placed_weight or 0.0)
        optimal = gap is not None and max(gap, short) <= OPTIMAL_GAP
        due, stops = self.reasons_due, plan.leaving(self._given.jobs)
        return plan.replace(
            objective=objective,
            assignments=tuple(_with_origin(row, report) for row in plan.assignments),
            nodes_spanned=report.nodes_spanned,
            status="optimal" if optimal else "feasible",
            stopped=self._stopped(gap),
            notes=(*plan.notes, *report.warnings),
            stops=stops,
            waiting=() if due is None else reasons(values, plan.assignments, due, stops),
        )

    def _value(self, plan: Plan, report: CheckReport) -> float:
        """Return the checker's value, or what the objective's class says if it has none."""
        values = self.values
        if report.objective == values.name:
            return report.value or 0.0
        return plan_value(values, plan.assignments, report.job_slowdown)

    def _stopped(self, gap: float | None) -> Stopped:
        if gap is not None and gap <= OPTIMAL_GAP:
            return "complete"
        if gap is not None and self.limits.gap >= gap and self.choice.stopped == "complete":
            return "gap_reached"
        if self.choice.stopped == "time_limit" and self.limits.budget.is_interrupted:
            return "interrupted"
        return self.choice.stopped

    def _nothing_starts(self, report: CheckReport) -> Result:
        """Return the plan in which running jobs stay and no job starts, for a failed check."""
        groups = self.choice.groups
        rows = assignments(groups, place(groups, idle_counts(groups)), preempted=self.before)
        why = f"internal error: the answer failed its check ({report.violations[0]})"
        plan = self._plan(rows, proven=False, notes=[why])
        plan = self._with_results(plan, self._report(plan))
        unproven = plan.objective and plan.objective.replace(bound=None, gap=None)
        return self._result(plan.replace(objective=unproven, status="unknown", stopped="error"))

    def _round_prices(self) -> RoundPrices | None:
        prices = self.choice.prices
        if prices is None:
            return None
        jobs = tuple(job.id for job in self.instance.jobs)
        return RoundPrices(self.values.name, jobs, prices)

    def _result(self, plan: Plan) -> Result:
        runtime = time.monotonic() - self.started
        plan = plan.replace(runtime_s=round(runtime, 6))
        objective = plan.objective
        if objective is None or plan.status is None or plan.stopped is None:
            raise AssertionError("a valued plan has an objective and both status words")
        return Result(
            plan.status,
            plan.stopped,
            plan,
            objective.value,
            objective.bound,
            objective.gap,
            runtime,
            self.choice.proof,
            self._round_prices(),
            self.values.round.slowdowns,
        )


def _uncompiled(solver: str) -> list[str]:
    """Return a note if the engine ran as plain Python instead of compiled."""
    if solver != MATCHING or can_compile():
        return []
    return ["NUMBA_DISABLE_JIT is set: the engine ran as plain Python, many times slower"]


class UnknownPairs(NamedTuple):
    """The pairs of workloads in use without a known slowdown, which may not share.

    Attributes
    ----------
    jobs : Counter of str
        The jobs of each workload.
    workloads : mapping of str to int
        The number of each workload that has slowdowns.
    known : (n,) int
        The known pairs, each as one number, ascending.
    """

    jobs: Counter[str]
    workloads: Mapping[str, int]
    known: Ints

    @classmethod
    def of(cls, instance: Instance) -> UnknownPairs:
        """Return the unknown pairs of an instance."""
        jobs = Counter(job.workload for job in instance.jobs)
        return cls(jobs, instance.slowdowns.number, _known_pairs(instance.slowdowns, jobs))

    @property
    def total(self) -> int:
        """The number of pairs that the jobs could form, including known ones."""
        number = len(self.jobs)
        return number * (number - 1) // 2 + sum(jobs > 1 for jobs in self.jobs.values())

    @property
    def number(self) -> int:
        """The number of unknown pairs."""
        return self.total - len(self.known)

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield the two workloads of each unknown pair."""
        known = set(self.known.tolist())
        for a, b in combinations_with_replacement(self.jobs, 2):
            one, other = sorted((self.workloads.get(a, -1), self.workloads.get(b, -1)))
            pair = one * len(self.workloads) + other
            if (a != b or self.jobs[a] > 1) and (one < 0 or pair not in known):
                yield a, b


def _known_pairs(known: Slowdowns, jobs: Counter[str]) -> Ints:
    """Return the pairs that jobs of a round could form and that have an entry, ascending."""
    count = np.array([jobs[name] for name in known.names], dtype=np.int64)
    number = known.number
    of_sets = [sorted(number[name] for name in entry.workloads) for entry in known.sets.values()]
    ends = [(each[0], each[-1]) for each in of_sets if len(set(each)) <= 2]
    one, other = np.concatenate([known.workload, np.array(ends, dtype=np.int32).reshape(-1, 2)]).T
    low, high = np.minimum(one, other).astype(np.int64), np.maximum(one, other)
    able = (count[low] > 0) & (count[high] > 0) & ((low != high) | (count[low] > 1))
    # Files mostly have pairs in this order, once for each split.
    pairs = np.sort((low * len(count) + high)[able], kind="stable")
    return pairs[np.diff(pairs, prepend=-1) > 0]


def _unknown_notes(instance: Instance) -> list[str]:
    declared = instance.cluster.assumed
    if declared is not None and declared.pair is not None:
        return []
    pairs = UnknownPairs.of(instance)
    unknown = pairs.number
    if not unknown:
        return []
    first = [f"{a} + {b}" for a, b in islice(pairs.names(), _NAMED)]
    named = listed(first, _NAMED, unknown)
    have = "has" if unknown == 1 else "have"
    rule = f"{have} no known slowdown and may not share"
    text = f"{unknown} of {pairs.total} pairs of workloads {rule}: {named}"
    return [text + ("; dovetail explain INSTANCE PLAN lists all" if unknown > _NAMED else "")]


def write_model(
    instance: Instance, plan: Plan, path: Path, objective: Objective | None = None
) -> None:
    """Write the integer program whose optimum a plan claims to be, as an MPS file to minimise.

    Under a two-stage objective it is the program of the last stage: a row requires the placed
    weight of the plan, and for ``energy`` it is Dinkelbach's program at the plan's ratio, whose
    optimum is 0.

    Parameters
    ----------
    instance : Instance
        The round.
    plan : Plan
        A plan from ``solve``.
    path : Path
        The file to write.
    objective : str or callable, optional
        The objective of the plan, if it is a subclass of ``JobValues``.

    Raises
    ------
    InputError
        When the file cannot be written.
    UnsupportedError
        When PuLP is not installed.
    """
    claim = plan.objective
    if claim is None:
        raise AssertionError("our plans have an objective")
    compiled = Round.of(instance.preempted() if plan.preempt else instance)
    values = job_values(compiled, objective or plan.judged_by)
    formulation = build(candidate_groups(values))
    program = formulation.program
    if claim.placed_weight is not None:
        least = claim.placed_weight * (1 - _MODEL_TOLERANCE)
        program = program.with_row(formulation.weight, least)
    if values.cheapest:
        program = program.with_cost(-formulation.cost)
    if values.ratio:
        program = program.with_cost(formulation.gain - claim.value * formulation.cost)
    write_text(path, model_text(program))
