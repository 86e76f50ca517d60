"""Among plans of the best value, the one on the fewest nodes, then racks, then GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.integer_program import IntegerProgram
from dovetail.formulations.node_program import node_program
from dovetail.formulations.placement import place
from dovetail.formulations.problems import Problem
from dovetail.solver.answers import MOST_GROUPS, OPTIMAL_GAP, Choice, Limits, relative_gap
from dovetail.solver.cpsat import CpSat
from dovetail.solver.stages import weight_units
from dovetail.solver.within_reach import Relaxation

Ints = NDArray[np.int64]

EFFORT = 2.0
_VALUE_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Placed:
    """The group on each GPU in use, and whether no plan of this value is on fewer nodes."""

    groups: Mapping[str, int]
    proven: bool


def placed(problem: Problem, choice: Choice, limits: Limits) -> Placed:
    """Return where the groups go.

    Small rounds whose value is proven are settled exactly, with a bounded effort that ends at
    the same point every time; others are packed by ``place``.
    """
    packed = Placed(place(choice.groups_of(problem), choice.counts), proven=False)
    proven = relative_gap(choice.bound, choice.value) <= OPTIMAL_GAP
    nodes = len(problem.round.instance.cluster.nodes)
    large = choice.groups is not None or len(problem.groups) * nodes > MOST_GROUPS
    if not proven or choice.in_queue_order or large or limits.passed:
        return packed
    program = node_program(_of_value(problem, choice, limits), problem.groups)
    answer = CpSat().solve(program.program, replace(limits, gap=0.0, effort=EFFORT))
    if answer.x is None or answer.stopped != "complete":
        return packed
    counts = problem.program.counts(answer.x)
    settled = program.settled(answer.x)
    return Placed(place(problem.groups, counts, settled), proven=True)


def _of_value(problem: Problem, choice: Choice, limits: Limits) -> IntegerProgram:
    """Return the round's program with the rows that keep every stage at its best."""
    formulation, values = problem.program, problem.values
    program = formulation.program
    if values.two_stage:
        units, _ = weight_units(problem)
        program = program.with_row(units, float(units @ formulation.solution(choice.counts)))
    if values.ratio:
        better = formulation.gain - choice.value * formulation.power_w
        gain = formulation.gain @ formulation.solution(choice.counts)
        least = -_VALUE_TOLERANCE * float(gain)
    else:
        better = formulation.gain
        least = choice.value - _VALUE_TOLERANCE * abs(choice.value)
    relaxation = Relaxation(program.with_cost(better), limits)
    return relaxation.within_reach(least).with_row(better, least)
