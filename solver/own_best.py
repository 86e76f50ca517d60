"""Rounds in which every job can have what is best for it: their proof needs no search.

Let a worker of a pending job j be worth π_j: the most that a GPU on which j is the only one to
start adds to the value of a round in which nobody starts, and 0 at least. A gang adds the least
of its gains, which is no more than their mean, so each of its W_j workers adds one part in W_j.
Where no GPU on which several start adds more than they are worth together, no plan adds more than
the sum of W_j π_j: the prices π solve the dual program, and GPUs cost nothing. Where the GPUs of
each job's best do not run out, that is what the plan of all these adds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.groups import Groups
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import score
from dovetail.solver.types import MATCHING, OPTIMAL_GAP, Choice, relative_gap

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROUNDING = 1e-9


def own_best(problem: Problem) -> Choice | None:
    """Return the proven best choice of groups, None where jobs are in each other's way.

    Parameters
    ----------
    problem : Problem
        A round under an objective in one stage, in which starting nobody is worth 0.
    """
    groups = problem.groups
    jobs = groups.round.jobs
    pending = ~jobs.running[groups.job]
    group = groups.group_of_member
    starting = np.bincount(group, pending, len(groups))
    if not groups.complete:
        return None
    adds = _added(groups, pending, starting)
    one = np.flatnonzero(pending & (starting == 1)[group])
    order = one[np.lexsort((-adds[group[one]], groups.job[one]))]
    first = order[np.diff(groups.job[order], prepend=-1) != 0]
    first = first[adds[group[first]] > 0]
    worth = np.zeros(len(jobs.ids))
    worth[groups.job[first]] = adds[group[first]]
    together = np.bincount(group, np.where(pending, worth[groups.job], 0.0), len(groups))
    if (adds > together + _ROUNDING * np.abs(adds))[starting > 1].any():
        return None
    counts = _placed(groups, problem.idle_counts, group[first], jobs.workers[groups.job[first]])
    if counts is None:
        return None
    value, bound = score(groups, problem.values, counts).gain, float(worth @ jobs.workers)
    if relative_gap(bound, value) > OPTIMAL_GAP:
        return None
    return Choice(counts, value, max(bound, value), np.inf, "complete", MATCHING)


def _added(groups: Groups, pending: NDArray[np.bool_], starting: Floats) -> Floats:
    """Return the most that a GPU adds to starting nobody if it has a group, (n,).

    What a running job loses is lost once, however many of its GPUs others join: it counts only
    where one worker waits, or the job has one GPU.
    """
    jobs = groups.round.jobs
    waiting = np.unique(groups.job[pending])
    counts = ~pending & ((jobs.workers[waiting].sum() <= 1) | (jobs.holds[groups.job] == 1))
    gain = np.where(pending, groups.gain / jobs.workers[groups.job], groups.gain * counts)
    return np.bincount(groups.group_of_member, gain, len(groups)) + groups.value


def _placed(groups: Groups, idle: Ints, chosen: Ints, workers: Ints) -> Ints | None:
    """Return the choice in which so many GPUs have these groups, None where they run out."""
    gpu_class = groups.gpu_class[chosen]
    taken = np.bincount(gpu_class, workers, len(groups.round.classes)).astype(np.int64)
    if (taken > groups.round.class_sizes).any():
        return None
    counts = idle.copy()
    joined = np.flatnonzero(idle)
    counts[joined] -= taken[groups.gpu_class[joined]]
    counts[chosen] += workers
    return counts
