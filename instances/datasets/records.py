"""Measurement records: a workload alone on a GPU, or several together; checked when built."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from dovetail.instances._record import (
    AnyShare,
    Count,
    FrozenMapping,
    Name,
    NonNegative,
    Positive,
    Record,
    SeatShare,
    Share,
    Slowdown,
    Variance,
    rule_broken,
    shown,
)
from dovetail.instances.metrics import MetricName, Metrics
from dovetail.instances.slowdowns.entry import SharingMode
from dovetail.instances.slowdowns.shares import refuse_caps


def _date(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise rule_broken("", f"must be an ISO 8601 date, got {shown(text)}") from None
    return text


Date = Annotated[Name, AfterValidator(_date)]
"""A date or a time, ISO 8601: ``2026-11-21``, ``2026-11-21T10:00:00+00:00``."""


def _told(metrics: Metrics | None) -> Metrics | None:
    return None if metrics == Metrics() else metrics


def _measured(p99: tuple[float | None, ...] | None) -> tuple[float | None, ...] | None:
    return p99 if p99 and any(tail is not None for tail in p99) else None


def _bounded(least: tuple[float | None, ...] | None) -> tuple[float | None, ...] | None:
    return least if least and any(bound is not None for bound in least) else None


def _capped(share: tuple[AnyShare, ...] | None) -> tuple[AnyShare, ...] | None:
    return share if share and any(cap is not None for cap in share) else None


class SoloProfile(Record):
    """One workload measured alone on a GPU, with or without a cap on its SMs.

    ``family`` groups variants of one workload (batch sizes, precisions) that must not be on both
    sides of a train-test split; the workload itself if absent. ``memory_mib`` is the high-water
    mark of one worker. ``throughput`` is in iterations/s unless the source says otherwise.
    ``latency_p99_s`` is the 99th percentile of the latency, for a workload that has one.
    ``driver`` and ``library`` (cuBLAS) are the versions at the measurement.
    """

    workload: Name
    gpu_model: Name
    share: Share | None = None
    family: Name | None = None
    workers: Count = 1
    batch_size: Count | None = None
    metrics: Annotated[Metrics | None, AfterValidator(_told)] = None
    metrics_variance: FrozenMapping[MetricName, Variance] = Field({})
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
        """The key under which a newer profile replaces this one."""
        return ProfileKey(self.workload, self.gpu_model, self.share, self.workers, self.batch_size)


class ProfileKey(NamedTuple):
    """The workload, GPU model and settings of a profile."""

    workload: str
    gpu_model: str
    share: AnyShare
    workers: int
    batch_size: int | None


class Measurement(Record):
    """Two or more workloads measured together on one GPU, which they shared in one ``mode``.

    A workload may appear twice, and its two copies may have been slowed unequally. ``slowdown``
    has one number for each of ``workloads``; it is None if they failed to run together (for
    example, out of memory), or one was too slow to measure: ``at_least`` then has lower bounds of
    the slowdowns, as far as they are known, which are not used for fitting. ``p99`` is the growth
    of the 99th percentile of the latency, for each workload that has one. ``driver`` and
    ``library`` are as in `SoloProfile`.
    """

    workloads: Annotated[tuple[Name, ...], Field(min_length=2)]
    gpu_model: Name
    share: Annotated[tuple[SeatShare | None, ...] | None, AfterValidator(_capped)] = None
    slowdown: tuple[Slowdown, ...] | None
    at_least: Annotated[tuple[Slowdown | None, ...] | None, AfterValidator(_bounded)] = None
    p99: Annotated[tuple[Slowdown | None, ...] | None, AfterValidator(_measured)] = None
    power_w: Positive | None = None
    driver: Name | None = None
    library: Name | None = None
    source: Name | None = None
    date: Date | None = None
    mode: SharingMode = "mps"

    @model_validator(mode="after")
    def _one_value_each(self) -> Self:
        for name in ("share", "slowdown", "at_least", "p99"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.workloads):
                rule = f"must have {len(self.workloads)} items, got {len(values)}"
                raise rule_broken(name, rule)
        if self.slowdown is not None and self.at_least is not None:
            raise rule_broken("at_least", "must be absent if the slowdown was measured")
        if self.slowdown is None and self.p99 is not None:
            raise rule_broken("p99", "must be absent if they failed to run together")
        refuse_caps(self.mode, self.shares, "share", "mode")
        return self

    @property
    def shares(self) -> tuple[AnyShare, ...]:
        """The share of each workload, with ``share`` expanded."""
        return self.share if self.share is not None else (None,) * len(self.workloads)

    @property
    def failed(self) -> bool:
        """Whether they failed to run together."""
        return self.slowdown is None
