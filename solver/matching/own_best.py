"""Rounds in which jobs get their best GPUs, or wait for jobs that gain more from them.

Their proof needs no search. A GPU of class c costs λ_c, and a worker of a pending job j is worth
π_j: the most that a GPU on which only j starts adds to the value of a round in which no job starts,
less its cost, and at least 0. A gang adds the least of its gains, which is no more than their mean,
so each of its W_j workers adds 1 / W_j of the gain. A running gang also gains or loses the least of
its gains, so no more than the mean over those of its GPUs that are slowest now. If no GPU on which
jobs start adds more than the sum of its cost and the jobs' worths, no plan adds more than the sum
of W_j π_j and of λ_c for every GPU: these prices solve the dual program. Each class goes to the
jobs whose best GPUs are there, in decreasing order of what they add, and costs what the first job
that has to wait would add; if they fill it and need no GPU twice, the bound is attained by their
plan.

The module ``price_certificate`` proves the bound again without this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.candidates.groups import Groups, idle_counts, score
from dovetail.solver.matching.price_certificate import PriceDual, proven_by_prices
from dovetail.solver.types import MATCHING, OPTIMAL_GAP, Choice, relative_gap

_ROUNDING = 1e-9


def own_best(groups: Groups) -> Choice | None:
    """Return the proven best choice of groups, or None if these prices do not prove it.

    Parameters
    ----------
    groups : Groups
        Groups of individual jobs under an objective in one stage.
    """
    by_node = groups.round.hosts is not None or groups.by_node
    if not groups.complete or by_node or not _worth_nothing_now(groups):
        return None
    held = _Held.of(groups)
    adds, sizes = _added(groups, held), groups.round.classes.size
    best = _best_alone(groups, adds)
    job, chosen = groups.job[best], groups.group_of_member[best]
    gpu_class, workers = groups.gpu_class[chosen], groups.round.jobs.workers[job]
    taken = np.cumsum(workers)
    before = (taken - workers)[np.searchsorted(gpu_class, gpu_class)]
    fits = taken - before <= sizes[gpu_class]
    price, worth = np.zeros(len(sizes)), np.zeros(len(groups.round))
    np.maximum.at(price, gpu_class[~fits], adds[chosen[~fits]])
    worth[job] = np.maximum(0.0, adds[chosen] - price[gpu_class])
    if not _cover(groups, adds, worth, price):
        return None
    dual = PriceDual(worth, price, held.job, held.gpu_class, held.part)
    bound = dual.bound(groups)
    counts = idle_counts(groups)
    joined = np.flatnonzero(counts)
    in_use = np.bincount(gpu_class[fits], workers[fits], len(sizes)).astype(np.int64)
    counts[joined] -= in_use[groups.gpu_class[joined]]
    counts[chosen[fits]] += workers[fits]
    value = score(groups, counts).gain
    if relative_gap(bound, value) > OPTIMAL_GAP:
        return None
    proof = partial(proven_by_prices, dual)
    best_bound = max(bound, value)
    return Choice(groups, counts, value, best_bound, np.inf, "complete", MATCHING, proof=proof)


def _worth_nothing_now(groups: Groups) -> bool:
    """Return whether a round in which no job starts is worth 0 in every part."""
    untouched = groups.round.classes.residents[groups.gpu_class] == groups.sizes
    least = np.full(len(groups.round), np.inf)
    member = np.flatnonzero(untouched[groups.group_of_member])
    np.minimum.at(least, groups.job[member], groups.gain[member])
    return not groups.value[untouched].any() and not least[np.isfinite(least)].any()


def _best_alone(groups: Groups, adds: Floats) -> Ints:
    """Return each job's member in the group that adds the most if no other job starts.

    Members that add nothing are left out. They are in the order of GPU classes, and within a class
    in decreasing order of what they add.
    """
    group, pending = groups.group_of_member, _pending(groups)
    one = np.flatnonzero(pending & (np.bincount(group, pending, len(groups)) == 1)[group])
    one = one[np.lexsort((-adds[group[one]], groups.job[one]))]
    best = one[np.diff(groups.job[one], prepend=-1) != 0]
    best = best[adds[group[best]] > 0]
    order: Ints = np.lexsort((-adds[group[best]], groups.gpu_class[group[best]]))
    return np.asarray(best[order])


def _cover(groups: Groups, adds: Floats, worth: Floats, price: Floats) -> bool:
    """Return whether no GPU adds more than its cost plus the worths of its starting jobs."""
    paid = np.where(_pending(groups), worth[groups.job], 0.0)
    together = np.bincount(groups.group_of_member, paid, len(groups)) + price[groups.gpu_class]
    return bool((adds <= together + _ROUNDING * np.abs(adds)).all())


def _pending(groups: Groups) -> Bools:
    """Return which members would start, (m,)."""
    return np.asarray(~groups.round.jobs.running[groups.job])


@dataclass(frozen=True)
class _Held:
    """The maximum fraction of a running job's gain on a GPU that it gains in total.

    Attributes
    ----------
    job, gpu_class : (k,) int
        Every running job with every class on which it holds GPUs.
    part : (k,) float
        The fraction, equal on all GPUs on which it gains nothing at present; 0 on faster ones.
    of_member : (m,) float
        The fraction of each member of a group, 0 for pending jobs.
    """

    job: Ints
    gpu_class: Ints
    part: Floats
    of_member: Floats

    @classmethod
    def of(cls, groups: Groups) -> _Held:
        compiled, group = groups.round, groups.group_of_member
        classes = len(compiled.classes)
        seat = groups.job * classes + groups.gpu_class[group]
        untouched = (compiled.classes.residents[groups.gpu_class] == groups.sizes)[group]
        slowest = np.flatnonzero(untouched & ~_pending(groups) & (groups.gain == 0))
        job, gpu_class = groups.job[slowest], groups.gpu_class[group[slowest]]
        number = np.bincount(job, compiled.classes.size[gpu_class], len(compiled))
        order = np.argsort(seat[slowest])
        job, gpu_class, part = job[order], gpu_class[order], 1 / number[job[order]]
        place = np.searchsorted(seat[slowest][order], seat)
        found = np.append(seat[slowest][order], -1)[place] == seat
        return cls(job, gpu_class, part, np.where(found, np.append(part, 0.0)[place], 0.0))


def _added(groups: Groups, held: _Held) -> Floats:
    """Return the most that a GPU adds to a round without starts if it has a group, (n,).

    If only one worker waits, all gains and losses of running jobs come from the GPU that it joins.
    """
    jobs, pending = groups.round.jobs, _pending(groups)
    waiting = jobs.workers[np.unique(groups.job[pending])].sum()
    part = np.ones(len(groups.job)) if waiting <= 1 else held.of_member
    untouched = groups.round.classes.residents[groups.gpu_class] == groups.sizes
    gain = np.where(pending, groups.gain / jobs.workers[groups.job], groups.gain * part)
    adds = np.bincount(groups.group_of_member, gain, len(groups)) + groups.value
    return np.where(untouched, 0.0, adds)
