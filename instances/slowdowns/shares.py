"""Shares as numbers, for arrays and keys that are sorted: the only place that knows the numbers.

A job has a cap in percent, no cap, or the share ``idle``. Arrays hold the cap, ``NO_CAP``, or
``BEST_EFFORT``, which is no percentage: sum arrays of shares by ``percent``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations_with_replacement
from math import comb
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dovetail.instances._record import IDLE, AnyShare, rule_broken

if TYPE_CHECKING:
    from dovetail.instances.slowdowns.entry import SharingMode

NO_CAP: Final = 0
"""The code of a job without a cap."""

BEST_EFFORT: Final = 101
"""The code of the share ``idle``."""

CODES: Final = 102
"""How many codes there are, from 0."""

MOST_SPLITS: Final = 4
"""The most ways in which a GPU is divided among a number of jobs."""

_MOST_TRIED: Final = 100_000
"""The most combinations of caps that are looked at for one number of jobs."""


def share_code(share: AnyShare) -> int:
    """Return the code of a share."""
    return BEST_EFFORT if share == IDLE else share or NO_CAP


def share_of(code: int) -> AnyShare:
    """Return the share that has a code."""
    return IDLE if code == BEST_EFFORT else code or None


def caps_of(shares: Iterable[AnyShare]) -> list[int]:
    """Return the shares that are caps, in their order."""
    return [share for share in shares if share is not None and share != IDLE]


def refuse_caps(mode: SharingMode, shares: Iterable[AnyShare], path: str, field: str) -> None:
    """Refuse a cap where jobs take turns on the whole GPU; ``field`` says that they do."""
    for k, share in enumerate(shares if mode == "time_sliced" else ()):
        if share not in (None, IDLE):
            raise rule_broken(f"{path}[{k}]", f"{field} time_sliced has no caps, got {share}")


def share_total(shares: Iterable[AnyShare]) -> int:
    """Return what the caps on a GPU sum to, in percent; no cap and ``idle`` count as 0."""
    return sum(caps_of(shares))


def full_splits(
    caps: Iterable[int],
    jobs: int,
    room: int,
    fits: Callable[[tuple[int, ...]], bool] = lambda split: True,
) -> list[tuple[int, ...]]:
    """Return how to divide a GPU among several jobs so that the least is left over.

    Parameters
    ----------
    caps : iterable of int
        The caps that a job may have.
    jobs : int
        The number of jobs.
    room : int
        What their caps may sum to.
    fits : callable, optional
        Whether a split is possible otherwise; default: all are.

    Returns
    -------
    list of tuple of int
        Caps in ascending order, with the largest possible sum: the ``MOST_SPLITS`` most even ones.
        If there are very many caps, only those near an equal part are tried.
    """
    near = sorted(set(caps), key=lambda cap: (abs(cap - room / max(1, jobs)), cap))
    while comb(len(near) + jobs - 1, jobs) > _MOST_TRIED:
        near.pop()
    every = combinations_with_replacement(sorted(near), jobs)
    able = [split for split in every if sum(split) <= room and fits(split)]
    largest = max(map(sum, able), default=0)
    full = [split for split in able if sum(split) == largest]
    return sorted(full, key=lambda split: (sum(cap * cap for cap in split), split))[:MOST_SPLITS]


def percent(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the caps in percent; no cap and ``idle`` count as 0."""
    return np.where(codes == BEST_EFFORT, 0, codes)
