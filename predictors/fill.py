"""Fill an instance with predictions of its missing slowdowns."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from dovetail.instances._record import listed
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import MODES, SOURCES, SlowdownEntry
from dovetail.instances.slowdowns.gathering import COLUMNS, fits
from dovetail.instances.slowdowns.shares import BEST_EFFORT, NO_CAP
from dovetail.predictors._combinations import (
    gang_sizes,
    unknown_pairs,
    used,
    wanted_splits,
)
from dovetail.predictors._mechanisms import of_each_mode
from dovetail.predictors._set_entries import (
    entries_behind,
    law_set_entries,
    rounded_up,
    set_entries,
)
from dovetail.predictors.analytic import AnalyticPredictor
from dovetail.predictors.fitted.isolated import isolated_pairs
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.predictors.kernels import KernelsPredictor
from dovetail.predictors.predictor import BoolArray, Prediction, Predictor, Split
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
    latency-critical workload with another that can be isolated gets an entry, too: as measured, if
    a fitted predictor keeps that; else the estimate of ``isolated_entry``, which three measured
    pairs or more correct and bound (``fitted.isolated``).

    Each entry gives its ``source``. One without ``upper`` is an estimate whose error is not
    bounded: a pair in which a job has a gSLA gets no such entry, and so does not share; see
    ``in_doubt``. Where caps for both jobs are known, a pair that never ran gets an entry without
    caps only if neither is slowed more than if they took turns, by its upper bound
    (``unmeasured.may_share``), or if the cluster allows it (``uncapped``).

    If GPUs are shared in several ways, pairs get entries of each ``mode``; a fitted predictor gives
    those of the mode that it was fitted on.

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
    chosen = _chosen(predictor)
    parts = _parts(instance, chosen)
    if parts == [instance]:
        return _filled(instance, chosen, mixed, sets, confidence, previous)
    earlier = {} if previous is None else {p.cluster.sharing: p for p in of_each_mode(previous)}
    added = []
    for part in parts:
        before = earlier.get(part.cluster.sharing)
        filled = _filled(part, chosen, mixed, sets, confidence, before)
        added.append(filled.slowdowns[len(part.slowdowns) :])
    return instance.replace(slowdowns=Slowdowns.joined([instance.slowdowns, *added]))


def _parts(instance: Instance, predictor: Predictor) -> list[Instance]:
    """Return the instance for each way in which its GPUs are shared and that a predictor knows."""
    parts = list(of_each_mode(instance))
    if len(parts) > 1 and isinstance(predictor, TrainedPredictor):
        return [part for part in parts if part.cluster.sharing == predictor.mode]
    return parts


def _filled(
    instance: Instance,
    predictor: Predictor,
    mixed: bool,
    sets: bool,
    confidence: float | None,
    previous: Instance | None,
) -> Instance:
    """Return an instance whose GPUs are shared in one way with its predicted entries."""
    model = _adapted(predictor, instance, confidence)
    known = {name: w for name, w in used(instance).items() if not model.lacks(name, w)}
    gpu_models = _gpu_models(instance, model)
    wanted = _wanted(instance, known, gpu_models, mixed)
    earlier = Slowdowns.of(()) if previous is None else _unchanged(instance, previous)
    made = _predicted(wanted, earlier, instance, model, known)
    by_law: list[SlowdownEntry] = []
    if sets and isinstance(model, KernelsPredictor) and instance.cluster.sharing == "mps":
        by_law = _limited(law_set_entries(instance, model, known, gpu_models))
        made = made.extended([entry for entry in by_law if entry.pair])
    isolated = Slowdowns.of(isolated_pairs(instance, model, gpu_models))
    filled = instance.replace(
        slowdowns=Slowdowns.joined([instance.slowdowns, _allowed(instance, made), isolated])
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
    each = (_in_doubt(part, model, mixed) for part in _parts(filled, model))
    return tuple(dict.fromkeys(chain.from_iterable(each)))


def _in_doubt(filled: Instance, model: Predictor, mixed: bool) -> tuple[tuple[str, str], ...]:
    known = {name: w for name, w in used(filled).items() if not model.lacks(name, w)}
    promised = _promised(filled)
    gpu_models = [
        gpu_model
        for gpu_model in _gpu_models(filled, model)
        if not isinstance(model, TrainedPredictor) or model.fit(gpu_model).bound is None
    ]
    wanted = _wanted(filled, known, gpu_models, mixed)
    rows = _of(promised, wanted)
    pairs = dict.fromkeys(_pairs(wanted.select(rows)))
    known_pairs = {tuple(sorted(pair)) for pair in _pairs(filled.slowdowns)}
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
    found: dict[str, dict[str, None]] = {}
    for part in _parts(instance, model):
        mode = part.cluster.sharing
        for name, workload in used(part).items():
            if not model.lacks(name, workload):
                found.setdefault(name, {}).update(dict.fromkeys(model.assumed(workload, mode)))
    return {name: tuple(words) for name, words in found.items() if words}


def _promised(instance: Instance) -> frozenset[str]:
    """Return the workloads of jobs that have a gSLA."""
    return frozenset(job.workload for job in instance.jobs if job.gsla is not None)


def _of(names: Collection[str], pairs: Slowdowns) -> BoolArray:
    """Return the pairs of which a workload is among these."""
    among = np.array([name in names for name in pairs.names], dtype=np.bool_)
    return np.asarray(among[pairs.workload].any(axis=1))


def _pairs(known: Slowdowns) -> list[tuple[str, str]]:
    """Return the workloads of all pairs, each two once, in the order of the entries."""
    ends, first = np.unique(known.workload, axis=0, return_index=True)
    names = known.names
    return [(names[a], names[b]) for a, b in ends[np.argsort(first)].tolist()]


def _allowed(instance: Instance, made: Slowdowns) -> Slowdowns:
    """Return the entries of ``made`` at which pairs that never ran may share."""
    every = Slowdowns.joined([made, instance.slowdowns])
    new = np.arange(len(every.row)) < len(made)
    capped = ((every.share != NO_CAP) & (every.share != BEST_EFFORT)).all(axis=1)
    ends = np.sort(every.workload.astype(np.int64), axis=1)
    place = (every.model * np.int64(len(every.names)) + ends[:, 0]) * len(every.names) + ends[:, 1]
    can_cap = np.isin(place, place[capped & (new | every.may_share)])
    allowed = may_share(
        made.upper,
        _of(_promised(instance), made),
        capped[new],
        can_cap[new] & instance.cluster.caps_first,
    )
    return made.select(allowed | (made.source == SOURCES.index("measured")))


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
    found: dict[Split, None] = {}
    for part in _parts(instance, model):
        fits = [model.fit(gpu_model) for gpu_model in _gpu_models(part, model)]
        known = [fit.bounded(model.confidence) for fit in fits]
        for split in wanted_splits(part.cluster, mixed):
            if not all(bounded[split] for bounded in known):
                found[split] = None
    return tuple(found)


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
    chosen = _chosen(predictor)
    found: dict[str, float] = {}
    for part in _parts(instance, chosen):
        model = _adapted(chosen, part, confidence)
        if isinstance(model, TrainedPredictor):
            kinds = _supported(part, model).items()
            found |= {kind: most for kind, most in kinds if most < model.confidence}
    return found


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
        raise _too_many()
    return found


def _too_many() -> InputError:
    rule = f"must need at most {MOST_ENTRIES} predicted entries, got more"
    return InputError(f"{rule} (fewer workloads, shares or jobs on a GPU)", "slowdowns")


def _wanted(
    instance: Instance, known: Collection[str], gpu_models: Sequence[str | None], mixed: bool
) -> Slowdowns:
    """Return the pairs to predict, without figures; see ``unknown_pairs``."""
    found = [Slowdowns.of((), (*known,))]
    for part in unknown_pairs(instance, known, gpu_models, mixed):
        found.append(part)
        if sum(map(len, found)) > MOST_ENTRIES:
            raise _too_many()
    return Slowdowns.joined(found)


def _unchanged(instance: Instance, previous: Instance) -> Slowdowns:
    """Return the entries of an earlier round between workloads that have not changed."""
    sizes, earlier = gang_sizes(instance), gang_sizes(previous)
    same = {
        name
        for name, workload in instance.workloads.items()
        if previous.workloads.get(name) == workload and sizes.get(name) == earlier.get(name)
    }
    if previous.cluster.sharing != instance.cluster.sharing:
        return Slowdowns.of(())
    return previous.slowdowns.among(same)


def _predicted(
    wanted: Slowdowns,
    earlier: Slowdowns,
    instance: Instance,
    model: Predictor,
    known: Mapping[str, Workload],
) -> Slowdowns:
    """Return the wanted pairs with the figures of earlier entries, or else predicted ones."""
    models = tuple(dict.fromkeys((*wanted.models, *earlier.models)))
    earlier = earlier.numbered(tuple(dict.fromkeys((*wanted.names, *earlier.names))), models)
    wanted = wanted.numbered(earlier.names, models)
    carried = earlier.like(wanted)
    made: dict[str, Any] = {name: np.array(getattr(wanted, name)) for name in COLUMNS}
    have = carried >= 0
    for name in COLUMNS:
        if name != "row":
            made[name][have] = getattr(earlier, name)[carried[have]]
    if not have.all():
        _require_support(instance, model)
    mode = instance.cluster.sharing
    for number in np.unique(wanted.model[~have]).tolist():
        rows = np.flatnonzero((wanted.model == number) & ~have)
        pairs, shares = (each[rows].astype(np.int64) for each in (wanted.workload, wanted.share))
        gpu_model = None if number < 0 else models[number]
        found = model.predict(known, pairs, shares, gpu_model, mode)
        figures = _figures(found, getattr(model, "confidence", None))
        for name, values in {**figures, "mode": MODES.index(mode)}.items():
            made[name][rows] = values
        both = figures["slowdown"] + figures.get("upper", 0.0)
        have[rows] = ~np.isnan(both).any(axis=1)
    predicted = Slowdowns(earlier.names, models, **made).select(have)
    for row in np.flatnonzero(~fits({name: getattr(predicted, name) for name in COLUMNS})):
        # Made as a record, what breaks a rule of entries is refused by that rule.
        SlowdownEntry.model_validate(dict(predicted.at(int(row))))
    return predicted


def _figures(found: Prediction, confidence: float | None) -> dict[str, NDArray[Any]]:
    """Return predictions as columns of entries."""
    estimate = found.estimate or found.upper is None
    source = np.full(len(found.slowdown), SOURCES.index("estimate" if estimate else "model"))
    if found.measured is not None:
        source[found.measured] = SOURCES.index("measured")
    figures = {"slowdown": rounded_up(found.slowdown), "source": source}
    if found.upper is not None:
        figures["upper"] = rounded_up(found.upper)
        if confidence is not None:
            figures["confidence"] = np.full(len(source), confidence)
    if found.power_w is not None:
        figures["power_w"] = np.array([round(power_w, 3) for power_w in found.power_w.tolist()])
    return figures
