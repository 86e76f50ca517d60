"""Fill an instance with predicted slowdowns where it has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement, islice
from typing import Final, NamedTuple, TypeVar

import numpy as np

from dovetail.instances._record import listed
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.instance import Cluster, EntryKey, Instance, SlowdownEntry, Workload
from dovetail.predictors.analytic import AnalyticPredictor
from dovetail.predictors.predictor import (
    UNCAPPED,
    BoolArray,
    FloatArray,
    IntArray,
    Prediction,
    Predictor,
)
from dovetail.predictors.sets import LARGEST, set_slowdown
from dovetail.predictors.trained import TrainedPredictor

PREDICTORS: Mapping[str, Callable[[], Predictor]] = {"analytic": AnalyticPredictor}
"""The predictors that a name stands for, with their default parameters."""

MOST_ENTRIES: Final = 1_000_000
"""The most entries that are made at once; ``predict_table`` has no such limit."""

_LARGEST_SLOWDOWN = 1e15
_SETS_AT_ONCE = 4096
_T = TypeVar("_T")
_Shares = tuple[int, int]
_Members = tuple[tuple[str, int], ...]


def predict(
    instance: Instance,
    predictor: str | Predictor = "analytic",
    *,
    mixed: bool = False,
    sets: bool = False,
    confidence: float | None = None,
    previous: Instance | None = None,
) -> Instance:
    """Return the instance with an entry for every pair of its jobs that can be predicted.

    The combinations are those that ``dovetail-instance/1`` allows to start: any two
    workloads that two jobs of the instance run, uncapped and at every two allowed caps that
    sum to ``share_sum``. Entries that exist stay as they are, ``slowdown: null`` among them.
    A fitted predictor gives an entry for each GPU model of the cluster; those of others hold
    for every GPU model, and none is made where each model has its own. Numbers are rounded
    upward to 1/10,000.

    A fitted predictor also gives ``upper`` and, where it was fitted on power, ``power_w``. The
    bound of a workload is that of its largest gang, which feels the worst of its co-runners.

    Parameters
    ----------
    instance : Instance
        The problem; workloads without the needed metrics are passed over, see ``missing``.
    predictor : str or Predictor
        A name in ``PREDICTORS``, or any predictor.
    mixed : bool
        Also one uncapped workload beside a capped one, at every allowed cap.
    sets : bool
        Also sets of three to ``max_jobs_per_gpu`` workloads without caps, made from the entries
        of their pairs, measured or predicted, by ``set_slowdown``. Their ``upper`` is made of
        the pairs' upper bounds in the same way: the confidence is not one for sets.
    confidence : float, optional
        Of ``upper``, in (0, 1); default: the predictor's own.
    previous : Instance, optional
        What this function returned for an earlier round with the same predictor and options:
        entries of workloads that have not changed are taken from there.

    Raises
    ------
    InputError
        When the predictor was not fitted for a GPU model of the cluster, or more than
        ``MOST_ENTRIES`` would be needed.
    UnsupportedError
        When no predictor has this name, or one without bounds is asked for a confidence.
    """
    model = _adapted(_chosen(predictor), instance, confidence)
    known = {name: w for name, w in _used(instance).items() if not model.lacks(name, w)}
    gpu_models = _gpu_models(instance, model)
    rows = _limited(_unknown_rows(instance, known, gpu_models, mixed))
    carried = {} if previous is None else _carried(instance, previous)
    new = {key: entry for row in rows if (entry := carried.get(key := row.key)) is not None}
    new |= _predicted([row for row in rows if row.key not in new], model, known)
    in_order = (new[row.key] for row in rows if row.key in new)
    filled = instance.replace(slowdowns=(*instance.slowdowns, *in_order))
    if not sets:
        return filled
    of_sets = _limited(_set_entries(filled, gpu_models))
    return filled.replace(slowdowns=(*filled.slowdowns, *of_sets))


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
    gpu_model: str | None

    @property
    def key(self) -> EntryKey:
        return self.gpu_model, _members(self.pair, self.shares)


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


def _adapted(predictor: Predictor, instance: Instance, confidence: float | None) -> Predictor:
    """Return the predictor for the gangs of this instance, at the confidence."""
    bounded = isinstance(predictor, TrainedPredictor) and predictor.bounded
    if confidence is not None and not bounded:
        raise UnsupportedError("this model has no upper bounds, so it takes no confidence")
    if not isinstance(predictor, TrainedPredictor):
        return predictor
    chosen = predictor.confidence if confidence is None else confidence
    return replace(predictor, workers=_gang_sizes(instance), confidence=chosen)


def _gang_sizes(instance: Instance) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for job in instance.jobs:
        sizes[job.workload] = max(job.workers, sizes.get(job.workload, 1))
    return sizes


def _gpu_models(instance: Instance, predictor: Predictor) -> tuple[str | None, ...]:
    """Return the GPU models to predict for; None stands for all at once."""
    if not isinstance(predictor, TrainedPredictor):
        return (None,)
    present = tuple(dict.fromkeys(place.gpu.model for place in instance.places.values()))
    strange = [model for model in present if model not in predictor.fits]
    if strange:
        fitted = listed(predictor.gpu_models)
        rule = f"the predictor was fitted for {fitted} and not for {listed(strange)}"
        raise InputError(rule, "cluster.nodes")
    return present


def _limited(things: Iterable[_T]) -> list[_T]:
    found = list(islice(things, MOST_ENTRIES + 1))
    if len(found) > MOST_ENTRIES:
        rule = f"must need at most {MOST_ENTRIES} predicted entries, got more"
        raise InputError(f"{rule} (fewer workloads, shares or jobs on a GPU)", "slowdowns")
    return found


def _carried(instance: Instance, previous: Instance) -> dict[EntryKey, SlowdownEntry]:
    """Return the entries of an earlier round between workloads that are still the same."""
    sizes, earlier = _gang_sizes(instance), _gang_sizes(previous)
    same = {
        name
        for name, workload in instance.workloads.items()
        if previous.workloads.get(name) == workload and sizes.get(name) == earlier.get(name)
    }
    return {key: e for key, e in previous.entries.items() if same.issuperset(e.workloads)}


def _unknown_rows(
    instance: Instance,
    known: Mapping[str, object],
    gpu_models: Sequence[str | None],
    mixed: bool,
) -> Iterator[_Row]:
    splits = [*_splits(instance.cluster), *(_mixed_splits(instance.cluster) if mixed else ())]
    for gpu_model in gpu_models:
        settled = _settled(instance, gpu_model)
        for pair in _pairs(instance, known):
            for shares in splits:
                mirror_of_earlier = pair[0] == pair[1] and shares[0] > shares[1]
                if not mirror_of_earlier and _members(pair, shares) not in settled:
                    yield _Row(pair, shares, gpu_model)


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


def _mixed_splits(cluster: Cluster) -> Iterator[_Shares]:
    for cap in sorted(cluster.shares):
        yield UNCAPPED, cap
        yield cap, UNCAPPED


def _settled(instance: Instance, gpu_model: str | None) -> set[_Members]:
    """Return the combinations that need no entry: known for the GPU model, or for all present."""
    models: dict[_Members, set[str | None]] = {}
    for entry in instance.slowdowns:
        model, members = entry.key
        models.setdefault(members, set()).add(model)
    present = {place.gpu.model for place in instance.places.values()}
    wanted = present if gpu_model is None else {gpu_model}
    return {key for key, known in models.items() if None in known or wanted <= known}


def _members(pair: tuple[str, str], shares: _Shares) -> _Members:
    return tuple(sorted(zip(pair, shares, strict=True)))


def _predicted(
    rows: Sequence[_Row], model: Predictor, known: Mapping[str, Workload]
) -> dict[EntryKey, SlowdownEntry]:
    position = {name: k for k, name in enumerate(known)}
    of_model: dict[str | None, list[_Row]] = {}
    for row in rows:
        of_model.setdefault(row.gpu_model, []).append(row)
    made: dict[EntryKey, SlowdownEntry] = {}
    for gpu_model, same in of_model.items():
        pairs = np.array([[position[name] for name in row.pair] for row in same], dtype=np.int64)
        shares = np.array([row.shares for row in same], dtype=np.int64)
        made |= _entries(same, model.predict(known, pairs, shares, gpu_model))
    return made


def _entries(
    rows: Sequence[_Row], prediction: Prediction
) -> Iterator[tuple[EntryKey, SlowdownEntry]]:
    slowdown = _rounded_up(prediction.slowdown)
    upper = None if prediction.upper is None else _rounded_up(prediction.upper)
    power = None if prediction.power_w is None else prediction.power_w.tolist()
    for k in np.flatnonzero(~np.isnan(slowdown).any(axis=1)).tolist():
        row = rows[k]
        yield (
            row.key,
            SlowdownEntry(
                pair=row.pair,
                share=tuple(share or None for share in row.shares) if any(row.shares) else None,
                slowdown=tuple(slowdown[k].tolist()),
                upper=None if upper is None else tuple(upper[k].tolist()),
                power_w=None if power is None or np.isnan(power[k]) else round(power[k], 3),
                gpu_model=row.gpu_model,
            ),
        )


def _rounded_up(values: FloatArray) -> FloatArray:
    # The inner rounding keeps 1.3 at 1.3 when the sum came out as 1.3000000000000003. A bound
    # that could not be given is infinite: no gSLA is kept against the largest number there is.
    finite = np.where(np.isposinf(values), _LARGEST_SLOWDOWN, values)
    return np.divide(np.ceil(np.round(finite * 1e4, 3)), 1e4)


def _set_entries(instance: Instance, gpu_models: Sequence[str | None]) -> Iterator[SlowdownEntry]:
    jobs = Counter(job.workload for job in instance.jobs)
    names = list(_used(instance))
    largest = min(instance.cluster.max_jobs_per_gpu, LARGEST)
    for gpu_model in gpu_models:
        pairs = _PairValues.of(instance, names, gpu_model)
        settled = _settled(instance, gpu_model)
        for size in range(3, largest + 1):
            yield from pairs.entries(size, jobs, settled)


@dataclass(frozen=True)
class _PairValues:
    """The entries of uncapped pairs on a GPU model as matrices over workloads.

    ``upper`` is the slowdown where an entry has no upper bound; ``bounded`` tells where there
    is one.
    """

    gpu_model: str | None
    names: Sequence[str]
    slowdown: FloatArray
    upper: FloatArray
    bounded: BoolArray

    @cached_property
    def known(self) -> BoolArray:
        """The pairs with a number."""
        return np.asarray(~np.isnan(self.slowdown))

    @classmethod
    def of(cls, instance: Instance, names: Sequence[str], gpu_model: str | None) -> _PairValues:
        """Read the entries that hold on the GPU model."""
        shape = (len(names), len(names))
        slowdown, upper = np.full(shape, np.nan), np.full(shape, np.nan)
        bounded = np.zeros(shape, dtype=np.bool_)
        for (i, first), (j, second) in combinations_with_replacement(enumerate(names), 2):
            members = _members((first, second), (UNCAPPED, UNCAPPED))
            entry = instance.entries.get((gpu_model, members)) or instance.entries.get(
                (None, members)
            )
            if entry is None or entry.slowdown is None:
                continue
            ends = ((i, j), (j, i)) if entry.workloads == (first, second) else ((j, i), (i, j))
            for k, end in enumerate(ends):
                slowdown[end] = entry.slowdown[k]
                upper[end] = (entry.upper or entry.slowdown)[k]
                bounded[end] = entry.upper is not None
        return cls(gpu_model, names, slowdown, upper, bounded)

    def entries(
        self, size: int, jobs: Mapping[str, int], settled: set[_Members]
    ) -> Iterator[SlowdownEntry]:
        """Yield the sets of so many workloads that jobs can make and that are not settled."""
        sets = (s for s in self._sets(size, jobs) if self._key(s) not in settled)
        while block := list(islice(sets, _SETS_AT_ONCE)):
            yield from self._predicted(np.array(block, dtype=np.int64))

    def _sets(self, size: int, jobs: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
        """Yield the sets of which every pair is known, grown one workload at a time.

        Every set on the way is one that has been yielded as a smaller set, so that their number
        bounds the work.
        """
        if size == 0:
            yield ()
            return
        for smaller in self._sets(size - 1, jobs):
            for k in range(smaller[-1] if smaller else 0, len(self.names)):
                enough = smaller.count(k) < jobs[self.names[k]]
                if enough and self.known[k, list(smaller)].all():
                    yield (*smaller, k)

    def _key(self, chosen: Sequence[int]) -> _Members:
        return tuple(sorted((self.names[k], UNCAPPED) for k in chosen))

    def _predicted(self, sets: IntArray) -> Iterator[SlowdownEntry]:
        pair = sets[:, :, np.newaxis], sets[:, np.newaxis, :]
        slowdown = _rounded_up(set_slowdown(self.slowdown[pair]))
        upper = np.maximum(slowdown, _rounded_up(set_slowdown(self.upper[pair])))
        bounded = np.asarray(self.bounded[pair].any(axis=(1, 2)))
        for k, chosen in enumerate(sets.tolist()):
            # Equal workloads get equal numbers, whatever the order of summation.
            first = [chosen.index(workload) for workload in chosen]
            yield SlowdownEntry(
                set=tuple(self.names[workload] for workload in chosen),
                slowdown=tuple(slowdown[k, first].tolist()),
                upper=tuple(upper[k, first].tolist()) if bounded[k] else None,
                gpu_model=self.gpu_model,
            )
