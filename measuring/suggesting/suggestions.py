"""The pairs to measure next: those whose true slowdowns are worth most to the plan.

Beliefs come from ``predictors.fitted.posterior``, the worth of a measurement from
``knowledge_gradient``. Several suggestions are chosen one after the other, each as if the earlier
pairs had been measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist, harmonic_mean
from types import MappingProxyType
from typing import Final, NamedTuple, Self

import numpy as np

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.rounds import Round
from dovetail.formulations.rules import room_mib
from dovetail.instances._record import IDLE
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.slowdowns.slowdown_table import Caps
from dovetail.measuring.suggesting.knowledge_gradient import (
    BestPlan,
    SharingGains,
    effects,
    knowledge_gradient,
)
from dovetail.predictors.features import Features
from dovetail.predictors.fitted.posterior import JobsWithCoRunners, Moments, Posterior
from dovetail.predictors.fitted.rows import UNPROFILED, training_rows
from dovetail.predictors.forms.hierarchy import FEATURES, Hierarchy
from dovetail.predictors.predictor import cap_of

CONFIDENCE: Final = 0.9
"""Confidence of the bounds that gSLAs limit before a pair is measured."""

_QUANTILE: Final = NormalDist().inv_cdf(CONFIDENCE)

_MOST_PAIRS: Final = 1500
"""Most pairs (each at a split) to consider: those nearest to the plan."""


class QueuedGang(NamedTuple):
    """A waiting job.

    Attributes
    ----------
    workload : str
        Its workload.
    weight, gsla : float
        As in an instance; a gSLA of inf means none.
    workers : int
        Number of GPUs that it takes.
    memory_mib : float
        Memory that a worker needs.
    """

    workload: str
    weight: float = 1.0
    gsla: float = np.inf
    workers: int = 1
    memory_mib: float = 0.0


class SuggestionRound(NamedTuple):
    """The jobs and GPUs of the plan.

    Attributes
    ----------
    jobs : tuple of QueuedGang
        The jobs, all of them waiting.
    gpus : int
        Number of GPUs of the model.
    room_mib : float
        Memory that the jobs on one GPU may need together.
    workloads : mapping of str to Workload
        Records of workloads that may have no profile in the data.
    """

    jobs: tuple[QueuedGang, ...]
    gpus: int
    room_mib: float = np.inf
    workloads: Mapping[str, Workload] = MappingProxyType({})

    @classmethod
    def of_data(cls, data: DataSet, gpu_model: str) -> Self:
        """Return one job of every workload with data on a GPU model, two for each GPU."""
        measured = (m.workloads for m in data.measurements if m.gpu_model == gpu_model)
        profiled = data.workloads(gpu_model)
        names = dict.fromkeys([*profiled, *(name for names in measured for name in names)])
        return cls(tuple(map(QueuedGang, names)), (len(names) + 1) // 2)

    @classmethod
    def of_instance(cls, instance: Instance, gpu_model: str) -> Self:
        """Return the jobs of an instance, as if none ran, and its GPUs of a model.

        Raises
        ------
        InputError
            When it has no such GPU.
        """
        found = [place.gpu for place in instance.places.values() if place.gpu.model == gpu_model]
        if not found:
            raise InputError(f"must have a GPU of model {gpu_model!r}", "cluster", instance.name)
        compiled = Round.of(instance)
        of_model = compiled.classes.model == compiled.models.index(gpu_model)
        offered = compiled.classes.memory_mib[of_model].min(keepdims=True)
        need = compiled.variants.need_mib(np.arange(len(compiled.variants))[None], offered)[0]
        least = np.minimum.reduceat(need, compiled.first_variant[:-1])
        jobs = tuple(
            QueuedGang(
                job.workload,
                job.weight,
                np.inf if job.gsla is None else job.gsla,
                job.workers,
                memory,
            )
            for job, memory in zip(instance.jobs, least.tolist(), strict=True)
        )
        return cls(jobs, len(found), room_mib(float(offered[0])), instance.workloads)


class Suggestion(NamedTuple):
    """A pair to measure.

    Attributes
    ----------
    workloads : (str, str)
        The two workloads.
    shares : (int or None, int or None)
        Their shares; None for none.
    slowdown, error : (float, float)
        The believed slowdown of each, and its relative standard error.
    worth : float
        Expected improvement of the best plan, as a fraction of its value.
    """

    workloads: tuple[str, str]
    shares: Caps
    slowdown: tuple[float, float]
    error: tuple[float, float]
    worth: float


def suggestions(
    data: DataSet, gpu_model: str, like: Hierarchy, pool: SuggestionRound, count: int
) -> list[Suggestion]:
    """Return the pairs to measure next, the most valuable first.

    Parameters
    ----------
    data : DataSet
        All measurements; pairs may have any split that a measured pair had.
    gpu_model : str
        Model of the GPU.
    like : Hierarchy
        The fitted process.
    pool : SuggestionRound
        The jobs and GPUs of the plan.
    count : int
        Number of pairs; fewer are returned if no more would change the plan.
    """
    choice = _OpenPairs.of(data, gpu_model, like, pool)
    found: list[Suggestion] = []
    while len(found) < count and (best := choice.best()) is not None:
        found.append(choice.suggestion(*best))
        choice = choice.without(best[0])
    return found


@dataclass(frozen=True)
class _OpenPairs:
    """The pairs that may share, the beliefs about them, and the pairs that could be measured.

    Attributes
    ----------
    sharing : SharingGains
        The jobs and pairs.
    moments : Moments
        The beliefs.
    workloads : tuple of str
        The names of the workloads.
    states : (m, 4) int
        For each belief: the own workload, its cap, the co-runner and its cap.
    open : (c, 2) int
        The beliefs about each pair that was not measured.
    """

    sharing: SharingGains
    moments: Moments
    workloads: tuple[str, ...]
    states: Ints
    open: Ints

    @classmethod
    def of(cls, data: DataSet, gpu_model: str, like: Hierarchy, pool: SuggestionRound) -> Self:
        """Return the beliefs about the jobs of a pool, given all measurements."""
        features, rows = training_rows(data, FEATURES, [gpu_model], partial=True)
        seen = JobsWithCoRunners(rows.states, rows.own, rows.other)
        posterior = Posterior.of(like, seen, rows.slowdown)
        results = _results(data, gpu_model)
        names = tuple(dict.fromkeys(job.workload for job in pool.jobs))
        sharing, states = _sharing(pool, names, results)
        workloads = {**pool.workloads, **data.workloads(gpu_model)}
        asked = _asked(_with(features, data, names), workloads, names, states)
        if len(sharing.first) > _MOST_PAIRS:
            mean, variance = posterior.each(asked)
            kept, cells = _nearest(sharing, mean, variance + like.noise[0])
            states, sharing = states[cells], kept
            asked = asked._replace(own=asked.own[cells], other=asked.other[cells])
        known = [results.get(_key(names, state), ()) for state in states.tolist()]
        measured = np.flatnonzero([len(values) for values in known])
        slowdown = np.array([harmonic_mean(known[k]) for k in measured])
        moments = posterior.moments(asked).of_truth(measured, slowdown)
        ends = np.sort(np.stack([sharing.mine, sharing.theirs], axis=1), axis=1)
        ends = np.unique(ends, axis=0)
        open_ = ends[~np.isin(ends, measured).any(axis=1)]
        return cls(sharing, moments, names, states, open_)

    def best(self) -> tuple[int, float] | None:
        """Return the most valuable pair, and its worth over that of the plan; None if none is."""
        if not len(self.open):
            return None
        plan = BestPlan.of(self.sharing, self._worth)
        value = knowledge_gradient(self.sharing, *self.moments, self._upper, self.open)
        best = int(np.argmax(value))
        return (best, float(value[best]) / plan.value) if value[best] > 0 else None

    def suggestion(self, which: int, worth: float) -> Suggestion:
        """Return a pair as a suggestion."""
        ends = self.open[which]
        own, cap, other, its_cap = self.states[ends[0]].tolist()
        slowdown, error = np.exp(self.moments.mean[ends]), self._error[ends]
        return Suggestion(
            (self.workloads[own], self.workloads[other]),
            (cap or None, its_cap or None),
            (float(slowdown[0]), float(slowdown[1])),
            (float(error[0]), float(error[1])),
            worth,
        )

    def without(self, which: int) -> _OpenPairs:
        """Return the choice as if a pair had been measured."""
        effect = effects(self.moments.covariance, 0.0, self.open[which])
        covariance = self.moments.covariance - effect @ effect.T
        moments = self.moments._replace(covariance=covariance)
        return replace(self, moments=moments, open=np.delete(self.open, which, axis=0))

    @property
    def _error(self) -> Floats:
        return np.sqrt(np.maximum(np.diag(self.moments.covariance), 0.0))

    @property
    def _upper(self) -> Floats:
        return np.asarray(np.exp(self.moments.mean + _QUANTILE * self._error))

    @property
    def _worth(self) -> Floats:
        worth = self.sharing.worth(self.moments.mean, self._error**2)
        return np.where(self.sharing.kept(self._upper), worth, -np.inf)


_Results = Mapping[tuple[str, int, str, int], Sequence[float]]


def _results(data: DataSet, gpu_model: str) -> _Results:
    """Return the slowdowns of each workload at its cap with another; NaN for a failed run."""
    found: dict[tuple[str, int, str, int], list[float]] = defaultdict(list)
    for one in data.measurements:
        if one.gpu_model == gpu_model and len(one.workloads) == 2 and IDLE not in one.shares:
            ends = [(n, cap_of(s)) for n, s in zip(one.workloads, one.shares, strict=True)]
            values = one.slowdown or (np.nan, np.nan)
            for (mine, theirs), value in zip((ends, ends[::-1]), values, strict=True):
                found[*mine, *theirs].append(value)
    return found


def _sharing(
    pool: SuggestionRound, names: Sequence[str], results: _Results
) -> tuple[SharingGains, Ints]:
    """Return which jobs may share at which splits, and the states of each belief, (m, 4)."""
    number = {name: k for k, name in enumerate(names)}
    splits = sorted({(x, y) for _, x, _, y in results})
    failed = {key for key, values in results.items() if np.isnan(values).any()}
    pairs, cells = [], []
    for (i, one), (j, other) in combinations(enumerate(pool.jobs), 2):
        if one.workers != other.workers or one.memory_mib + other.memory_mib > pool.room_mib:
            continue
        for x, y in splits:
            if (one.workload, x, other.workload, y) not in failed:
                a, b = number[one.workload], number[other.workload]
                pairs.append((i, j))
                cells += [(a, x, b, y), (b, y, a, x)]
    states, place = np.unique(np.array(cells).reshape(-1, 4), axis=0, return_inverse=True)
    first, second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    mine, theirs = place.reshape(-1, 2).T
    jobs = pool.jobs
    sharing = SharingGains(
        first=first,
        second=second,
        mine=mine,
        theirs=theirs,
        scale=np.array([job.weight for job in jobs]),
        alone=np.array([job.weight for job in jobs]),
        size=np.array([job.workers for job in jobs], dtype=np.int64),
        gpus=pool.gpus,
        gsla=np.array([job.gsla for job in jobs]),
    )
    return sharing, states


def _with(features: Features, data: DataSet, names: Sequence[str]) -> Features:
    """Return the features with numbers for workloads that were never measured, after all others.

    A workload without a number would be unlike any other, and unlike itself with another co-runner.
    """
    new = [name for name in names if name not in features.known]
    families = tuple(data.families.get(name, name) for name in new)
    return replace(
        features, known=(*features.known, *new), families=(*features.families, *families)
    )


def _asked(
    features: Features, profiled: Mapping[str, Workload], names: Sequence[str], states: Ints
) -> JobsWithCoRunners:
    """Return the pairs of the beliefs in the form that the process takes."""
    ends = np.concatenate([states[:, :2], states[:, 2:]])
    distinct, place = np.unique(ends, axis=0, return_inverse=True)
    workloads = {name: profiled.get(name, UNPROFILED) for name in names}
    own, other = place.reshape(2, -1)
    return JobsWithCoRunners(features.states(workloads, distinct[:, 0], distinct[:, 1]), own, other)


def _nearest(sharing: SharingGains, mean: Floats, variance: Floats) -> tuple[SharingGains, Ints]:
    """Return the pairs with the fewest standard errors outside the plan, and their beliefs."""
    worth = sharing.worth(mean, variance)
    upper = np.exp(mean + _QUANTILE * np.sqrt(variance))
    plan = BestPlan.of(sharing, np.where(sharing.kept(upper), worth, -np.inf))
    error = np.sqrt(variance[sharing.mine] + variance[sharing.theirs])
    kept = np.sort(np.argsort(plan.reduced(worth) / error, kind="stable")[:_MOST_PAIRS])
    ends = np.stack([sharing.mine[kept], sharing.theirs[kept]])
    cells, place = np.unique(ends, return_inverse=True)
    mine, theirs = place.reshape(2, -1)
    first, second = sharing.first[kept], sharing.second[kept]
    return replace(sharing, first=first, second=second, mine=mine, theirs=theirs), cells


def _key(names: Sequence[str], state: Sequence[int]) -> tuple[str, int, str, int]:
    own, cap, other, its_cap = state
    return names[own], cap, names[other], its_cap
