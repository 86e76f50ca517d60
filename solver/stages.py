"""The stages of an objective, each one integer program.

One-stage objectives maximise the gain. Two-stage ones first maximise the placed weight, then
demand that weight and maximise the gain, or its ratio to the power (``ratio``).
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.integer_program import IntegerProgram
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import ceiling, score
from dovetail.solver.answers import Answer, Choice, Limits
from dovetail.solver.ratio import Maximum, best_ratio
from dovetail.solver.starts import start_counts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WEIGHT_TOLERANCE = 1e-9
_PROVEN_WEIGHT = 1e-7


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
        return _Stages(problem, start, self.backend, limits).run()


def unsearched(problem: Problem, counts: Ints, solver: str) -> Choice:
    """Return a choice for which there was no time to look for a better one."""
    most = ceiling(problem.groups, problem.values)
    value = score(problem.groups, problem.values, counts).value(problem.values)
    bound = math.inf if problem.values.two_stage else max(most.gain, value)
    return Choice(counts, value, bound, most.weight, "time_limit", solver)


class _Stages:
    def __init__(self, problem: Problem, start: Ints, backend: Backend, limits: Limits) -> None:
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
        first = self._first_stage()
        weight = float(self._round.weight @ first.x)
        largest = max(weight, float(self._round.weight.max(initial=0.0)))
        if first.bound > weight + _PROVEN_WEIGHT * largest:
            unproven = Maximum(first.x, math.inf, first.stopped)
            return self._choice(unproven, first.bound)
        program = with_weight(program, self._round.weight, weight)
        if self._values.ratio:
            return self._choice(self._best_ratio(program, first.x), weight)
        return self._choice(self._maximise(program, first.x, self._limits), weight)

    def _first_stage(self) -> Maximum[Ints]:
        program = self._round.program.with_cost(self._round.weight)
        found = self._maximise(program, self._start, self._limits.exact())
        return Maximum(found.x, min(found.bound, self._most.weight), found.stopped)

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
        if answer.x is not None and program.cost @ answer.x >= program.cost @ start:
            x = answer.x
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


def with_weight(program: IntegerProgram, weight: Floats, placed: float) -> IntegerProgram:
    """Return the program with the row that demands so much placed weight.

    Weights below 1 are scaled up, as backends keep rows to an absolute tolerance.
    """
    largest = min(1.0, float(weight.max(initial=0.0))) or 1.0
    scale = 2.0 ** -math.floor(math.log2(largest))
    placed *= scale
    return program.with_row(weight * scale, placed - WEIGHT_TOLERANCE * max(1.0, placed))
