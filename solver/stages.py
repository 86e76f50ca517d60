"""The stages of an objective, each one integer program.

One-stage objectives maximise the gain. Two-stage ones first maximise the placed weight, then
demand that weight and maximise the gain, or its ratio to the power (``ratio``). Weights are
whole numbers, so that no tolerance lets a light job go for a better gain.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.integer_program import IntegerProgram
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import ceiling, open_weight, score
from dovetail.solver.answers import OPTIMAL_GAP, Answer, Choice, Limits, relative_gap
from dovetail.solver.cpsat import CpSat
from dovetail.solver.ratio import Maximum, best_ratio
from dovetail.solver.starts import start_counts
from dovetail.solver.whole import Whole, whole_weights

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PROVEN_WEIGHT = 1e-7
"""Relative gap of the first stage up to which the second one begins."""

_WHOLE_SUM = 2.0**52
"""The largest sum of whole weights; floats have every whole number up to here."""

_FEW = 60
"""Jobs up to which CP-SAT takes seconds."""


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
        if limits.passed:  # the program would be written down for nothing
            return unsearched(problem, start, self.name)
        choice = _Stages(problem, start, self.backend, limits).run()
        return choice if self.name == CpSat.name else settled(problem, choice, limits)


def settled(problem: Problem, choice: Choice, limits: Limits) -> Choice:
    """Return a choice, found anew by CP-SAT where another solver's rounding left it unproven.

    Floating point, and the engine's 29 bits, do not tell apart weights or gains that are many
    orders of magnitude apart. CP-SAT computes in whole numbers; larger rounds keep their gap.
    """
    few = len(problem.round.jobs) <= _FEW
    if not few or limits.passed or _is_proven(problem, choice, limits):
        return choice
    exact = _Stages(problem, choice.counts, CpSat(), limits).run()
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


def unsearched(problem: Problem, counts: Ints, solver: str) -> Choice:
    """Return a choice for which there was no time to look for a better one."""
    most = ceiling(problem.groups, problem.values)
    value = score(problem.groups, problem.values, counts).value(problem.values)
    bound = math.inf if problem.values.two_stage else max(most.gain, value)
    return Choice(counts, value, bound, most.weight, "time_limit", solver)


class _Stages:
    def __init__(self, problem: Problem, start: Ints, backend: Backend, limits: Limits) -> None:
        self._problem = problem
        self._values = problem.values
        self._groups = problem.groups
        self._round = problem.program
        self._start = problem.program.solution(start)
        self._most = ceiling(problem.groups, problem.values)
        self._backend = backend
        self._limits = limits

    def run(self) -> Choice:
        """Run the stages and return the last one's answer."""
        program = self._round.program
        if not self._values.two_stage:
            return self._choice(self._maximise(program, self._start, self._limits), math.inf)
        units, weight = weight_units(self._problem)
        first = self._maximise(program.with_cost(units), self._start, self._limits.exact())
        placed = float(units @ first.x)
        spare = max(0.0, min(first.bound, weight.numbers.sum()) // 1 - placed) + weight.rounding
        weight_bound = self._weight(first.x) + spare / weight.scale
        if spare > _PROVEN_WEIGHT * max(placed, float(units.max(initial=0.0))):
            return self._choice(Maximum(first.x, math.inf, first.stopped), weight_bound)
        program = program.with_row(units, placed)
        if self._values.ratio:
            return self._choice(self._best_ratio(program, first.x), weight_bound)
        return self._choice(self._maximise(program, first.x, self._limits), weight_bound)

    def _weight(self, x: Ints) -> float:
        return score(self._groups, self._values, self._round.counts(x)).weight

    def _best_ratio(self, program: IntegerProgram, start: Ints) -> Maximum[Ints]:
        gain, power = self._round.gain, self._round.power_w
        return best_ratio(
            start,
            terms=lambda x: (float(gain @ x), float(power @ x)),
            maximise=lambda t, x: self._maximise(
                program.with_cost(gain - t * power), x, self._limits
            ),
            least=self._most.power_w,
            gap=self._limits.gap,
        )

    def _maximise(self, program: IntegerProgram, start: Ints, limits: Limits) -> Maximum[Ints]:
        """Return the better of the start and what the backend finds."""
        if not program.size:
            return Maximum(start, 0.0, "complete")
        if limits.passed:
            return Maximum(start, math.inf, "time_limit")
        answer = self._backend.solve(program, limits, start)
        x = start
        found = answer.x
        if found is not None and program.cost @ found >= program.cost @ start:
            x = found if program.holds(found) else start
        return Maximum(x, answer.bound, answer.stopped)

    def _choice(self, best: Maximum[Ints], weight_bound: float) -> Choice:
        counts = self._round.counts(best.x)
        value = score(self._groups, self._values, counts).value(self._values)
        bound = best.bound
        if not self._values.two_stage:
            bound = min(bound, self._most.gain)
        # A bound may lie a rounding error under the value; the truth is then the value.
        bound = max(bound, value)
        return Choice(counts, value, bound, weight_bound, best.stopped, self._backend.name)


def weight_units(problem: Problem) -> tuple[Floats, Whole]:
    """Return the placed weight that is open in whole numbers, by variable and by job."""
    weight = open_weight(problem.groups, problem.values)
    numbers = whole_weights(weight, _WHOLE_SUM / max(1, len(weight)))
    return problem.program.per_variable(numbers.numbers), numbers
