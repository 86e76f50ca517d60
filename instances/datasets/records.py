"""The records of a data set, checked when they are built.

A data set says nothing of jobs or clusters. ``DataSet.workloads`` turns its profiles into the
workloads that an instance has, so that predictors read one kind of record in training and in
use.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
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
    Text,
    rule_broken,
    shown,
)
from dovetail.instances.instance import MetricName, Metrics, Workload

DATASET_FORMAT: Final = "dovetail-dataset/1"
WHOLE_GPU = 100


def _date(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise rule_broken("", f"must be an ISO 8601 date, got {shown(text)}") from None
    return text


Date = Annotated[Text, AfterValidator(_date)]
"""A date or a moment, ISO 8601: ``2026-11-21``, ``2026-11-21T10:00:00+00:00``."""


class SoloProfile(Record):
    """One workload measured alone on a GPU, with or without a cap on its SMs.

    ``family`` groups variants of one workload (batch sizes, precisions) that must not stand on
    both sides of a test; the workload itself where it is absent. ``memory_mib`` is the
    high-water mark of one worker. ``throughput`` is in iterations/s unless the source says
    otherwise.
    """

    workload: Name
    gpu_model: Name
    share: Share | None = None
    family: Name | None = None
    workers: Count = 1
    batch_size: Count | None = None
    metrics: Metrics | None = None
    metrics_variance: FrozenMapping[MetricName, NonNegative] = Field({})
    throughput: Positive | None = None
    power_w: Positive | None = None
    memory_mib: NonNegative | None = None
    memory_mean_mib: NonNegative | None = None
    duration_s: Positive | None = None
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

    ``slowdown`` has one number for each of ``workloads``; it is None where they failed to run
    together (out of memory, say).
    """

    workloads: Annotated[tuple[Name, ...], Field(min_length=2)]
    gpu_model: Name
    share: tuple[Share | None, ...] | None = None
    slowdown: tuple[Slowdown, ...] | None
    power_w: Positive | None = None
    source: Name | None = None
    date: Date | None = None

    @model_validator(mode="after")
    def _one_value_each(self) -> Self:
        for name in ("share", "slowdown"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.workloads):
                rule = f"must have {len(self.workloads)} items, got {len(values)}"
                raise rule_broken(name, rule)
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
        memory_mib=max((p.memory_mib for p in profiles if p.memory_mib is not None), default=0.0),
        metrics=whole.metrics if whole else None,
        metrics_by_share=capped,
        metrics_variance=whole.metrics_variance if whole else {},
        memory_mean_mib=whole.memory_mean_mib if whole else None,
        duration_s=whole.duration_s if whole else None,
        throughput={share: p.throughput for share, p in main.items() if p.throughput},
        power_w=whole.power_w if whole else None,
    )
