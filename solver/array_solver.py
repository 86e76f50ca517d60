"""Rounds solved by integer programs: one for each stage."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.integer_program import IntegerProgram
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import open_weight, score
from dovetail.instances.errors import UnsupportedError
from dovetail.solver.cpsat import CpSat
from dovetail.solver.exact_pairs import paired_counts
from dovetail.solver.greedy import greedy_counts
from dovetail.solver.integer_scaling import IntegerWeights
from dovetail.solver.stages import Search, solve_in_stages, weight_units
from dovetail.solver.types import (
    OPTIMAL_GAP,
    Answer,
    Choice,
    Limits,
    Maximum,
    relative_gap,
)

_FEW = 60
"""Jobs up to which CP-SAT takes seconds."""

_AT_LEAST = 100
"""Jobs that greedy goes through even where the time is up, so that a plan starts some."""


class Backend(Protocol):
    """A solver of integer programs; one file each."""

    name: str

    def solve(self, program: IntegerProgram, limits: Limits, start: Ints | None = None) -> Answer:
        """Maximise; ``start`` is a feasible solution that the backend may begin with."""
        ...


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

    def solve(self, problem: Problem, limits: Limits) -> Choice:
        """Return the best choice of groups within the limits; never worse than greedy's."""
        start = start_counts(problem, limits)
        choice = solve_in_stages(_ArraySearch(problem, limits, start, self.backend))
        return choice if self.name == CpSat.name else settled(problem, choice, limits)


def start_counts(problem: Problem, limits: Limits) -> Ints:
    """Return the better of greedy's choice of groups and the best one in pairs of equals."""
    greedy = greedy_counts(problem, limits, at_least=_AT_LEAST)
    if limits.passed:
        return greedy
    try:
        paired = paired_counts(problem, limits)
    except UnsupportedError:
        return greedy
    return max(greedy, paired, key=lambda counts: _worth(problem, counts))


def _worth(problem: Problem, counts: Ints) -> tuple[float, float]:
    """Return what counts first and second of a choice of groups."""
    reached = score(problem.groups, problem.values, counts)
    value = reached.value(problem.values)
    return (reached.weight, value) if problem.values.two_stage else (value, 0.0)


def settled(problem: Problem, choice: Choice, limits: Limits) -> Choice:
    """Return a choice, found anew by CP-SAT where another solver's rounding left it unproven.

    Floating point, and the engine's 29 bits, do not tell apart weights or gains that are many
    orders of magnitude apart. CP-SAT computes in whole numbers; larger rounds keep their gap.
    """
    few = len(problem.round) <= _FEW
    if not few or limits.passed or _is_proven(problem, choice, limits):
        return choice
    exact = solve_in_stages(_ArraySearch(problem, limits, choice.counts, CpSat()))
    best = exact if exact.stopped == "complete" else choice
    return replace(best, stopped=exact.stopped, solver=choice.solver)


def _is_proven(problem: Problem, choice: Choice, limits: Limits) -> bool:
    """Tell whether the bounds leave nothing to be found, not even the lightest job."""
    # Without a bound the gap is not a number.
    if not relative_gap(choice.bound, choice.value) <= max(OPTIMAL_GAP, limits.gap):
        return False
    if not problem.values.two_stage:
        return True
    weight = open_weight(problem.groups, problem.values)
    lightest = float(weight[weight > 0].min(initial=math.inf))
    placed = score(problem.groups, problem.values, choice.counts).weight
    return choice.weight_bound - placed < lightest / 2


class _ArraySearch(Search):
    def __init__(self, problem: Problem, limits: Limits, start: Ints, backend: Backend) -> None:
        super().__init__(problem, limits)
        self.solver = backend.name
        self._start = start
        self._backend = backend
        self._demand: tuple[Floats, float] | None = None

    def heaviest(self) -> tuple[Maximum, IntegerWeights]:
        weight = weight_units(self.problem)
        if self.limits.passed:  # the program would be written down for nothing
            return self._unsearched(self._start), weight
        units = self.problem.program.per_variable(weight.numbers)
        first = self._maximise(units, self._start, self.limits.exact())
        self._demand = units, float(units @ self.problem.program.solution(first.counts))
        return first, weight

    def maximise(
        self, per_gain: float = 1.0, per_watt: float = 0.0, start: Maximum | None = None
    ) -> Maximum:
        counts = self._start if start is None else start.counts
        if self.limits.passed:
            return self._unsearched(counts)
        program = self.problem.program
        cost = per_gain * program.gain - per_watt * program.power_w
        return self._maximise(cost, counts, self.limits)

    def _unsearched(self, counts: Ints) -> Maximum:
        return Maximum(counts=counts, bound=math.inf, stopped="time_limit")

    def _maximise(self, cost: Floats, start: Ints, limits: Limits) -> Maximum:
        """Return the better of the start and what the backend finds."""
        formulation = self.problem.program
        program = formulation.program.with_cost(cost)
        if self._demand is not None:
            program = program.with_row(*self._demand)
        best = formulation.solution(start)
        answer = Answer(None, 0.0, "complete")
        if program.size:
            answer = self._backend.solve(program, limits, best)
        found = answer.x
        if found is not None and cost @ found >= cost @ best and program.holds(found):
            best = found
        return Maximum(
            counts=formulation.counts(best),
            bound=answer.bound,
            stopped=answer.stopped,
        )
