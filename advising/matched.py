"""Jobs in pairs such that they need the fewest GPUs, proven by matching.

A replay asks this at every moment at which several jobs start, thousands of times, with jobs that
may only be matched if one of them is new. So it calls the engine of pairs directly, without an
instance and a check. So does the busiest moment in pairs: thousands of jobs on several GPUs take
the core's integer programs minutes, and a matching of those on equally many GPUs seconds.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.work import Bools, Ints
from dovetail.formulations.budget import Budget, require_room
from dovetail.solver.pairing.matching import match_pairs

_BYTES: Final = 40
"""Of each pair of jobs, in all arrays."""


class MatchedJobs(NamedTuple):
    """Which jobs share.

    Attributes
    ----------
    mate : (jobs,) int
        The co-runner of each job, or the job itself.
    most_pairs : int
        No more pairs are possible, proven.
    """

    mate: Ints
    most_pairs: int


def matched(
    kinds: Ints, new: int, allowed: Bools, slowdown: NDArray[np.floating[Any]], budget: Budget
) -> MatchedJobs:
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
    """
    count = len(kinds)
    alone = np.arange(count)
    require_room(_BYTES * count**2, f"pairs of {count:,} jobs at one moment")
    may = allowed[np.ix_(kinds, kinds)]
    may &= (alone[:, None] < new) | (alone[None, :] < new)
    np.fill_diagonal(may, False)
    able = np.flatnonzero(may.any(axis=1))
    if not len(able):
        return MatchedJobs(alone, 0)
    if len(able) < count:
        among = matched(kinds[able], int((able < new).sum()), allowed, slowdown, budget)
        alone[able] = able[among.mate]
        return MatchedJobs(alone, among.most_pairs)
    beside = slowdown[np.ix_(kinds, kinds)].astype(np.float64)
    total = np.where(may, beside + beside.T - 2, 0.0)
    # A pair less is never worth the slowdowns that it would save.
    weight = 1 / (2 * max(count * float(total.max()), 1.0))
    value = np.where(may, 1 - weight * total, -np.inf)
    found = match_pairs(value, np.zeros(count), time_limit=budget)
    mate = np.asarray(np.where(found.mate < 0, alone, found.mate), np.int64)
    # The value of k pairs is above k - 1/2.
    most = count // 2 if found.bound is None else math.ceil(found.bound - 0.5)
    return MatchedJobs(mate, max(int((mate != alone).sum()) // 2, min(most, count // 2)))
