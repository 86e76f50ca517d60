"""Rates and tail latencies from what runs report, and the records that are made of them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from operator import attrgetter
from statistics import fmean, median, pvariance, stdev
from typing import Final, NamedTuple

from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.executor.pools.progress_hook.dovetail_progress import BUCKETS, latency_at
from dovetail.instances._record import AnyShare
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.metrics import FRACTIONS, KERNEL_METRICS, METRICS, Metrics
from dovetail.instances.slowdowns.entry import SharingMode

PIECES: Final = 8
"""Number of pieces of about equal length into which a time span is cut."""

_LEAST_PIECES: Final = 4
_MEDIAN_OVER_MEAN: Final = math.sqrt(math.pi / 2)
_at_s = attrgetter("at_s")


class Sample(NamedTuple):
    """A reading: ``iterations`` had been counted when the last of them ended at ``at_s``."""

    at_s: float
    iterations: float


class Rate(NamedTuple):
    """Iterations per second over a time span.

    Attributes
    ----------
    per_s : float
        The median over the pieces, which pauses (an evaluation, a checkpoint) do not change.
    noise : float
        Relative standard error of ``per_s``; infinite if there are too few pieces.
    drift : float
        The median of the second half over the median of the first, less 1; infinite if there are
        too few pieces.
    iterations, seconds : float
        Number of counted iterations, and the time they took.
    """

    per_s: float
    noise: float
    drift: float
    iterations: float
    seconds: float


def rate_of(samples: Sequence[Sample], since_s: float) -> Rate | None:
    """Return the rate over the samples from ``since_s`` on; None if they show no progress.

    The noise is the standard error of a median of independent pieces (batch means: Law and
    Kelton, Simulation Modeling and Analysis), ``sqrt(pi / 2) s / sqrt(n)`` for a normal
    distribution.

    Parameters
    ----------
    samples : sequence of Sample
        Samples in strict order of time.
    since_s : float
        Earlier samples are ignored.
    """
    ends = _ends(samples, since_s)
    rates = [
        (after.iterations - before.iterations) / (after.at_s - before.at_s)
        for before, after in pairwise(ends)
    ]
    if not rates or median(rates) <= 0:
        return None
    whole = Sample(ends[-1].at_s - ends[0].at_s, ends[-1].iterations - ends[0].iterations)
    return Rate(median(rates), _noise(rates), _drift(rates), whole.iterations, whole.at_s)


def _ends(samples: Sequence[Sample], since_s: float) -> list[Sample]:
    """Return the samples that delimit the pieces: the first at or after each of equal steps.

    If iterations are longer than a step, there are fewer pieces.
    """
    first, last = bisect_left(samples, since_s, key=_at_s), len(samples) - 1
    if first >= last:
        return []
    begin_s, length_s = samples[first].at_s, samples[last].at_s - samples[first].at_s
    steps = (begin_s + length_s * k / PIECES for k in range(1, PIECES))
    inner = {bisect_left(samples, step_s, first + 1, last, key=_at_s) for step_s in steps}
    return [samples[k] for k in sorted({first, last} | inner)]


def _noise(rates: Sequence[float]) -> float:
    if len(rates) < _LEAST_PIECES:
        return math.inf
    return _MEDIAN_OVER_MEAN * stdev(rates) / math.sqrt(len(rates)) / median(rates)


def _drift(rates: Sequence[float]) -> float:
    half = len(rates) // 2
    if len(rates) < _LEAST_PIECES or median(rates[:half]) <= 0:
        return math.inf
    return median(rates[-half:]) / median(rates[:half]) - 1


LEAST_LATENCIES: Final = 500
"""The fewest latencies that give a 99th percentile: five are above it."""

_QUANTILE: Final = 0.99
_MOST_READINGS: Final = 256
_BUCKETS: Final = frozenset(range(BUCKETS))


class LatencyTail(NamedTuple):
    """The 99th percentile of latencies.

    Attributes
    ----------
    p99_s : float
        In seconds, to within the width of a bucket, 2.2 %.
    least_s : float
        A lower bound on it at two standard deviations.
    """

    p99_s: float
    least_s: float


class _TailReading(NamedTuple):
    at_s: float
    counts: Mapping[int, int]


class Tails:
    """The histograms that a run has reported; the difference of two covers a time span."""

    def __init__(self) -> None:
        self._readings: list[_TailReading] = []

    @property
    def reported(self) -> bool:
        """Whether any latency was reported."""
        return bool(self._readings and self._readings[-1].counts)

    def note(self, at_s: float, ranks: Sequence[Progress | None]) -> None:
        """Add a later report of all ranks of a run.

        It is ignored if a rank reports nothing: that rank's earlier latencies would later seem to
        arrive all at the same time.
        """
        if any(rank is None for rank in ranks):
            return
        counts: Counter[int] = Counter()
        for rank in ranks:
            counts.update(dict(rank.latencies) if rank else {})
        self._readings.append(_TailReading(at_s, counts))
        if len(self._readings) > _MOST_READINGS:
            del self._readings[1:-1:2]

    def clear(self) -> None:
        """Forget all reports, because another process begins to count."""
        self._readings.clear()

    def since(self, since_s: float) -> LatencyTail | None:
        """Return the tail of the latencies reported since then; None if they are too few."""
        return tail_of(self._counts(since_s))

    def number(self, since_s: float) -> int:
        """Return how many latencies were reported since then."""
        return self._counts(since_s).total()

    def _counts(self, since_s: float) -> Counter[int]:
        first = bisect_left(self._readings, since_s, key=_at_s)
        if first >= len(self._readings):
            return Counter()
        counts = Counter(self._readings[-1].counts)
        counts.subtract(self._readings[first].counts)
        return counts


def tail_of(counts: Mapping[int, int]) -> LatencyTail | None:
    """Return the tail of a histogram; None if it has too few latencies or is invalid.

    The bound holds for any distribution of latencies: the number of n independent latencies below
    the quantile p is binomial, with mean n p and standard deviation sqrt(n p (1 - p)) (Conover,
    Practical Nonparametric Statistics, section 3.2). Within a bucket, latencies are assumed to be
    spread evenly on a logarithmic scale.
    """
    total = sum(counts.values())
    if total < LEAST_LATENCIES or min(counts.values()) < 0 or not counts.keys() <= _BUCKETS:
        return None
    rank = _QUANTILE * total
    spread = math.sqrt(rank * (1 - _QUANTILE))
    return LatencyTail(_latency_of_rank(counts, rank), _latency_of_rank(counts, rank - 2 * spread))


def _latency_of_rank(counts: Mapping[int, int], rank: float) -> float:
    buckets = sorted(counts)
    up_to = list(accumulate(counts[bucket] for bucket in buckets))
    k = bisect_left(up_to, rank)
    return latency_at(buckets[k] + 1 - (up_to[k] - rank) / counts[buckets[k]])


_MOST: Final = 1e15
_LEAST: Final = 1e-9
_LEAST_SLOWDOWN: Final = 1e-3


class Period(NamedTuple):
    """What devices showed in the time of a record.

    Attributes
    ----------
    gpu_model : str
        Their model.
    devices : sequence of sequence of Usage
        The readings of each.
    at_s : float
        The end of that time, seconds since the epoch.
    neighbours : int
        Number of other busy devices on their nodes, whose runs may have slowed theirs through the
        host.
    """

    gpu_model: str
    devices: Sequence[Sequence[Usage]]
    at_s: float
    neighbours: int = 0

    @property
    def readings(self) -> list[Usage]:
        """The readings of all devices."""
        return [reading for device in self.devices for reading in device]

    @property
    def power_w(self) -> float | None:
        """The mean power of the devices for which it is known."""
        powers = [power for device in self.devices if (power := power_w(device)) is not None]
        return fmean(powers) if powers else None

    @property
    def driver(self) -> str | None:
        """The driver of the devices."""
        return next((reading.driver for reading in self.readings), None)

    def source(self, rates: Sequence[Rate]) -> str:
        """Return the source of a record, the noise of its worst rate, and what else ran there."""
        noise, seconds = max(rate.noise for rate in rates), min(rate.seconds for rate in rates)
        noise_text = f"±{noise:.1%}" if noise < 1 else "noise unknown"
        metrics = dict.fromkeys(reading.source for reading in self.readings if reading.source)
        several = "s" * (self.neighbours > 1)
        busy = [f"{self.neighbours} other device{several} of the node busy"]
        parts = ["live", f"rate {noise_text} over {seconds:.0f} s", *busy * (self.neighbours > 0)]
        return "; ".join([*parts, *metrics])[:200]


class Slowed(NamedTuple):
    """The slowdown of a run, the rate it was computed from, and the growth of its p99 if known."""

    slowdown: float
    rate: Rate
    p99: float | None = None


def solo_profile(
    run: Run,
    workload: str,
    rate: Rate,
    memory_mib: float,
    period: Period,
    latency_p99_s: float | None = None,
) -> SoloProfile:
    """Return the profile of a run that ran alone.

    Parameters
    ----------
    run : Run
        The run.
    workload : str
        Its workload's name in the repository.
    rate : Rate
        Rate of its slowest rank.
    memory_mib : float
        The most memory that a rank used.
    period : Period
        What its devices showed; the metrics are means over all readings, and the variances are per
        reading.
    latency_p99_s : float, optional
        The 99th percentile of its latencies; None if it reported too few.
    """
    readings = period.readings
    values = {name: list(_values(name, readings)) for name in METRICS}
    known = {name: found for name, found in values.items() if found}
    return SoloProfile(
        workload=workload,
        gpu_model=period.gpu_model,
        share=run.seats[0].share,
        workers=run.spec.workers,
        metrics=Metrics(**{name: fmean(found) for name, found in known.items()}),
        metrics_variance={name: pvariance(found) for name, found in known.items()},
        throughput=_between(_LEAST, rate.per_s, _MOST),
        power_w=period.power_w,
        memory_mib=memory_mib,
        latency_p99_s=latency_p99_s,
        driver=period.driver,
        source=period.source([rate]),
        date=moment(period.at_s),
    )


def with_kernels_of(profile: SoloProfile, known: SoloProfile | None) -> SoloProfile:
    """Return a profile that also has what an older one says of the workload's kernels.

    Kernels a second follow the throughput, as an iteration launches as many as before. What was
    read while the new profile was made stays.
    """
    if known is None or known.metrics is None:
        return profile
    older = known.metrics.to_data()
    kernels = {name: older[name] for name in KERNEL_METRICS if name in older}
    if "kernels_s" in kernels and profile.throughput and known.throughput:
        grown = kernels["kernels_s"] * profile.throughput / known.throughput
        kernels["kernels_s"] = _between(0.0, grown, _MOST)
    found = profile.metrics.to_data() if profile.metrics else {}
    return profile.replace(metrics=Metrics(**kernels | found))


def measurement(
    workloads: Sequence[str],
    shares: Sequence[AnyShare],
    slowed: Sequence[Slowed] | None,
    period: Period,
    mode: SharingMode = "mps",
) -> Measurement:
    """Return the measurement of runs that share a device.

    Parameters
    ----------
    workloads, shares : sequence
        The workloads of the runs and their caps.
    slowed : sequence of Slowed or None
        The slowdown of each run; None if one of them made no progress.
    period : Period
        What the device showed.
    mode : {"mps", "time_sliced"}
        How they share it.
    """
    return Measurement(
        workloads=tuple(workloads),
        gpu_model=period.gpu_model,
        share=tuple(shares),
        slowdown=slowed and tuple(_between(_LEAST_SLOWDOWN, s.slowdown, _MOST) for s in slowed),
        p99=slowed and tuple(s.p99 and _between(_LEAST_SLOWDOWN, s.p99, _MOST) for s in slowed),
        power_w=period.power_w,
        driver=period.driver,
        source=period.source([s.rate for s in slowed]) if slowed else "live; stood still",
        date=moment(period.at_s),
        mode=mode,
    )


def power_w(readings: Sequence[Usage]) -> float | None:
    """Return a device's mean power between its first and its last reading of energy."""
    metered = [(r.at_s, r.energy_j) for r in readings if r.energy_j is not None]
    if len(metered) < 2:
        return None
    (begin_s, before_j), (end_s, after_j) = metered[0], metered[-1]
    # A counter that went back was reset by a new driver.
    power = (after_j - before_j) / (end_s - begin_s) if end_s > begin_s else 0.0
    return power if power >= _LEAST else None


def moment(at_s: float) -> str:
    """Return a moment in the repository's format, ISO 8601 in UTC."""
    return datetime.fromtimestamp(at_s, UTC).isoformat()


def _values(name: str, readings: Iterable[Usage]) -> Iterator[float]:
    most = 1.0 if name in FRACTIONS else _MOST
    for reading in readings:
        value = reading.metrics.get(name, math.nan)
        if not math.isnan(value):
            yield _between(0.0, value, most)


def _between(least: float, value: float, most: float) -> float:
    return min(max(value, least), most)
