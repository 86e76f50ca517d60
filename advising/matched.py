"""The fewest GPUs for jobs of some kinds, proven, by matching."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.work import Bools, Ints
from dovetail.formulations.budget import Budget, require_room
from dovetail.solver.pairing.matching import match_pairs

_BYTES: Final = 40
"""Of each pair of jobs, in all arrays."""


class FewestGpus(NamedTuple):
    """Which jobs share a GPU.

    Attributes
    ----------
    mate : (jobs,) int
        The co-runner of each job, or the job itself.
    pairs : int
        How many pairs.
    most_pairs : int
        No more pairs are possible, proven.
    """

    mate: Ints
    pairs: int
    most_pairs: int


def fewest_gpus(
    kinds: Ints,
    allowed: Bools,
    slowdown: NDArray[np.floating[Any]],
    budget: Budget,
    new: Bools | None = None,
) -> FewestGpus:
    """Return pairs of jobs such that they need the fewest GPUs, then the least slowdowns.

    Parameters
    ----------
    kinds : (jobs,) int
        The kind of each job; all use equally many GPUs.
    allowed : (kinds, kinds) bool
        Whether two kinds may share.
    slowdown : (kinds, kinds) float
        The slowdown of the first kind beside the second.
    budget : Budget
        The time for it.
    new : (jobs,) bool, optional
        At least one job of a pair must be one of these; by default any two may be.
    """
    count = len(kinds)
    alone = np.arange(count)
    if count < 2:
        return FewestGpus(alone, 0, 0)
    require_room(_BYTES * count**2, f"pairs of {count:,} jobs at one moment")
    may = allowed[np.ix_(kinds, kinds)]
    if new is not None:
        may &= new[:, None] | new[None, :]
    np.fill_diagonal(may, False)
    able = np.flatnonzero(may.any(axis=1))
    if not len(able):
        return FewestGpus(alone, 0, 0)
    if len(able) < count:
        found = fewest_gpus(
            kinds[able], allowed, slowdown, budget, None if new is None else new[able]
        )
        alone[able] = able[found.mate]
        return found._replace(mate=alone)
    beside = slowdown[np.ix_(kinds, kinds)].astype(np.float64)
    total = np.where(may, beside + beside.T - 2, 0.0)
    # A pair less is never worth the slowdowns that it would save.
    weight = 1 / (2 * max(count * float(total.max()), 1.0))
    value = np.where(may, 1 - weight * total, -np.inf)
    matching = match_pairs(value, np.zeros(count), time_limit=budget)
    mate = np.where(matching.mate < 0, alone, matching.mate)
    pairs = int((mate != alone).sum() // 2)
    # The value of k pairs is above k - 1/2.
    most = count // 2 if matching.bound is None else int(np.ceil(matching.bound - 0.5))
    return FewestGpus(np.asarray(mate, np.int64), pairs, max(pairs, min(most, count // 2)))
