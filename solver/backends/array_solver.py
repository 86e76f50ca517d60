"""Rounds solved by integer programs: one for each stage."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.candidates.groups import Groups, open_weight, score
from dovetail.formulations.candidates.listing import candidate_groups
from dovetail.formulations.programs.integer_program import RoundProgram, build
from dovetail.formulations.values import JobValues
from dovetail.instances.errors import UnsupportedError
from dovetail.solver.backends.cpsat import CpSat
from dovetail.solver.backends.faster import faster_counts
from dovetail.solver.greedy import AT_LEAST, greedy_counts
from dovetail.solver.matching.exact_pairs import paired_counts
from dovetail.solver.stages import PLACED, StagedSearch, solve_in_stages, weight_units
from dovetail.solver.types import (
    OPTIMAL_GAP,
    Answer,
    Backend,
    Choice,
    IntegerWeights,
    Limits,
    Maximum,
    relative_gap,
)

_GREEDY = 0.3
"""The fraction of the remaining time that greedy may take."""

_MOST_PAIRED = 1_000_000
"""Maximum number of members of the groups of single jobs for an initial matching."""

_FEW = 60
"""Number of jobs up to which CP-SAT takes seconds."""


class ArraySolver:
    """Solves rounds with a backend that takes integer programs.

    Parameters
    ----------
    backend : Backend
        Solves the program of each stage.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.name = backend.name

    def solve(self, values: JobValues, limits: Limits) -> Choice:
        """Return the best choice of groups within the limits; never worse than greedy's."""
        return self.best(candidate_groups(values, limits.budget), limits)

    def best(self, groups: Groups, limits: Limits) -> Choice:
        """Return the best choice of these groups."""
        start = start_counts(groups, limits)
        choice = solve_in_stages(_ArraySearch(groups, limits, start, self.backend))
        return choice if self.name == CpSat.name else settled(choice, limits)


def start_counts(groups: Groups, limits: Limits) -> Ints:
    """Return the better of greedy's choice of groups and the best choice in equal pairs."""
    part = replace(limits, budget=limits.budget.part(_GREEDY))
    greedy = greedy_counts(groups, part, at_least=AT_LEAST)
    if limits.passed or groups.members_apart > _MOST_PAIRED:
        return greedy
    try:
        paired = groups.merged(paired_counts(groups.apart, limits))
    except UnsupportedError:
        return greedy
    return max(greedy, paired, key=lambda counts: _worth(groups, counts))


def _worth(groups: Groups, counts: Ints) -> tuple[float, float]:
    """Return the first and the second criterion of a choice of groups."""
    reached = score(groups, counts)
    value = reached.value(groups.values)
    return (reached.weight, value) if groups.values.two_stage else (value, 0.0)


def settled(choice: Choice, limits: Limits) -> Choice:
    """Return a choice, solved again by CP-SAT if another solver's rounding left it unproven.

    Floating point and the engine's 29 bits cannot resolve weights or gains that are many orders of
    magnitude apart. CP-SAT computes in whole numbers; larger rounds keep their gap.
    """
    few = len(choice.groups.round) <= _FEW
    if not few or limits.passed or _is_proven(choice, limits):
        return choice
    exact = solve_in_stages(_ArraySearch(choice.groups, limits, choice.counts, CpSat()))
    best = exact if exact.stopped == "complete" else choice
    return replace(best, stopped=exact.stopped, solver=choice.solver)


def _is_proven(choice: Choice, limits: Limits) -> bool:
    """Return whether the bounds exclude anything better, even by the lightest job."""
    # Without a bound the gap is NaN.
    if not relative_gap(choice.bound, choice.value) <= max(OPTIMAL_GAP, limits.gap):
        return False
    if not choice.groups.values.two_stage:
        return True
    weight = open_weight(choice.groups)
    lightest = float(weight[weight > 0].min(initial=math.inf))
    placed = score(choice.groups, choice.counts).weight
    return choice.weight_bound - placed < lightest / 2


class _ArraySearch(StagedSearch):
    """Maximises with a backend of integer programs, starting from a choice of groups."""

    def __init__(self, groups: Groups, limits: Limits, start: Ints, backend: Backend) -> None:
        super().__init__(groups.values, limits, groups)
        self.solver = backend.name
        self._start = start
        self._backend = backend
        self._demand: tuple[Floats, float] | None = None

    @cached_property
    def _program(self) -> RoundProgram:
        return build(self.groups)

    def heaviest(self) -> tuple[Maximum, IntegerWeights]:
        """Maximise the placed weight and require it from now on by a row."""
        weight = weight_units(self.groups)
        if self.limits.passed:  # the program would be built for nothing
            return self._unsearched(self._start), weight
        units = self._program.per_variable(weight.numbers)
        limits = self.limits.exact().watched(name=PLACED, factor=1 / weight.scale)
        first = self._maximise(units, self._start, limits)
        self._demand = units, float(units @ self._program.solution(first.counts))
        return first, weight

    def maximise(
        self, per_gain: float = 1.0, per_cost: float = 0.0, start: Maximum | None = None
    ) -> Maximum:
        """Maximise the gain less the cost among the choices that place the required weight."""
        counts = self._start if start is None else start.counts
        if self.limits.passed:
            return self._unsearched(counts)
        program = self._program
        cost = per_gain * program.gain - per_cost * program.cost
        limits = self.limits.unwatched() if self.values.ratio else self.limits
        if self.values.cheapest:
            limits = limits.watched(factor=-1 / per_cost)
        return self._maximise(cost, counts, limits)

    def faster(self, cheapest: Maximum, per_cost: float) -> Maximum:
        """Look for a larger gain at this cost, with bounded effort; see ``StagedSearch``."""
        if self.limits.passed:  # the program would be built for nothing
            return cheapest
        counts = faster_counts(self._program, cheapest.counts, per_cost, self.limits)
        return replace(cheapest, counts=counts)

    def _unsearched(self, counts: Ints) -> Maximum:
        return Maximum(counts=counts, bound=math.inf, stopped="time_limit")

    def _maximise(self, cost: Floats, start: Ints, limits: Limits) -> Maximum:
        """Return the better of the start and the backend's solution."""
        formulation = self._program
        program = formulation.program.with_cost(cost)
        if self._demand is not None:
            program = program.with_row(*self._demand)
        best = formulation.solution(start)
        answer = Answer(None, 0.0, "complete")
        if program.size:
            limits.report(float(cost @ best), math.inf)
            answer = self._backend.solve(program, limits, best)
        found = answer.x
        if found is not None and cost @ found >= cost @ best and program.holds(found):
            best = found
        return Maximum(
            counts=formulation.counts(best),
            bound=answer.bound,
            stopped=answer.stopped,
        )
