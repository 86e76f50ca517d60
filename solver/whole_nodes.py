"""Rounds with gangs whose workers stay together on nodes: first as if they need not.

The rule for nodes only takes plans away, so the best plan without it bounds all plans. Often its
groups can be put on GPUs so that the rule holds: then the plan is proven to be best, without a
program that has every group on every node. Gangs are tried in the order of their groups of workers,
the largest first, each on the node that it fills best; CP-SAT decides what this leaves open. A
second plan has gangs with equal rules share all of their GPUs: such pairs are easy to put on nodes.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array, vstack

from dovetail.formulations.arrays import Bools, Ints, packed
from dovetail.formulations.candidates.groups import Groups, score
from dovetail.formulations.candidates.nodes import copied, copies_of, with_rules
from dovetail.formulations.programs.integer_program import build
from dovetail.instances.errors import UnsupportedError
from dovetail.solver.backends.cpsat import CpSat
from dovetail.solver.matching.exact_pairs import paired_counts
from dovetail.solver.types import Choice, Limits

MOST_COPIES = 50_000
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
    seats, complete = _packed(groups, counts)
    if not complete:
        solved = _solved(groups, counts, limits)
        if solved is None:
            return None
        seats = solved
    return _seated(choice, groups, seats)


def in_equal_pairs(free: Groups, relaxed: Choice, limits: Limits) -> Choice | None:
    """Return a choice in which gangs with rules share with gangs of the same rule only, or alone.

    Jobs that then do not fit on nodes wait.

    Parameters
    ----------
    free : Groups
        All groups, anywhere.
    relaxed : Choice
        The best choice of these groups, whose bounds hold for all plans.
    limits : Limits
        When to stop.
    """
    alike = free.take(_with_equals(free))
    try:
        counts = alike.merged(paired_counts(alike.apart, limits))
    except UnsupportedError:
        return None
    taken = np.flatnonzero(counts)
    groups = replace(alike.take(taken), anywhere=False)
    seats, _ = _packed(groups, counts[taken])
    # In two stages the bound of the second holds for plans of the largest weight only.
    bound = math.inf if free.values.two_stage else relaxed.bound
    return _seated(replace(relaxed, bound=bound), groups, seats)


def _with_equals(groups: Groups) -> Bools:
    """Return the groups whose jobs all have equally many workers and the same rule, (n,)."""
    jobs, job = groups.round.jobs, groups.job
    rule = packed(np.stack([jobs.workers, jobs.together, jobs.one_each.astype(np.int64)], axis=1))
    first = rule[job[groups.start[:-1]]][groups.group_of_member]
    differs = (rule[job] != first) & ~jobs.running[job]
    return np.asarray(np.bincount(groups.group_of_member, differs, len(groups)) == 0)


def _seated(choice: Choice, groups: Groups, seats: Sequence[_Seat]) -> Choice:
    number, node, gpus = np.array(seats, dtype=np.int64).reshape(-1, 3).T
    placed = replace(groups.take(number), node=node)
    value = score(placed, gpus).value(groups.values)
    return replace(choice, groups=placed, counts=gpus, value=value, selected=True)


def better(one: Choice, other: Choice | None) -> Choice:
    """Return the better of two choices of a round, by weight first in two stages."""
    if other is None:
        return one
    best = max((one, other), key=_rank)
    return replace(best, bound=one.bound, weight_bound=one.weight_bound)


def _rank(choice: Choice) -> tuple[float, float]:
    reached = score(choice.groups, choice.counts)
    value = reached.value(choice.groups.values)
    return (reached.weight, value) if choice.groups.values.two_stage else (value, 0.0)


def few_copies(groups: Groups, most: int = MOST_COPIES) -> bool:
    """Return whether there are at most this many groups on nodes."""
    return int(copies_of(groups).sum()) <= most


def _packed(groups: Groups, counts: Ints) -> tuple[list[_Seat], bool]:
    """Return the groups on nodes, each group of workers on the node that it fills best.

    The second value is whether all groups are there; gangs that do not fit are left out.
    """
    tied = with_rules(groups)
    seats = [(g, -1, int(counts[g])) for g in np.flatnonzero(~tied).tolist()]
    bundles, complete = _bundles(groups, np.flatnonzero(tied))
    left = groups.round.gpus_by_node.copy()
    for gang, rows in bundles:
        trial = left.copy()
        found = _on_nodes(groups, trial, gang, {row: int(counts[row]) for row in rows})
        if found is None:
            complete = False
            continue
        left, seats = trial, [*seats, *found]
    return seats, complete


def _on_nodes(groups: Groups, left: Ints, gang: int, needed: dict[int, int]) -> list[_Seat] | None:
    """Take GPUs for all workers of a gang and of those that share them; None if too few."""
    together, seats = int(groups.round.jobs.together[gang]), list[_Seat]()
    open_ = np.ones(left.shape[1], dtype=bool)
    while any(needed.values()):
        node = _best_node(groups, left, needed, together, open_)
        if node is None:
            return None
        open_[node] = not groups.round.jobs.one_each[gang]
        seats += _taken(groups, left, needed, together, node)
    return seats


def _bundles(groups: Groups, tied: Ints) -> tuple[list[tuple[int, Sequence[int]]], bool]:
    """Return gangs with rules and their groups, the largest first, and whether these are all.

    Gangs that share are one bundle if they share all their GPUs and have the same rule; gangs that
    share in another way are in none.
    """
    jobs = groups.round.jobs
    of_set: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row in tied.tolist():
        members = groups.job[groups.start[row] : groups.start[row + 1]]
        of_set[tuple(members[groups.round.on_nodes[members]].tolist())].append(row)
    times = Counter(gang for gangs in of_set for gang in gangs)
    found = [
        (gangs[0], rows)
        for gangs, rows in of_set.items()
        if all(times[gang] == 1 for gang in gangs)
        and len({(int(jobs.together[gang]), bool(jobs.one_each[gang])) for gang in gangs}) == 1
    ]

    def place(bundle: tuple[int, Sequence[int]]) -> tuple[int, bool, int]:
        gang = bundle[0]
        return -int(jobs.together[gang]), not jobs.one_each[gang], -int(jobs.workers[gang])

    return sorted(found, key=place), len(found) == len(of_set)


def _best_node(
    groups: Groups, left: Ints, needed: dict[int, int], together: int, open_: Bools
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


def within(choice: Choice, relaxed: Choice) -> Choice:
    """Return a choice on nodes, with the bounds of the best choice anywhere if these are better."""
    two_stage = choice.groups.values.two_stage
    return replace(
        choice,
        bound=choice.bound if two_stage else min(choice.bound, relaxed.bound),
        weight_bound=min(choice.weight_bound, relaxed.weight_bound),
    )
