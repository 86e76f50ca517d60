"""The data set of a campaign: solo profiles, and slowdowns of pairs and triples."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from dovetail.instances._record import Name, Record
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.files import write_dataset
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.reading.contents import FilePath
from dovetail.instances.slowdowns.entry import SharingMode
from dovetail.measuring.campaign import Campaign, Experiment, Mode, WorkerSeat, experiments
from dovetail.measuring.ledger import Contents, read_ledger, standing
from dovetail.measuring.results import ExperimentResult, ProfiledKernels, Throughput
from dovetail.measuring.workloads import LAUNCHES

_SHARING: Final[Mapping[Mode, SharingMode]] = {
    "mps": "mps",
    "time-sliced": "time_sliced",
    "isolated": "mps",
}
_ALONE: Final[Mapping[Mode, Mode]] = {
    "mps": "mps",
    "time-sliced": "time-sliced",
    "isolated": "mps",
}
"""The mode of the solos that slowdowns are relative to; isolation slows a job alone, too."""

SLOW: Final = 2.0
"""A pair with a worker known to be slowed by this factor shares no GPU: taking turns is as fast."""

LEAST_ANSWERED: Final = 0.9
"""Where fewer of the requests at a load are answered, they queue up for longer and longer."""

Baselines = Mapping[tuple[str, Mode], float]
"""Means in seconds alone without a share, by `WorkerSeat.label` and mode."""


class LeftOut(Record):
    """An experiment whose result is not in the data set, and why."""

    key: Name
    why: str


class MeasuredData(NamedTuple):
    """The data set, in which repeats are separate rows, and what was left out of it."""

    data: DataSet
    left_out: tuple[LeftOut, ...]


def write_tables(folder: FilePath) -> DataSet:
    """Write ``profiles.csv`` and ``pairs.csv`` into the folder of a ledger, and return them.

    The folder is then a data set for all commands that read one.

    Raises
    ------
    InputError
        If the ledger cannot be read, or the tables cannot be written.
    """
    name = Path(os.path.realpath(folder)).name or "measured"
    data = measured_data(read_ledger(folder), name).data
    write_dataset(data, folder)
    return data


def measured_data(contents: Contents, name: str) -> MeasuredData:
    """Return the data set of a ledger, under this name.

    A slowdown is the iteration time together over the mean iteration time of the same workload
    alone without a share in the same mode, over all repeats; p99 likewise for the 99th percentile
    of latency. Isolated pairs are relative to solos under MPS, without interception. A workload at
    a load is one of its own (`WorkerSeat.label`). If a worker starved, slowdowns are lower bounds,
    from the most that each can have done. A workload is the same alone under MPS and without it, so
    a time-sliced profile is left out where there is one under MPS. A workload's kernels, profiled
    once or counted, describe it in all profiles without a share.
    """
    results = standing(contents.results).values()
    alone, tails_s = baselines(results), tails_alone(results)
    kernels = {one.workloads[0]: one.kernels for one in contents.results if one.kernels}
    profiles: list[SoloProfile] = []
    measurements: list[Measurement] = []
    left_out: list[LeftOut] = []
    for one in results:
        why = _why_not(one, alone)
        try:
            if why:
                left_out.append(LeftOut(key=one.key, why=why))
            elif len(one.workloads) == 1:
                profiles.append(_profile(contents, one, kernels.get(one.workloads[0])))
            else:
                measurements.append(_measurement(contents, one, alone, tails_s))
        except InputError as error:
            left_out.append(LeftOut(key=one.key, why=f"impossible values: {error}"))
    data = DataSet(name=name, profiles=tuple(profiles), measurements=tuple(measurements))
    return MeasuredData(data, tuple(left_out))


def known_experiments(campaign: Campaign, data: DataSet, gpu_model: str) -> Iterator[Experiment]:
    """Yield the pairs and triples of a campaign that a data set has of a GPU model.

    A setting that the campaign repeats more often than the data set is measured for the rest.
    """
    has = Counter(
        _setting(one.mode, zip(one.workloads, one.shares, strict=True))
        for one in data.measurements
        if one.gpu_model == gpu_model and not one.failed
    )
    for one in experiments(campaign):
        if len(one.seats) == 1 or any(seat.first for seat in one.seats):
            continue
        each = ((seat.label, seat.share) for seat in one.seats)
        setting = _setting(_SHARING[one.seats[0].mode], each)
        if has[setting]:
            has[setting] -= 1
            yield one


def _setting(mode: SharingMode, each: Iterable[tuple[str, object]]) -> object:
    return mode, frozenset(Counter(each).items())


def baselines(results: Iterable[ExperimentResult]) -> Baselines:
    """Return the mean iteration time of each workload alone, over all sound repeats."""
    return _means_alone(results, lambda pace: 1 / pace.iterations_s)


def tails_alone(results: Iterable[ExperimentResult]) -> Baselines:
    """Return the 99th percentile of latency of each workload alone, over all sound repeats."""
    return _means_alone(results, lambda pace: pace.p99_s)


def baseline(alone: Baselines, seat: WorkerSeat) -> float | None:
    """Return what a worker is compared with: its workload alone, without interception."""
    return alone.get((seat.label, _ALONE[seat.mode]))


def slowdowns(one: ExperimentResult, alone: Baselines) -> tuple[float, ...] | None:
    """Return the slowdown of each worker; None if it was not measured or a baseline is missing."""
    if one.paces is None:
        return None
    return _slower(one, [pace.iterations_s for pace in one.paces], alone)


def least_slowdowns(one: ExperimentResult, alone: Baselines) -> tuple[float, ...] | None:
    """Return a lower bound of each slowdown; None if none is known to be `SLOW`."""
    least = one.most_iterations_s and _slower(one, one.most_iterations_s, alone)
    return least if least and max(least) >= SLOW else None


def _slower(
    one: ExperimentResult, iterations_s: Sequence[float], alone: Baselines
) -> tuple[float, ...] | None:
    times = [baseline(alone, seat) for seat in one.seats]
    if None in times:
        return None
    each = zip(iterations_s, times, strict=True)
    return tuple(1 / (rate * time) for rate, time in each if time is not None)


def _means_alone(
    results: Iterable[ExperimentResult], value_of: Callable[[Throughput], float | None]
) -> Baselines:
    found: dict[tuple[str, Mode], list[float]] = defaultdict(list)
    for one in results:
        if not (one.sound and one.paces and len(one.paces) == 1) or one.shares[0] is not None:
            continue
        if (value := value_of(one.paces[0])) is not None:
            found[one.seats[0].label, one.mode].append(value)
    return {which: fmean(values) for which, values in found.items()}


def _why_not(one: ExperimentResult, alone: Baselines) -> str:
    """Return why a result is not in the data set; empty if it is."""
    if one.status in ("failed", "refused", "known"):
        return f"{one.status}: {one.reason}" if one.reason else one.status
    if one.disturbed_by:
        pids = ", ".join(f"pid {pid}" for pid in one.disturbed_by)
        return f"disturbed by other processes on the device: {pids}"
    if any(one.first):
        return "one is preferred to the other, which a data set cannot express"
    if one.status == "out-of-memory":
        return "out of memory alone" if len(one.workloads) == 1 else ""
    labels, mode = [seat.label for seat in one.seats], _ALONE[one.mode]
    if len(labels) == 1 and one.mode == "isolated":
        return "its profile is without interception"
    if len(labels) == 1 and one.mode != "mps" and (labels[0], "mps") in alone:
        return "its profile is the one under MPS"
    missing = [label for label in labels if (label, mode) not in alone]
    if len(labels) > 1 and missing:
        return f"{missing[0]} was not measured alone without a cap ({mode}) yet"
    if one.status == "starved" and least_slowdowns(one, alone) is None:
        return f"starved: {one.reason}: raise most_s"
    return _overload(one)


def _overload(one: ExperimentResult) -> str:
    """Return why latencies of requests at a load say nothing; empty if they do.

    Where requests queue up, latency grows with the window, and the slowest are not answered in it.
    Chance explains three standard deviations of a Poisson process.
    """
    for name, pace in zip(one.workloads, one.paces or (), strict=False):
        if pace.latency is None or pace.latency.requests_s is None or one.window_s is None:
            continue
        due = pace.latency.requests_s * one.window_s
        if pace.iterations < LEAST_ANSWERED * due - 3 * sqrt(due):
            return f"{name} answered {pace.iterations:,} of {due:,.0f} requests, so they queue up"
    return ""


def _conditions(contents: Contents, one: ExperimentResult, kernels: str = "") -> dict[str, object]:
    """Return the fields that profiles and measurements have in common."""
    machine = contents.machine
    # Figures of a stand-in say so in every row.
    source = (
        f"dovetail measure: {machine.campaign}",
        f"NO GPU: {machine.stand_in}" if machine.stand_in else "",
        f"metrics: {one.metrics_source}" if one.metrics and one.metrics_source else "",
        f"kernels: {kernels}" if kernels else "",
    )
    return {
        "gpu_model": machine.gpu_model,
        "power_w": one.power_w or None,
        "driver": machine.driver,
        "library": machine.cublas,
        "source": "; ".join(filter(None, source))[:200],
        "date": one.date,
    }


def _profile(
    contents: Contents, one: ExperimentResult, kernels: ProfiledKernels | None
) -> SoloProfile:
    (pace,), name = one.paces or (), one.workloads[0]
    rate = pace.iterations_s
    if one.seats[0].load is not None and one.window_s is not None:
        rate = pace.iterations / one.window_s
    described, kernels_source = _kernels(contents, one, rate, kernels)
    own = contents.campaign.own.get(name)
    family = one.families[0] if one.families else None
    return SoloProfile.from_data(
        {
            "workload": one.seats[0].label,
            "share": one.shares[0],
            "family": (own and own.family) or family,
            "batch_size": one.batch_sizes[0] if one.batch_sizes else None,
            "metrics": {**one.metrics, **described},
            "metrics_variance": dict(one.metrics_variance),
            "throughput": pace.iterations_s,
            "memory_mib": pace.memory_mib,
            "latency_p99_s": pace.p99_s or None,
            **_conditions(contents, one, kernels_source),
        }
    )


def _kernels(
    contents: Contents,
    one: ExperimentResult,
    iterations_s: float,
    profiled: ProfiledKernels | None,
) -> tuple[dict[str, float], str]:
    """Return the metrics of a workload's kernels, and where they are from."""
    name = one.workloads[0]
    if one.shares[0] is not None:
        return {}, ""
    if profiled is not None:
        metrics = {**profiled.metrics, "kernels_s": profiled.launches * iterations_s}
        return metrics, profiled.profiler
    shipped = name in LAUNCHES and name not in contents.campaign.own
    if shipped and contents.campaign.size == "full" and not contents.machine.stand_in:
        return {"kernels_s": LAUNCHES[name] * iterations_s}, "counted"
    return {}, ""


def _measurement(
    contents: Contents, one: ExperimentResult, alone: Baselines, tails_s: Baselines
) -> Measurement:
    tails = [baseline(tails_s, seat) for seat in one.seats]
    growth = [
        p99_s / tail_s if (p99_s := pace.p99_s) and tail_s else None
        for pace, tail_s in zip(one.paces or (), tails, strict=False)
    ]
    return Measurement.from_data(
        {
            "workloads": tuple(seat.label for seat in one.seats),
            "share": one.shares,
            "slowdown": slowdowns(one, alone),
            "at_least": least_slowdowns(one, alone),
            "p99": growth if one.paces is not None else None,
            "mode": _SHARING[one.mode],
            **_conditions(contents, one),
        }
    )
