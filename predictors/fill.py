"""Fill an instance with predictions of its missing slowdowns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, TypeVar

import numpy as np

from dovetail.instances._record import listed
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import EntryKey, SharingMode, SlowdownEntry, Source
from dovetail.instances.slowdowns.isolated import isolated_entries
from dovetail.instances.slowdowns.shares import BEST_EFFORT, NO_CAP, caps_of
from dovetail.predictors._combinations import (
    PairAtShares,
    gang_sizes,
    unknown_rows,
    used,
    wanted_splits,
)
from dovetail.predictors._law_sets import law_set_entries
from dovetail.predictors._set_entries import entries_behind, rounded_up, set_entries
from dovetail.predictors.analytic import AnalyticPredictor
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.predictors.kernels import KernelsPredictor
from dovetail.predictors.predictor import Prediction, Predictor, Split
from dovetail.predictors.unmeasured import may_share

PREDICTORS: Mapping[str, Callable[[], Predictor]] = {
    "kernels": KernelsPredictor,
    "analytic": AnalyticPredictor,
}
"""The predictors that can be given by name, with their default parameters."""

DEFAULT: Final = "kernels"
"""The predictor of pairs of which nothing was measured."""

MOST_ENTRIES: Final = 1_000_000
"""The most entries that one call makes; ``predict_table`` has no such limit."""

_T = TypeVar("_T")


def predict(
    instance: Instance,
    predictor: str | Predictor = DEFAULT,
    *,
    mixed: bool = False,
    sets: bool = False,
    confidence: float | None = None,
    previous: Instance | None = None,
) -> Instance:
    """Return the instance with an entry for every pair of its jobs that can be predicted.

    The combinations are those that ``dovetail-instance/1`` allows to start: any two workloads that
    two jobs of the instance run (in an instance without jobs, a world for simulations, any two
    workloads), uncapped and at every two allowed caps that sum to ``share_sum``. Existing entries
    are kept, including ``slowdown: null``. A fitted predictor gives an entry for each GPU model of
    the cluster; other predictors give one for all GPU models, and none if each model already has
    its own. Numbers are rounded upward to 1/10,000. If ``idle`` is a share of the cluster, a
    latency-critical workload with another that can be isolated gets the entry of
    ``isolated_entry``, with any predictor.

    Each entry gives its ``source``. One without ``upper`` is an estimate whose error is not
    bounded: a pair in which a job has a gSLA gets no such entry, and so does not share; see
    ``in_doubt``. Where caps for both jobs are known, a pair that never ran gets an entry without
    caps only if neither is slowed more than if they took turns, by its upper bound
    (``unmeasured.may_share``), or if the cluster allows it (``uncapped``).

    ``kernels`` gives ``upper``, too, which was tested on measurements of other GPUs: its entries
    remain estimates. A fitted predictor also gives ``upper`` and, if it was fitted on power,
    ``power_w``; a pair gets no entry, and so does not share, if the measurements are too few for a
    bound at this confidence; see ``unsupported``. The bound of a workload is that of its largest
    gang, whose rate is set by the worst of its co-runners.

    Parameters
    ----------
    instance : Instance
        The problem; workloads without the needed metrics are skipped, see ``missing``.
    predictor : str or Predictor
        A name in ``PREDICTORS``, or any predictor.
    mixed : bool
        Also predict one uncapped workload with a capped one, at every allowed cap.
    sets : bool
        Also add sets of three to ``max_jobs_per_gpu`` workloads without caps, made by
        ``set_slowdown`` from the entries of their pairs, measured or predicted. Their ``upper``
        and ``p99`` are made from those of the pairs in the same way: the confidence is not one for
        sets. ``kernels`` adds sets under caps that leave the least of a GPU unused, and what is
        left of them when a job ends.
    confidence : float, optional
        The confidence of ``upper``, in (0, 1); default: the predictor's own.
    previous : Instance, optional
        The result of this function for an earlier round with the same predictor and options;
        entries of workloads that have not changed are reused.

    Raises
    ------
    InputError
        When the predictor was not fitted for a GPU model of the cluster or its sharing, more than
        ``MOST_ENTRIES`` would be needed, or the confidence is too high for any pair.
    UnsupportedError
        When no predictor has this name, or one without bounds is asked for a confidence.
    """
    model = _adapted(_chosen(predictor), instance, confidence)
    known = {name: w for name, w in used(instance).items() if not model.lacks(name, w)}
    gpu_models = _gpu_models(instance, model)
    rows = _limited(unknown_rows(instance, known, gpu_models, mixed))
    carried = {} if previous is None else _carried(instance, previous)
    new = {key: entry for row in rows if (entry := carried.get(key := row.key)) is not None}
    left = [row for row in rows if row.key not in new]
    if left:
        _require_support(instance, model)
    new |= _predicted(left, model, known, instance.cluster.sharing)
    made = [new[row.key] for row in rows if row.key in new]
    by_law: list[SlowdownEntry] = []
    if sets and isinstance(model, KernelsPredictor) and instance.cluster.sharing == "mps":
        by_law = _limited(law_set_entries(instance, model, known, gpu_models))
        made += [entry for entry in by_law if entry.pair]
    isolated = isolated_entries(instance)
    filled = instance.replace(
        slowdowns=instance.slowdowns.extended([*_allowed(instance, made), *isolated])
    )
    if behind := _limited(entries_behind(filled, gpu_models)):
        filled = filled.replace(slowdowns=filled.slowdowns.extended(behind))
    if not sets:
        return filled
    filled = filled.replace(slowdowns=filled.slowdowns.extended([e for e in by_law if e.set]))
    of_sets = _limited(set_entries(filled, gpu_models))
    return filled.replace(slowdowns=filled.slowdowns.extended(of_sets))


def missing(
    instance: Instance, predictor: str | Predictor = DEFAULT
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
    lacks = {name: model.lacks(name, workload) for name, workload in used(instance).items()}
    return {name: metrics for name, metrics in lacks.items() if metrics}


def in_doubt(
    filled: Instance, predictor: str | Predictor = DEFAULT, *, mixed: bool = False
) -> tuple[tuple[str, str], ...]:
    """Return the pairs without any entry because a job has a gSLA and no slowdown has a bound.

    Parameters
    ----------
    filled : Instance
        The result of ``predict``.
    predictor : str or Predictor
        A name in ``PREDICTORS``, or any predictor.
    mixed : bool
        As in ``predict``.

    Raises
    ------
    InputError
        When the predictor was not fitted for a GPU model of the cluster.
    UnsupportedError
        When no predictor has this name.
    """
    model = _chosen(predictor)
    known = {name: w for name, w in used(filled).items() if not model.lacks(name, w)}
    promised = _promised(filled)
    gpu_models = [
        gpu_model
        for gpu_model in _gpu_models(filled, model)
        if not isinstance(model, TrainedPredictor) or model.fit(gpu_model).bound is None
    ]
    rows = _limited(unknown_rows(filled, known, gpu_models, mixed))
    names = filled.slowdowns.names
    ends = np.unique(filled.slowdowns.workload, axis=0).tolist()
    known_pairs = {tuple(sorted((names[a], names[b]))) for a, b in ends}
    pairs = dict.fromkeys(row.pair for row in rows if not promised.isdisjoint(row.pair))
    return tuple(pair for pair in pairs if tuple(sorted(pair)) not in known_pairs)


def assumed(
    instance: Instance, predictor: str | Predictor = DEFAULT
) -> Mapping[str, tuple[str, ...]]:
    """Return, in words, what a predictor without training assumes in place of missing metrics.

    Parameters
    ----------
    instance : Instance
        The problem.
    predictor : str or Predictor
        A name in ``PREDICTORS``, or any predictor; fitted ones assume nothing.

    Raises
    ------
    UnsupportedError
        When no predictor has this name.
    """
    model = _chosen(predictor)
    if not isinstance(model, AnalyticPredictor | KernelsPredictor):
        return {}
    known = {name: w for name, w in used(instance).items() if not model.lacks(name, w)}
    mode = instance.cluster.sharing
    found = {name: model.assumed(workload, mode) for name, workload in known.items()}
    return {name: words for name, words in found.items() if words}


def _promised(instance: Instance) -> frozenset[str]:
    """Return the workloads of jobs that have a gSLA."""
    return frozenset(job.workload for job in instance.jobs if job.gsla is not None)


def _place(entry: SlowdownEntry) -> tuple[str | None, ...]:
    """Return the GPU model and the workloads of an entry, whatever their shares."""
    return entry.gpu_model, *sorted(entry.workloads)


def _allowed(instance: Instance, made: Sequence[SlowdownEntry]) -> Iterator[SlowdownEntry]:
    """Yield the entries of ``made`` at which pairs that never ran may share."""
    promised = _promised(instance)
    capped = [_all_capped(entry) for entry in made]
    can_cap = _places_of_caps(instance.slowdowns)
    can_cap |= {_place(entry) for entry, caps in zip(made, capped, strict=True) if caps}
    none = (math.nan, math.nan)
    allowed = may_share(
        np.array([entry.upper or none for entry in made]).reshape(-1, 2),
        np.array([not promised.isdisjoint(entry.workloads) for entry in made], dtype=np.bool_),
        np.array(capped, dtype=np.bool_),
        np.array([_place(entry) in can_cap for entry in made], dtype=np.bool_)
        & instance.cluster.caps_first,
    )
    for entry, may in zip(made, allowed.tolist(), strict=True):
        if may or entry.source == "measured":
            yield entry


def _places_of_caps(known: Slowdowns) -> set[tuple[str | None, ...]]:
    """Return the GPU models and workloads of pairs that may share, each with a cap."""
    capped = (known.share != NO_CAP) & (known.share != BEST_EFFORT)
    rows = known.may_share & capped.all(axis=1)
    places = np.unique(np.column_stack([known.model, known.workload])[rows], axis=0).tolist()
    models, names = (*known.models, None), known.names
    return {(models[model], *sorted((names[a], names[b]))) for model, a, b in places}


def _all_capped(entry: SlowdownEntry) -> bool:
    return len(caps_of(entry.shares)) == len(entry.workloads)


def unanswered(
    instance: Instance, predictor: str | Predictor = DEFAULT, *, mixed: bool = False
) -> tuple[Split, ...]:
    """Return the splits at which a fitted predictor has no bounds on some GPU model.

    For other predictors this is not known beforehand, and the result is empty.

    Parameters
    ----------
    instance : Instance
        The problem; its allowed shares are looked at.
    predictor : str or Predictor
        A name in ``PREDICTORS``, or any predictor.
    mixed : bool
        As in ``predict``.

    Raises
    ------
    InputError
        When the predictor was not fitted for a GPU model of the cluster.
    UnsupportedError
        When no predictor has this name.
    """
    model = _chosen(predictor)
    if not isinstance(model, TrainedPredictor):
        return ()
    fits = [model.fit(gpu_model) for gpu_model in _gpu_models(instance, model)]
    splits = wanted_splits(instance.cluster, mixed)
    known = [fit.bounded(model.confidence) for fit in fits]
    return tuple(split for split in splits if not all(bounded[split] for bounded in known))


def unsupported(
    instance: Instance, predictor: str | Predictor = DEFAULT, confidence: float | None = None
) -> Mapping[str, float]:
    """Return the kinds of jobs that cannot share, as the confidence is too high for them.

    Parameters
    ----------
    instance : Instance
        The problem.
    predictor : str or Predictor
        A name in ``PREDICTORS``, or any predictor.
    confidence : float, optional
        As in ``predict``.

    Returns
    -------
    mapping of str to float
        From the kind in words to the largest confidence that the measurements support.

    Raises
    ------
    InputError, UnsupportedError
        As in ``predict``.
    """
    model = _adapted(_chosen(predictor), instance, confidence)
    if not isinstance(model, TrainedPredictor):
        return {}
    kinds = _supported(instance, model)
    return {kind: most for kind, most in kinds.items() if most < model.confidence}


def _supported(instance: Instance, predictor: TrainedPredictor) -> Mapping[str, float]:
    """Return the largest confidence for each kind of job, the smallest over the GPU models."""
    known = {n: w for n, w in used(instance).items() if not predictor.lacks(n, w)}
    found: dict[str, float] = {}
    for gpu_model in _gpu_models(instance, predictor):
        for kind, most in predictor.supported(known, gpu_model).items():
            found[kind] = min(most, found.get(kind, most))
    return found


def _require_support(instance: Instance, predictor: Predictor) -> None:
    """Refuse a confidence at which no job could share."""
    if not isinstance(predictor, TrainedPredictor):
        return
    most = max(_supported(instance, predictor).values(), default=1.0)
    if most < predictor.confidence:
        rule = f"must be at most {math.floor(most * 1e4) / 1e4:g}, which is what the measurements"
        raise InputError(f"{rule} can support, got {predictor.confidence:g}", "confidence")


def _chosen(predictor: str | Predictor) -> Predictor:
    if not isinstance(predictor, str):
        return predictor
    if predictor not in PREDICTORS:
        known = ", ".join(PREDICTORS)
        raise UnsupportedError(f"predictor must be one of {known}, got {predictor!r}")
    return PREDICTORS[predictor]()


def _adapted(predictor: Predictor, instance: Instance, confidence: float | None) -> Predictor:
    """Return the predictor for the gangs of this instance, at the confidence."""
    fitted = isinstance(predictor, TrainedPredictor) and predictor.bounded
    if confidence is not None and not (fitted or isinstance(predictor, KernelsPredictor)):
        raise UnsupportedError("this model has no upper bounds, so it takes no confidence")
    if not isinstance(predictor, TrainedPredictor | KernelsPredictor):
        return predictor
    chosen = predictor.confidence if confidence is None else confidence
    return replace(predictor, workers=gang_sizes(instance), confidence=chosen)


def _gpu_models(instance: Instance, predictor: Predictor) -> tuple[str | None, ...]:
    """Return the GPU models to predict for; None means all at once."""
    if not isinstance(predictor, TrainedPredictor):
        return (None,)
    present = tuple(dict.fromkeys(place.gpu.model for place in instance.places.values()))
    strange = [model for model in present if model not in predictor.fits]
    if strange:
        fitted = listed(predictor.gpu_models)
        rule = f"the predictor was fitted for {fitted} and not for {listed(strange)}"
        raise InputError(rule, "cluster.nodes")
    sharing = instance.cluster.sharing
    if sharing != predictor.mode:
        rule = f"the predictor was fitted on pairs measured under {predictor.mode}"
        raise InputError(f"{rule} and not {sharing}", "cluster.sharing")
    return present


def _limited(things: Iterable[_T]) -> list[_T]:
    found = list(islice(things, MOST_ENTRIES + 1))
    if len(found) > MOST_ENTRIES:
        rule = f"must need at most {MOST_ENTRIES} predicted entries, got more"
        raise InputError(f"{rule} (fewer workloads, shares or jobs on a GPU)", "slowdowns")
    return found


def _carried(instance: Instance, previous: Instance) -> dict[EntryKey, SlowdownEntry]:
    """Return the entries of an earlier round between workloads that have not changed."""
    sizes, earlier = gang_sizes(instance), gang_sizes(previous)
    same = {
        name
        for name, workload in instance.workloads.items()
        if previous.workloads.get(name) == workload and sizes.get(name) == earlier.get(name)
    }
    if previous.cluster.sharing != instance.cluster.sharing:
        return {}
    return {key: e for key, e in previous.entries.items() if same.issuperset(e.workloads)}


def _predicted(
    rows: Sequence[PairAtShares],
    model: Predictor,
    known: Mapping[str, Workload],
    mode: SharingMode,
) -> dict[EntryKey, SlowdownEntry]:
    position = {name: k for k, name in enumerate(known)}
    of_model: dict[str | None, list[PairAtShares]] = {}
    for row in rows:
        of_model.setdefault(row.gpu_model, []).append(row)
    made: dict[EntryKey, SlowdownEntry] = {}
    for gpu_model, same in of_model.items():
        pairs = np.array([[position[name] for name in row.pair] for row in same], dtype=np.int64)
        shares = np.array([row.shares for row in same], dtype=np.int64)
        prediction = model.predict(known, pairs, shares, gpu_model, mode)
        made |= _entries(same, prediction, getattr(model, "confidence", None), mode)
    return made


def _source(prediction: Prediction, row: int) -> Source:
    if prediction.measured is not None and prediction.measured[row]:
        return "measured"
    return "estimate" if prediction.estimate or prediction.upper is None else "model"


def _entries(
    rows: Sequence[PairAtShares],
    prediction: Prediction,
    confidence: float | None,
    mode: SharingMode,
) -> Iterator[tuple[EntryKey, SlowdownEntry]]:
    slowdown = rounded_up(prediction.slowdown)
    upper = None if prediction.upper is None else rounded_up(prediction.upper)
    known = ~np.isnan(slowdown if upper is None else slowdown + upper).any(axis=1)
    power = None if prediction.power_w is None else prediction.power_w.tolist()
    for k in np.flatnonzero(known).tolist():
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
                source=_source(prediction, k),
                confidence=None if upper is None else confidence,
                mode=mode,
            ),
        )
