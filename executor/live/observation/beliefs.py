"""Beliefs about pairs of workloads that share a device, and the source of each number.

Measurements come first, then a fitted model, then the law of MPS on solo profiles (on processor
cores: the analytic predictor).
``docs/internals/live-beliefs.md`` has the rules and their reasons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.executor.jobs.events import Separated
from dovetail.formulations.arrays import Floats
from dovetail.instances._record import IDLE, AnyShare
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.instance import Metrics, SharingMode, SlowdownEntry, Workload
from dovetail.instances.instance import Source as Origin
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
    origin : {"measured", "model", "estimate"}
        The source as named in a plan.
    bounded : bool
        Whether ``upper`` bounds the error; otherwise it equals ``slowdown``.
    """

    slowdown: float
    upper: float
    source: str
    kind: Source
    origin: Origin
    bounded: bool

    @property
    def words(self) -> str:
        """The source in words; an estimate is marked as such."""
        if self.origin != "estimate":
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
        return Belief(
            float(self.slowdown[cell]),
            float(self.upper[cell]),
            self._words(cell),
            source,
            ORIGINS[source],
            source not in WITHOUT_BOUND,
        )

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

    def workload(self, name: str, models: Sequence[str]) -> Workload | None:
        """Return a workload as profiled on these device models; None if it was on none of them.

        Metrics and throughput are from the first model on which it was profiled; the speed on
        another is its throughput there over this throughput. The next run stays within the memory
        with ``MEMORY_CONFIDENCE``; 0 if the memory is unknown.
        """
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
        names = tuple(workloads), tuple(models), tuple(caps)
        shape = (len(models), len(caps), len(workloads), len(workloads))
        slowdown, upper, p99, power_w = (np.full(shape, np.nan) for _ in range(4))
        source, repeats = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for m, model in enumerate(models):
            values = slowdown[m], upper[m], source[m], power_w[m]
            found = self._predictors(workloads, model, workers or {}, sharing)
            for predictor, known, codes in found:
                _fill(values, workloads, caps, model, predictor, known, codes, sharing)
            if BEHIND in caps:
                ahead, behind = caps.index(BEHIND), caps.index(BEHIND[::-1])
                for a, name in enumerate(workloads):
                    first = self.on(model).get(name)
                    expected = first and isolated_slowdowns(first)
                    if expected:
                        for cells, value in zip(
                            ((m, ahead, a), (m, behind, slice(None), a)), expected, strict=True
                        ):
                            slowdown[cells] = upper[cells] = p99[cells] = value
                            source[cells] = Source.ISOLATED
        predicted = SlowdownTable(*names, slowdown.copy(), upper.copy(), p99, power_w)
        table = BeliefTable(
            *names,
            slowdown,
            upper,
            p99,
            power_w,
            predicted,
            source,
            repeats,
            {**_WORDS, Source.MODEL: self.model_source, Source.UNBOUNDED: self.model_source},
            sharing,
            sets=self._sets_of(workloads, models, sharing),
        )
        for where, measured in self._measured.items():
            mode, model, pair_caps, own, other = where
            cell = table.cell(model, pair_caps, own, other) if mode == sharing else None
            if cell is not None:
                slowdown[cell], upper[cell], repeats[cell] = measured
                source[cell] = Source.FAILED if math.isnan(measured.mean) else Source.MEASURED
                if of_tail := self._measured_tails.get(where):
                    p99[cell] = of_tail.upper
                if powers := self._measured_powers.get(where):
                    power_w[cell] = fmean(powers)
        return table

    def _predictors(
        self,
        names: Sequence[str],
        model: str,
        workers: Mapping[str, int],
        sharing: SharingMode,
    ) -> Iterator[tuple[_Predictor, dict[str, Workload], Codes]]:
        """Yield the predictors for a device model, best first.

        The law of MPS has bounds only for GPUs under MPS: time slices and processor cores, whose
        profiles have none of its metrics, are left to the analytic predictor.

        With each come the workloads that it can predict, and the source of each pair of them.
        """
        profiled = {name: self.on(model)[name] for name in names if name in self.on(model)}
        if self.model is not None and model in self.model.fits and self.model.mode == sharing:
            fitted = replace(self.model, workers=workers)
            known = {name: one for name, one in profiled.items() if not fitted.lacks(name, one)}
            has_bounds = fitted.fit(model).bound is not None
            source = Source.MODEL if has_bounds else Source.UNBOUNDED
            yield fitted, known, np.full((len(known),) * 2, source)
        if sharing == "mps":
            law = KernelsPredictor(confidence=CONFIDENCE, workers=workers)
            known = {name: one for name, one in profiled.items() if not law.lacks(name, one)}
            yield law, known, np.full((len(known),) * 2, Source.KERNELS)
        analytic = AnalyticPredictor()
        filled = {name: _with_stand_ins(one) for name, one in profiled.items()}
        known = {name: one for name, one in filled.items() if not analytic.lacks(name, one)}
        exact = np.array([one is profiled[name] for name, one in known.items()], dtype=bool)
        both = np.logical_and.outer(exact, exact)
        yield analytic, known, np.where(both, Source.ANALYTIC, Source.UTILISATION)

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
        return frozenset(caps for _, _, caps, _, _ in self._measured)

    @cached_property
    def _measured(self) -> Mapping[_Cell, Repeats]:
        """The measured slowdowns of pairs, in both directions."""
        found = self._of_pairs(lambda one: one.slowdown or (math.nan, math.nan))
        return {cell: repeats_of(values, CONFIDENCE) for cell, values in found.items()}

    def _sets_of(
        self, names: Sequence[str], models: Sequence[str], sharing: SharingMode
    ) -> tuple[SlowdownEntry, ...]:
        """Return the measured sets of three and more of these workloads on these models."""
        there, on = set(names), set(models)
        return tuple(
            entry
            for entry in self._measured_sets
            if entry.gpu_model in on and there.issuperset(entry.workloads) and entry.mode == sharing
        )

    @cached_property
    def _measured_sets(self) -> Sequence[SlowdownEntry]:
        """The measured sets of three and more workloads."""
        found: dict[_SetKey, list[Measurement]] = {}
        for one in self.data.measurements:
            if len(one.workloads) > 2:
                members = sorted(zip(one.workloads, one.shares, strict=True), key=_member_order)
                found.setdefault((one.mode, one.gpu_model, tuple(members)), []).append(one)
        return [_set_entry(*key, repeated) for key, repeated in found.items()]

    @cached_property
    def _measured_tails(self) -> Mapping[_Cell, Repeats]:
        """The measured tail latencies of pairs, in both directions."""
        found = self._of_pairs(lambda one: one.p99 or (None, None))
        return {cell: repeats_of(values, CONFIDENCE) for cell, values in found.items()}

    @cached_property
    def _measured_powers(self) -> Mapping[_Cell, Sequence[float]]:
        """The measured powers (W) of devices that pairs shared, in both directions."""
        return self._of_pairs(lambda one: (one.power_w, one.power_w))

    def _of_pairs(
        self, values_of: Callable[[Measurement], Sequence[float | None]]
    ) -> Mapping[_Cell, Sequence[float]]:
        found: dict[_Cell, list[float]] = {}
        for one in self.data.measurements:
            if len(one.workloads) == 2:
                for cell, value in zip(_directions(one), values_of(one), strict=True):
                    if value is not None:
                        found.setdefault(cell, []).append(value)
        return found


