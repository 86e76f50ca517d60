"""Make records of the repository from readings of rates and devices."""

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
from dovetail.instances.instance import (
    FRACTIONS,
    KERNEL_METRICS,
    METRICS,
    Metrics,
    SharingMode,
)

_MOST: Final = 1e15
_LEAST: Final = 1e-9
_LEAST_SLOWDOWN: Final = 1e-3


class Slowed(NamedTuple):
    """The slowdown of a run, the rate it was computed from, and the growth of its p99 if known."""

    slowdown: float
    rate: Rate
    p99: float | None = None


def solo_profile(
    run: Run,
    workload: str,
    gpu_model: str,
    rate: Rate,
    memory_mib: float,
    devices: Sequence[Sequence[Usage]],
    at_s: float,
    latency_p99_s: float | None = None,
    neighbours: int = 0,
) -> SoloProfile:
    """Return the profile of a run that ran alone.

    Parameters
    ----------
    run : Run
        The run.
    workload, gpu_model : str
        Its workload's name in the repository, and its device model.
    rate : Rate
        Rate of its slowest rank.
    memory_mib : float
        The most memory that a rank used.
    devices : sequence of sequence of Usage
        The readings of each of its devices in that time; the metrics are means over all readings,
        and the variances are per reading.
    at_s : float
        The moment, seconds since the epoch.
    latency_p99_s : float, optional
        The 99th percentile of its latencies; None if it reported too few.
    neighbours : int
        Number of other busy devices on its nodes, whose runs may have slowed it through the host.
    """
    readings = [reading for device in devices for reading in device]
    values = {name: list(_values(name, readings)) for name in METRICS}
    known = {name: found for name, found in values.items() if found}
    powers = [power for device in devices if (power := power_w(device)) is not None]
    return SoloProfile(
        workload=workload,
        gpu_model=gpu_model,
        share=run.seats[0].share,
        workers=run.spec.workers,
        metrics=Metrics(**{name: fmean(found) for name, found in known.items()}),
        metrics_variance={name: pvariance(found) for name, found in known.items()},
        throughput=_between(_LEAST, rate.per_s, _MOST),
        power_w=fmean(powers) if powers else None,
        memory_mib=memory_mib,
        latency_p99_s=latency_p99_s,
        driver=_driver(readings),
        source=_source([rate], readings, neighbours),
        date=moment(at_s),
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
    gpu_model: str,
    slowed: Sequence[Slowed] | None,
    readings: Sequence[Usage],
    at_s: float,
    neighbours: int = 0,
    mode: SharingMode = "mps",
) -> Measurement:
    """Return the measurement of runs that share a device.

    Parameters
    ----------
    workloads, shares : sequence
        The workloads of the runs and their caps.
    gpu_model : str
        Model of the device.
    slowed : sequence of Slowed or None
        The slowdown of each run; None if one of them made no progress.
    readings : sequence of Usage
        Readings of the device in that time.
    at_s : float
        The moment, seconds since the epoch.
    neighbours : int
        As in `solo_profile`.
    mode : {"mps", "time_sliced"}
        How they share it.
    """
    return Measurement(
        workloads=tuple(workloads),
        gpu_model=gpu_model,
        share=tuple(shares),
        slowdown=slowed and tuple(_between(_LEAST_SLOWDOWN, s.slowdown, _MOST) for s in slowed),
        p99=slowed and tuple(s.p99 and _between(_LEAST_SLOWDOWN, s.p99, _MOST) for s in slowed),
        power_w=power_w(readings),
        driver=_driver(readings),
        source=(
            _source([s.rate for s in slowed], readings, neighbours)
            if slowed
            else "live; stood still"
        ),
        date=moment(at_s),
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


def _driver(readings: Sequence[Usage]) -> str | None:
    return next((reading.driver for reading in readings), None)


def _source(rates: Sequence[Rate], readings: Sequence[Usage], neighbours: int) -> str:
    """Return the source of figures, the noise of the worst rate, and what else ran there."""
    noise, seconds = max(rate.noise for rate in rates), min(rate.seconds for rate in rates)
    noise_text = f"±{noise:.1%}" if noise < 1 else "noise unknown"
    metrics = dict.fromkeys(reading.source for reading in readings if reading.source)
    busy = f"{neighbours} other device{'s' * (neighbours > 1)} of the node busy"
    parts = ["live", f"rate {noise_text} over {seconds:.0f} s", *[busy] * (neighbours > 0)]
    return "; ".join([*parts, *metrics])[:200]
