"""Beliefs about pairs of workloads that share a device, and the source of each number.

Measurements come first, then a fitted model, then the law of MPS on solo profiles (on processor
cores: the analytic predictor).
``docs/internals/live-beliefs.md`` has the rules and their reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.executor.jobs.events import Separated
from dovetail.instances._record import IDLE
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import SoloProfile
from dovetail.instances.instance import Workload
from dovetail.instances.metrics import Metrics
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import MODES, SOURCES, SharingMode, SlowdownEntry
from dovetail.instances.slowdowns.entry import Source as Origin
from dovetail.instances.slowdowns.isolated import BEHIND, isolated_slowdowns
from dovetail.instances.slowdowns.slowdown_table import UNCAPPED, Caps, SlowdownTable, caps_in
from dovetail.predictors.analytic import AnalyticPredictor
from dovetail.predictors.fitted.isolated import isolated_factors, measured_isolated
from dovetail.predictors.fitted.repeats import measured_slowdowns
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.predictors.kernels import KernelsPredictor
from dovetail.predictors.memory import next_mark
from dovetail.predictors.predictor import cap_of

Codes = NDArray[np.int64]

CONFIDENCE: Final = 0.9
"""Confidence of the upper bounds of measured pairs."""

MEMORY_CONFIDENCE: Final = 0.95
"""Confidence that a run stays within the memory learned from earlier runs."""

WHOLE: Final = 100

_OVER: Final = 1 + 1e-6
"""Factor that exceeds the rounding tolerance when bounds are compared with gSLAs."""


class Source(IntEnum):
    """Where a number comes from."""

    NONE = 0
    MEASURED = 1
    FAILED = 2
    MODEL = 3
    ANALYTIC = 4
    UTILISATION = 5
    BROKEN = 6
    ISOLATED = 7
    UNBOUNDED = 8
    """A fitted model without bounds."""
    KERNELS = 9
    """The law of MPS on solo profiles, with the bound of its errors on other GPUs."""
    DECLARED = 10
    """The owner of the devices (``Cluster.assumed``)."""


SEEN: Final = (Source.MEASURED, Source.FAILED, Source.BROKEN)
"""Sources that were seen on running jobs."""

WITHOUT_BOUND: Final = (Source.ANALYTIC, Source.UTILISATION, Source.UNBOUNDED)
"""Sources of estimates without an error bound; their upper bound is the estimate itself."""

ORIGINS: Final[Mapping[Source, Origin]] = {
    Source.MEASURED: "measured",
    Source.FAILED: "measured",
    Source.BROKEN: "measured",
    Source.MODEL: "model",
    Source.KERNELS: "estimate",
    Source.ANALYTIC: "estimate",
    Source.UTILISATION: "estimate",
    Source.ISOLATED: "estimate",
    Source.UNBOUNDED: "estimate",
    Source.DECLARED: "assumed",
}
"""Names of the sources in a plan."""


class Belief(NamedTuple):
    """The slowdown of a workload that shares a device with another.

    Attributes
    ----------
    slowdown, upper : float
        The believed slowdown and its upper bound; NaN = the two may not share.
    source : str
        The source in words.
    kind : Source
        The source.
    """

    slowdown: float
    upper: float
    source: str
    kind: Source

    @property
    def bounded(self) -> bool:
        """Whether ``upper`` bounds the error; otherwise it equals ``slowdown``."""
        return self.kind not in WITHOUT_BOUND

    @property
    def words(self) -> str:
        """The source in words; an estimate is marked as such."""
        if ORIGINS[self.kind] != "estimate":
            return self.source
        return f"estimate{'' if self.bounded else ' without a bound'}: {self.source}"


@dataclass(frozen=True, eq=False)
class BeliefTable(SlowdownTable):
    """Beliefs about all pairs of workloads, and their sources; ``p99`` is as measured.

    Attributes
    ----------
    source : (M, K, W, W) int
        The ``Source`` of each cell.
    repeats : (M, K, W, W) int
        How often each cell was measured.
    words : mapping of Source to str
        The sources in words.
    sharing : {"mps", "time_sliced"}
        The sharing mode that they are about.
    confidence : mapping of Source to float
        The confidence of predicted upper bounds; without a source of which they are none.
    """

    source: Codes
    repeats: Codes
    words: Mapping[Source, str]
    sharing: SharingMode
    confidence: Mapping[Source, float]

    def belief(self, model: str, caps: Caps, own: str, other: str) -> Belief | None:
        """Return the belief about ``own`` sharing with ``other``; None if nothing is known."""
        cell = self.cell(model, caps, own, other)
        if cell is None or self.source[cell] == Source.NONE:
            return None
        source = Source(int(self.source[cell]))
        slowdown, upper = float(self.slowdown[cell]), float(self.upper[cell])
        return Belief(slowdown, upper, self._words(cell), source)

    @property
    def measured(self) -> NDArray[np.bool_]:
        """The cells with a measured slowdown."""
        return np.asarray((self.source == Source.MEASURED) & ~np.isnan(self.slowdown))

    @property
    def origins(self) -> NDArray[np.int_]:
        """The origin of each pair as named in a plan, the weaker one of both directions.

        They are positions in ``SOURCES``, -1 if not given.
        """
        place = [SOURCES.index(ORIGINS[one]) if one in ORIGINS else -1 for one in Source]
        of_one = np.array(place)[self.source]
        return np.asarray(np.maximum(of_one, self.turned(of_one)))

    @property
    def confidences(self) -> NDArray[np.float64]:
        """The confidence of both predicted bounds of each pair, NaN if one is none."""
        of_one = np.array([self.confidence.get(one, math.nan) for one in Source])[self.source]
        return np.asarray(np.minimum(of_one, self.turned(of_one)))

    def after(self, broken: Sequence[Separated]) -> BeliefTable:
        """Return the table with the slowdowns that broke a gSLA as lower limits."""
        if not broken:
            return self
        slowdown, upper, source = self.slowdown.copy(), self.upper.copy(), self.source.copy()
        p99 = self.p99.copy()
        for pair in (pair for pair in broken if pair.mode == self.sharing):
            # A workload that made no progress may not share with the other: NaN spreads.
            least = math.nan if pair.slowdown is None else max(pair.slowdown, pair.gsla * _OVER)
            cell = self.cell(pair.gpu_model, pair.shares, *pair.workloads)
            if cell is None:
                continue
            source[cell] = Source.BROKEN
            if pair.tail:
                p99[cell] = np.fmax(p99[cell], least)
                continue
            for values in (slowdown, upper, p99):
                values[cell] = np.maximum(values[cell], least)
        return replace(self, slowdown=slowdown, upper=upper, p99=p99, source=source)

    def cell(
        self, model: str, caps: Caps, own: str, other: str
    ) -> tuple[int, int, int, int] | None:
        """Return the cell of a workload that shares with another; None if there is none."""
        place, known = self.place, own in self.place and other in self.place
        if not known or model not in self.models or caps not in self.caps_place:
            return None
        return self.models.index(model), self.caps_place[caps], place[own], place[other]

    def _words(self, cell: tuple[int, int, int, int]) -> str:
        source, times = Source(int(self.source[cell])), int(self.repeats[cell])
        if source is Source.MEASURED:
            return "measured once" if times == 1 else f"measured {times} times"
        return self.words[source]


_WORDS: Final = {
    Source.FAILED: "failed to run together",
    Source.BROKEN: "broke a gSLA",
    Source.KERNELS: "law of MPS, from solo profiles",
    Source.ANALYTIC: "analytic, from solo profiles",
    Source.UTILISATION: "analytic, from utilisation alone",
    Source.ISOLATED: "estimate for isolated pairs, from published means and measured pairs",
    Source.DECLARED: "assumed by the service's administrator",
}


@dataclass(frozen=True, eq=False)
class Beliefs:
    """Beliefs from a repository and a predictor; immutable.

    Parameters
    ----------
    data : DataSet
        All profiles and measurements.
    model : TrainedPredictor, optional
        A model fitted on this or on other data.
    model_source : str
        The model in words.
    """

    data: DataSet
    model: TrainedPredictor | None = None
    model_source: str = "fitted model"
    _workloads: dict[str, dict[str, Workload]] = field(default_factory=dict, init=False)
    _on_models: dict[tuple[str, tuple[str, ...]], Workload | None] = field(
        default_factory=dict, init=False
    )

    def workload(self, name: str, models: Sequence[str]) -> Workload | None:
        """Return a workload as profiled on these device models; None if it was on none of them.

        Metrics and throughput are from the first model on which it was profiled; the speed on
        another is its throughput there over this throughput. The next run stays within the memory
        with ``MEMORY_CONFIDENCE``; 0 if the memory is unknown.
        """
        key = name, tuple(models)
        if key not in self._on_models:
            self._on_models[key] = self._profiled(*key)
        return self._on_models[key]

    def _profiled(self, name: str, models: Sequence[str]) -> Workload | None:
        found = {model: self.on(model)[name] for model in models if name in self.on(model)}
        if not found:
            return None
        first = next(iter(found.values()))
        rate = first.throughput.get(WHOLE)
        speed = {
            model: there / rate
            for model, one in found.items()
            if rate and (there := one.throughput.get(WHOLE))
        }
        return first.replace(memory_mib=self._memory_mib(name, models), speed=speed)

    def on(self, model: str) -> Mapping[str, Workload]:
        """Return the workloads that were profiled on a device model."""
        if model not in self._workloads:
            self._workloads[model] = self.data.workloads(model)
        return self._workloads[model]

    @cached_property
    def alone(self) -> Mapping[tuple[str, str, int], SoloProfile]:
        """The newest uncapped profile with a rate, by workload, model and number of workers."""
        return {
            (key.workload, key.gpu_model, key.workers): profile
            for key, profile in self.data.newest.items()
            if key.share is None and profile.throughput is not None
        }

    def table(
        self,
        workloads: Sequence[str],
        models: Sequence[str],
        caps: Sequence[Caps],
        workers: Mapping[str, int] | None = None,
        sharing: SharingMode = "mps",
        declared: float | None = None,
    ) -> BeliefTable:
        """Return the beliefs about all pairs of workloads.

        Parameters
        ----------
        workloads, models : sequence of str
            Names in the repository.
        caps : sequence of (int or None, int or None)
            Caps of pairs, including the mirror of each.
        workers : mapping of str to int, optional
            Size of the largest gang of each workload, for the bounds of a fitted model.
        sharing : {"mps", "time_sliced"}
            How runs share a device; measurements and models of the other mode say nothing.
        declared : float, optional
            The slowdown that is declared of pairs without caps; it comes before predictions.
        """
        prior = SlowdownTable.unknown(workloads, models, caps)
        source = np.zeros(prior.slowdown.shape, np.int64)
        for model in models:
            for predictions in self._predictions(workloads, model, workers or {}, sharing):
                _fill(prior, source, model, predictions, sharing)
            if BEHIND in caps:
                self._fill_isolated(prior, source, model, sharing)
        if declared is not None:
            self._fill_declared(prior, source, declared)
        table = BeliefTable(
            *(prior.workloads, prior.models, prior.caps),
            *(prior.slowdown.copy(), prior.upper.copy(), prior.p99, prior.power_w),
            source,
            np.zeros_like(source),
            {**_WORDS, Source.MODEL: self.model_source, Source.UNBOUNDED: self.model_source},
            sharing,
            self._confidence,
            sets=self._sets_of(workloads, models, sharing),
            prior=prior,
        )
        self._enter_measured(table)
        return table

    @property
    def _confidence(self) -> Mapping[Source, float]:
        of_model = {} if self.model is None else {Source.MODEL: self.model.confidence}
        return {Source.KERNELS: CONFIDENCE, **of_model}

    def _predictions(
        self, names: Sequence[str], model: str, workers: Mapping[str, int], sharing: SharingMode
    ) -> Iterator[_Predictions]:
        """Yield the predictors for a device model, best first.

        The law of MPS has bounds only for GPUs under MPS: time slices and processor cores, whose
        profiles have none of its metrics, are left to the analytic predictor.
        """
        profiled = {name: self.on(model)[name] for name in names if name in self.on(model)}
        if not profiled:
            return
        if self.model is not None and model in self.model.fits and self.model.mode == sharing:
            fitted = replace(self.model, workers=workers)
            source = Source.MODEL if fitted.fit(model).bound is not None else Source.UNBOUNDED
            yield _Predictions.of(fitted, profiled, source)
        if sharing == "mps":
            law = KernelsPredictor(confidence=CONFIDENCE, workers=workers)
            yield _Predictions.of(law, profiled, Source.KERNELS)
        filled = {name: _with_stand_ins(one) for name, one in profiled.items()}
        found = _Predictions.of(AnalyticPredictor(), filled, Source.ANALYTIC)
        stood_in = np.array([one is not profiled[name] for name, one in found.known.items()], bool)
        found.source[np.logical_or.outer(stood_in, stood_in)] = Source.UTILISATION
        yield found

    def _fill_isolated(
        self, table: SlowdownTable, source: Codes, model: str, sharing: SharingMode
    ) -> None:
        """Fill in the estimates of isolated pairs; only while the table is built."""
        there = (m for m in self.data.measurements if (m.gpu_model, m.mode) == (model, sharing))
        factors = isolated_factors(measured_isolated(there), self.on(model), CONFIDENCE)
        on = table.models.index(model)
        ahead, behind = table.caps_place[BEHIND], table.caps_place[BEHIND[::-1]]
        for name, a in table.place.items():
            first = self.on(model).get(name)
            expected = first and isolated_slowdowns(first)
            if expected:
                figures = (expected,) * 3 if factors is None else factors.applied(expected)
                each = zip((table.slowdown, table.upper, table.p99), figures, strict=True)
                for values, (first_value, value) in each:
                    values[on, ahead, a] = first_value
                    values[on, behind, :, a] = value
                source[on, ahead, a] = source[on, behind, :, a] = Source.ISOLATED

    def _fill_declared(self, table: SlowdownTable, source: Codes, declared: float) -> None:
        """Fill in the declared slowdown, without caps; only while the table is built.

        Both workloads must have a profile on the model: else nobody would see that it is wrong.
        """
        for on, model in enumerate(table.models):
            profiled = np.array([name in self.on(model) for name in table.workloads], np.bool_)
            one, other = np.nonzero(np.outer(profiled, profiled))
            cells = on, table.caps_place[UNCAPPED], one, other
            table.slowdown[cells] = table.upper[cells] = declared
            source[cells] = Source.DECLARED

    def _memory_mib(self, name: str, models: Sequence[str]) -> float:
        marks = [p for m in models for p in self._marks.get((name, m), ())]
        return math.ceil(next_mark(marks).upper(MEMORY_CONFIDENCE)) if marks else 0.0

    @cached_property
    def _marks(self) -> Mapping[tuple[str, str], Sequence[SoloProfile]]:
        found: dict[tuple[str, str], list[SoloProfile]] = {}
        for profile in self.data.profiles:
            if profile.memory_mib is not None:
                found.setdefault((profile.workload, profile.gpu_model), []).append(profile)
        return found

    @property
    def measured(self) -> Slowdowns:
        """What was measured of workloads that shared a device."""
        return self._measured[0]

    @cached_property
    def measured_caps(self) -> frozenset[Caps]:
        """The caps under which any pair was measured, and no caps."""
        return frozenset(caps_in(self.measured))

    @cached_property
    def _measured(self) -> tuple[Slowdowns, Codes]:
        return measured_slowdowns(self.data.measurements, CONFIDENCE)

    def _sets_of(
        self, names: Sequence[str], models: Sequence[str], sharing: SharingMode
    ) -> tuple[SlowdownEntry, ...]:
        """Return the measured sets of three and more of these workloads on these models."""
        there = set(names)
        return tuple(
            entry
            for entry in self.measured.sets.values()
            if (entry.mode == sharing and entry.gpu_model in models)
            and there.issuperset(entry.workloads)
        )

    def _enter_measured(self, table: BeliefTable) -> None:
        """Enter the measured pairs; only while the table is built."""
        measured, times = self._measured
        mode = np.flatnonzero(measured.mode == MODES.index(table.sharing))
        pairs = measured.select(mode)
        rows, cells = table.cells(pairs, table.sharing)
        slowdown = pairs.slowdown[rows]
        table.slowdown[cells], table.upper[cells] = slowdown, pairs.upper[rows]
        table.source[cells] = np.where(np.isnan(slowdown), Source.FAILED, Source.MEASURED)
        table.repeats[cells] = times[mode][rows, np.newaxis]
        power_w = np.repeat(pairs.power_w[rows, np.newaxis], 2, axis=1)
        for values, found in ((table.p99, pairs.p99[rows]), (table.power_w, power_w)):
            values[cells] = np.where(np.isnan(found), values[cells], found)


_Predictor = TrainedPredictor | KernelsPredictor | AnalyticPredictor


class _Predictions(NamedTuple):
    """A predictor, the workloads that it can predict, and the source of each pair of these."""

    predictor: _Predictor
    known: Mapping[str, Workload]
    source: Codes

    @classmethod
    def of(
        cls, predictor: _Predictor, profiled: Mapping[str, Workload], source: Source
    ) -> _Predictions:
        known = {name: one for name, one in profiled.items() if not predictor.lacks(name, one)}
        return cls(predictor, known, np.full((len(known),) * 2, source))


def _with_stand_ins(workload: Workload) -> Workload:
    """Return the workload with utilisations instead of metrics that could not be read.

    The device's utilisation replaces its SMs'; unknown memory and bus traffic is 0.
    """
    metrics = workload.metrics or Metrics()
    busy = next(
        (m for m in (metrics.sm_active, metrics.gpu_util, metrics.cpu_util) if m is not None), None
    )
    if busy is None or None not in (
        metrics.sm_active,
        metrics.dram_active,
        metrics.pcie_rx_bytes_s,
    ):
        return workload
    dram = metrics.dram_active if metrics.dram_active is not None else metrics.mem_util
    filled = metrics.replace(
        sm_active=busy, dram_active=dram or 0.0, pcie_rx_bytes_s=metrics.pcie_rx_bytes_s or 0.0
    )
    return workload.replace(metrics=filled)


def _fill(
    table: SlowdownTable,
    source: Codes,
    model: str,
    predictions: _Predictions,
    sharing: SharingMode,
) -> None:
    """Fill the cells on a device model that have no slowdown yet; only while the table is built."""
    predictor, known, codes = predictions
    if not known:
        return
    on, count = table.models.index(model), len(known)
    at = [k for k, name in enumerate(table.workloads) if name in known]
    block = np.ix_(at, at)
    pairs = np.indices((count, count)).reshape(2, -1).T
    for k, split in enumerate(table.caps):
        if IDLE in split:
            continue
        shares = np.tile([cap_of(share) for share in split], (len(pairs), 1))
        found = predictor.predict(known, pairs, shares, model, sharing)
        slowdown = found.slowdown[:, 0].reshape(count, count)
        upper = slowdown if found.upper is None else found.upper[:, 0].reshape(count, count)
        new = np.isnan(table.slowdown[on, k][block]) & ~np.isnan(slowdown + upper)
        power = np.full(len(pairs), np.nan) if found.power_w is None else found.power_w
        for kept, filled in (
            (table.slowdown, slowdown),
            (table.upper, np.fmax(upper, slowdown)),
            (table.power_w, power.reshape(count, count)),
            (source, codes),
        ):
            kept[on, k][block] = np.where(new, filled, kept[on, k][block])
