"""The slowdowns that policies believe: true slowdowns, with errors, or predicted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.instances._record import IDLE
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.slowdowns.isolated import BEHIND, isolated_slowdowns
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.predictors.estimators.registry import named
from dovetail.predictors.fitted.model_file import load_model
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.predictors.fitted.training import fit
from dovetail.predictors.predictor import cap_of
from dovetail.predictors.unmeasured import may_share

_Q90: Final = 1.2815515655446004
"""The 90 % quantile of the normal distribution."""

_CONFIDENCE: Final = 0.9


@dataclass(frozen=True)
class Exact:
    """The true slowdowns."""

    def of(self, world: Instance, seed: int) -> SlowdownTable:
        """Return the true slowdowns."""
        return SlowdownTable.of(world)


@dataclass(frozen=True)
class LogNormalNoise:
    """The true slowdowns times a log-normal error for each ordered pair of workloads.

    A pair has the same error on every GPU model and at all caps, because a predictor that misjudges
    a workload does so everywhere. The upper bound is the believed slowdown times the 90 % quantile
    of the error, so that it holds for 90 % of all pairs. Pairs that cannot share are known.

    Parameters
    ----------
    sigma : float
        Standard deviation of the natural logarithm of the error, >= 0.

    Raises
    ------
    InputError
        If ``sigma`` is out of range.
    """

    sigma: float

    def __post_init__(self) -> None:
        if not 0 <= self.sigma <= 10:
            raise InputError(f"must be between 0 and 10, got {self.sigma}", "sigma")

    def of(self, world: Instance, seed: int) -> SlowdownTable:
        """Return the slowdowns with their errors."""
        truth = SlowdownTable.of(world)
        count = len(truth.workloads)
        draw = np.random.default_rng(seed)
        error = np.exp(self.sigma * draw.standard_normal((count, count)))
        believed = truth.slowdown * error
        upper = believed * np.exp(self.sigma * _Q90)
        return replace(truth, slowdown=believed, upper=upper, p99=truth.p99 * error)


@dataclass(frozen=True)
class HeldOutBeliefs:
    """Measurements of some of the pairs, and predictions of the rest by a model fitted on them.

    A pair is measured on all GPU models and at all caps or not at all. Nothing is known about the
    other pairs, not even whether they can run. Upper bounds are the predictor's 90 % bounds for
    jobs of one GPU; for measured pairs, the measurement itself.

    Parameters
    ----------
    model : str
        A model that ``predictors.fitted.training.fit`` knows; fitting needs the extra ``train``.
    part : float
        Fraction of the pairs that are measured, in (0, 1).
    families : bool
        Measure all pairs within this fraction of the workload families instead, so that the other
        workloads are entirely new.

    Raises
    ------
    InputError
        If the fraction is out of range.
    UnsupportedError
        If no model has this name.
    """

    model: str
    part: float
    families: bool = False

    def __post_init__(self) -> None:
        named(self.model)
        if not 0 < self.part < 1:
            raise InputError(f"must be > 0 and < 1, got {self.part}", "part")

    def of(self, world: Instance, seed: int) -> SlowdownTable:
        """Return the measured slowdowns, and predictions of the others."""
        truth = SlowdownTable.of(world)
        draw = np.random.default_rng(seed)
        pick = _within_families if self.families else _among_pairs
        measured = pick(world, truth, self.part, draw)
        data = _data_set(world, truth, measured)
        mode = world.cluster.sharing
        predictor = fit(data, self.model, truth.models, _CONFIDENCE, seed % 2**32, mode=mode)
        predicted = _predicted(predictor, world, truth)
        return replace(
            predicted,
            slowdown=np.where(measured, truth.slowdown, predicted.slowdown),
            upper=np.where(measured, truth.upper, predicted.upper),
            p99=np.where(measured, truth.p99, predicted.p99),
        )


@dataclass(frozen=True)
class Model:
    """Predictions of a fitted model, without any measurement.

    Parameters
    ----------
    path : str
        A model file written by ``dovetail predictors fit``.
    """

    path: str

    def of(self, world: Instance, seed: int) -> SlowdownTable:
        """Return the predictions."""
        return _predicted(load_model(self.path), world, SlowdownTable.of(world))


Beliefs = Exact | LogNormalNoise | HeldOutBeliefs | Model
"""A source of beliefs about a world.

