"""Slowdowns of three and more jobs on one GPU, from those of their pairs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.instances._record import IDLE, AnyShare
from dovetail.instances.errors import InputError

LARGEST: Final = 10
"""The most jobs of a set: the work doubles with each."""

MOST_PRODUCT: Final = 1e15
"""The largest product of declared slowdowns: beyond it, jobs may not share."""


def set_slowdown(pair_slowdowns: ArrayLike, last: bool = False) -> NDArray[np.float64]:
    """Return the slowdown of each job of a set from those of its pairs.

    Two co-runners slow a job more than the sum of both: they also slow each other, and so keep the
    GPU busy for longer. In a closed queueing network (exact mean-value analysis, *Mean-value
    analysis of closed multichain queuing networks*, J. ACM 27(2), 1980, arrival theorem: a job
    finds the set as it is without it)::

        slowdown_i(S) = 1 + sum over j in S - i of (s_ij - 1) * stretch_j(S - i)
        stretch_j(T)  = (1 + sum over k in T - j of d_jk * stretch_k(T - j)) / slowdown_j(T)

    ``s_ij`` is the slowdown of i with only j, and ``stretch_j(T)`` is how many times longer j
    keeps the resource busy among T than alone; it is at least 1. ``d_jk``, the fraction of its
    iteration for which k uses the resources shared with j, follows from their pair under the
    assumption that both use them equally: its square is the geometric mean of ``s_jk - 1`` and
    ``s_kj - 1``, at most 1. A slowdown below 1 is treated as 1.

    A pair keeps its slowdowns, a job that slows no other has no effect, and equal jobs that take
    turns (s = 2) slow each other by their number.

    Measured on the MPS processes of ParvaGPU (A100, MIG slices, 11 inference models; only equal
    processes, so this is untested for unequal ones), MAE for 3, 4 and 5 processes: 0.085, 0.164
    and 0.283; adding ``s_ij - 1`` up gives 0.112, 0.244 and 0.402, the product 0.366, 1.234 and
    3.040, and the worst pair 0.566, 1.109 and 1.633. The result is too low by more than a tenth
    for 10, 20 and 28 % of the sets (adding up: 16, 29 and 44 %), and has no bound. ``python
    benchmarks/completion.py sets`` prints these figures.

    Parameters
    ----------
    pair_slowdowns : array_like of float, shape (..., k, k)
        Entry (i, j): the slowdown of i with j as its only co-runner; the diagonal is not read.
        Leading axes are separate sets.
    last : bool
        Return the largest slowdown of each job in the set and in all its subsets that may remain
        after other jobs have ended.

    Returns
    -------
    ndarray of float, shape (..., k)
        NaN in a set with an unknown pair.

    Raises
    ------
    InputError
        When the last two axes are not square, or longer than ``LARGEST``.
    """
    pairs = np.asarray(pair_slowdowns, dtype=np.float64)
    if pairs.ndim < 2 or pairs.shape[-1] != pairs.shape[-2] or pairs.shape[-1] > LARGEST:
        rule = f"must be square with at most {LARGEST} jobs, got shape {pairs.shape}"
        raise InputError(rule, "pair_slowdowns")
    all_members = range(pairs.shape[-1])
    cost = np.maximum(0.0, pairs - 1.0)
    cost[..., all_members, all_members] = 0.0
    asked = np.minimum(1.0, np.sqrt(np.sqrt(cost * np.swapaxes(cost, -1, -2))))
    slowdown, largest = np.ones_like(cost[..., 0]), np.ones_like(cost[..., 0])
    stretch = {frozenset[int](): np.zeros_like(slowdown)}
    for size in range(1, len(all_members) + 1):
        for members in map(frozenset, combinations(all_members, size)):
            stretch[members] = np.zeros_like(slowdown)
            for j in members:
                others = stretch[members - {j}]
                slowdown[..., j] = 1.0 + np.sum(cost[..., j, :] * others, axis=-1)
                largest[..., j] = np.maximum(largest[..., j], slowdown[..., j])
                busy = 1.0 + np.sum(asked[..., j, :] * others, axis=-1)
                stretch[members][..., j] = np.maximum(1.0, busy / slowdown[..., j])
    return largest if last else slowdown


def product_slowdown(pair_slowdowns: ArrayLike, last: bool = False) -> NDArray[np.float64]:
    """Return the slowdown of each job of a set as the product of those of its pairs.

    This is what the owner of a cluster may declare (``Cluster.assumed``), for jobs without caps.

    Parameters
    ----------
    pair_slowdowns : array_like of float, shape (..., k, k)
        As for ``set_slowdown``, of any size.
    last : bool
        Return bounds that also hold when co-runners have ended: a factor is at least 1.

    Returns
    -------
    ndarray of float, shape (..., k)
        NaN if a pair is unknown; a slowdown also above ``MOST_PRODUCT``.
    """
    factors = np.array(pair_slowdowns, dtype=np.float64)
    each = np.arange(factors.shape[-1])
    factors[..., each, each] = 1.0
    with np.errstate(over="ignore"):
        if last:
            return np.asarray(np.maximum(factors, 1.0).prod(axis=-1))
        found = factors.prod(axis=-1)
    return np.where(found <= MOST_PRODUCT, found, np.nan)


def slowdown_with_idle(first: ArrayLike, behind: ArrayLike) -> NDArray[np.float64]:
    """Return the slowdowns of a job and of k others that run in its idle time (share ``idle``).

    The k share the idle time equally; when the first has work, all of them yield the GPU together,
    so it waits for the slowest (Tally, ASPLOS 2025, section 4.2)::

        slowdown_first  = max over j of slowdown of first with j alone behind it
        slowdown_behind = k times its slowdown alone behind first

    This is an estimate: kernels of different lengths may share the time unequally. The same holds
    for upper bounds and for tail latencies.

    Parameters
    ----------
    first, behind : array_like of float, shape (..., k)
        The slowdowns of the first and of the other job in each of the k pairs.

    Returns
    -------
    ndarray of float, shape (..., k + 1)
        The first comes first; NaN in a set with an unknown pair.
    """
    of_first = np.max(np.asarray(first, dtype=np.float64), axis=-1, keepdims=True)
    shared = np.asarray(behind, dtype=np.float64)
    return np.concatenate([of_first, shared * shared.shape[-1]], axis=-1)


def capped_set_slowdown(
    pair_slowdowns: ArrayLike, alone: ArrayLike, last: bool = False
) -> NDArray[np.float64]:
    """Return the slowdown of each job of a set under caps, from those of its pairs.

    What a cap costs a job alone counts once, and not once for each co-runner::

        slowdown_i(S) = alone_i * set_slowdown of s_ij / alone_i

    Parameters
    ----------
    pair_slowdowns, last
        As for ``set_slowdown``, with each pair at the caps of its two jobs.
    alone : array_like of float, shape (..., k)
        The slowdown of each job alone at its cap; NaN if it is not known: then it counts as 1, and
        the result is higher.
    """
    given = np.asarray(alone, dtype=np.float64)
    own = np.where(np.isnan(given), 1.0, np.maximum(1.0, given))
    pairs = np.asarray(pair_slowdowns, dtype=np.float64)
    return own * set_slowdown(pairs / own[..., np.newaxis], last)


def slowdown_at(
    pair_slowdowns: ArrayLike,
    shares: Sequence[AnyShare],
    last: bool = False,
    alone: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Return the slowdown of each job of a set at its shares, from those of its pairs.

    Parameters
    ----------
    pair_slowdowns : array_like of float, shape (k, k)
        As for ``set_slowdown``, with each pair at the shares of its two jobs; pairs of two jobs at
        ``idle`` are not read.
    shares : sequence of (int or None)
        The share of each job.
    last : bool
        As for ``set_slowdown``; with ``idle``, no job becomes slower after others have ended.
    alone : array_like of float, shape (k,), optional
        As for ``capped_set_slowdown``; default: not known.

    Returns
    -------
    ndarray of float, shape (k,)
        As ``capped_set_slowdown`` if no share is ``idle``, as ``slowdown_with_idle`` if exactly one
        job has another share. Jobs that are all at ``idle`` take turns: their number. Otherwise
        NaN.
    """
    pairs = np.asarray(pair_slowdowns, dtype=np.float64)
    behind = np.array([share == IDLE for share in shares])
    if not behind.any():
        own = np.full(len(pairs), np.nan) if alone is None else alone
        return capped_set_slowdown(pairs, own, last)
    found = np.full(len(pairs), np.nan)
    first = np.flatnonzero(~behind)
    if not len(first):
        found[:] = len(pairs)
    elif len(first) == 1:
        (k,) = first
        order = [k, *np.flatnonzero(behind)]
        found[order] = slowdown_with_idle(pairs[k, behind], pairs[behind, k])
    return found