_Predictor = TrainedPredictor | KernelsPredictor | AnalyticPredictor

_Cell = tuple[SharingMode, str, Caps, str, str]
_SetKey = tuple[SharingMode, str, tuple[tuple[str, AnyShare], ...]]


def _member_order(member: tuple[str, AnyShare]) -> tuple[str, int]:
    return member[0], share_code(member[1])


def _set_entry(
    mode: SharingMode,
    model: str,
    members: Sequence[tuple[str, AnyShare]],
    repeated: Sequence[Measurement],
) -> SlowdownEntry:
    """Return the entry of a set from its measurements; equal members have equal figures."""
    values: dict[tuple[str, AnyShare], list[float]] = {}
    tails: dict[tuple[str, AnyShare], list[float]] = {}
    for one in repeated:
        nothing = (math.nan,) * len(members)
        for k, member in enumerate(zip(one.workloads, one.shares, strict=True)):
            values.setdefault(member, []).append((one.slowdown or nothing)[k])
            tails.setdefault(member, []).append((one.p99 or nothing)[k] or math.nan)
    found = [repeats_of(values[member], CONFIDENCE) for member in members]
    together = not any(math.isnan(each.mean) for each in found)
    p99 = [repeats_of(tails[member], CONFIDENCE).upper for member in members]
    return SlowdownEntry(
        set=tuple(name for name, _ in members),
        share=tuple(share for _, share in members),
        slowdown=tuple(each.mean for each in found) if together else None,
        upper=tuple(each.upper for each in found) if together else None,
        p99=tuple(p99) if together and not any(map(math.isnan, p99)) else None,
        gpu_model=model,
        source="measured",
        mode=mode,
    )


def _directions(found: Measurement) -> tuple[_Cell, _Cell]:
    (a, b), (x, y) = found.workloads, found.shares
    where = found.mode, found.gpu_model
    return (*where, (x, y), a, b), (*where, (y, x), b, a)


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
    values: tuple[Floats, Floats, Codes, Floats],
    names: Sequence[str],
    caps: Sequence[Caps],
    model: str,
    predictor: _Predictor,
    known: Mapping[str, Workload],
    codes: Codes,
    sharing: SharingMode,
) -> None:
    """Fill the cells of known workloads that have no slowdown yet with predictions.

    Parameters
    ----------
    values : tuple of arrays
        Slowdown, upper bound, source and power on the device model, changed in place.
    names, caps : sequence
        The workloads and the caps of their axes.
    model : str
        The device model.
    predictor
        The predictor of the pairs.
    known : mapping of str to Workload
        The workloads that it can predict, in the order of ``names``.
    codes : array
        The source of each pair of known workloads.
    sharing : {"mps", "time_sliced"}
        How they share a device.
    """
    if not known:
        return
    count = len(known)
    at = [k for k, name in enumerate(names) if name in known]
    block = np.ix_(at, at)
    pairs = np.indices((count, count)).reshape(2, -1).T
    for k, split in enumerate(caps):
        if IDLE in split:
            continue
        shares = np.tile([cap_of(share) for share in split], (len(pairs), 1))
        found = predictor.predict(known, pairs, shares, model, sharing)
        slowdown = found.slowdown[:, 0].reshape(count, count)
        upper = slowdown if found.upper is None else found.upper[:, 0].reshape(count, count)
        new = np.isnan(values[0][k][block]) & ~np.isnan(slowdown + upper)
        bound = np.fmax(upper, slowdown)
        power = np.full(len(pairs), np.nan) if found.power_w is None else found.power_w
        filled = slowdown, bound, codes, power.reshape(count, count)
        for kept, predicted in zip(values, filled, strict=True):
            kept[k][block] = np.where(new, predicted, kept[k][block])
