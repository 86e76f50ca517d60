"""How much of a pair of workloads had been measured when a model predicted it."""

from __future__ import annotations

from typing import Final

import numpy as np

from dovetail.predictors.predictor import BoolArray, IntArray

KNOWN, NEW_CO_RUNNER, NEW, CO_RUNNER_OF_NEW_FAMILY, NEW_FAMILY = range(5)
"""The standing of a job's pair: both workloads were measured in other pairs; only the co-runner is
new; the job's own workload is new, in a known family; the co-runner's family is new; or the job's
own family is new."""

STANDINGS: Final = (
    "known workloads",
    "new co-runner",
    "new workload",
    "co-runner of a new family",
    "new family",
)
"""The standings in words."""

OF_NEW_FAMILIES: Final = CO_RUNNER_OF_NEW_FAMILY
"""The first standing in which a family is new."""

OF_CO_RUNNERS: Final = (NEW_CO_RUNNER, CO_RUNNER_OF_NEW_FAMILY)
"""The standings in which only the co-runner is new."""

_STANDING = np.array(
    [
        [KNOWN, NEW_CO_RUNNER, CO_RUNNER_OF_NEW_FAMILY],
        [NEW, NEW, NEW_FAMILY],
        [NEW_FAMILY, NEW_FAMILY, NEW_FAMILY],
    ]
)


def novelty(measured: BoolArray, family: IntArray) -> IntArray:
    """Return how new each workload is: 0 known, 1 new in a known family, 2 of a new family.

    Parameters
    ----------
    measured : ndarray of bool, shape (workloads,)
        Whether each workload was measured in any pair.
    family : ndarray of int, shape (workloads,)
        The family of each, as a number.
    """
    known = np.isin(family, family[measured])
    return np.where(measured, 0, np.where(known, 1, 2))


def standings(own: IntArray, other: IntArray) -> IntArray:
    """Return the standing of pairs by the ``novelty`` of both workloads, which are broadcast."""
    found: IntArray = _STANDING[own, other]
    return found
