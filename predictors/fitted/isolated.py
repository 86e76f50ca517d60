"""Isolated pairs: as they were measured, or estimated by how much the measured ones differ.

Where a model's data have isolated pairs of a GPU model, they come first. Another pair is estimated
by `isolated_slowdowns`, from published means, times the geometric mean of measured / estimated over
the measured pairs. Its bound follows from their scatter, by Student's t distribution for one more
pair. Pairs that have a job in common are not independent, so where all are of one service the bound
is narrower than it should be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, harmonic_mean, stdev
from typing import Final, NamedTuple

import numpy as np

from dovetail.instances._record import IDLE
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.instances.slowdowns.isolated import (
    BEHIND,
    isolated_entries,
    isolated_entry,
    isolated_estimate,
    isolated_slowdowns,
    unknown_isolated,
)
from dovetail.predictors._set_entries import rounded_up
from dovetail.predictors.fitted.evidence import Evidence
from dovetail.predictors.fitted.repeats import Repeats, repeats_of, t_quantile
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.predictors.predictor import Predictor

LEAST: Final = 3
"""Fewest measured pairs from which others are estimated; with fewer, published means are used."""

_FIRST, _BEHIND, _TAIL = range(3)
_Figures = tuple[list[float], list[float], list[float]]
"""Repeated slowdowns of the first, of the one behind, and growth of the first's p99."""


def isolated_pairs(
    instance: Instance, predictor: Predictor, gpu_models: Sequence[str | None]
) -> Iterator[SlowdownEntry]:
    """Yield an entry for each isolated pair of the instance that has none.

    Parameters
    ----------
    instance : Instance
        The problem.
    predictor : Predictor
        Its measured isolated pairs are used, if it keeps any.
    gpu_models : sequence of str or None
        The GPU models to predict for; None means all at once.
    """
    known: dict[str, _MeasuredPairs] = {}
    if isinstance(predictor, TrainedPredictor):
        for gpu_model in filter(None, gpu_models):
            evidence = predictor.fit(gpu_model).evidence
            if evidence is not None and (found := _measured(evidence)):
                known[gpu_model] = _MeasuredPairs(evidence, found, predictor)
    if not known:
        yield from isolated_entries(instance)
        return
    for gpu_model in filter(None, gpu_models):
        for first, behind in unknown_isolated(instance):
            if gpu_model in known:
                entry = known[gpu_model].entry(instance, first, behind)
            else:
                entry = isolated_entry(instance, first, behind)
            if entry is not None:
                yield entry.replace(gpu_model=gpu_model)


class _Factor(NamedTuple):
    """What an estimate is multiplied by, for its mean and for its upper bound."""

    mean: float
    upper: float


class _MeasuredPairs:
    """The isolated pairs of one GPU model that a predictor keeps."""

    def __init__(
        self,
        evidence: Evidence,
        measured: Mapping[tuple[str, str], _Figures],
        predictor: TrainedPredictor,
    ) -> None:
        self._evidence, self._measured, self._predictor = evidence, measured, predictor
        factors = [self._factor(which) for which in (_FIRST, _BEHIND, _TAIL)]
        self._first, self._behind, tail = factors
        self._tail = tail or self._first

    def entry(self, instance: Instance, first: str, behind: str) -> SlowdownEntry | None:
        """Return the entry of a pair; None without measurements and metrics."""
        found = self._measured.get((first, behind))
        if found is not None:
            return self._of_measured(instance, first, behind, found)
        workload = self._evidence.described(first, instance.workloads[first])
        usual = isolated_slowdowns(workload)
        if usual is None:
            return None
        if self._first is None or self._behind is None or self._tail is None:
            return isolated_estimate(instance, first, behind, usual)
        ahead, rest = usual
        upper = ahead * self._first.upper, rest * self._behind.upper
        return SlowdownEntry(
            pair=(first, behind),
            share=BEHIND,
            slowdown=_rounded(ahead * self._first.mean, rest * self._behind.mean),
            upper=_rounded(*upper),
            p99=_rounded(ahead * self._tail.upper, upper[1]),
            source="estimate",
            confidence=self._predictor.confidence,
            mode=instance.cluster.sharing,
        )

    def _of_measured(
        self, instance: Instance, first: str, behind: str, found: _Figures
    ) -> SlowdownEntry:
        ahead, rest = self._bounded(first, found[_FIRST]), self._bounded(behind, found[_BEHIND])
        fails = math.isnan(ahead.mean) or math.isnan(rest.mean)
        tail = self._bounded(first, found[_TAIL]).upper if found[_TAIL] else ahead.upper
        return SlowdownEntry(
            pair=(first, behind),
            share=BEHIND,
            slowdown=None if fails else _rounded(ahead.mean, rest.mean),
            upper=None if fails else _rounded(ahead.upper, rest.upper),
            p99=None if fails else _rounded(tail, rest.upper),
            source="measured",
            confidence=None if fails else self._predictor.confidence,
            mode=instance.cluster.sharing,
        )

    def _bounded(self, workload: str, repeated: Sequence[float]) -> Repeats:
        workers = self._predictor.workers.get(workload, 1)
        return repeats_of(repeated, 1 - (1 - self._predictor.confidence) / workers)

    def _factor(self, which: int) -> _Factor | None:
        """Return measured / estimated over all measured pairs; None if they are too few."""
        logs = []
        for (first, _), figures in self._measured.items():
            profile = self._evidence.profiles.get(first)
            usual = None if profile is None else isolated_slowdowns(profile)
            repeated = [value for value in figures[which] if not math.isnan(value)]
            if usual is not None and repeated:
                logs.append(math.log(harmonic_mean(repeated) / usual[which == _BEHIND]))
        if len(logs) < LEAST:
            return None
        mean, count = fmean(logs), len(logs)
        quantile = max(0.0, t_quantile(count - 1, self._predictor.confidence))
        wide = quantile * stdev(logs) * math.sqrt(1 + 1 / count)
        return _Factor(math.exp(mean), math.exp(mean + wide))


def _measured(evidence: Evidence) -> Mapping[tuple[str, str], _Figures]:
    """Return the measured isolated pairs, each as its first and the one behind it."""
    found: dict[tuple[str, str], _Figures] = {}
    for one in evidence.data.measurements:
        if len(one.workloads) != 2 or set(one.shares) != set(BEHIND):
            continue
        behind = one.shares.index(IDLE)
        pair = one.workloads[1 - behind], one.workloads[behind]
        figures = found.setdefault(pair, ([], [], []))
        slowdown = one.slowdown or (math.nan, math.nan)
        figures[_FIRST].append(slowdown[1 - behind])
        figures[_BEHIND].append(slowdown[behind])
        if one.p99 is not None and (tail := one.p99[1 - behind]) is not None:
            figures[_TAIL].append(tail)
    return found


def _rounded(ahead: float, behind: float) -> tuple[float, float]:
    first, second = rounded_up(np.array([ahead, behind])).tolist()
    return first, second
