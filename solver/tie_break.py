"""Tie-breaking: of the plans with the best value, the one on the fewest nodes, racks, GPUs.

If running jobs may move, the fewest moves come first (``fewest_moves``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from dovetail.formulations.candidates.groups import Groups, Kinds
from dovetail.formulations.programs.integer_program import RoundProgram, build, node_program
from dovetail.formulations.programs.moves import fewest_moves
from dovetail.formulations.programs.placement import seat
from dovetail.formulations.programs.program import IntegerProgram
from dovetail.formulations.rounds import Round
from dovetail.instances.plan import Assignment
from dovetail.solver.backends.cpsat import CpSat
from dovetail.solver.backends.reduced_cost_fixing import Relaxation
from dovetail.solver.plans import assignments
from dovetail.solver.stages import weight_units
from dovetail.solver.types import MOST_GROUPS, OPTIMAL_GAP, Choice, Limits, relative_gap

EFFORT = 2.0
_VALUE_TOLERANCE = 1e-9


def assigned(
    choice: Choice, limits: Limits, before: Round | None = None
) -> tuple[tuple[Assignment, ...], bool]:
    """Return the assignments of a choice, and whether it is proven to span the fewest nodes.

    If the round has preempted the running jobs of ``before``, few of them move. Otherwise small
    rounds with a proven value are solved exactly, with a bounded effort that ends at the same point
    every time; others are packed by ``place``.
    """
    groups = choice.groups
    if before is not None and before.jobs.running.any():
        groups, counts, _ = groups.chosen(choice.counts)
        placed, exchanged = fewest_moves(groups, counts, before, _kinds(choice))
        return assignments(groups, placed, exchanged, before), False
    settled = _on_fewest_nodes(choice, limits)
    seated = settled or seat(groups, choice.counts)
    return assignments(*seated, preempted=before), settled is not None


def _on_fewest_nodes(choice: Choice, limits: Limits) -> tuple[Groups, Mapping[int, int]] | None:
    """Return groups of individual jobs and the group on each GPU, or None without a proof."""
    proven = relative_gap(choice.bound, choice.value) <= OPTIMAL_GAP
    groups = choice.groups
    anywhere = int((groups.node < 0).sum())
    places = anywhere * len(groups.round.machines.node_ids) + len(groups) - anywhere
    large = choice.selected or places > MOST_GROUPS
    if not proven or choice.in_queue_order or large or limits.passed:
        return None
    formulation = build(groups)
    program = node_program(_of_value(formulation, choice, limits), groups)
    answer = CpSat().solve(program.program, replace(limits, gap=0.0, effort=EFFORT))
    if answer.x is None or answer.stopped != "complete":
        return None
    counts = formulation.counts(answer.x)
    return seat(groups, counts, program.settled(answer.x))


def _kinds(choice: Choice) -> Sequence[Hashable]:
    """Return the kind of each job; jobs of one kind are interchangeable at the same value."""
    values = choice.groups.values
    if choice.in_queue_order:
        return range(len(values.round))
    kinds = Kinds.of(values.round, values)
    return list(zip(kinds.first.tolist(), kinds.less.tolist(), strict=True))


def _of_value(formulation: RoundProgram, choice: Choice, limits: Limits) -> IntegerProgram:
    """Return the round's program with rows that keep every stage at its best value."""
    program, values = formulation.program, choice.groups.values
    if values.two_stage:
        units = formulation.per_variable(weight_units(choice.groups).numbers)
        program = program.with_row(units, float(units @ formulation.solution(choice.counts)))
    if values.cheapest:
        program = program.with_row(-formulation.cost, choice.value * (1 + _VALUE_TOLERANCE))
    if values.ratio:
        better = formulation.gain - choice.value * formulation.cost
        gain = formulation.gain @ formulation.solution(choice.counts)
        least = -_VALUE_TOLERANCE * float(gain)
    else:
        better = formulation.gain
        value = float(better @ formulation.solution(choice.counts))
        least = value - _VALUE_TOLERANCE * abs(value)
    relaxation = Relaxation(program.with_cost(better), limits)
    return relaxation.tightened(least).with_row(better, least)
