"""From what a ledger holds to a data set: solo profiles, and slowdowns of pairs."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from dovetail.executor.measuring.campaign import Mode, OwnWorkload
from dovetail.executor.measuring.ledger import Contents, read_ledger, standing
from dovetail.executor.measuring.records import Result, Throughput
from dovetail.instances._record import Name, Record
from dovetail.instances.datasets import DataSet, Measurement, SoloProfile, write_dataset
from dovetail.instances.errors import InputError
from dovetail.instances.files import FilePath

Baselines = Mapping[tuple[str, Mode], float]
"""Means alone without a cap, in seconds, by workload and mode: of the iteration time, say."""


class LeftOut(Record):
    """A result that does not go into the data set: the key of its experiment, and why."""

    key: Name
    why: str


class Outcome(NamedTuple):
    """What a campaign gives to a data set.

    Attributes
    ----------
    data : DataSet
        Repeats are rows of their own.
    left_out : tuple of LeftOut
        What does not go in, and why.
    """

    data: DataSet
    left_out: tuple[LeftOut, ...]


def write_tables(folder: FilePath) -> Outcome:
    """Write ``profiles.csv`` and ``pairs.csv`` beside the ledger of a folder.

    The folder then is a data set for every command that reads one.

    Raises
    ------
    InputError
        When the ledger cannot be read, or the tables cannot be written.
    """
    found = outcome(read_ledger(folder), Path(os.path.realpath(folder)).name or "measured")
    write_dataset(found.data, folder)
    return found


def outcome(contents: Contents, name: str) -> Outcome:
    """Return the data set of this name that results make.

    A slowdown is the iteration time together over the mean iteration time of the same workload
    alone, without a cap, in the same mode, over all repeats; p99 is the same of the 99th
    percentile of latency. What ran by turns goes in under a GPU model of its own,
    ``<model> time-sliced``. Of a key the result counts that `standing` names.
    """
    results = standing(contents.results).values()
    alone, tails_s = baselines(results), _means_alone(results, lambda pace: pace.p99_s)
    profiles: list[SoloProfile] = []
    measurements: list[Measurement] = []
    left_out: list[LeftOut] = []
    for one in results:
        why = _why_not(one, alone)
        try:
            if why:
                left_out.append(LeftOut(key=one.key, why=why))
            elif len(one.workloads) == 1:
                profiles.append(_profile(contents, one))
            else:
                measurements.append(_measurement(contents, one, alone, tails_s))
        except InputError as error:
            left_out.append(LeftOut(key=one.key, why=f"cannot be: {error}"))
    data = DataSet(name=name, profiles=tuple(profiles), measurements=tuple(measurements))
    return Outcome(data, tuple(left_out))


def baselines(results: Iterable[Result]) -> Baselines:
    """Return the mean iteration time of each workload alone, over all sound repeats."""
    return _means_alone(results, lambda pace: 1 / pace.iterations_s)


def _means_alone(
    results: Iterable[Result], value_of: Callable[[Throughput], float | None]
) -> Baselines:
    found: dict[tuple[str, Mode], list[float]] = defaultdict(list)
    for one in results:
        if not (one.sound and one.paces and len(one.paces) == 1) or one.shares[0] is not None:
            continue
        if (value := value_of(one.paces[0])) is not None:
            found[one.workloads[0], one.mode].append(value)
    return {which: fmean(values) for which, values in found.items()}


def slowdowns(one: Result, alone: Baselines) -> tuple[float, ...] | None:
    """Return the slowdown of each worker, None where it did not run or a baseline is missing."""
    if one.paces is None:
        return None
    times = [alone.get((name, one.mode)) for name in one.workloads]
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return None
    return tuple(
        1 / (pace.iterations_s * time) for pace, time in zip(one.paces, known, strict=True)
    )


def _why_not(one: Result, alone: Baselines) -> str:
    """Say why a result does not go into the data set; empty where it does."""
    if one.status in ("failed", "refused"):
        return f"{one.status}: {one.told}" if one.told else one.status
    if one.disturbed_by:
        return f"disturbed by other processes on the device: {_pids(one.disturbed_by)}"
    if any(one.first):
        return "one is preferred to the other: a data set has no word for that"
    if one.status == "out-of-memory":
        return "out of memory alone" if len(one.workloads) == 1 else ""
    missing = [name for name in one.workloads if (name, one.mode) not in alone]
    if len(one.workloads) == 2 and missing:
        return f"{missing[0]} was not measured alone without a cap ({one.mode}) yet"
    return ""


def _pids(pids: tuple[int, ...]) -> str:
    return ", ".join(f"pid {pid}" for pid in pids)


def _profile(contents: Contents, one: Result) -> SoloProfile:
    (pace,) = one.paces or ()
    return SoloProfile.from_data(
        {
            "workload": one.workloads[0],
            "gpu_model": _model(contents, one),
            "share": one.shares[0],
            "family": _family(contents, one),
            "batch_size": one.batch_sizes[0] if one.batch_sizes else None,
            "metrics": dict(one.metrics),
            "metrics_variance": dict(one.metrics_variance),
            "throughput": pace.iterations_s,
            "power_w": one.power_w or None,
            "memory_mib": pace.memory_mib,
            "latency_p99_s": pace.p99_s or None,
            "driver": contents.machine.driver,
            "library": contents.machine.cublas,
            "source": _source(contents, one),
            "date": one.date,
        }
    )


def _measurement(
    contents: Contents, one: Result, alone: Baselines, tails_s: Baselines
) -> Measurement:
    return Measurement.from_data(
        {
            "workloads": one.workloads,
            "gpu_model": _model(contents, one),
            "share": one.shares,
            "slowdown": slowdowns(one, alone),
            "p99": _tails(one, tails_s),
            "power_w": one.power_w or None,
            "driver": contents.machine.driver,
            "library": contents.machine.cublas,
            "source": _source(contents, one),
            "date": one.date,
        }
    )


def _tails(one: Result, tails_s: Baselines) -> tuple[float | None, ...] | None:
    """Return by how much each worker's 99th percentile of latency grew, None without latency."""
    if one.paces is None:
        return None
    alone = [tails_s.get((name, one.mode)) for name in one.workloads]
    return tuple(
        p99_s / tail_s if (p99_s := pace.p99_s) and tail_s else None
        for pace, tail_s in zip(one.paces, alone, strict=True)
    )


def _model(contents: Contents, one: Result) -> str:
    model = contents.machine.gpu_model
    return f"{model} time-sliced" if one.mode == "time-sliced" else model


def _family(contents: Contents, one: Result) -> str | None:
    """Return what the campaign says of a user's workload, else what its program says."""
    name = one.workloads[0]
    own = (each for each in contents.campaign.workloads if isinstance(each, OwnWorkload))
    given = next((each.family for each in own if each.name == name), None)
    return given or (one.families[0] if one.families else None)


def _source(contents: Contents, one: Result) -> str:
    """Say where a row comes from; figures that no GPU gave say so in every row."""
    machine = contents.machine
    parts = (
        f"dovetail measure: {machine.campaign}",
        f"NO GPU: {machine.stand_in}" if machine.stand_in else "",
        f"metrics: {one.metrics_source}" if one.metrics and one.metrics_source else "",
    )
    return "; ".join(filter(None, parts))[:200]
