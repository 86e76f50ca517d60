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
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.executor.jobs.events import Separated
from dovetail.instances._record import IDLE, AnyShare
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.instance import Metrics, Workload
from dovetail.instances.slowdowns.entry import SharingMode, SlowdownEntry
from dovetail.instances.slowdowns.entry import Source as Origin
from dovetail.instances.slowdowns.isolated import BEHIND, isolated_slowdowns
from dovetail.instances.slowdowns.shares import share_code
from dovetail.instances.slowdowns.slowdown_table import Caps, SlowdownTable
from dovetail.predictors.analytic import AnalyticPredictor
from dovetail.predictors.fitted.repeats import Repeats, repeats_of
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
    prior : SlowdownTable
        The predictions, without any measurement.
    source : (M, K, W, W) int
        The ``Source`` of each cell.
    repeats : (M, K, W, W) int
        How often each cell was measured.
    words : mapping of Source to str
        The sources in words.
    sharing : {"mps", "time_sliced"}
        The sharing mode that they are about.
    """

    prior: SlowdownTable
    source: Codes
    repeats: Codes
    words: Mapping[Source, str]
    sharing: SharingMode

    def belief(self, model: str, caps: Caps, own: str, other: str) -> Belief | None:
        """Return the belief about ``own`` sharing with ``other``; None if nothing is known."""
        cell = self.cell(model, caps, own, other)
        if cell is None or self.source[cell] == Source.NONE:
            return None
        source = Source(int(self.source[cell]))
        slowdown, upper = float(self.slowdown[cell]), float(self.upper[cell])
        return Belief(slowdown, upper, self._words(cell), source)

    def enter(self, model: str, own: _Member, other: _Member, measured: _Figures) -> None:
        """Enter the measured figures of one of a pair; only while the table is built."""
        cell = self.cell(model, (own[1], other[1]), own[0], other[0])
        if cell is None:
            return
        mean, upper, times = measured.slowdown
        self.slowdown[cell], self.upper[cell], self.repeats[cell] = mean, upper, times
        self.source[cell] = Source.FAILED if math.isnan(mean) else Source.MEASURED
        for values, value in ((self.p99, measured.p99), (self.power_w, measured.power_w)):
            if not math.isnan(value):
                values[cell] = value

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
    Source.ISOLATED: "estimate for isolated pairs, from published means",
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
        """
        shape = (len(models), len(caps), len(workloads), len(workloads))
        axes = tuple(workloads), tuple(models), tuple(caps)
        predicted = SlowdownTable(*axes, *(np.full(shape, np.nan) for _ in range(4)))
        source = np.zeros(shape, np.int64)
        for model in models:
            for predictions in self._predictions(workloads, model, workers or {}, sharing):
                _fill(predicted, source, model, predictions, sharing)
            if BEHIND in caps:
                self._fill_isolated(predicted, source, model)
        table = BeliefTable(
            *axes,
            predicted.slowdown.copy(),
            predicted.upper.copy(),
            predicted.p99,
            predicted.power_w,
            predicted,
            source,
            np.zeros(shape, np.int64),
            {**_WORDS, Source.MODEL: self.model_source, Source.UNBOUNDED: self.model_source},
            sharing,
            sets=self._sets_of(workloads, models, sharing),
        )
        for (mode, model, members), figures in self._measured.items():
            if mode == sharing and len(members) == 2:
                for own, other in (members, members[::-1]):
                    table.enter(model, own, other, figures[own])
        return table

    def _predictions(
        self, names: Sequence[str], model: str, workers: Mapping[str, int], sharing: SharingMode
    ) -> Iterator[_Predictions]:
        """Yield the predictors for a device model, best first.

        The law of MPS has bounds only for GPUs under MPS: time slices and processor cores, whose
        profiles have none of its metrics, are left to the analytic predictor.
        """
        profiled = {name: self.on(model)[name] for name in names if name in self.on(model)}
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

    def _fill_isolated(self, table: SlowdownTable, source: Codes, model: str) -> None:
        """Fill in the estimates of isolated pairs; only while the table is built."""
        on = table.models.index(model)
        ahead, behind = table.caps_place[BEHIND], table.caps_place[BEHIND[::-1]]
        for name, a in table.place.items():
            first = self.on(model).get(name)
            expected = first and isolated_slowdowns(first)
            if expected:
                for cells, value in zip(
                    ((on, ahead, a), (on, behind, slice(None), a)), expected, strict=True
                ):
                    for values in (table.slowdown, table.upper, table.p99):
                        values[cells] = value
                    source[cells] = Source.ISOLATED

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

    @cached_property
    def measured_caps(self) -> frozenset[Caps]:
        """The caps under which any pair was measured."""
        pairs = (members for _, _, members in self._measured if len(members) == 2)
        return frozenset(caps for (_, x), (_, y) in pairs for caps in ((x, y), (y, x)))

    def _sets_of(
        self, names: Sequence[str], models: Sequence[str], sharing: SharingMode
    ) -> tuple[SlowdownEntry, ...]:
        """Return the measured sets of three and more of these workloads on these models."""
        there = set(names)
        return tuple(
            _set_entry(mode, model, members, figures)
            for (mode, model, members), figures in self._measured.items()
            if len(members) > 2
            and (mode == sharing and model in models)
            and there.issuperset(name for name, _ in members)
        )

    @cached_property
    def _measured(self) -> Mapping[_Company, Mapping[_Member, _Figures]]:
        """The figures of each workload that was measured with others."""
        found: dict[_Company, list[Measurement]] = {}
        for one in self.data.measurements:
            members = sorted(zip(one.workloads, one.shares, strict=True), key=_member_order)
            found.setdefault((one.mode, one.gpu_model, tuple(members)), []).append(one)
        return {company: _figures(company[2], repeated) for company, repeated in found.items()}


