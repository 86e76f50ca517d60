"""Passes over all pairs of a dense class of jobs.

Values are int32 fixed point; ``FORBIDDEN`` marks pairs that may not share. Potentials are doubled
(see ``assignment``), so the doubled reduced cost of a pair is P_i + P_j + (blossoms that contain
both) - 2 (w_ij - price), and a pair *prices in* if this is negative. Only these passes touch all
pairs; the rest works on the sparse graph of the pairs that have priced in (column generation;
Derigs & Metz, 1991, solve matchings on dense graphs this way).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.pairing.compilation import KernelCompiler, kernel, over_rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Narrow = NDArray[np.int32]

FORBIDDEN = -(2**31)
"""The value of a pair that may not share."""

_LOWEST = -(2**62)

_HALF = 2**30 - 1
"""Half potentials are cut here: beyond it they alone decide whether a pair prices in."""

_BLOCK = 256
"""Columns that are skipped together if none of them prices in."""

_TILE = 64
"""Columns that are compared with their mirrored rows together."""

_NOISE = 2**25 - 1
"""Noise on the order of pairs that price in: a 32nd of the largest doubled value."""

_CELLS_AT_ONCE = 8
"""Pairs that pricing processes in the time that other passes take for one."""


class DensePairs(Protocol):
    """The values of all pairs of a size class; potentials are doubled."""

    def __len__(self) -> int:
        """Return the number of jobs."""
        ...

    def sample(self, chosen: Ints) -> MatrixPairs:
        """Return the pairs of some jobs."""
        ...

    def values(self, first: Ints, second: Ints, run: KernelCompiler) -> Ints:
        """Return the values of some pairs, ``FORBIDDEN`` where two jobs may not share."""
        ...

    def best_partners(
        self, rows: Ints, potential: Ints, mask: int, most: int, run: KernelCompiler
    ) -> Ints:
        """Return likely partners of some jobs, those of largest 2 w_ij - P_j, -1 if fewer."""
        ...

    def raise_potentials(
        self,
        known: Ints,
        known_potential: Ints,
        rows: Ints,
        price: int,
        potential: Ints,
        run: KernelCompiler,
    ) -> None:
        """Raise the rows' potentials until no pair with a known job has negative reduced cost."""
        ...

    def short(
        self,
        potential: Ints,
        price: int,
        slack: int,
        nested: tuple[Ints, Ints],
        room: int,
        run: KernelCompiler,
    ) -> tuple[Ints, Ints]:
        """Return count and partners of the pairs of each row (see ``price_rows``)."""
        ...

    def shortfall(self, potential: Ints, price: int, run: KernelCompiler) -> Ints:
        """Return by how much to raise potentials so that no pair prices in."""
        ...


@dataclass(frozen=True)
class MatrixPairs:
    """The pairs of a size class as a matrix.

    Attributes
    ----------
    fixed : (m, m) int
        The values of all pairs, ``FORBIDDEN`` where they may not share.
    """

    fixed: Narrow

    def __len__(self) -> int:
        return len(self.fixed)

    def sample(self, chosen: Ints) -> MatrixPairs:  # noqa: D102
        return MatrixPairs(np.ascontiguousarray(self.fixed[np.ix_(chosen, chosen)]))

    def values(self, first: Ints, second: Ints, run: KernelCompiler) -> Ints:  # noqa: D102
        return self.fixed[first, second].astype(np.int64)

    def best_partners(  # noqa: D102
        self, rows: Ints, potential: Ints, mask: int, most: int, run: KernelCompiler
    ) -> Ints:
        best = np.empty((len(rows), min(most, len(self))), dtype=np.int64)
        over_rows(
            run, best_partners, len(best), len(self), self.fixed, potential, mask, rows, best
        )  # fmt: skip
        return best

    def raise_potentials(  # noqa: D102
        self,
        known: Ints,
        known_potential: Ints,
        rows: Ints,
        price: int,
        potential: Ints,
        run: KernelCompiler,
    ) -> None:
        over_rows(
            run, extend_rows, len(rows), max(1, len(known)),
            self.fixed, known, known_potential, rows, price, potential,
        )  # fmt: skip

    def short(  # noqa: D102
        self,
        potential: Ints,
        price: int,
        slack: int,
        nested: tuple[Ints, Ints],
        room: int,
        run: KernelCompiler,
    ) -> tuple[Ints, Ints]:
        return self._priced(potential, price, slack, nested, room, run)[:2]

    def shortfall(self, potential: Ints, price: int, run: KernelCompiler) -> Ints:  # noqa: D102
        none = np.full(len(self), -1, dtype=np.int64)
        return self._priced(potential, price, 0, (none, none), 1, run)[2]

    def _priced(
        self,
        potential: Ints,
        price: int,
        slack: int,
        nested: tuple[Ints, Ints],
        room: int,
        run: KernelCompiler,
    ) -> tuple[Ints, Ints, Ints]:
        m = len(self)
        found, worst = np.zeros((2, m), dtype=np.int64)
        partner = np.empty((m, room), dtype=np.int64)
        over_rows(
            run, price_rows, m, m // _CELLS_AT_ONCE, self.fixed,
            potential, halves(potential), price, slack, *nested, found, worst, partner,
        )  # fmt: skip
        return found, partner, worst


