"""The stages of an objective, each one integer program.

One-stage objectives maximise the gain. Two-stage ones first maximise the placed weight, then
demand that weight and maximise the gain. The energy ratio is Dinkelbach's method (Management
Science 13(7), 1967): with N the gain, D the power and F(t) = max N - t D over the plans of
largest weight, F falls strictly in t and is 0 exactly at the best ratio; from any plan's
t = N / D the maximiser of N - t D has a ratio at least as large, and the iteration ends at
F(t) = 0. Any bound U >= F(t) bounds the ratio by t + U / D_min, with D_min the least power of
such a plan, because N <= t D + U.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.integer_program import IntegerProgram
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import ceiling, score
from dovetail.instances.plan import Stopped
from dovetail.solver.answers import Answer, Choice, Limits, relative_gap
from dovetail.solver.greedy import greedy_counts

Ints = NDArray[np.int64]

WEIGHT_TOLERANCE = 1e-9
_PROVEN_WEIGHT = 1e-7
_RATIO_TOLERANCE = 1e-9


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
        return _Stages(problem, self.backend, limits).run()


@dataclass(frozen=True)
class _Best:
    """The best solution of a stage, and what is proven of it."""

    x: Ints
    bound: float
    stopped: Stopped


class _Stages:
    def __init__(self, problem: Problem, backend: Backend, limits: Limits) -> None:
        self._values = problem.values
        self._groups = problem.groups
        self._round = problem.program
        self._start = problem.program.solution(greedy_counts(problem, limits))
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
        slack = max(1.0, weight)
        if first.bound > weight + _PROVEN_WEIGHT * slack:
            unproven = _Best(first.x, math.inf, first.stopped)
            return self._choice(unproven, first.bound)
        program = program.with_row(self._round.weight, weight - WEIGHT_TOLERANCE * slack)
        if self._values.ratio:
            return self._choice(self._best_ratio(program, first.x), weight)
        return self._choice(self._maximise(program, first.x, self._limits), weight)

    def _first_stage(self) -> _Best:
        program = self._round.program.with_cost(self._round.weight)
        found = self._maximise(program, self._start, self._limits.exact())
        return _Best(found.x, min(found.bound, self._most.weight), found.stopped)

    def _best_ratio(self, program: IntegerProgram, start: Ints) -> _Best:
        """Return the solution of the best ratio of gain to power, by Dinkelbach's method."""
        gain, power = self._round.gain, self._round.power_w
        x, bound, ratio = start, math.inf, 0.0
        while power @ x > 0:
            ratio = float(gain @ x / (power @ x))
            found = self._maximise(program.with_cost(gain - ratio * power), x, self._limits)
            bound = min(bound, ratio + max(found.bound, 0.0) / self._most.power_w)
            improved = float(gain @ found.x / (power @ found.x))
            x = found.x if improved > ratio else x
            close = relative_gap(bound, max(ratio, improved)) <= self._limits.gap
            if close or found.stopped != "complete" or improved <= ratio * (1 + _RATIO_TOLERANCE):
                return _Best(x, bound, found.stopped)
        return _Best(x, 0.0, "complete")

    def _maximise(self, program: IntegerProgram, start: Ints, limits: Limits) -> _Best:
        """Return the better of the start and what the backend finds."""
        if limits.passed:
            return _Best(start, math.inf, "time_limit")
        answer = self._backend.solve(program, limits, start)
        x = start
        if answer.x is not None and program.cost @ answer.x >= program.cost @ start:
            x = answer.x
        return _Best(x, answer.bound, answer.stopped)

    def _choice(self, best: _Best, weight_bound: float) -> Choice:
        counts = self._round.counts(best.x)
        value = score(self._groups, self._values, counts).value(self._values)
        bound = best.bound
        if not self._values.two_stage:
            bound = min(bound, self._most.gain)
        # A bound may lie a rounding error under the value; the truth is then the value.
        bound = max(bound, value)
        stopped = best.stopped
        if stopped == "complete" and self._limits.gap and relative_gap(bound, value) > 1e-6:
            stopped = "gap_reached"
        return Choice(counts, value, bound, weight_bound, stopped, self._backend.name)
