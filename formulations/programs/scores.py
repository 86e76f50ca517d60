"""The value of a choice of groups, and bounds on every choice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.residents import resident_slowdowns
from dovetail.formulations.rounds import Round
from dovetail.formulations.values import JobValues


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
        Power of the GPUs in use; NaN if it is unknown.
    """

    weight: float
    gain: float
    power_w: float

    def value(self, values: JobValues) -> float:
        """Return the objective of the last stage: the gain, or its ratio to the power."""
        if not values.ratio:
            return self.gain
        return self.gain / self.power_w if self.power_w else 0.0


def score(groups: Groups, counts: Ints) -> Score:
    """Return the value of taking each group ``counts[g]`` times."""
    taken, used = counts[groups.group_of_member], counts > 0
    single = groups.round.jobs.workers[groups.job] == 1
    of_singles = groups.gain[single & (taken > 0)] @ taken[single & (taken > 0)]
    gang = np.flatnonzero(~single & (taken > 0))
    least = np.full(len(groups.round), np.inf)
    np.minimum.at(least, groups.job[gang], groups.gain[gang])
    placed = groups.placed(counts)
    of_jobs = least[np.isfinite(least)].sum() - groups.kinds.less[placed].sum()
    return Score(
        weight=float(groups.values.weight[placed].sum()),
        gain=float(of_singles + of_jobs + groups.value[used] @ counts[used]),
        power_w=float((groups.power_w[used] * counts[used]).sum()),
    )


def open_weight(groups: Groups) -> Floats:
    """Return the weight of each job whose placement is to be decided, (jobs,).

    The weight is 0 for running jobs and for jobs in no group.
    """
    running = groups.round.jobs.running
    weight = np.zeros(len(running))
    weight[groups.job] = groups.values.weight[groups.job]
    return np.where(running, 0.0, weight[groups.kinds.first])


def ceiling(groups: Groups) -> Score:
    """Return upper bounds on every choice.

    *Weight*: that of every job that is in some group. *Gain*: a Lagrangean bound. A worker in a
    group of s jobs takes at least 1/s of a GPU, so with M GPUs and a price t >= 0 for one, no plan
    gains more than t M + sum over jobs of the largest G[s] - t W / s (0 if that is negative and the
    job may wait), where G[s] is the job's best gain in groups of s jobs or more and W its workers.
    *Power*: the least that the GPUs in use can draw (if the objective needs it).
    """
    best = best_gains(groups)
    possible = np.isfinite(best).any(axis=1)
    return Score(
        weight=float(groups.values.weight[possible].sum()),
        gain=_lagrangean_bound(groups.round, best[possible], np.flatnonzero(possible)),
        power_w=_least_power(groups) if groups.values.ratio else np.nan,
    )


def best_gains(groups: Groups) -> Floats:
    """Return G[j, s - 1]: the best gain of job j in groups of s or more; -inf for none."""
    best = np.full((len(groups.round), int(groups.sizes.max(initial=1))), -np.inf)
    size = groups.sizes[groups.group_of_member]
    # Each job has its part of a group's value; a gang has the parts of all its workers.
    part = groups.value[groups.group_of_member] / size * groups.round.jobs.workers[groups.job]
    np.maximum.at(best, (groups.job, size - 1), groups.gain + part)
    best = best[groups.kinds.first] - groups.kinds.less[:, None]
    return np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]


def gain_ceiling(values: JobValues) -> float:
    """Return a bound on the gain of every choice from slowdowns alone, without listing groups.

    This is the Lagrangean bound of ``ceiling`` if every job has the least slowdown of its workload
    with any co-runners of that number.
    """
    compiled = values.round
    least = _least_slowdowns(compiled)
    if values.grouped:
        # Once the others have ended, each may be as fast as alone at any share.
        alone = compiled.least_alone[:, None]
        for model, slowdown in least.items():
            fastest = np.minimum.accumulate(np.minimum(slowdown, alone), axis=1)
            least[model] = np.where(np.isfinite(slowdown), fastest, np.inf)
    best = np.full((len(compiled), compiled.machines.rules.max_jobs_per_gpu), -np.inf)
    for model, slowdown in least.items():
        for column in range(best.shape[1]):
            known = np.flatnonzero(np.isfinite(slowdown[:, column]))
            gain = values.gain(known, slowdown[known, column], model)
            best[known, column] = np.maximum(best[known, column], gain)
    best = np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]
    running = compiled.jobs.running
    best[running] = best[running].max(axis=1, keepdims=True)
    possible = np.isfinite(best).any(axis=1)
    return _lagrangean_bound(compiled, best[possible], np.flatnonzero(possible))


def _least_slowdowns(compiled: Round) -> dict[str, Floats]:
    """Return by model the least slowdown of each job in groups of 1, 2, ..., inf for none.

    Running jobs keep their slowdowns, which may differ from those of all other jobs.
    """
    slowdown_factor = np.array(
        [min(v.slowdown_factor for v in variants) for variants in compiled.variants]
    )
    alone = np.array(
        [
            min(
                slowdown
                for variant in variants
                for share in compiled.shares_alone
                if (slowdown := compiled.alone(variant, share)) is not None
            )
            for variants in compiled.variants
        ]
    )
    for gpu_class in compiled.classes:
        if gpu_class.residents:
            kept = resident_slowdowns(compiled, gpu_class.gpus[0])
            for resident, slowdown in zip(gpu_class.residents, kept, strict=True):
                job = resident.variant.job
                alone[job] = min(alone[job], slowdown)
    found = {}
    for model in compiled.models:
        least = compiled.slowdowns.least_slowdowns(model)[compiled.jobs.workload]
        found[model] = least * slowdown_factor[:, None]
        found[model][:, 0] = np.minimum(found[model][:, 0], alone)
    return found


def _lagrangean_bound(compiled: Round, best: Floats, job: Ints) -> float:
    jobs = compiled.jobs
    gpus, running = int(compiled.class_sizes.sum()), jobs.running[job]
    workers = jobs.workers[job].astype(np.float64)
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
    """Return the least power of the GPUs with residents, or of one GPU if there are none."""
    compiled = groups.round
    least = np.full(len(compiled.classes), np.inf)
    np.minimum.at(least, groups.gpu_class, groups.power_w)
    held = np.where(compiled.class_residents > 0, compiled.class_sizes, 0)
    if held.any():
        return float((least[held > 0] * held[held > 0]).sum())
    return float(least.min(initial=np.inf))
