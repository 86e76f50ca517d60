"""What had been measured of a pair of workloads when a model predicted it."""

from __future__ import annotations

from typing import Final

import numpy as np

from dovetail.predictors.predictor import BoolArray, IntArray

KNOWN, NEW_CO_RUNNER, NEW, CO_RUNNER_OF_NEW_FAMILY, NEW_FAMILY = range(5)
"""What had been measured of a job's pair: both workloads in other pairs; all but the co-runner,
or all but the job's own workload, whose families were; all but the co-runner's family; or not
even a family of the job's own."""

STANDINGS: Final = (
    "known workloads",
    "new co-runner",
    "new workload",
    "co-runner of a new family",
    "new family",
)
"""The standings in words."""

OF_NEW_FAMILIES: Final = CO_RUNNER_OF_NEW_FAMILY
"""The first of the standings in which a family is new."""

OF_CO_RUNNERS: Final = (NEW_CO_RUNNER, CO_RUNNER_OF_NEW_FAMILY)
"""The standings in which nothing but the co-runner is new."""

_STANDING = np.array(
    [
        [KNOWN, NEW_CO_RUNNER, CO_RUNNER_OF_NEW_FAMILY],
        [NEW, NEW, NEW_FAMILY],
        [NEW_FAMILY, NEW_FAMILY, NEW_FAMILY],
    ]
)


def novelty(measured: BoolArray, family: IntArray) -> IntArray:
    """Return what is new of each workload: 0 nothing, 1 it alone, 2 its whole family.

    Parameters
    ----------
    measured : ndarray of bool, shape (workloads,)
        Whether it was measured in any pair.
    family : ndarray of int, shape (workloads,)
        Its family, as a number.
    """
    known = np.isin(family, family[measured])
    return np.where(measured, 0, np.where(known, 1, 2))


def standings(own: IntArray, other: IntArray) -> IntArray:
    """Return the standing of pairs by the ``novelty`` of both workloads; they are broadcast."""
    found: IntArray = _STANDING[own, other]
    return found
