"""Throughput per watt of the split that Dovetail chooses, of the equal split and of the best.

The test follows the energy paper (Han et al., section 5): models are fitted without the data of one
workload, the split of each of its pairs is chosen by predicted slowdowns and power only, and its
value is taken from the measurements. Power is predicted by the paper's trees. The choice is a
plan of ``dovetail.solve`` under the objective ``energy`` for two jobs and one GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail import Instance, solve
from dovetail.instances.datasets import DataSet, Measurement
from dovetail.papers.predictors.sm_allocation import POWER_FEATURES, total_rows, totals
from dovetail.papers.studies.evaluation import Trial
from dovetail.predictors.fitted.folds import Fold
from dovetail.predictors.fitted.rows import measured_pairs

EQUAL: Final = (50, 50)

Caps = tuple[int | None, int | None]
FloatArray = NDArray[np.float64]


class Value(NamedTuple):
    """Slowdowns and power of two workloads at a split, predicted or measured."""

    slowdown: tuple[float, float]
    power_w: float

    def per_watt(self, weight: tuple[float, float]) -> float:
        """Return the weighted sum of both speeds over the power."""
        speed = sum(w / s for w, s in zip(weight, self.slowdown, strict=True))
        return speed / self.power_w


class Choice(NamedTuple):
    """A pair with one workload left out; throughput per watt is relative to the best split's."""

    pair: tuple[str, str]
    chosen: Caps
    best: Caps
    of_best: float
    equal_of_best: float

    @property
    def over_equal(self) -> float:
        """Relative gain over the equal split."""
        return self.of_best / self.equal_of_best - 1


def choices(data: DataSet, tried: Trial, *, by_throughput: bool, uncapped: bool) -> list[Choice]:
    """Return the choice for every pair, by predictions without one of its workloads.

    Pairs without power, or not measured at the equal split, are left out.

    Parameters
    ----------
    data : DataSet
        Measurements on one GPU model.
    tried : Trial
        Held-out predictions of slowdowns, with workloads or families left out.
    by_throughput : bool
        Whether jobs count by iterations per second, as in the paper, where a workload of many short
        iterations outweighs the other; otherwise by their speed relative to that alone.
    uncapped : bool
        Whether running without shares is a choice, too; the paper has splits only.
    """
    (gpu_model,) = {found.gpu_model for found in measured_pairs(data)}
    profiles, measured = data.workloads(gpu_model), _values(data)
    found = []
    for predicted in _predicted(data, tried):
        for pair, at_caps in predicted.items():
            open_to = {
                caps: value
                for caps, value in at_caps.items()
                if caps in measured.get(pair, {}) and (uncapped or None not in caps)
            }
            if EQUAL not in open_to or any(profiles[name].power_w is None for name in pair):
                continue
            weight = (1.0, 1.0)
            if by_throughput:
                weight = tuple(profiles[name].throughput[100] for name in pair)
            caps = _solved(gpu_model, pair, weight, profiles, open_to)
            worth = {each: measured[pair][each].per_watt(weight) for each in open_to}
            best = max(worth, key=worth.__getitem__)
            most = worth[best]
            found.append(Choice(pair, caps, best, worth[caps] / most, worth[EQUAL] / most))
    return found


def by_pair(found: Sequence[Choice]) -> dict[tuple[str, str], list[Choice]]:
    """Return the choices for each pair, one for each workload left out."""
    grouped = defaultdict(list)
    for one in found:
        grouped[one.pair].append(one)
    return dict(grouped)


def mean_of_pairs(found: Sequence[Choice], name: str) -> float:
    """Return the mean over pairs of the mean over a pair's choices."""
    return fmean(fmean(getattr(one, name) for one in tests) for tests in by_pair(found).values())


_Values = dict[tuple[str, str], dict[Caps, Value]]


def _values(data: DataSet) -> _Values:
    """Return the measured values, as means over repeats."""
    pairs = measured_pairs(data)
    seen = defaultdict(lambda: defaultdict(list))
    for one in pairs:
        if one.power_w is not None:
            pair, caps, slowdown = _sorted(one, one.slowdown)
            seen[pair][caps].append((slowdown, one.power_w))
    return _means(seen)


