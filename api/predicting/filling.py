"""Filling in the unknown slowdowns of an instance, as the options of a command say."""

from __future__ import annotations

import math
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast, overload

import numpy as np

from dovetail.instances._record import IDLE, listed
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.entry import SOURCES
from dovetail.instances.slowdowns.shares import BEST_EFFORT, caps_of
from dovetail.toolkit.files import instance_with
from dovetail.toolkit.tables import note
from dovetail.toolkit.wording import number

if TYPE_CHECKING:
    from dovetail.instances.slowdowns.columns import Slowdowns
    from dovetail.predictors.predictor import Predictor

_MOST_TOLD = 10


@overload
def predictor_of(options: Namespace) -> str | Predictor | None: ...


@overload
def predictor_of(options: Namespace, default: str) -> str | Predictor: ...


def predictor_of(options: Namespace, default: str | None = None) -> str | Predictor | None:
    """Return the predictor that the options name, or the default."""
    if options.model is None:
        for option, value in (("--as", options.stand_ins), ("--measured", options.measured)):
            if value not in ([], False):
                raise InputError(f"{option} needs --model")
        named = cast("str | None", options.predictor) or default
        if options.confidence is not None and named is None:
            raise InputError("--confidence needs --model or --predictor")
        return named
    if options.predictor is not None:
        raise InputError("cannot be combined with --predictor", "--model")
    from dovetail.predictors.fitted.model_file import load_model

    model = load_model(options.model).standing_in(dict(options.stand_ins))
    return replace(model, measured_only=options.measured)


def completed(options: Namespace) -> Instance:
    """Return the instance of a command with the measured pairs and predictions that it names."""
    return with_predictions(options, instance_with(options.instance, options.slowdowns))


def with_predictions(options: Namespace, instance: Instance) -> Instance:
    """Return the instance with the predictions that the options ask for, if any."""
    predictor = predictor_of(options)
    if predictor is not None:
        return predicted(options, instance, predictor)
    if options.shares:
        raise InputError("--shares needs --predictor or --model")
    return instance


def predicted(
    options: Namespace,
    instance: Instance,
    predictor: str | Predictor,
    *,
    mixed: bool = False,
    sets: bool = False,
) -> Instance:
    """Fill in unknown slowdowns; report on standard error which stay unknown."""
    from dovetail.predictors.fill import predict as filled

    instance = _sharing(instance, options.shares)
    try:
        made = filled(instance, predictor, mixed=mixed, sets=sets, confidence=options.confidence)
    except InputError as error:
        # The allowed confidence depends on the model, everything else on the instance.
        of_model = error.path == "confidence"
        if of_model and options.model is None:
            raise InputError(error.rule, "--confidence") from None
        raise error.at(source_name(options.model if of_model else options.instance)) from None
    for kind, what in (
        *_estimated(made.slowdowns[len(instance.slowdowns) :]),
        *_unknown(instance, predictor, mixed, options.confidence),
        *_doubts(instance, made, predictor, mixed),
    ):
        note(f"{kind}: {what}")
    return made


def _sharing(instance: Instance, shares: Sequence[int] | None) -> Instance:
    """Return the instance with more SM shares that jobs may have."""
    cluster = instance.cluster
    more = [share for share in shares or () if share not in cluster.shares]
    if not more:
        return instance
    if "mps" not in cluster.modes:
        raise InputError(f"cluster.sharing {cluster.sharing} has no caps", "--shares")
    return instance.replace(cluster=cluster.replace(shares=(*cluster.shares, *more)))


def _estimated(added: Slowdowns) -> Iterator[tuple[str, str]]:
    """Yield how many isolated pairs and sets are estimates, and from what."""
    idle = (added.share == BEST_EFFORT).any(axis=1)
    estimate = idle & (added.source == SOURCES.index("estimate"))
    corrected = estimate & ~np.isnan(added.upper).any(axis=1)
    for rows, how in (
        (idle & ~estimate, "as measured"),
        (corrected, "estimated from measured ones"),
        (estimate & ~corrected, "estimated from Tally's published means"),
    ):
        if pairs := int(rows.sum()):
            yield "isolated", f"{number(pairs, 'pair')} {how}"
    if of_sets := sum(IDLE in entry.shares for entry in added.sets.values()):
        yield "isolated", f"{number(of_sets, 'set')} estimated from their pairs"


def _unknown(
    instance: Instance, predictor: str | Predictor, mixed: bool, confidence: float | None
) -> Iterator[tuple[str, str]]:
    """Yield what the predictor could not predict, with up to ten workloads by name."""
    from dovetail.predictors.fill import missing, unanswered, unsupported

    lacking: dict[tuple[str, ...], list[str]] = {}
    for workload, metrics in missing(instance, predictor).items():
        lacking.setdefault(metrics, []).append(workload)
    for metrics, workloads in lacking.items():
        lack = f"no {', '.join(metrics)}"
        yield "unknown", f"pairs of {listed(workloads, _MOST_TOLD)} ({lack})"
    splits = unanswered(instance, predictor, mixed=mixed)
    if splits:
        shares = ", ".join("/".join(str(p) if p else "no cap" for p in split) for split in splits)
        yield "unknown", f"pairs at {shares} (the model was not fitted on any)"
    limits = unsupported(instance, predictor, confidence)
    if limits:
        kinds = ", ".join(
            f"{kind} {math.floor(most * 1e4) / 1e4:g}" for kind, most in limits.items()
        )
        yield "unknown", f"pairs above the confidence that the measurements support: {kinds}"


def _doubts(
    instance: Instance, made: Instance, predictor: str | Predictor, mixed: bool
) -> Iterator[tuple[str, str]]:
    """Yield assumptions, and how many pairs may not share for lack of bounds or caps."""
    from dovetail.predictors.fill import assumed, in_doubt

    found = Counter(word for each in assumed(instance, predictor).values() for word in each)
    if found:
        words = (f"{word} ({number(amount, 'workload')})" for word, amount in found.items())
        yield "assumed", ", ".join(words)
    pairs = in_doubt(made, predictor, mixed=mixed)
    if pairs:
        known = "measure some, and fit a --model on them"
        yield "without a bound", f"{number(len(pairs), 'pair')} that may not share: {known}"
    cluster = instance.cluster
    lacks_caps = "mps" in cluster.modes and not caps_of(cluster.shares)
    apart = _apart(instance, made) if lacks_caps else ()
    if apart:
        capped = "try SM shares (--shares, cluster.shares)"
        yield "may break gSLAs without caps", f"{number(len(apart), 'pair')}: {capped}"


def _apart(instance: Instance, made: Instance) -> set[tuple[str, ...]]:
    """Return the predicted pairs of which a bound is above every gSLA of jobs that run it."""
    loosest: dict[str, float] = {}
    for job in instance.jobs:
        gsla = math.inf if job.gsla is None else job.gsla
        loosest[job.workload] = max(gsla, loosest.get(job.workload, 1.0))
    known = made.slowdowns[len(instance.slowdowns) :]
    most = np.array([loosest.get(name, math.inf) for name in known.names])
    over = (known.upper > most[known.workload]).any(axis=1)
    over &= (known.source != SOURCES.index("measured")) & ~(known.share == BEST_EFFORT).any(axis=1)
    ends = np.unique(known.workload[over], axis=0).tolist()
    return {tuple(sorted((known.names[a], known.names[b]))) for a, b in ends}
