"""Fractional matching: sparse shortest augmenting paths on the bipartite double cover.

The fractional matching problem of a class at a price per group,

    max sum_ij (w_ij - price) x_ij + sum_i alone_i y_i,   sum_j x_ij + y_i = 1,   x, y >= 0,

has half-integral corners, and twice its optimum is the optimal assignment of rows to columns of the
double cover: row i to column j (i != j) at profit w_ij - price, row i to column i at profit 2
alone_i, where alone_i is the value of the job without a partner. With optimal row and column prices
u and v, the *doubled potentials* P_i = u_i + v_i satisfy P_i + P_j >= 2 (w_ij - price) and P_i >= 2
alone_i, and their sum is twice the optimum: all numbers are whole, nothing is rounded. (Balas 1981
for the double cover; Jonker & Volgenant, *Computing* 38, 1987, for the row reduction and the
shortest augmenting paths.)

All functions keep u_i + v_j >= profit on the graph, so that an interrupted run still gives a bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.pairing.compilation import kernel

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_INFINITE = 2**62
_EMPTY = 0
REDUCTIONS = 2
"""Number of row reductions before shortest paths."""

_STEPS_PER_ROW = 40
"""Average number of bids per row after which shortest paths take over."""


@kernel
def settle_rows(
    start: Ints, head: Ints, profit: Ints, alone: Ints, u: Ints, v: Ints, mate: Ints, owner: Ints
) -> None:
    """Set u to its best response to v, and unassign the rows that are no longer tight."""
    n = alone.size
    for j in range(n):
        owner[j] = -1
    for i in range(n):
        best = 2 * alone[i] - v[i]
        value = best if mate[i] == i else -_INFINITE
        for e in range(start[i], start[i + 1]):
            x = profit[e] - v[head[e]]
            best = max(best, x)
            if head[e] == mate[i]:
                value = x
        u[i] = best
        if mate[i] >= 0 and value == best and owner[mate[i]] < 0:
            owner[mate[i]] = i
        else:
            mate[i] = -1


@kernel
def take_free_columns(
    start: Ints,
    head: Ints,
    profit: Ints,
    alone: Ints,
    u: Ints,
    v: Ints,
    mate: Ints,
    owner: Ints,
    free: Ints,
) -> int:
    """Assign rows to unowned tight columns; return how many rows stay ``free``."""
    count = 0
    for i in range(alone.size):
        if mate[i] >= 0:
            continue
        if owner[i] < 0 and 2 * alone[i] - v[i] == u[i]:
            mate[i] = i
            owner[i] = i
            continue
        for e in range(start[i], start[i + 1]):
            j = head[e]
            if owner[j] < 0 and profit[e] - v[j] == u[i]:
                mate[i] = j
                owner[j] = i
                break
        if mate[i] < 0:
            free[count] = i
            count += 1
    return count


@kernel
def reduce_rows(
    start: Ints,
    head: Ints,
    profit: Ints,
    alone: Ints,
    u: Ints,
    v: Ints,
    mate: Ints,
    owner: Ints,
    free: Ints,
    waiting: int,
) -> int:
    """Let free rows bid for their best column up to the second best (augmenting row reduction).

    The outbid row bids next, or stays free if the price did not change. Returns the number of free
    rows.
    """
    k = 0
    count = 0
    steps = 0
    most = _STEPS_PER_ROW * waiting
    while k < waiting:
        i = free[k]
        k += 1
        steps += 1
        best = 2 * alone[i] - v[i]
        column = i
        second = np.int64(-_INFINITE)
        other = -1
        for e in range(start[i], start[i + 1]):
            x = profit[e] - v[head[e]]
            if x > best:
                second = best
                other = column
                best = x
                column = head[e]
            elif x > second:
                second = x
                other = head[e]
        if other < 0:
            u[i] = best
            free[count] = i
            count += 1
            continue
        loser = owner[column]
        u[i] = second
        if best > second:
            v[column] += best - second
        elif loser >= 0:
            column = other
            loser = owner[column]
        mate[i] = column
        owner[column] = i
        if loser >= 0:
            mate[loser] = -1
            if best > second and steps < most:
                k -= 1
                free[k] = loser
            else:
                free[count] = loser
                count += 1
    return count


@kernel
def best_responses(
    start: Ints, head: Ints, profit: Ints, alone: Ints, u: Ints, v: Ints, free: Ints, count: int
) -> None:
    """Set u of the free rows to its best response to v."""
    for t in range(count):
        i = free[t]
        best = 2 * alone[i] - v[i]
        for e in range(start[i], start[i + 1]):
            best = max(best, profit[e] - v[head[e]])
        u[i] = best


@kernel
def push(key: Ints, item: Ints, size: int, new_key: int, new_item: int) -> int:
    """Add an entry to a binary heap; return its new size."""
    q = size
    while q > 0:
        above = (q - 1) >> 1
        if key[above] <= new_key:
            break
        key[q] = key[above]
        item[q] = item[above]
        q = above
    key[q] = new_key
    item[q] = new_item
    return size + 1


@kernel
def pop(key: Ints, item: Ints, size: int) -> int:
    """Remove the least entry of a binary heap; return its new size."""
    size -= 1
    if size == 0:
        return size
    last = key[size]
    last_item = item[size]
    q = 0
    while True:
        child = 2 * q + 1
        if child >= size:
            break
        if child + 1 < size and key[child + 1] < key[child]:
            child += 1
        if key[child] >= last:
            break
        key[q] = key[child]
        item[q] = item[child]
        q = child
    key[q] = last
    item[q] = last_item
    return size


@kernel
def augment_rows(
    start: Ints,
    head: Ints,
    profit: Ints,
    alone: Ints,
    u: Ints,
    v: Ints,
    mate: Ints,
    owner: Ints,
    free: Ints,
    first: int,
    last: int,
) -> None:
    """Assign ``free[first:last]``, each along a shortest augmenting path (Dijkstra).

    Lengths are the reduced costs u_i + v_j - profit. Every column can be reached, because every row
    may take its own. Columns at the same distance need no heap, and columns beyond the nearest free
    column so far are dropped.
    """
    n = alone.size
    distance = np.full(n, _INFINITE, np.int64)
    before = np.empty(n, np.int64)
    final = np.zeros(n, np.bool_)
    touched = np.empty(n, np.int64)
    passed = np.empty(n, np.int64)
    tight = np.empty(n, np.int64)
    key = np.empty(head.size + n + 1, np.int64)
    item = np.empty(head.size + n + 1, np.int64)
    for t in range(first, last):
        source = free[t]
        touches = 0
        passes = 0
        size = _EMPTY
        ready = _EMPTY
        i = source
        length = np.int64(0)
        nearest = np.int64(_INFINITE)
        end = -1
        while True:
            for e in range(start[i], start[i + 1] + 1):
                if e < start[i + 1]:
                    j = head[e]
                    x = profit[e]
                else:
                    j = i
                    x = 2 * alone[i]
                d = length + u[i] + v[j] - x
                if d < distance[j] and d < nearest:
                    if distance[j] == _INFINITE:
                        touched[touches] = j
                        touches += 1
                    distance[j] = d
                    before[j] = i
                    if owner[j] < 0:
                        nearest = d
                        end = j
                    elif d > length:
                        size = push(key, item, size, d, j)
                    else:
                        tight[ready] = j
                        ready += 1
            if ready > 0 and nearest > length:
                ready -= 1
                j = tight[ready]
            else:
                while size > 0 and (final[item[0]] or key[0] > distance[item[0]]):
                    size = pop(key, item, size)
                if size == 0 or key[0] >= nearest:
                    break
                length = key[0]
                j = item[0]
                size = pop(key, item, size)
            final[j] = True
            passed[passes] = j
            passes += 1
            i = owner[j]
        length = nearest
        j = end
        u[source] -= length
        for k in range(passes):
            c = passed[k]
            change = length - distance[c]
            v[c] += change
            u[owner[c]] -= change
        while True:
            i = before[j]
            owner[j] = i
            after = mate[i]
            mate[i] = j
            if i == source:
                break
            j = after
        for k in range(touches):
            distance[touched[k]] = _INFINITE
            final[touched[k]] = False


@kernel
def split_cycle(node: int, mate: Ints, partner: Ints) -> None:
    """Pair up the nodes of a cycle in order; if their number is odd, ``node`` is left over."""
    j = mate[node]
    k = mate[j]
    while j != node and k != node:
        partner[j] = k
        partner[k] = j
        j = mate[k]
        k = mate[j]
    if j != node:
        partner[j] = node
        partner[node] = j


@kernel
def tight_edge_out(
    node: int,
    start: Ints,
    head: Ints,
    profit: Ints,
    potential: Ints,
    mate: Ints,
    cycle: Ints,
    unsplit: Bools,
) -> tuple[int, int]:
    """Return the ends of a tight edge from a node's cycle to another unsplit cycle, or -1, -1."""
    i = node
    while True:
        for e in range(start[i], start[i + 1]):
            j = head[e]
            other = cycle[j]
            if (
                other >= 0
                and other != cycle[node]
                and unsplit[other]
                and potential[i] + potential[j] == 2 * profit[e]
            ):
                return i, j
        i = mate[i]
        if i == node:
            return -1, -1


