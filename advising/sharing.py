"""Slowdowns of two kinds of work on one GPU, for each case, from what monitoring records.

A job whose kernels run for the fraction ``u`` of the time, on the part ``s`` of the SMs, has the
cap ``p``. Its co-runner keeps the GPU's memory busy for the fraction ``d`` of the time. Then::

    slowdown = 1 + a u (max(1, s / p) - 1) + c u d

The first term is the time that its kernels lose by the cap, the second the time in which both use
the memory. Without SM and DRAM activity, ``s`` is 1 and ``d`` is the co-runner's ``u``. This is an
estimate without a bound. The constants ``(a, c)`` of each case were chosen on the 35 pairs at
halves of ``library:h200-2026-11``; ``benchmarks/advising/ranges.py`` has how often they hold with
each workload left out. In the case ``low``, ``u`` and ``d`` are 0.1 larger: monitoring sees too
little of short bursts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.work import CASES, Bools, Floats, Work

SPLITS: Final = ((50, 50), (60, 40), (40, 60), (70, 30), (30, 70))
"""The SM shares of two jobs, in per cent, that are compared."""

RESERVE_MIB: Final = 1_024.0
"""Memory of a card that stays free for the driver and contexts."""

_WORTH: Final = 0.02
"""Halves are taken unless the sum of both slowdowns is smaller by this at another split."""

_UTILISATION: Final = ((1.0, 1.6), (0.5, 0.4), (0.0, 0.5))
_ACTIVITY: Final = ((1.0, 2.0), (0.75, 1.0), (0.25, 0.3))
_UNSEEN: Final = (0.1, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class KindPairs:
    """What two kinds of work do to each other on a GPU, in one case.

    Attributes
    ----------
    fits : (kinds, kinds) bool
        Whether both fit into the memory of a card, are on the same GPU model and use equally many
        GPUs.
    allowed : (kinds, kinds) bool
        Whether they may share: they fit, and both slowdowns are within the limit at some split.
    split : (kinds, kinds) int
        The best split, a position in ``SPLITS``: the least sum of both slowdowns within the limit.
    slowdown : (kinds, kinds) float
        The slowdown of the first kind at that split; at the least one if none is within the limit;
        NaN if unknown.
    """

    fits: Bools
    allowed: Bools
    split: NDArray[np.int8]
    slowdown: NDArray[np.float32]


def pairs_of(
    work: Work, case: int, limit: float, splits: Sequence[tuple[int, int]] = SPLITS
) -> KindPairs:
    """Return all pairs of kinds in a case, under a limit of the slowdown, at the best of splits."""
    fits, best = _fits(work, case), np.full((len(work.gpus),) * 2, np.inf, np.float32)
    split = np.zeros(best.shape, np.int8)
    slowdown, co_runner = np.full((2, *best.shape), np.nan, np.float32)
    allowed = np.zeros(best.shape, np.bool_)
    for number, (own, other) in enumerate(splits):
        found, of_other = _at_share(work, case, own), _at_share(work, case, other).T
        with np.errstate(invalid="ignore"):
            within = (found <= limit) & (of_other <= limit)
            total = np.where(within, found + of_other, 1e3 + np.maximum(found, of_other))
            better = total < best - (_WORTH if number else 0.0)
        best = np.where(better, total, best)
        split[better], slowdown[better] = number, found[better]
        co_runner[better] = of_other[better]
        allowed |= within
    # One decision for a pair: that of the lower kind.
    lower = np.tri(len(best), k=-1, dtype=bool)
    mirrored = np.array([splits.index((other, own)) for own, other in splits], np.int8)
    split = np.where(lower, mirrored[split].T, split)
    slowdown = np.where(lower, co_runner.T, slowdown)
    allowed &= fits
    if case == CASES.index("low"):
        # No record tells a service's tail latency: it shares with services only.
        allowed &= work.service[:, None] == work.service[None, :]
    return KindPairs(fits, allowed, split, slowdown)


def alone_at_half(work: Work, case: int) -> Floats:
    """Return the slowdown of each kind that runs alone with half of the SMs; NaN if unknown."""
    busy, _ = _seen(work, case)
    by_cap, _ = _constants(work, case)
    return np.asarray(1 + by_cap * busy * (np.maximum(1, work.sms / 0.5) - 1))


def has_partner(work: Work, allowed: Bools) -> Bools:
    """Return whether each kind may share with another one, or with itself if it has two jobs."""
    others = allowed.copy()
    np.fill_diagonal(others, allowed.diagonal() & (work.runs > 1))
    return np.asarray(others.any(axis=1))


def _fits(work: Work, case: int) -> Bools:
    memory, models = work.memory_mib[case], np.unique(work.models, return_inverse=True)[1]
    card = np.minimum(work.card_mib[:, None], work.card_mib[None, :])
    with np.errstate(invalid="ignore"):
        fits = memory[:, None] + memory[None, :] <= card - RESERVE_MIB
    fits &= models[:, None] == models[None, :]
    fits &= work.gpus[:, None] == work.gpus[None, :]
    return np.asarray(fits)


def _at_share(work: Work, case: int, share: int) -> NDArray[np.float32]:
    """Return the slowdown of each kind with this share, beside each other kind."""
    busy, dram = _seen(work, case)
    by_cap, by_memory = _constants(work, case)
    capped = by_cap * busy * (np.maximum(1, work.sms / (share / 100)) - 1)
    contended = (by_memory * busy).astype(np.float32)[:, None] * dram.astype(np.float32)[None, :]
    return np.asarray(1 + capped.astype(np.float32)[:, None] + contended, np.float32)


def _seen(work: Work, case: int) -> tuple[Floats, Floats]:
    return (
        np.minimum(1, work.busy[case] + _UNSEEN[case]),
        np.minimum(1, work.dram[case] + _UNSEEN[case]),
    )


def _constants(work: Work, case: int) -> tuple[Floats, Floats]:
    rough, fine = _UTILISATION[case], _ACTIVITY[case]
    return (
        np.where(work.detailed, fine[0], rough[0]),
        np.where(work.detailed, fine[1], rough[1]),
    )
