"""Rounds in which every job can have what is best for it: their proof needs no search.

Let a worker of a pending job j be worth π_j: the most that a GPU on which j is the only one to
start adds to the value of a round in which nobody starts, and 0 at least. A gang adds the least
of its gains, which is no more than their mean, so each of its W_j workers adds one part in W_j.
Where no GPU on which several start adds more than they are worth together, no plan adds more than
the sum of W_j π_j: the prices π solve the dual program, and GPUs cost nothing. Where the GPUs of
each job's best do not run out, that is what the plan of all these adds.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.groups import Groups
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import score
from dovetail.solver.types import MATCHING, OPTIMAL_GAP, Choice, Proven, relative_gap

_ROUNDING = 1e-9


def own_best(problem: Problem) -> Choice | None:
    """Return the proven best choice of groups, None where jobs are in each other's way.

    Parameters
    ----------
    problem : Problem
        A round under an objective in one stage, in which starting no job is worth 0.
    """
    groups = problem.groups
    if not groups.complete or groups.round.hosts is not None:
        return None
    jobs, group = groups.round.jobs, groups.group_of_member
    pending, adds = _pending(groups), _added(groups)
    one = np.flatnonzero(pending & (np.bincount(group, pending, len(groups)) == 1)[group])
    order = one[np.lexsort((-adds[group[one]], groups.job[one]))]
    first = order[np.diff(groups.job[order], prepend=-1) != 0]
    first = first[adds[group[first]] > 0]
    worth = np.zeros(len(groups.round))
    worth[groups.job[first]] = adds[group[first]]
    counts = _placed(groups, problem.idle_counts, group[first], jobs.workers[groups.job[first]])
    proof = partial(_proven, worth)
    claim = proof(problem)
    if counts is None or claim.errors:
        return None
    value = score(groups, problem.values, counts).gain
    if relative_gap(claim.bound, value) > OPTIMAL_GAP:
        return None
    return Choice(counts, value, max(claim.bound, value), np.inf, "complete", MATCHING, proof=proof)


def _proven(worth: Floats, problem: Problem) -> Proven:
    """Return the bound that prices of the jobs' workers prove, and whether they do."""
    groups = problem.groups
    paid = np.where(_pending(groups), worth[groups.job], 0.0)
    together = np.bincount(groups.group_of_member, paid, len(groups))
    adds = _added(groups)
    errors: tuple[str, ...] = ()
    if (worth < 0).any() or (adds > together + _ROUNDING * np.abs(adds)).any():
        errors = ("a GPU adds more than the jobs that start on it are worth",)
    return Proven(float(worth @ groups.round.jobs.workers), errors)


def _pending(groups: Groups) -> Bools:
    """Tell which members would start, (m,)."""
    return np.asarray(~groups.round.jobs.running[groups.job])


def _added(groups: Groups) -> Floats:
    """Return the most that a GPU adds to a round without starts if it has a group, (n,).

    What a running job loses is lost once, however many of its GPUs others join: it counts only
    where one worker waits, or the job has one GPU.
    """
    jobs, pending = groups.round.jobs, _pending(groups)
    waiting = jobs.workers[np.unique(groups.job[pending])].sum()
    counts = (waiting <= 1) | (jobs.holds[groups.job] == 1)
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