@kernel
def split_cycles(
    start: Ints, head: Ints, profit: Ints, alone: Ints, potential: Ints, mate: Ints, partner: Ints
) -> int:
    """Turn an assignment into a matching: split the cycles of the permutation into pairs.

    Even cycles split into pairs. An odd cycle leaves a node exposed (-1): a node that is worth as
    much alone, as in a fixed point; or two odd cycles are split together, joined by a tight edge.
    Returns how many odd cycles lose value: if none does, the matching is optimal.
    """
    n = mate.size
    cycle = np.full(n, -1, np.int64)
    seen = np.zeros(n, np.bool_)
    first = np.empty(n, np.int64)
    odd = 0
    for i in range(n):
        partner[i] = -1
    for i in range(n):
        if seen[i]:
            continue
        length = 0
        exposed = -1
        j = i
        while not seen[j]:
            seen[j] = True
            length += 1
            if potential[j] == 2 * alone[j]:
                exposed = j
            j = mate[j]
        if length % 2 == 0:
            split_cycle(i, mate, partner)
        elif exposed >= 0:
            split_cycle(exposed, mate, partner)
        else:
            first[odd] = i
            while cycle[j] < 0:
                cycle[j] = odd
                j = mate[j]
            odd += 1
    unsplit = np.ones(odd, np.bool_)
    lossy = odd
    for c in range(odd):
        if not unsplit[c]:
            continue
        i, j = tight_edge_out(first[c], start, head, profit, potential, mate, cycle, unsplit)
        if i < 0:
            split_cycle(first[c], mate, partner)
            continue
        split_cycle(i, mate, partner)
        split_cycle(j, mate, partner)
        partner[i] = j
        partner[j] = i
        unsplit[c] = False
        unsplit[cycle[j]] = False
        lossy -= 2
    return lossy
