"""Isolated pairs: as they were measured, or estimated by how much the measured ones differ.

Where a model's data have isolated pairs of a GPU model, they come first. Another pair is estimated
by `isolated_slowdowns`, from published means, times the geometric mean of measured / estimated over
the measured pairs. Its bound follows from their scatter, which is at least that of repeats, by
Student's t distribution for one more pair. Pairs that have a job in common are not independent, so
where all are of one service the bound is narrower than it should be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, harmonic_mean, stdev
from typing import Final, NamedTuple

import numpy as np

from dovetail.instances._record import IDLE
from dovetail.instances.datasets.records import Measurement
from dovetail.instances.instance import Instance, Workload
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
from dovetail.predictors.fitted.repeats import SPREAD, Repeats, repeats_of, t_quantile
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.predictors.predictor import Predictor

LEAST: Final = 3
"""Fewest measured pairs from which others are estimated; with fewer, published means are used."""


class IsolatedFigures(NamedTuple):
    """Repeated measurements of an isolated pair; NaN where the two failed to run together.

    Attributes
    ----------
    first, behind : list of float
        Slowdowns of the first and of the one in its idle time.
    tail : list of float
        Growth of the 99th percentile of the first's latency, as far as it was measured.
    """

    first: list[float]
    behind: list[float]
    tail: list[float]


Measured = Mapping[tuple[str, str], IsolatedFigures]
"""Isolated pairs, each as its first and the one behind it."""

Each = tuple[float, float]
"""A figure of the first, and of the one behind it."""


class Factor(NamedTuple):
    """What an estimate is multiplied by, for its mean and for its upper bound."""

    mean: float
    upper: float


class IsolatedFactors(NamedTuple):
    """How much measured isolated pairs differ from their estimates."""

    first: Factor
    behind: Factor
    tail: Factor

    def applied(self, usual: Each) -> tuple[Each, Each, Each]:
        """Return slowdowns, upper bounds, and bounds of the p99, from estimated slowdowns."""
        first, behind = usual
        upper = first * self.first.upper, behind * self.behind.upper
        mean = first * self.first.mean, behind * self.behind.mean
        return mean, upper, (first * self.tail.upper, upper[1])


def measured_isolated(measurements: Iterable[Measurement]) -> Measured:
    """Return the isolated pairs among measurements, which are of one GPU model and mode."""
    found: dict[tuple[str, str], IsolatedFigures] = {}
    for one in measurements:
        if len(one.workloads) != 2 or set(one.shares) != set(BEHIND):
            continue
        behind = one.shares.index(IDLE)
        pair = one.workloads[1 - behind], one.workloads[behind]
        figures = found.setdefault(pair, IsolatedFigures([], [], []))
        slowdown = one.slowdown or (math.nan, math.nan)
        figures.first.append(slowdown[1 - behind])
        figures.behind.append(slowdown[behind])
        if one.p99 is not None and (tail := one.p99[1 - behind]) is not None:
            figures.tail.append(tail)
    return found


def isolated_factors(
    measured: Measured, profiles: Mapping[str, Workload], confidence: float
) -> IsolatedFactors | None:
    """Return how much measured pairs differ from their estimates; None if they are too few.

    Parameters
    ----------
    measured : mapping
        The measured pairs.
    profiles : mapping of str to Workload
        The workloads as profiled alone.
    confidence : float
        The probability that one more pair stays within its bound.
    """
    logs: tuple[list[float], list[float], list[float]] = ([], [], [])
    for (name, _), figures in measured.items():
        usual = isolated_slowdowns(profiles[name]) if name in profiles else None
        if usual is None:
            continue
        for found, repeated, expected in zip(logs, figures, (*usual, usual[0]), strict=True):
            known = [value for value in repeated if not math.isnan(value)]
            if known:
                found.append(math.log(harmonic_mean(known) / expected))
    first, behind, tail = (_factor(found, confidence) for found in logs)
    if first is None or behind is None:
        return None
    return IsolatedFactors(first, behind, tail or first)


def _factor(logs: Sequence[float], confidence: float) -> Factor | None:
    if len(logs) < LEAST:
        return None
    mean, count = fmean(logs), len(logs)
    quantile = max(0.0, t_quantile(count - 1, confidence))
    wide = quantile * max(SPREAD, stdev(logs)) * math.sqrt(1 + 1 / count)
    return Factor(math.exp(mean), math.exp(mean + wide))


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
            if evidence is None:
                continue
            if found := measured_isolated(evidence.data.measurements):
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


class _MeasuredPairs:
    """The isolated pairs of one GPU model that a predictor keeps."""

    def __init__(self, evidence: Evidence, measured: Measured, predictor: TrainedPredictor) -> None:
        self._evidence, self._measured, self._predictor = evidence, measured, predictor
        self._factors = isolated_factors(measured, evidence.profiles, predictor.confidence)

    def entry(self, instance: Instance, first: str, behind: str) -> SlowdownEntry | None:
        """Return the entry of a pair; None without measurements and metrics."""
        found = self._measured.get((first, behind))
        if found is not None:
            return self._of_measured(instance, first, behind, found)
        workload = self._evidence.described(first, instance.workloads[first])
        usual = isolated_slowdowns(workload)
        if usual is None:
            return None
        if self._factors is None:
            return isolated_estimate(instance, first, behind, usual)
        slowdown, upper, p99 = map(_rounded, self._factors.applied(usual))
        return SlowdownEntry(
            pair=(first, behind),
            share=BEHIND,
            slowdown=slowdown,
            upper=upper,
            p99=p99,
            source="estimate",
            confidence=self._predictor.confidence,
            mode=instance.cluster.sharing,
        )

    def _of_measured(
        self, instance: Instance, first: str, behind: str, found: IsolatedFigures
    ) -> SlowdownEntry:
        ahead, rest = self._bounded(first, found.first), self._bounded(behind, found.behind)
        fails = math.isnan(ahead.mean) or math.isnan(rest.mean)
        tail = self._bounded(first, found.tail).upper if found.tail else ahead.upper
        return SlowdownEntry(
            pair=(first, behind),
            share=BEHIND,
            slowdown=None if fails else _rounded((ahead.mean, rest.mean)),
            upper=None if fails else _rounded((ahead.upper, rest.upper)),
            p99=None if fails else _rounded((tail, rest.upper)),
            source="measured",
            confidence=None if fails else self._predictor.confidence,
            mode=instance.cluster.sharing,
        )

    def _bounded(self, workload: str, repeated: Sequence[float]) -> Repeats:
        workers = self._predictor.workers.get(workload, 1)
        return repeats_of(repeated, 1 - (1 - self._predictor.confidence) / workers)


def _rounded(figures: Each) -> Each:
    first, behind = rounded_up(np.array(figures)).tolist()
    return first, behind
