"""Jobs that start together, matched with each other and with running ones.

A replay asks this at every moment at which several jobs start, thousands of times, with jobs that
may only be matched if one of them is new. So it calls the engine of pairs directly, without an
instance and a check. The figures that are said to be proven come from ``dovetail.advising.moment``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.work import Bools, Ints
from dovetail.formulations.budget import Budget, require_room
from dovetail.solver.pairing.matching import match_pairs

_BYTES: Final = 40
"""Of each pair of jobs, in all arrays."""


def matched(
    kinds: Ints, new: int, allowed: Bools, slowdown: NDArray[np.floating[Any]], budget: Budget
) -> Ints:
    """Return pairs of jobs such that they need the fewest GPUs, then the least slowdowns.

    Parameters
    ----------
    kinds : (jobs,) int
        The kind of each job; all use equally many GPUs.
    new : int
        How many of them start now; they come first. At least one job of a pair is one of them.
    allowed : (kinds, kinds) bool
        Whether two kinds may share.
    slowdown : (kinds, kinds) float
        The slowdown of the first kind beside the second.
    budget : Budget
        The time for it.

    Returns
    -------
    (jobs,) int
        The co-runner of each job, or the job itself.
    """
    count = len(kinds)
    alone = np.arange(count)
    require_room(_BYTES * count**2, f"pairs of {count:,} jobs at one moment")
    may = allowed[np.ix_(kinds, kinds)]
    may &= (alone[:, None] < new) | (alone[None, :] < new)
    np.fill_diagonal(may, False)
    able = np.flatnonzero(may.any(axis=1))
    if not len(able):
        return alone
    if len(able) < count:
        among = matched(kinds[able], int((able < new).sum()), allowed, slowdown, budget)
        alone[able] = able[among]
        return alone
    beside = slowdown[np.ix_(kinds, kinds)].astype(np.float64)
    total = np.where(may, beside + beside.T - 2, 0.0)
    # A pair less is never worth the slowdowns that it would save.
    weight = 1 / (2 * max(count * float(total.max()), 1.0))
    value = np.where(may, 1 - weight * total, -np.inf)
    mate = match_pairs(value, np.zeros(count), time_limit=budget).mate
    return np.asarray(np.where(mate < 0, alone, mate), np.int64)