``of(world, seed)`` returns the believed slowdowns, with the same axes as the world's true
slowdowns; ``seed`` determines everything random.
"""


def beliefs_named(text: str) -> Beliefs:
    """Return beliefs from their name.

    Parameters
    ----------
    text : str
        ``exact``, ``noise:SIGMA``, ``held-out:MODEL:PART``, ``held-out:MODEL:PART:families`` or
        ``model:FILE``.

    Raises
    ------
    InputError
        If a number is out of range.
    UnsupportedError
        If there are no beliefs of this name.
    """
    name, _, rest = text.partition(":")
    try:
        match name, rest.split(":"):
            case "exact", [""]:
                return Exact()
            case "noise", _:
                return LogNormalNoise(float(rest))
            case "held-out", [model, part]:
                return HeldOutBeliefs(model, float(part))
            case "held-out", [model, part, "families"]:
                return HeldOutBeliefs(model, float(part), families=True)
            case "model", _ if rest:
                return Model(rest)
    except ValueError:
        pass
    known = "exact, noise:SIGMA, held-out:MODEL:PART[:families], model:FILE"
    raise UnsupportedError(f"beliefs must be one of {known}, got {text!r}")


_Pairs = NDArray[np.bool_]


def _entered(world: Instance, truth: SlowdownTable) -> _Pairs:
    """Return which pairs have an entry, including null entries."""
    found = np.zeros((len(truth.workloads),) * 2, dtype=np.bool_)
    one, other = world.slowdowns.numbered(truth.workloads).workload.T
    found[one, other] = found[other, one] = True
    return found


def _among_pairs(
    world: Instance, truth: SlowdownTable, part: float, draw: np.random.Generator
) -> _Pairs:
    first, second = np.nonzero(np.triu(_entered(world, truth)))
    chosen = draw.permutation(len(first))[: round(part * len(first))]
    found = np.zeros((len(truth.workloads),) * 2, dtype=np.bool_)
    found[first[chosen], second[chosen]] = found[second[chosen], first[chosen]] = True
    return found


def _within_families(
    world: Instance, truth: SlowdownTable, part: float, draw: np.random.Generator
) -> _Pairs:
    family = [workload.family or name for name, workload in world.workloads.items()]
    names = sorted(set(family))
    chosen = {names[k] for k in draw.permutation(len(names))[: round(part * len(names))]}
    known = np.array([name in chosen for name in family])
    found: _Pairs = _entered(world, truth) & known & known[:, np.newaxis]
    return found


def _data_set(world: Instance, truth: SlowdownTable, measured: _Pairs) -> DataSet:
    """Return the solo profiles of a world, and the measurements of the measured pairs."""
    profiles = (
        profile
        for model in truth.models
        for name, workload in world.workloads.items()
        for profile in _profiles(name, workload, model)
    )
    return DataSet(
        name=world.name,
        profiles=tuple(profiles),
        measurements=tuple(_measurements(world, truth, measured)),
    )


def _profiles(name: str, workload: Workload, model: str) -> Iterator[SoloProfile]:
    yield SoloProfile(
        workload=name,
        gpu_model=model,
        family=workload.family,
        batch_size=workload.batch.size if workload.batch else None,
        metrics=workload.metrics,
        metrics_variance=workload.metrics_variance,
        throughput=workload.throughput.get(100),
        power_w=workload.power_w,
        memory_mib=workload.memory_mib or None,
        memory_mean_mib=workload.memory_mean_mib,
    )
    for share in sorted(({*workload.throughput} | {*workload.metrics_by_share}) - {100}):
        yield SoloProfile(
            workload=name,
            gpu_model=model,
            share=share,
            metrics=workload.metrics_by_share.get(share),
            throughput=workload.throughput.get(share),
        )


def _measurements(world: Instance, truth: SlowdownTable, measured: _Pairs) -> Iterator[Measurement]:
    for entry in world.slowdowns:
        if entry.pair is None:
            continue
        a, b = (truth.place[name] for name in entry.pair)
        on = truth.models if entry.gpu_model is None else (entry.gpu_model,)
        for model in on if measured[a, b] else ():
            if model in truth.models:
                yield Measurement(
                    workloads=entry.pair,
                    gpu_model=model,
                    share=entry.share,
                    slowdown=entry.slowdown,
                    power_w=entry.power_w,
                    mode=entry.mode,
                )


def _predicted(predictor: TrainedPredictor, world: Instance, truth: SlowdownTable) -> SlowdownTable:
    """Return predictions for the pairs with an entry; others have what is declared, if anything."""
    asked = [k for k, caps in enumerate(truth.caps) if IDLE not in caps]
    splits = [(cap_of(x), cap_of(y)) for x, y in (truth.caps[k] for k in asked)]
    slowdown, upper = np.full_like(truth.slowdown, np.nan), np.full_like(truth.upper, np.nan)
    unknown = ~_entered(world, truth)
    for m, model in enumerate(truth.models):
        mode = world.cluster.sharing
        table = predictor.predict_table(world.workloads, splits, model, mode)
        believed = table.slowdown.astype(np.float64).transpose(2, 0, 1)
        bounds = believed if table.upper is None else table.upper.transpose(2, 0, 1)
        slowdown[m, asked], upper[m, asked] = believed, np.where(np.isnan(bounds), np.inf, bounds)
    for k, caps in enumerate(truth.caps):
        if caps in (BEHIND, BEHIND[::-1]):
            slowdown[:, k] = upper[:, k] = _published(world, truth, first=caps == BEHIND)
    slowdown[:, :, unknown] = upper[:, :, unknown] = np.nan
    upper[np.isnan(slowdown)] = np.nan
    p99 = np.full_like(upper, np.nan)
    found = _capped_first(replace(truth, slowdown=slowdown, upper=upper, p99=p99), world)
    # What the cluster's owner declares is known.
    found.slowdown[:, 0, unknown] = truth.slowdown[:, 0, unknown]
    found.upper[:, 0, unknown] = truth.upper[:, 0, unknown]
    return found


def _capped_first(table: SlowdownTable, world: Instance) -> SlowdownTable:
    """Return predictions without those at which pairs that never ran may not share.

    Where both jobs could have caps, they share without only by their bounds, as in plans and in
    live mode (``predictors.unmeasured``). Policies check gSLAs themselves.
    """
    mirror = [table.caps_place[theirs, mine] for mine, theirs in table.caps]
    capped = np.array([None not in caps for caps in table.caps])
    isolated = np.array([IDLE in caps for caps in table.caps])
    known, with_caps = ~np.isnan(table.slowdown), world.cluster.caps_first
    upper = np.where(np.isinf(table.upper), np.nan, table.upper)
    may = may_share(
        np.stack([upper, upper[:, mirror].swapaxes(2, 3)], axis=-1),
        np.zeros(upper.shape, dtype=np.bool_),
        capped[:, None, None],
        np.asarray(known[:, capped & ~isolated].any(axis=1, keepdims=True) & with_caps),
    )
    may |= isolated[:, None, None]

    def kept(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(may, values, np.nan)

    return replace(
        table, slowdown=kept(table.slowdown), upper=kept(table.upper), p99=kept(table.p99)
    )


def _published(world: Instance, truth: SlowdownTable, first: bool) -> NDArray[np.float64]:
    """Return the published means of isolated pairs: of the first job, or of that behind it."""
    found = [isolated_slowdowns(world.workloads[name]) for name in truth.workloads]
    ahead, behind = np.array([(np.nan, np.nan) if one is None else one for one in found]).T
    values = ahead[:, None] if first else behind
    return np.broadcast_to(values, (len(found), len(found)))
