"""Passes over all pairs of a dense class of jobs.

Values are int32 fixed point; ``FORBIDDEN`` marks pairs that may not share. Potentials are
doubled (see ``assignment``), so the reduced cost of a pair is, doubled,
P_i + P_j + (blossoms that contain both) - 2 (w_ij - price), and a pair *prices in* where this
is negative. These passes are the only ones that touch all pairs; the rest works on the sparse
graph of the pairs that ever priced in (column generation; Derigs & Metz, 1991, solve matchings
on dense graphs so).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.pairing.compilation import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Narrow = NDArray[np.int32]

FORBIDDEN = -(2**31)
"""In place of the value of a pair that may not share."""

_LOWEST = -(2**62)

_TILE = 64
"""Columns that are compared with their mirrored rows at a time."""

_NOISE = 2**25 - 1
"""On the order of pairs that price in: a 32nd of the largest doubled value."""


@kernel
def inspect_rows(
    first: int, last: int, values: Floats, largest: Floats, asymmetric: Ints, infinite: Ints
) -> None:
    """Find each row's largest magnitude, and a column where it is not symmetric or is +inf."""
    for start in range(0, last, _TILE):  # both values[i, j] and values[j, i] stay in the cache
        for i in range(max(first, start + 1), last):
            for j in range(start, min(start + _TILE, i)):
                a = values[i, j]
                b = values[j, i]
                if a > -np.inf:
                    if a == np.inf:
                        infinite[i] = j
                    if a != b:
                        asymmetric[i] = j
                    largest[i] = max(largest[i], abs(a))
                elif b > -np.inf:
                    asymmetric[i] = j


@kernel
def round_rows(
    first: int,
    last: int,
    values: Floats,
    nodes: Ints,
    scale: float,
    fixed: Narrow,
    allowed: Ints,
) -> None:
    """Write the values of the pairs among ``nodes``, rounded up to whole units of 1 / scale."""
    everything = nodes.size == values.shape[0]
    for i in range(first, last):
        row = values[nodes[i]] if everything else values[nodes[i]][nodes]
        count = 0
        for j in range(nodes.size):
            value = np.float64(row[j])
            allowed_pair = (value > -np.inf) & (i != j)
            units = np.ceil(value * scale) if allowed_pair else np.float64(FORBIDDEN)
            fixed[i, j] = np.int32(units)
            count += 1 if allowed_pair else 0
        allowed[i] = count


@kernel
def dither(i: int, j: int, mask: int) -> int:
    """Return a fixed pseudo-random number for the pair, so that ties do not all choose alike."""
    return ((i * 2654435761 + j * 2246822519 * (2 * (i & 7) + 1)) >> 7) & mask


@kernel
def best_partners(
    first: int, last: int, fixed: Narrow, potential: Ints, mask: int, best: Ints
) -> None:
    """Keep for each row the columns of largest 2 w_ij - P_j: its likely partners (-1: fewer)."""
    most = best.shape[1]
    key = np.empty(most, np.int64)
    for i in range(first, last):
        for k in range(most):
            key[k] = _LOWEST
            best[i, k] = -1
        for j in range(fixed.shape[1]):
            if fixed[i, j] == FORBIDDEN:
                continue
            x = 2 * np.int64(fixed[i, j]) - potential[j] + dither(i, j, mask)
            if x > key[0]:
                replace_least(key, best[i], x, j)


@kernel
def replace_least(key: Ints, item: Ints, new_key: int, new_item: int) -> None:
    """Replace the least entry of a binary heap that has its least at the top."""
    q = 0
    while True:
        child = 2 * q + 1
        if child >= key.size:
            break
        if child + 1 < key.size and key[child + 1] < key[child]:
            child += 1
        if key[child] >= new_key:
            break
        key[q] = key[child]
        item[q] = item[child]
        q = child
    key[q] = new_key
    item[q] = new_item


@kernel
def extend_rows(
    first: int,
    last: int,
    fixed: Narrow,
    known: Ints,
    known_potential: Ints,
    rows: Ints,
    price: int,
    potential: Ints,
) -> None:
    """Raise the rows' potentials until no pair with a known job has negative reduced cost."""
    for k in range(first, last):
        i = rows[k]
        highest = potential[i]
        for t in range(known.size):
            w = fixed[i, known[t]]
            if w != FORBIDDEN:
                highest = max(highest, 2 * (np.int64(w) - price) - known_potential[t])
        potential[i] = highest


@kernel
def common_dual(i: int, j: int, parent: Ints, dual: Ints) -> int:
    """Return the sum of the duals of the blossoms that contain both vertices."""
    total = 0
    a = parent[i]
    while a >= 0:
        if dual[a] > 0:
            b = parent[j]
            while b >= 0:
                if b == a:
                    total += int(dual[a])
                    break
                b = parent[b]
        a = parent[a]
    return total


@kernel
def any_prices_in(values: Narrow, potential: Ints, threshold: int) -> bool:
    """Tell whether a row may have pairs to list: without branches, for vector instructions."""
    count = 0
    for j in range(values.size):
        short = 2 * np.int64(values[j]) - potential[j] > threshold
        count += 1 if short & (values[j] != FORBIDDEN) else 0
    return count > 0


@kernel
def price_rows(
    first: int,
    last: int,
    fixed: Narrow,
    potential: Ints,
    price: int,
    slack: int,
    parent: Ints,
    dual: Ints,
    found: Ints,
    worst: Ints,
    partner: Ints,
) -> None:
    """List the pairs (i, j > i) whose doubled reduced cost is below ``-slack``.

    ``found`` counts them, ``worst`` is the largest shortfall, ``partner`` holds the worst of
    them as far as there is room. A negative slack lists all pairs up to that reduced cost.
    """
    room = partner.shape[1]
    key = np.empty(room, np.int64)
    for i in range(first, last):
        for k in range(room):
            key[k] = _LOWEST
            partner[i, k] = -1
        threshold = potential[i] + 2 * price + slack
        if not any_prices_in(fixed[i, i + 1 :], potential[i + 1 :], threshold):
            found[i] = 0
            worst[i] = 0
            continue
        count = 0
        top = np.int64(0)
        for j in range(i + 1, fixed.shape[1]):
            short = 2 * np.int64(fixed[i, j]) - threshold - potential[j]
            if short > 0 and fixed[i, j] != FORBIDDEN:
                if parent[i] >= 0 and parent[j] >= 0:
                    short -= common_dual(i, j, parent, dual)
                if short > 0:
                    count += 1
                    top = max(top, short)
                    x = short + dither(i, j, _NOISE)
                    if x > key[0]:
                        replace_least(key, partner[i], x, j)
        found[i] = count
        worst[i] = top
