"""A fast matching, for a deadline before the first optimum."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.pairing.compilation import KernelCompiler, kernel
from dovetail.solver.pairing.size_class import NOT_ALONE, ClassData

Ints = NDArray[np.int64]


def greedy_partners(
    classes: Sequence[ClassData],
    edges: Sequence[tuple[Ints, Ints, Ints]],
    limit: int,
    run: KernelCompiler,
) -> list[Ints]:
    """Take groups by value per GPU: groups with the most required jobs first."""
    offsets = np.cumsum([0, *(len(c.nodes) for c in classes)])
    columns: list[tuple[Ints, ...]] = []
    for c, (first, second, weight), offset in zip(classes, edges, offsets, strict=False):
        alone = np.flatnonzero(c.single > NOT_ALONE)
        a = np.concatenate([first, alone])
        b = np.concatenate([second, alone])
        must = c.rest < 0
        covers = must[a].astype(np.int64) + (must[b] & (a != b))
        value = np.concatenate([weight, c.single[alone]])
        columns.append((a + offset, b + offset, covers, value, np.full(len(a), c.size)))
    a, b, covers, value, size = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    order = np.lexsort((-value / size, -covers))
    partner = np.full(int(offsets[-1]), -1, dtype=np.int64)
    run(take_in_order)(order, a, b, covers, value, size, limit, partner)
    return [np.where(partner[i:j] >= 0, partner[i:j] - i, -1) for i, j in pairwise(offsets)]


@kernel
def take_in_order(
    order: Ints,
    a: Ints,
    b: Ints,
    covers: Ints,
    value: Ints,
    size: Ints,
    limit: int,
    partner: Ints,
) -> None:
    """Take every group that still fits, in order, if it has a value or covers a required job."""
    left = limit
    for e in order:
        fits = partner[a[e]] < 0 and partner[b[e]] < 0 and size[e] <= left
        if fits and (value[e] > 0 or covers[e] > 0):
            partner[a[e]] = b[e]
            partner[b[e]] = a[e]
            left -= size[e]
