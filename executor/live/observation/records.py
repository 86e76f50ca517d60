"""Records of the repository, made from rates and readings of devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from statistics import fmean, pvariance
from typing import Final, NamedTuple

from dovetail.executor.jobs.specs import Run
from dovetail.executor.live.observation.rates import Rate
from dovetail.executor.pools.pool import Usage
from dovetail.instances._record import AnyShare
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.instance import FRACTIONS, KERNEL_METRICS, METRICS, Metrics
from dovetail.instances.slowdowns.entry import SharingMode

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
