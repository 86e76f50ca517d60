"""What a model had seen of a pair of workloads when it predicted."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from dovetail.predictors.predictor import IntArray

KNOWN, NEW_CO_RUNNER, NEW = range(3)
"""What has been seen of a job's pair: both workloads in other pairs, all but the co-runner, or
not even the job's own workload."""

STANDINGS: Final = ("known workloads", "new co-runner", "new workload")
"""``KNOWN``, ``NEW_CO_RUNNER`` and ``NEW`` in words."""


def standing(own_known: ArrayLike, other_known: ArrayLike) -> IntArray:
    """Return what is known of pairs: ``KNOWN``, ``NEW_CO_RUNNER`` or ``NEW``.

    Parameters
    ----------
    own_known, other_known : array of bool
        Whether the job's workload and its co-runner's were measured in any pair.
    """
    own, other = np.asarray(own_known, np.bool_), np.asarray(other_known, np.bool_)
    return np.where(own, np.where(other, KNOWN, NEW_CO_RUNNER), NEW).astype(np.int64)
