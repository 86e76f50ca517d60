"""Rounds with gangs whose workers stay together on nodes: first as if they need not.

The rule for nodes only takes plans away, so the best plan without it bounds all plans. Often its
groups can be put on GPUs so that the rule holds: then the plan is proven to be best, without a
program that has every group on every node. Gangs are tried in the order of their groups of workers,
the largest first, each on the node that it fills best; CP-SAT decides what this leaves open.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array, vstack

from dovetail.formulations.arrays import Ints
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.candidates.nodes import copied, copies_of, with_rules
from dovetail.formulations.programs.integer_program import build
from dovetail.solver.backends.cpsat import CpSat
from dovetail.solver.types import Choice, Limits

MOST_COPIES = 300_000
"""The largest number of groups on nodes in a program."""

FEW_COPIES = 2000
"""Number of groups on nodes up to which their program is solved at once, with ties."""

_EFFORT = 5.0
"""Work of CP-SAT to put a choice on nodes."""

_Seat = tuple[int, int, int]
"""A group, a node (-1 for any), and a number of GPUs."""


def on_whole_nodes(choice: Choice, limits: Limits) -> Choice | None:
    """Return a choice with its groups on nodes that keep the rules, or None if none is found.

    Parameters
    ----------
    choice : Choice
        A choice of groups that are anywhere (``Groups.anywhere``).
    limits : Limits
        When to stop.
    """
    taken = np.flatnonzero(choice.counts)
    groups = replace(choice.groups.take(taken), anywhere=False)
    counts = choice.counts[taken]
    seats = _packed(groups, counts) or _solved(groups, counts, limits)
    if seats is None:
        return None
    number, node, gpus = np.array(seats, dtype=np.int64).reshape(-1, 3).T
    placed = replace(groups.take(number), node=node)
    return replace(choice, groups=placed, counts=gpus, selected=True)


def few_copies(groups: Groups, most: int = MOST_COPIES) -> bool:
    """Return whether there are at most this many groups on nodes."""
    return int(copies_of(groups).sum()) <= most


def _packed(groups: Groups, counts: Ints) -> list[_Seat] | None:
    """Return the groups on nodes, each group of workers on the node that it fills best."""
    tied = with_rules(groups)
    seats = [(g, -1, int(counts[g])) for g in np.flatnonzero(~tied).tolist()]
    bundles = _bundles(groups, np.flatnonzero(tied))
    if bundles is None:
        return None
    left = groups.round.gpus_by_node.copy()
    for gang, rows in bundles:
        together = int(groups.round.jobs.together[gang])
        needed = {row: int(counts[row]) for row in rows}
        open_ = np.ones(left.shape[1], dtype=bool)
        while any(needed.values()):
            node = _best_node(groups, left, needed, together, open_)
            if node is None:
                return None
            open_[node] = not groups.round.jobs.one_each[gang]
            seats += _taken(groups, left, needed, together, node)
    return seats


def _bundles(groups: Groups, tied: Ints) -> list[tuple[int, Sequence[int]]] | None:
    """Return gangs with rules and their groups, the largest first.

    Gangs that share are one bundle if they share all their GPUs and have the same rule; None if
    some share in another way.
    """
    jobs = groups.round.jobs
    of_set: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row in tied.tolist():
        members = groups.job[groups.start[row] : groups.start[row + 1]]
        of_set[tuple(members[groups.round.on_nodes[members]].tolist())].append(row)
    gangs = [gang for together in of_set for gang in together]
    rules = [{(int(jobs.together[g]), bool(jobs.one_each[g])) for g in each} for each in of_set]
    if len(set(gangs)) < len(gangs) or any(len(rule) > 1 for rule in rules):
        return None
    found = [(each[0], rows) for each, rows in of_set.items()]
    return sorted(
        found, key=lambda b: (-jobs.together[b[0]], ~jobs.one_each[b[0]], -jobs.workers[b[0]])
    )


def _best_node(
    groups: Groups, left: Ints, needed: dict[int, int], together: int, open_: np.ndarray
) -> int | None:
    """Return the node with the fewest GPUs left on which a group of workers fits."""
    of_class: dict[int, int] = defaultdict(int)
    for row, number in needed.items():
        of_class[int(groups.gpu_class[row])] += number
    fits = sum(np.minimum(left[k], number) for k, number in of_class.items()) >= together
    total = np.where(fits & open_, left[list(of_class)].sum(axis=0), np.iinfo(np.int64).max)
    node = int(total.argmin())
    return node if (fits & open_)[node] else None


def _taken(
    groups: Groups, left: Ints, needed: dict[int, int], together: int, node: int
) -> Iterator[_Seat]:
    """Take GPUs of a node for a group of workers; yield the groups on them."""
    for row in needed:
        where = int(groups.gpu_class[row])
        number = min(needed[row], int(left[where, node]), together)
        if number:
            needed[row] -= number
            left[where, node] -= number
            together -= number
            yield row, node, number


def _solved(groups: Groups, counts: Ints, limits: Limits) -> list[_Seat] | None:
    """Return the groups on nodes as found by CP-SAT within a bounded effort."""
    if not few_copies(groups) or limits.passed:
        return None
    copies, number = copied(groups)
    program = build(copies).program
    size = len(copies)
    columns = np.arange(size)
    asked = csr_array((np.ones(size), (number, columns)), shape=(len(groups), program.size))
    program = replace(
        program,
        rows=csr_array(vstack([program.rows, asked])),
        row_lower=np.append(program.row_lower, counts.astype(np.float64)),
        row_upper=np.append(program.row_upper, counts.astype(np.float64)),
        cost=np.zeros(program.size),
    )
    answer = CpSat().solve(program, replace(limits, gap=0.0, effort=min(_EFFORT, limits.effort)))
    if answer.x is None:
        return None
    used = np.flatnonzero(answer.x[:size])
    return [(int(number[k]), int(copies.node[k]), int(answer.x[k])) for k in used.tolist()]


def within(choice: Choice, relaxed: Choice, all_listed: bool) -> Choice:
    """Return a choice with the bounds of the same round without rules for nodes.

    Parameters
    ----------
    choice : Choice
        A choice on nodes.
    relaxed : Choice
        The best choice if workers may be anywhere.
    all_listed : bool
        Whether the first was chosen from all groups on all nodes.
    """
    two_stage = choice.groups.values.two_stage
    bound = choice.bound if all_listed else math.inf
    return replace(
        choice,
        bound=bound if two_stage else min(bound, relaxed.bound),
        weight_bound=min(choice.weight_bound if all_listed else math.inf, relaxed.weight_bound),
    )
