"""What a gang can be worth at most, if it takes its seats at the prices of a matching.

A matching's duals price every worker of a gang's partners. A gang with W workers takes W of its
seats, with different partners; if it is worth w, then every seat is worth w or more. So the value
of every plan in which it is worth w is at most the matching's bound, less what its own workers are
priced at, plus w, less the W cheapest such seats. Where this is no better than a known plan, w is
ruled out (reduced-cost fixing: Crowder, Johnson & Padberg, *Operations Research* 31, 1983).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.pairing.compilation import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@kernel
def pair_values(
    rows: Ints,
    kinds: Ints,
    worths: Floats,
    variants: Ints,
    costs: Floats,
    job: Ints,
    workers: Ints,
    floor: Floats,
    cap: Floats,
    variant: Ints,
    excluded: Bools,
    place: Ints,
    values: Floats,
) -> None:
    """Fill in the values of pairs of kinds in a box: of the groups of each pair, the best one's.

    Parameters
    ----------
    rows : (r,) int
        The groups.
    kinds, worths, variants : (groups, 2)
        The kinds of both workers of each group, their jobs' worths there and variants. A worker
        that is alone is both.
    costs : (groups,) float
    job : (kinds,) int
        The job of each kind.
    workers, floor, cap, variant, excluded : (jobs,)
        The jobs, and the box (see ``worker_graph.Box``).
    place : (kinds,) int
        The row of each kind in the values, -1 for none.
    values : (k, kinds) float
        NaN where no group is inside the box.
    """
    for row in rows:
        first, second = kinds[row]
        value = 0.0
        inside = True
        for side in range(1 if first == second else 2):
            j = job[kinds[row, side]]
            worth = worths[row, side]
            fits = variant[j] < 0 or variant[j] == variants[row, side]
            inside &= fits and not excluded[j] and worth >= floor[j]
            value += min(worth, cap[j]) / workers[j]
        if not inside:
            continue
        value -= costs[row]
        for own, other in ((first, second), (second, first)):
            if place[own] >= 0 and not values[place[own], other] >= value:
                values[place[own], other] = value


@kernel
def add_seat(
    cost: float, partner: int, room: int, needed: int, size: int, costs: Floats, seats: Ints
) -> int:
    """Keep the cheapest seats, the cheapest first and one entry a partner; return their number.

    ``seats`` holds for each entry its partner and how many workers may sit there.
    """
    total = 0
    for e in range(size):
        total += seats[1, e]
    if total >= needed and cost >= costs[size - 1]:
        return size
    for e in range(size):
        if seats[0, e] == partner and partner >= 0:
            if costs[e] <= cost:
                return size
            total -= seats[1, e]
            for later in range(e, size - 1):
                costs[later] = costs[later + 1]
                seats[0, later] = seats[0, later + 1]
                seats[1, later] = seats[1, later + 1]
            size -= 1
            break
    at = size
    while at > 0 and costs[at - 1] > cost:
        costs[at] = costs[at - 1]
        seats[0, at] = seats[0, at - 1]
        seats[1, at] = seats[1, at - 1]
        at -= 1
    costs[at] = cost
    seats[0, at] = partner
    seats[1, at] = room
    size += 1
    total += room
    while total - seats[1, size - 1] >= needed:
        size -= 1
        total -= seats[1, size]
    return size


@kernel
def cheapest(needed: int, size: int, costs: Floats, seats: Ints) -> float:
    """Return the costs of so many seats, inf if there are fewer."""
    total = 0.0
    left = needed
    for e in range(size):
        taken = min(left, seats[1, e])
        total += taken * costs[e]
        left -= taken
    return total if left == 0 else np.inf


@kernel
def options_left(
    gangs: Ints,
    start: Ints,
    own_worth: Floats,
    own_variant: Ints,
    partner: Ints,
    partner_worth: Floats,
    partner_variant: Ints,
    cost: Floats,
    job: Ints,
    number: Ints,
    workers: Ints,
    own_kind: Ints,
    priced: Floats,
    price: float,
    most_lost: float,
    floor: Floats,
    cap: Floats,
    variant: Ints,
    required: Bools,
    excluded: Bools,
) -> bool:
    """Rule out what loses more than ``most_lost``; return whether every gang still has a choice.

    The bounds of a box are narrowed in place (see ``worker_graph.Box``). The seats of gang g are
    ``start[g]:start[g + 1]``, by variant and then by decreasing worth; a partner is a kind of
    workers, -1 for none. ``priced`` is the price of a worker of each kind.
    """
    costs = np.empty(workers.max() + 2, np.float64)
    seats = np.empty((2, workers.max() + 2), np.int64)
    for g in gangs:
        if excluded[g]:
            continue
        needed = workers[g]
        own = needed * priced[own_kind[g]]
        lowest = np.inf
        highest = -np.inf
        only = -2
        size = 0
        s = start[g]
        while s < start[g + 1]:
            worth = own_worth[s]
            at_variant = own_variant[s]
            if s == start[g] or at_variant != own_variant[s - 1]:
                size = 0
            last = s
            while (
                last < start[g + 1] and own_worth[last] == worth and own_variant[last] == at_variant
            ):
                last += 1
            outside = worth < floor[g] or (variant[g] >= 0 and variant[g] != at_variant)
            for t in range(s, s if outside else last):
                k = partner[t]
                if k < 0:
                    size = add_seat(price + cost[t], k, needed, needed, size, costs, seats)
                    continue
                other = job[k]
                open_ = not excluded[other] and partner_worth[t] >= floor[other]
                if open_ and (variant[other] < 0 or variant[other] == partner_variant[t]):
                    part = min(partner_worth[t], cap[other]) / workers[other]
                    paid = price + cost[t] + priced[k] - part
                    size = add_seat(paid, k, number[k], needed, size, costs, seats)
            paid = own + cheapest(needed, size, costs, seats) - worth
            if not outside and worth <= cap[g] and paid <= most_lost:
                lowest = min(lowest, worth)
                highest = max(highest, worth)
                only = at_variant if only in (-2, at_variant) else -1
            s = last
        may_wait = not required[g] and own <= most_lost
        if highest == -np.inf:
            if not may_wait:
                return False
            excluded[g] = True
            continue
        required[g] = not may_wait
        floor[g] = max(floor[g], lowest)
        cap[g] = min(cap[g], highest)
        if only >= 0:
            variant[g] = only
    return True