def _predicted(data: DataSet, tried: Trial) -> Iterator[_Values]:
    """Yield for each fold the predictions of the pairs that it left out."""
    pairs = measured_pairs(data)
    _, rows = total_rows(data, POWER_FEATURES)
    for at, fold in enumerate(tried.folds):
        power = _held_out_power(rows.table, rows.power_w, fold)
        of_fold = tried.held.fold == at
        slowdown = np.full(len(tried.rows.slowdown), np.nan)
        slowdown[tried.held.row[of_fold]] = tried.held.slowdown[of_fold]
        seen = defaultdict(lambda: defaultdict(list))
        for k in np.flatnonzero(fold.test[: len(pairs)]).tolist():
            both = (float(slowdown[k]), float(slowdown[k + len(pairs)]))
            if not np.isnan([*both, power[k]]).any():
                pair, caps, ordered = _sorted(pairs[k], both)
                seen[pair][caps].append((ordered, float(power[k])))
        yield _means(seen)


def _held_out_power(table: FloatArray, power_w: FloatArray, fold: Fold) -> FloatArray:
    """Return the predicted power of each pair; all NaN if no power was measured."""
    count = len(power_w)
    train = fold.train[:count] & ~np.isnan(power_w)
    if not train.any():
        return np.full(count, np.nan)
    return np.asarray(totals(0).fit(table[train], power_w[train]).predict(table))


def _sorted(
    one: Measurement, slowdown: tuple[float, float]
) -> tuple[tuple[str, str], Caps, tuple[float, float]]:
    """Return a pair in sorted order."""
    ends = zip(one.workloads, one.shares, slowdown, strict=True)
    (a, cap_a, slow_a), (b, cap_b, slow_b) = sorted(ends, key=lambda end: (end[0], end[1] or 0))
    return (a, b), (cap_a, cap_b), (slow_a, slow_b)


def _means(
    seen: Mapping[tuple[str, str], Mapping[Caps, Sequence[tuple[tuple[float, float], float]]]],
) -> _Values:
    return {
        pair: {caps: _mean(pair, caps, values) for caps, values in at_caps.items()}
        for pair, at_caps in seen.items()
    }


def _mean(
    pair: tuple[str, str], caps: Caps, values: Sequence[tuple[tuple[float, float], float]]
) -> Value:
    first, second = (fmean(slowdown[side] for slowdown, _ in values) for side in (0, 1))
    if pair[0] == pair[1] and caps[0] == caps[1]:
        first = second = (first + second) / 2
    return Value((first, second), fmean(power for _, power in values))


def _solved(
    gpu_model: str,
    pair: tuple[str, str],
    weight: tuple[float, float],
    profiles: Mapping[str, object],
    at_caps: Mapping[Caps, Value],
) -> Caps:
    """Return the shares of the plan with the highest throughput per watt."""
    caps = [each for each in at_caps if None not in each]
    instance = Instance.from_data(
        {
            "name": " + ".join(pair),
            "cluster": {
                "shares": sorted({share for each in caps for share in each}),
                "share_sum": max(sum(each) for each in caps),
                "nodes": [
                    {"id": "n", "gpus": [{"id": "g", "model": gpu_model, "memory_mib": 1.0}]}
                ],
            },
            "workloads": {
                name: {"memory_mib": 0.0, "power_w": profiles[name].power_w} for name in pair
            },
            "jobs": [
                {"id": "ab"[side], "workload": pair[side], "weight": weight[side]}
                for side in (0, 1)
            ],
            "slowdowns": [
                {
                    "pair": pair,
                    "share": None if each == (None, None) else each,
                    "slowdown": value.slowdown,
                    "power_w": value.power_w,
                }
                for each, value in at_caps.items()
            ],
        }
    )
    shares = {one.job: one.shares[0] for one in solve(instance, "energy").plan.assignments}
    chosen = (shares["a"], shares["b"])
    return chosen if chosen in at_caps else chosen[::-1]