_Predictor = TrainedPredictor | KernelsPredictor | AnalyticPredictor

_Member = tuple[str, AnyShare]
"""A workload and its share."""

_Company = tuple[SharingMode, str, tuple[_Member, ...]]
"""How members share a device, its model, and the members in order."""


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


class _Figures(NamedTuple):
    """The figures of a workload with its co-runners; the p99 and the power may be unknown (NaN).

    ``tails`` is how often its p99 was measured.
    """

    slowdown: Repeats
    p99: float
    tails: int
    power_w: float


def _member_order(member: _Member) -> tuple[str, int]:
    return member[0], share_code(member[1])


def _figures(
    members: Sequence[_Member], repeated: Sequence[Measurement]
) -> Mapping[_Member, _Figures]:
    """Return the figures of each member; equal members have equal figures."""
    slowdowns: dict[_Member, list[float]] = {member: [] for member in members}
    tails: dict[_Member, list[float]] = {member: [] for member in members}
    for one in repeated:
        nothing = (math.nan,) * len(members)
        for member, slowdown, tail in zip(
            zip(one.workloads, one.shares, strict=True),
            one.slowdown or nothing,
            one.p99 or nothing,
            strict=True,
        ):
            slowdowns[member].append(slowdown)
            if tail is not None and not math.isnan(tail):
                tails[member].append(tail)
    powers = [one.power_w for one in repeated if one.power_w is not None]
    power_w = fmean(powers) if powers else math.nan
    return {
        member: _Figures(
            repeats_of(values, CONFIDENCE),
            repeats_of(tails[member], CONFIDENCE).upper if tails[member] else math.nan,
            len(tails[member]),
            power_w,
        )
        for member, values in slowdowns.items()
    }


def _set_entry(
    mode: SharingMode,
    model: str,
    members: Sequence[_Member],
    figures: Mapping[_Member, _Figures],
) -> SlowdownEntry:
    """Return the entry of a set; its p99 must have been measured each time."""
    found = [figures[member] for member in members]
    together = not any(math.isnan(each.slowdown.mean) for each in found)
    tails = together and all(each.tails == each.slowdown.repeats for each in found)
    return SlowdownEntry(
        set=tuple(name for name, _ in members),
        share=tuple(share for _, share in members),
        slowdown=tuple(each.slowdown.mean for each in found) if together else None,
        upper=tuple(each.slowdown.upper for each in found) if together else None,
        p99=tuple(each.p99 for each in found) if tails else None,
        gpu_model=model,
        source="measured",
        mode=mode,
    )


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
