"""The records of a data set, checked when they are built.

A data set says nothing of jobs or clusters. ``DataSet.workloads`` turns its profiles into the
workloads that an instance has, so that predictors read one kind of record in training and in
use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from dovetail.instances._record import (
    Count,
    FrozenMapping,
    Name,
    NonNegative,
    Positive,
    Record,
    Share,
    Slowdown,
    listed,
    rule_broken,
    shown,
)
from dovetail.instances.errors import InputError
from dovetail.instances.importers._measured import (
    UNKNOWN_MEMORY_MIB,
    cluster,
    entries,
    nodes,
    require_slowdowns,
    slowdowns_of,
)
from dovetail.instances.instance import Instance, MetricName, Metrics, Workload

DATASET_FORMAT: Final = "dovetail-dataset/1"
WHOLE_GPU = 100


def _date(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise rule_broken("", f"must be an ISO 8601 date, got {shown(text)}") from None
    return text


Date = Annotated[Name, AfterValidator(_date)]
"""A date or a moment, ISO 8601: ``2026-11-21``, ``2026-11-21T10:00:00+00:00``."""


def _told(metrics: Metrics | None) -> Metrics | None:
    return None if metrics == Metrics() else metrics


def _measured(p99: tuple[float | None, ...] | None) -> tuple[float | None, ...] | None:
    return p99 if p99 and any(tail is not None for tail in p99) else None


def _capped(share: tuple[int | None, ...] | None) -> tuple[int | None, ...] | None:
    return share if share and any(cap is not None for cap in share) else None


class SoloProfile(Record):
    """One workload measured alone on a GPU, with or without a cap on its SMs.

    ``family`` groups variants of one workload (batch sizes, precisions) that must not stand on
    both sides of a test; the workload itself where it is absent. ``memory_mib`` is the
    high-water mark of one worker. ``throughput`` is in iterations/s unless the source says
    otherwise. ``latency_p99_s`` is the 99th percentile of the latency of a workload that has one.
    ``driver`` and ``library`` (cuBLAS) are the versions that it was measured with.
    """

    workload: Name
    gpu_model: Name
    share: Share | None = None
    family: Name | None = None
    workers: Count = 1
    batch_size: Count | None = None
    metrics: Annotated[Metrics | None, AfterValidator(_told)] = None
    metrics_variance: FrozenMapping[MetricName, NonNegative] = Field({})
    throughput: Positive | None = None
    power_w: Positive | None = None
    memory_mib: NonNegative | None = None
    memory_mean_mib: NonNegative | None = None
    duration_s: Positive | None = None
    latency_p99_s: Positive | None = None
    driver: Name | None = None
    library: Name | None = None
    source: Name | None = None
    date: Date | None = None

    @property
    def key(self) -> ProfileKey:
        """What a newer profile replaces."""
        return ProfileKey(self.workload, self.gpu_model, self.share, self.workers, self.batch_size)


class ProfileKey(NamedTuple):
    """What was run, on what, and how."""

    workload: str
    gpu_model: str
    share: int | None
    workers: int
    batch_size: int | None


class Measurement(Record):
    """Two or more workloads measured together on one GPU.

    A workload may stand there twice, and its two copies may have been slowed unequally.
    ``slowdown`` has one number for each of ``workloads``; it is None where they failed to run
    together (out of memory, say). ``p99`` is by how much the 99th percentile of the latency grew
    of each workload that has one. ``driver`` and ``library`` as of a `SoloProfile`.
    """

    workloads: Annotated[tuple[Name, ...], Field(min_length=2)]
    gpu_model: Name
    share: Annotated[tuple[Share | None, ...] | None, AfterValidator(_capped)] = None
    slowdown: tuple[Slowdown, ...] | None
    p99: Annotated[tuple[Slowdown | None, ...] | None, AfterValidator(_measured)] = None
    power_w: Positive | None = None
    driver: Name | None = None
    library: Name | None = None
    source: Name | None = None
    date: Date | None = None

    @model_validator(mode="after")
    def _one_value_each(self) -> Self:
        for name in ("share", "slowdown", "p99"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.workloads):
                rule = f"must have {len(self.workloads)} items, got {len(values)}"
                raise rule_broken(name, rule)
        if self.slowdown is None and self.p99 is not None:
            raise rule_broken("p99", "must be absent where they failed to run together")
        return self

    @property
    def shares(self) -> tuple[int | None, ...]:
        """The share of each workload, ``share`` written out."""
        return self.share if self.share is not None else (None,) * len(self.workloads)

    @property
    def failed(self) -> bool:
        """Whether they did not run together."""
        return self.slowdown is None


class DataSet(Record):
    """Profiles and measurements, in the order in which they were recorded."""

    format: Literal["dovetail-dataset/1"] = DATASET_FORMAT
    name: Name
    profiles: tuple[SoloProfile, ...] = ()
    measurements: tuple[Measurement, ...] = ()

    @cached_property
    def gpu_models(self) -> tuple[str, ...]:
        """Every GPU model, in order of first appearance."""
        profiled = (profile.gpu_model for profile in self.profiles)
        measured = (found.gpu_model for found in self.measurements)
        return tuple(dict.fromkeys(chain(profiled, measured)))

    @cached_property
    def families(self) -> Mapping[str, str]:
        """The family of every workload: its own name where no profile gives one."""
        names = chain(
            (profile.workload for profile in self.profiles),
            chain.from_iterable(found.workloads for found in self.measurements),
        )
        given = {p.workload: p.family for p in self.profiles if p.family is not None}
        return {name: given.get(name, name) for name in names}

    @cached_property
    def newest(self) -> Mapping[ProfileKey, SoloProfile]:
        """The profile that counts for each key: of the latest date, then recorded last."""
        latest: dict[ProfileKey, SoloProfile] = {}
        for profile in self.profiles:
            known = latest.get(profile.key)
            if known is None or _moment(profile) >= _moment(known):
                latest[profile.key] = profile
        return latest

    def workloads(self, gpu_model: str) -> dict[str, Workload]:
        """Return what an instance with GPUs of this model would say of each profiled workload.

        Of several numbers of workers or batch sizes of one workload, one worker comes before
        more, and the largest batch before smaller ones. Memory is the largest mark seen.
        """
        by_name: dict[str, list[SoloProfile]] = {}
        for key, profile in self.newest.items():
            if key.gpu_model == gpu_model:
                by_name.setdefault(key.workload, []).append(profile)
        return {name: _workload(found) for name, found in by_name.items()}

    def merged(self, other: DataSet) -> DataSet:
        """Return the records of both under this name, the other's as the later ones."""
        return self.replace(
            profiles=self.profiles + other.profiles,
            measurements=self.measurements + other.measurements,
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the records, in hexadecimal digits.

        Two data sets have one fingerprint where they have equal profiles in one order and equal
        measurements in one order; the name does not count. Order counts because it decides
        which of two profiles of one date is the newest. Hashed are lines of JSON, one a record,
        with sorted keys and without fields that hold their default.
        """
        digest = sha256(DATASET_FORMAT.encode())
        for record in (*self.profiles, *self.measurements):
            kind = type(record).__name__
            line = json.dumps([kind, record.to_data()], sort_keys=True, separators=(",", ":"))
            digest.update(f"\n{line}".encode())
        return digest.hexdigest()

    def instance(
        self,
        gpu_model: str,
        gpus: int,
        *,
        memory_mib: float | None = None,
        gpus_per_node: int = 8,
    ) -> Instance:
        """Return an instance of what was measured on a GPU model, one pending job a workload.

        Entries are averages: of a combination measured several times, and of the copies of a
        workload beside itself, the mean speed and p99; what failed once may not share. The
        cluster allows the caps and the most workloads on a GPU that were measured.

        Parameters
        ----------
        gpu_model : str
            One of ``gpu_models``.
        gpus : int
            GPUs of the cluster.
        memory_mib : float, optional
            Memory of a GPU. May be left out only where no workload's memory is known.
        gpus_per_node : int
            GPUs of a node; the last may have fewer.

        Raises
        ------
        InputError
            For a GPU model without records, a number out of range, missing memory, or
            slowdowns that are speeds or percentages.
        """
        if gpu_model not in self.gpu_models:
            known = f"one of {listed(self.gpu_models)}" if self.gpu_models else "in the data"
            rule = f"must be {known}, got {shown(gpu_model)}"
            raise InputError(rule, "gpu_model")
        measured = [found for found in self.measurements if found.gpu_model == gpu_model]
        require_slowdowns(slowdowns_of(measured), "measurements: slowdown", self.name)
        workloads = self.workloads(gpu_model)
        for name in chain.from_iterable(found.workloads for found in measured):
            workloads.setdefault(name, Workload(memory_mib=0.0))
        if memory_mib is None:
            _require_no_memory(workloads)
            memory_mib = UNKNOWN_MEMORY_MIB
        return Instance.from_data(
            {
                "name": self.name,
                "cluster": cluster(measured, nodes([gpu_model], gpus, gpus_per_node, memory_mib)),
                "workloads": workloads,
                "jobs": [{"id": name, "workload": name} for name in workloads],
                "slowdowns": entries(measured),
            }
        )


def _require_no_memory(workloads: Mapping[str, Workload]) -> None:
    known = next((name for name, w in workloads.items() if w.memory_mib), None)
    if known is not None:
        rule = "must be given (MiB of a GPU), as the memory of workloads is known"
        raise InputError(f"{rule}: {known} needs {workloads[known].memory_mib:.15g}", "memory_mib")


def _moment(profile: SoloProfile) -> float:
    """Return the date in seconds; undated profiles are older than every dated one."""
    return datetime.fromisoformat(profile.date).timestamp() if profile.date else float("-inf")


def _workload(profiles: list[SoloProfile]) -> Workload:
    main: dict[int, SoloProfile] = {}
    for profile in sorted(profiles, key=lambda p: (p.workers, -(p.batch_size or 0))):
        main.setdefault(profile.share or WHOLE_GPU, profile)
    whole = main.get(WHOLE_GPU)
    capped = {share: p.metrics for share, p in main.items() if share != WHOLE_GPU and p.metrics}
    return Workload(
        family=next((p.family for p in profiles if p.family is not None), None),
        memory_mib=max((p.memory_mib for p in profiles if p.memory_mib is not None), default=0.0),
        metrics=whole.metrics if whole else None,
        metrics_by_share=capped,
        metrics_variance=whole.metrics_variance if whole else {},
        memory_mean_mib=whole.memory_mean_mib if whole else None,
        duration_s=whole.duration_s if whole else None,
        throughput={share: p.throughput for share, p in main.items() if p.throughput},
        power_w=whole.power_w if whole else None,
    )
