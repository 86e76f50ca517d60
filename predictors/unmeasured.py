"""Which pairs that never ran may share, and at which splits.

Without caps, MPS is a queue of kernels: a client's launches wait for kernels of the other, and a
job may be slowed ten times by a harmless-looking one. A cap on each job bounds what the other can
do. So an estimate whose error is not bounded never lets a job with a gSLA share; and where both
jobs could have caps, they run without only if, by its upper bound, neither is slowed more than if
the two took turns.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dovetail.predictors.predictor import BoolArray, FloatArray

TURNS: Final = 2.0
"""The slowdown of two jobs that take turns on a GPU."""


def may_share(
    upper: FloatArray, promised: BoolArray, capped: BoolArray, can_cap: BoolArray
) -> BoolArray:
    """Return whether pairs that never ran may share, each at one split.

    That they also keep their gSLAs by these upper bounds is checked wherever a pair is placed.

    Parameters
    ----------
    upper : ndarray of float, shape (..., 2)
        Upper bounds of both slowdowns; NaN where an estimate has none.
    promised : ndarray of bool, shape (...)
        Whether a job of the pair may have a gSLA.
    capped : ndarray of bool, shape (...)
        Whether the split gives both jobs caps.
    can_cap : ndarray of bool, shape (...)
        Whether the pair may share at some split with caps for both, or will once shares are proven.

    Returns
    -------
    ndarray of bool, shape (...)
        True if the slowdowns are bounded or no job has a gSLA, and if the split has caps for both,
        no such split is open to them, or neither is over ``TURNS`` by its upper bound.
    """
    bounded = ~np.isnan(upper).any(axis=-1)
    worth = (upper <= TURNS).all(axis=-1)
    return np.asarray((bounded | ~promised) & (capped | ~can_cap | worth))
