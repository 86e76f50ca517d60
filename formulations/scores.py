"""What a choice of groups is worth, and what none can exceed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.groups import Groups, member_gains
from dovetail.formulations.values import JobValues

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """Value of a choice of groups.

    Attributes
    ----------
    weight : float
        Total weight of the placed jobs.
    gain : float
        Sum of their gains (see ``JobValues``).
    power_w : float
        Power of the GPUs in use; NaN where it is unknown.
    """

    weight: float
    gain: float
    power_w: float

    def value(self, values: JobValues) -> float:
        """Return what the last stage maximises: the gain, or its ratio to the power."""
        if not values.ratio:
            return self.gain
        return self.gain / self.power_w if self.power_w else 0.0


def score(groups: Groups, values: JobValues, counts: Ints) -> Score:
    """Return the value of taking each group ``counts[g]`` times."""
    member = np.flatnonzero(counts[groups.group_of_member] > 0)
    gains = np.full(len(groups.round.jobs), np.inf)
    np.minimum.at(gains, groups.job[member], member_gains(groups, values)[member])
    placed = np.isfinite(gains)
    used = counts > 0
    return Score(
        weight=float(values.weight[placed].sum()),
        gain=float(gains[placed].sum()),
        power_w=float((groups.power_w[used] * counts[used]).sum()),
    )


def ceiling(groups: Groups, values: JobValues) -> Score:
    """Return bounds that no choice exceeds: every job placed, each as if in its best group.

    The gain of a pending job counts only if it is positive, because the job may wait; the
    power is the least that the GPUs in use can draw together (where the objective asks).
    """
    gains = np.full(len(groups.round.jobs), -np.inf)
    np.maximum.at(gains, groups.job, member_gains(groups, values))
    possible = np.isfinite(gains)
    running = np.array([job.running for job in groups.round.jobs], dtype=bool)
    gains = np.where(running, gains, np.maximum(gains, 0.0))
    return Score(
        weight=float(values.weight[possible].sum()),
        gain=float(gains[possible].sum()),
        power_w=_least_power(groups) if values.ratio else np.nan,
    )


def _least_power(groups: Groups) -> float:
    """Return the least power of the GPUs with residents, or of one GPU where there are none."""
    classes = groups.round.classes
    least = np.full(len(classes), np.inf)
    np.minimum.at(least, groups.gpu_class, groups.power_w)
    held = np.array([len(c.gpus) if c.residents else 0 for c in classes], dtype=np.float64)
    if held.any():
        return float((least[held > 0] * held[held > 0]).sum())
    return float(least.min(initial=np.inf))