@kernel
def inspect_rows(
    first: int, last: int, values: Floats, largest: Floats, asymmetric: Ints, infinite: Ints
) -> None:
    """Find the largest magnitudes, and rows with a column that is not symmetric or is +inf.

    ``largest`` is indexed by the first row of a tile. Tiles are mirrored first and compared without
    branches, for vector instructions.
    """
    mirrored = np.empty((_TILE, _TILE), values.dtype)
    top = np.empty(_TILE, values.dtype)
    for above in range(first, last, _TILE):
        below = min(above + _TILE, last)
        top[:] = 0
        for left in range(0, below, _TILE):
            right = min(left + _TILE, below)
            for j in range(left, right):
                for i in range(above, below):
                    mirrored[i - above, j - left] = values[j, i]
            for i in range(above, below):
                different = 0
                for j in range(left, min(right, i)):
                    a = values[i, j]
                    b = mirrored[i - above, j - left]
                    different += (a != b) & ((a > -np.inf) | (b > -np.inf))
                    magnitude = abs(a) if a > -np.inf else np.float32(0)
                    top[j - left] = magnitude if magnitude > top[j - left] else top[j - left]
                if different > 0:
                    for j in range(left, min(right, i)):
                        a = values[i, j]
                        b = values[j, i]
                        if (a != b) & ((a > -np.inf) | (b > -np.inf)):
                            asymmetric[i] = j
        largest[above] = top.max()
        if largest[above] == np.inf:
            for i in range(above, below):
                for j in range(i):
                    if values[i, j] == np.inf:
                        infinite[i] = j


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
    """Return a fixed pseudo-random number for the pair, so that ties are broken differently."""
    return ((i * 2654435761 + j * 2246822519 * (2 * (i & 7) + 1)) >> 7) & mask


@kernel
def best_partners(
    first: int, last: int, fixed: Narrow, potential: Ints, mask: int, rows: Ints, best: Ints
) -> None:
    """Keep for each row the columns of largest 2 w_ij - P_j as likely partners (-1 if fewer)."""
    most = best.shape[1]
    key = np.empty(most, np.int64)
    for t in range(first, last):
        i = rows[t]
        for k in range(most):
            key[k] = _LOWEST
            best[t, k] = -1
        for j in range(fixed.shape[1]):
            if fixed[i, j] == FORBIDDEN:
                continue
            x = 2 * np.int64(fixed[i, j]) - potential[j] + dither(i, j, mask)
            if x > key[0]:
                replace_least(key, best[t], x, j)


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
def common_dual(i: int, j: int, parent: Ints, total: Ints, mark: Ints) -> int:
    """Return the sum of the duals of the blossoms that contain both vertices.

    ``mark`` is i for the blossoms around i, ``total`` the sum from a blossom outwards.
    """
    b = parent[j]
    while b >= 0 and mark[b] != i:
        b = parent[b]
    return int(total[b]) if b >= 0 else 0


def halves(potential: Ints) -> Narrow:
    """Return half of each potential, rounded down and cut to 32 bits (see ``price_rows``)."""
    half = potential >> 1
    if half.min(initial=0) < -_HALF:
        return np.zeros(0, dtype=np.int32)
    cut: Narrow = np.minimum(half, _HALF).astype(np.int32)
    return cut


@kernel
def any_above(values: Narrow, halves: Narrow, threshold: np.int32) -> bool:
    """Return whether a value is above its half potential, without branches, in narrow vectors."""
    count = np.int32(0)
    for j in range(values.size):
        count = np.int32(count + np.int32(values[j] > np.int32(halves[j] + threshold)))
    return bool(count > 0)


@kernel
def price_rows(
    first: int,
    last: int,
    fixed: Narrow,
    potential: Ints,
    halves: Narrow,
    price: int,
    slack: int,
    parent: Ints,
    total: Ints,
    found: Ints,
    worst: Ints,
    partner: Ints,
) -> None:
    """List the pairs (i, j > i) whose doubled reduced cost is below ``-slack``.

    ``found`` is their number, ``worst`` the largest shortfall, and ``partner`` holds the worst of
    them, up to its width. A negative slack lists all pairs up to that reduced cost. ``parent`` and
    ``total`` come from ``blossom.nested``, ``halves`` from the function of that name: they show
    quickly where nothing prices in.
    """
    room = partner.shape[1]
    m = fixed.shape[1]
    key = np.empty(room, np.int64)
    mark = np.full(parent.size, -1, np.int64)
    for i in range(first, last):
        for k in range(room):
            key[k] = _LOWEST
            partner[i, k] = -1
        b = parent[i]
        while b >= 0:
            mark[b] = i
            b = parent[b]
        threshold = potential[i] + 2 * price + slack
        half = threshold >> 1
        filtered = halves.size > 0 and half >= -_HALF
        cut = np.int32(min(half, _HALF))
        count = 0
        top = np.int64(0)
        for left in range(i + 1, m, _BLOCK):
            right = min(left + _BLOCK, m)
            if filtered and not any_above(fixed[i, left:right], halves[left:right], cut):
                continue
            for j in range(left, right):
                short = 2 * np.int64(fixed[i, j]) - threshold - potential[j]
                if short > 0 and fixed[i, j] != FORBIDDEN:
                    if parent[i] >= 0 and parent[j] >= 0:
                        short -= common_dual(i, j, parent, total, mark)
                    if short > 0:
                        count += 1
                        top = max(top, short)
                        x = short + dither(i, j, _NOISE)
                        if x > key[0]:
                            replace_least(key, partner[i], x, j)
        found[i] = count
        worst[i] = top
