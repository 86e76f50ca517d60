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
    """Return bounds that no choice exceeds.

    *Weight*: every job that is in some group. *Gain*: a Lagrangean bound. A worker in a group
    of s jobs takes at least 1/s of a GPU, so with M GPUs and a price t >= 0 for one, no plan
    gains more than t M + sum over jobs of the largest G[s] - t W / s (0 if that is less and
    the job may wait), where G[s] is the job's best gain in groups of s jobs or more and W its
    workers. *Power*: the least that the GPUs in use can draw (where the objective asks).
    """
    best = _best_gains(groups, values)
    possible = np.isfinite(best).any(axis=1)
    return Score(
        weight=float(values.weight[possible].sum()),
        gain=_lagrangean_bound(groups, best[possible], np.flatnonzero(possible)),
        power_w=_least_power(groups) if values.ratio else np.nan,
    )


def _best_gains(groups: Groups, values: JobValues) -> Floats:
    """Return G[j, s - 1]: the best gain of job j in groups of s or more; -inf for none."""
    best = np.full((len(groups.round.jobs), int(groups.sizes.max(initial=1))), -np.inf)
    size = groups.sizes[groups.group_of_member]
    np.maximum.at(best, (groups.job, size - 1), member_gains(groups, values))
    return np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]


def _lagrangean_bound(groups: Groups, best: Floats, job: Ints) -> float:
    jobs = groups.round.jobs
    gpus = len(groups.round.instance.places)
    workers = np.array([jobs[k].workers for k in job], dtype=np.float64)
    running = np.array([jobs[k].running for k in job], dtype=bool)
    share = workers[:, None] / np.arange(1, best.shape[1] + 1)

    def bound(price: float) -> float:
        worth = (best - price * share).max(axis=1)
        return float(price * gpus + np.where(running, worth, np.maximum(worth, 0.0)).sum())

    low, high = 0.0, float(np.abs(best[np.isfinite(best)]).max(initial=0.0))
    # The bound is convex in the price; any price is valid, so a coarse search is enough.
    for _ in range(60):
        third = (high - low) / 3
        if bound(low + third) <= bound(high - third):
            high -= third
        else:
            low += third
    return min(bound(0.0), bound(low))


def _least_power(groups: Groups) -> float:
    """Return the least power of the GPUs with residents, or of one GPU where there are none."""
    classes = groups.round.classes
    least = np.full(len(classes), np.inf)
    np.minimum.at(least, groups.gpu_class, groups.power_w)
    held = np.array([len(c.gpus) if c.residents else 0 for c in classes], dtype=np.float64)
    if held.any():
        return float((least[held > 0] * held[held > 0]).sum())
    return float(least.min(initial=np.inf))
