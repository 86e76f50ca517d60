"""Rounds in which jobs get what is best for them, or wait for those that gain more by it.

Their proof needs no search. A GPU of class c costs λ_c, and a worker of a pending job j is worth
π_j: the most that a GPU on which j is the only one to start adds to the value of a round in which
nobody starts, less its cost, and 0 at least. A gang adds the least of its gains, which is no more
than their mean, so each of its W_j workers adds one part in W_j. Where no GPU on which jobs start
adds more than it costs and they are worth together, no plan adds more than the sum of W_j π_j and
of λ_c for every GPU: these prices solve the dual program. Each class goes to the jobs whose best
GPUs are there, those that add the most first, and costs what the first that has to wait would add;
where they fill it and need no GPU twice, that is what their plan adds.
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
    """Return the proven best choice of groups, None where these prices do not prove it.

    Parameters
    ----------
    problem : Problem
        A round under an objective in one stage, in which starting no job is worth 0.
    """
    groups = problem.groups
    if not groups.complete or groups.round.hosts is not None:
        return None
    adds, sizes = _added(groups), groups.round.class_sizes
    best = _best_alone(groups, adds)
    job, chosen = groups.job[best], groups.group_of_member[best]
    gpu_class, workers = groups.gpu_class[chosen], groups.round.jobs.workers[job]
    taken = np.cumsum(workers)
    before = (taken - workers)[np.searchsorted(gpu_class, gpu_class)]
    fits = taken - before <= sizes[gpu_class]
    price, worth = np.zeros(len(sizes)), np.zeros(len(groups.round))
    np.maximum.at(price, gpu_class[~fits], adds[chosen[~fits]])
    worth[job] = np.maximum(0.0, adds[chosen] - price[gpu_class])
    proof = partial(_proven, worth, price)
    claim = proof(problem)
    if claim.errors:
        return None
    counts = problem.idle_counts.copy()
    joined = np.flatnonzero(counts)
    in_use = np.bincount(gpu_class[fits], workers[fits], len(sizes)).astype(np.int64)
    counts[joined] -= in_use[groups.gpu_class[joined]]
    counts[chosen[fits]] += workers[fits]
    value = score(groups, problem.values, counts).gain
    if relative_gap(claim.bound, value) > OPTIMAL_GAP:
        return None
    return Choice(counts, value, max(claim.bound, value), np.inf, "complete", MATCHING, proof=proof)


def _best_alone(groups: Groups, adds: Floats) -> Ints:
    """Return the member of each job in the group that adds the most where no other job starts.

    Those that add nothing are left out. They are in the order of GPU classes, and in each those
    that add the most come first.
    """
    group, pending = groups.group_of_member, _pending(groups)
    one = np.flatnonzero(pending & (np.bincount(group, pending, len(groups)) == 1)[group])
    one = one[np.lexsort((-adds[group[one]], groups.job[one]))]
    best = one[np.diff(groups.job[one], prepend=-1) != 0]
    best = best[adds[group[best]] > 0]
    order: Ints = np.lexsort((-adds[group[best]], groups.gpu_class[group[best]]))
    return np.asarray(best[order])


def _proven(worth: Floats, price: Floats, problem: Problem) -> Proven:
    """Return the bound that prices of the jobs' workers and of GPUs prove, and whether they do."""
    groups = problem.groups
    paid = np.where(_pending(groups), worth[groups.job], 0.0)
    together = np.bincount(groups.group_of_member, paid, len(groups)) + price[groups.gpu_class]
    adds = _added(groups)
    errors: tuple[str, ...] = ()
    negative = (worth < 0).any() or (price < 0).any()
    if negative or (adds > together + _ROUNDING * np.abs(adds)).any():
        errors = ("a GPU adds more than it costs and the jobs that start on it are worth",)
    bound = worth @ groups.round.jobs.workers + price @ groups.round.class_sizes
    return Proven(float(bound), errors)


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
