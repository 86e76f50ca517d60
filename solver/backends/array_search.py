"""The search of a round's best choice by integer programs, one for each stage."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.candidates.groups import Groups, open_weight, score
from dovetail.formulations.programs.integer_program import RoundProgram, build
from dovetail.solver.backends.cpsat import CpSat
from dovetail.solver.backends.integer_scaling import IntegerWeights
from dovetail.solver.stages import PLACED, StagedSearch, solve_in_stages, weight_units
from dovetail.solver.types import (
    OPTIMAL_GAP,
    Answer,
    Backend,
    Choice,
    Limits,
    Maximum,
    relative_gap,
)

_FEW = 60
"""Number of jobs up to which CP-SAT takes seconds."""


def settled(choice: Choice, limits: Limits) -> Choice:
    """Return a choice, solved again by CP-SAT if another solver's rounding left it unproven.

    Floating point and the engine's 29 bits cannot resolve weights or gains that are many orders of
    magnitude apart. CP-SAT computes in whole numbers; larger rounds keep their gap.
    """
    few = len(choice.groups.round) <= _FEW
    if not few or limits.passed or _is_proven(choice, limits):
        return choice
    exact = solve_in_stages(ArraySearch(choice.groups, limits, choice.counts, CpSat()))
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


class ArraySearch(StagedSearch):
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
        self, per_gain: float = 1.0, per_watt: float = 0.0, start: Maximum | None = None
    ) -> Maximum:
        """Maximise the gain less the power among the choices that place the required weight."""
        counts = self._start if start is None else start.counts
        if self.limits.passed:
            return self._unsearched(counts)
        program = self._program
        cost = per_gain * program.gain - per_watt * program.power_w
        limits = self.limits.unwatched() if self.values.ratio else self.limits
        return self._maximise(cost, counts, limits)

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
