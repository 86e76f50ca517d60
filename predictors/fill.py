"""Fill an instance with predicted slowdowns where it has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from dovetail.instances.errors import UnsupportedError
from dovetail.instances.instance import Cluster, Instance, SlowdownEntry, Workload
from dovetail.predictors.analytic import AnalyticPredictor
from dovetail.predictors.predictor import UNCAPPED, FloatArray, Prediction, Predictor

PREDICTORS: Mapping[str, Callable[[], Predictor]] = {"analytic": AnalyticPredictor}
"""The predictors that a name stands for, with their default parameters."""

_Shares = tuple[int, int]
_Members = tuple[tuple[str, int], ...]


def predict(instance: Instance, predictor: str | Predictor = "analytic") -> Instance:
    """Return the instance with an entry for every pair of its jobs that can be predicted.

    The combinations are those that ``dovetail-instance/1`` allows to start: any two
    workloads that two jobs of the instance run, uncapped and at every two allowed caps that
    sum to ``share_sum``. Entries that exist stay as they are, ``slowdown: null`` among them.
    New ones hold for every GPU model; none is made where each model has its own. Numbers are
    rounded upward to 1/10,000. Sets of three or more are left out, and so is ``power_w``:
    solo power does not tell what the idle GPU takes, which two jobs pay once.

    Parameters
    ----------
    instance : Instance
        The problem; workloads without the needed metrics are passed over, see ``missing``.
    predictor : str or Predictor
        A name in ``PREDICTORS``, or any predictor.

    Raises
    ------
    UnsupportedError
        When no predictor has this name.
    """
    model = _chosen(predictor)
    known = {name: w for name, w in _used(instance).items() if not model.lacks(name, w)}
    rows = list(_unknown_rows(instance, known))
    if not rows:
        return instance
    position = {name: k for k, name in enumerate(known)}
    pairs = np.array([[position[name] for name in row.pair] for row in rows], dtype=np.int64)
    shares = np.array([row.shares for row in rows], dtype=np.int64)
    prediction = model.predict(known, pairs, shares)
    return instance.replace(slowdowns=(*instance.slowdowns, *_entries(rows, prediction)))


def missing(
    instance: Instance, predictor: str | Predictor = "analytic"
) -> Mapping[str, tuple[str, ...]]:
    """Return the workloads whose pairs stay unknown, with the metrics that each lacks.

    Only workloads that jobs of the instance run are named, in the order of the file.

    Parameters
    ----------
    instance : Instance
        The problem.
    predictor : str or Predictor
        A name in ``PREDICTORS``, or any predictor.

    Raises
    ------
    UnsupportedError
        When no predictor has this name.
    """
    model = _chosen(predictor)
    lacks = {name: model.lacks(name, workload) for name, workload in _used(instance).items()}
    return {name: metrics for name, metrics in lacks.items() if metrics}


class _Row(NamedTuple):
    pair: tuple[str, str]
    shares: _Shares


def _chosen(predictor: str | Predictor) -> Predictor:
    if not isinstance(predictor, str):
        return predictor
    if predictor not in PREDICTORS:
        known = ", ".join(PREDICTORS)
        raise UnsupportedError(f"predictor must be one of {known}, got {predictor!r}")
    return PREDICTORS[predictor]()


def _used(instance: Instance) -> dict[str, Workload]:
    """Return the workloads that jobs run, in the order of the file."""
    names = {job.workload for job in instance.jobs}
    return {name: w for name, w in instance.workloads.items() if name in names}


def _unknown_rows(instance: Instance, known: Mapping[str, object]) -> Iterator[_Row]:
    settled = _settled(instance)
    splits = _splits(instance.cluster)
    for pair in _pairs(instance, known):
        for shares in splits:
            mirror_of_earlier = pair[0] == pair[1] and shares[0] > shares[1]
            if not mirror_of_earlier and _members(pair, shares) not in settled:
                yield _Row(pair, shares)


def _pairs(instance: Instance, known: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of workloads that two different jobs can make."""
    jobs = Counter(job.workload for job in instance.jobs)
    for first, second in combinations_with_replacement(known, 2):
        if first != second or jobs[first] > 1:
            yield first, second


def _splits(cluster: Cluster) -> list[_Shares]:
    """Return the shares of two jobs that the format allows: none, or caps that sum up."""
    allowed = sorted(cluster.shares)
    pairs = [(p, cluster.share_sum - p) for p in allowed if cluster.share_sum - p in allowed]
    return [(UNCAPPED, UNCAPPED), *pairs]


def _settled(instance: Instance) -> set[_Members]:
    """Return the combinations that need no entry: known for every GPU model of the cluster."""
    models: dict[_Members, set[str | None]] = {}
    for entry in instance.slowdowns:
        model, members = entry.key
        models.setdefault(members, set()).add(model)
    present = {place.gpu.model for place in instance.places.values()}
    return {key for key, known in models.items() if None in known or present <= known}


def _members(pair: tuple[str, str], shares: _Shares) -> _Members:
    return tuple(sorted(zip(pair, shares, strict=True)))


def _entries(rows: list[_Row], prediction: Prediction) -> Iterator[SlowdownEntry]:
    slowdown = _rounded_up(prediction.slowdown)
    upper = None if prediction.upper is None else _rounded_up(prediction.upper)
    for k in np.flatnonzero(~np.isnan(slowdown).any(axis=1)).tolist():
        row = rows[k]
        yield SlowdownEntry(
            pair=row.pair,
            share=None if row.shares == (UNCAPPED, UNCAPPED) else row.shares,
            slowdown=tuple(slowdown[k].tolist()),
            upper=None if upper is None else tuple(upper[k].tolist()),
        )


def _rounded_up(values: FloatArray) -> FloatArray:
    # The inner rounding keeps 1.3 at 1.3 when the sum came out as 1.3000000000000003.
    return np.divide(np.ceil(np.round(values * 1e4, 3)), 1e4)
