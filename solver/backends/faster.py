"""A larger gain at the least cost: the last stage of rounds that are not solved as matchings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.formulations.arrays import Ints
from dovetail.formulations.programs.integer_program import RoundProgram
from dovetail.solver.backends.cpsat import CpSat
from dovetail.solver.stages import weight_units
from dovetail.solver.types import MOST_GROUPS, Limits

_EFFORT = 1.0


def faster_counts(formulation: RoundProgram, counts: Ints, per_cost: float, limits: Limits) -> Ints:
    """Return a choice of the same weight and cost with the largest gain found.

    The effort is bounded and ends at the same point every time. Rounds with many groups keep their
    choice.

    Parameters
    ----------
    formulation : RoundProgram
        The round.
    counts : (n,) int
        The choice.
    per_cost : float
        Whole units of a cost of 1.
    limits : Limits
        When to stop.
    """
    groups = formulation.groups
    if len(groups) > MOST_GROUPS or limits.passed:
        return counts
    start = formulation.solution(counts)
    weight = formulation.per_variable(weight_units(groups).numbers)
    saved = -np.round(per_cost * formulation.cost)
    program = formulation.program.with_cost(formulation.gain)
    for kept in (weight, saved):
        program = program.with_row(kept, float(kept @ start))
    effort = replace(limits.exact().unwatched(), effort=_EFFORT)
    found = CpSat().solve(program, effort, start).x
    if found is None or program.cost @ found <= program.cost @ start or not program.holds(found):
        return counts
    return formulation.counts(found)
