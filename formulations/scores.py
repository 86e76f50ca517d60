"""What a choice of groups is worth, and what none can exceed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.groups import Groups, member_gains
from dovetail.formulations.rounds import Round, Variant
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


def open_weight(groups: Groups, values: JobValues) -> Floats:
    """Return the weight of each job of which it is to be decided whether it is placed, (jobs,).

    That of running jobs and of those in no group is 0.
    """
    running = np.array([job.running for job in groups.round.jobs], dtype=bool)
    weight = np.zeros(len(running))
    weight[groups.job] = values.weight[groups.job]
    return np.where(running, 0.0, weight)


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
        gain=_lagrangean_bound(groups.round, best[possible], np.flatnonzero(possible)),
        power_w=_least_power(groups) if values.ratio else np.nan,
    )


def _best_gains(groups: Groups, values: JobValues) -> Floats:
    """Return G[j, s - 1]: the best gain of job j in groups of s or more; -inf for none."""
    best = np.full((len(groups.round.jobs), int(groups.sizes.max(initial=1))), -np.inf)
    size = groups.sizes[groups.group_of_member]
    np.maximum.at(best, (groups.job, size - 1), member_gains(groups, values))
    return np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]


def gain_ceiling(compiled: Round, values: JobValues) -> float:
    """Return a bound on the gain of every choice, from slowdowns alone: no group is listed.

    The Lagrangean bound of ``ceiling`` where every job is slowed as little as its workload ever
    is beside as many others, whoever they are.
    """
    least = _least_slowdowns(compiled)
    best = np.full((len(compiled.jobs), compiled.instance.cluster.max_jobs_per_gpu), -np.inf)
    every = np.arange(len(compiled.jobs))
    for model, slowdown in least.items():
        for column in range(best.shape[1]):
            gain = values.gain(every, slowdown[:, column], model)
            known = np.isfinite(slowdown[:, column])
            best[known, column] = np.maximum(best[known, column], gain[known])
    best = np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]
    running = np.array([job.running for job in compiled.jobs], dtype=bool)
    best[running] = best[running].max(axis=1, keepdims=True)
    possible = np.isfinite(best).any(axis=1)
    return _lagrangean_bound(compiled, best[possible], np.flatnonzero(possible))


def _least_slowdowns(compiled: Round) -> dict[str, Floats]:
    """Return by model the least slowdown of each job in groups of 1, 2, ... jobs, inf for none.

    Running jobs keep what they have, which may be known of nobody else.
    """
    size = compiled.instance.cluster.max_jobs_per_gpu
    stretch = np.array([min(v.stretch for v in variants) for variants in compiled.variants])
    alone = np.array([_least_alone(compiled, variants) for variants in compiled.variants])
    for gpu_class in compiled.classes:
        if gpu_class.residents:
            kept = compiled.resident_slowdowns(gpu_class.gpus[0])
            for resident, slowdown in zip(gpu_class.residents, kept, strict=True):
                job = resident.variant.job
                alone[job] = min(alone[job], slowdown)
    found = {}
    for model in compiled.models:
        of_workload: dict[str, Floats] = defaultdict(lambda: np.full(size, np.inf))
        for known in compiled.entries.known(model):
            if (others := len(known.members) - 1) < size:
                for (name, _), slowdown in zip(known.members, known.slowdown, strict=True):
                    of_workload[name][others] = min(of_workload[name][others], slowdown)
        least = np.array([of_workload[job.workload] for job in compiled.jobs]).reshape(-1, size)
        found[model] = least * stretch[:, None]
        found[model][:, 0] = np.minimum(found[model][:, 0], alone)
    return found


def _least_alone(compiled: Round, variants: Sequence[Variant]) -> float:
    alone = (compiled.alone(v, share) for v in variants for share in compiled.shares_alone)
    return min(slowdown for slowdown in alone if slowdown is not None)


def _lagrangean_bound(compiled: Round, best: Floats, job: Ints) -> float:
    jobs = compiled.jobs
    gpus = len(compiled.instance.places)
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
