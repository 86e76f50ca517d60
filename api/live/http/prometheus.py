"""The service's figures in Prometheus' text format, or as OpenMetrics.

Series have a bounded number: those of devices, of the jobs that hold devices, and of fixed lists of
states and reasons. Waiting jobs are only counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.promises import Promise, promise_margin, promise_of
from dovetail.executor.live.views import (
    DECISION_BOUNDS_S,
    DeviceView,
    JobView,
    ServiceView,
    Statistics,
)
from dovetail.instances._record import IDLE
from dovetail.instances.metrics import FRACTIONS
from dovetail.live.http.metric_declarations import DECLARED

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text"

_MIB: Final = 2**20
_LONGEST_LABEL: Final = 200


def exposition(
    service: ServiceView, jobs: Sequence[JobView], statistics: Statistics, accept: str = ""
) -> tuple[bytes, str]:
    """Return the figures as text, and the type of that text.

    Parameters
    ----------
    service : ServiceView
        The service and its devices.
    jobs : sequence of JobView
        The jobs that hold devices.
    statistics : Statistics
        Figures over all jobs.
    accept : str
        The types that the client accepts (an ``Accept`` header).
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(_collected(service, jobs, statistics)))
    if OPEN_METRICS in accept:
        text: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
        return text, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), TEXT


class _Families(Collector):
    """Metrics as declared, in the order of their declarations."""

    def __init__(self, families: dict[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return (self._families[name] for name in DECLARED if name in self._families)


class _SampleFamilies:
    """Collects samples into the families that are declared."""

    def __init__(self) -> None:
        self.families: dict[str, Metric] = {}

    def add(self, name: str, value: float | None, *labels: str, suffix: str = "") -> None:
        """Add a sample; do nothing if there is no value."""
        if value is None or not math.isfinite(value):
            return
        declared = DECLARED[name]
        if name not in self.families:
            # OpenMetrics names the family of a counter without the suffix.
            of_family = name.removesuffix("_total") if declared.kind == "counter" else name
            self.families[name] = Metric(of_family, declared.meaning, declared.kind)
        names = (*declared.labels, "le") if suffix == "_bucket" else declared.labels
        self.families[name].add_sample(
            f"{name}{suffix}", dict(zip(names, labels, strict=True)), float(value)
        )


def _collected(
    service: ServiceView, jobs: Sequence[JobView], statistics: Statistics
) -> dict[str, Metric]:
    samples = _SampleFamilies()
    _add_service(samples.add, service)
    _add_statistics(samples, statistics)
    devices = {device.id: device for device in service.devices}
    for device in service.devices:
        _add_device(samples.add, device)
    of_id = {job.id: job for job in jobs}
    for job in jobs:
        _add_job(samples.add, job)
        _add_shares(samples.add, job, devices)
    for device in service.devices:
        _add_parts(samples.add, device, of_id)
    return samples.families


_Add = Callable[..., None]


def _add_service(add: _Add, service: ServiceView) -> None:
    add("dovetail_info", 1, *map(_label, (service.version, service.pool, service.policy)))
    add("dovetail_start_time_seconds", service.started_s)
    add("dovetail_in_trouble", bool(service.trouble))
    add("dovetail_journal_events_total", service.sequence)
    for state in JobState:
        add("dovetail_jobs", service.jobs.get(state.value, 0), state.value)
    add("dovetail_decision_gap", service.gap)


def _add_statistics(samples: _SampleFamilies, statistics: Statistics) -> None:
    add = samples.add
    for reason, count in statistics.waiting.items():
        add("dovetail_jobs_waiting", count, reason.value)
    add("dovetail_oldest_wait_seconds", statistics.oldest_wait_s)
    for state, count in sorted(statistics.ended.items()):
        add("dovetail_jobs_ended_total", count, state.value)
    add("dovetail_restarts_total", statistics.restarts)
    add("dovetail_promises_broken_total", statistics.broken)
    bounds = (*DECISION_BOUNDS_S, math.inf)
    up_to = [*accumulate(statistics.decisions.get(bound, 0) for bound in bounds)]
    name = "dovetail_decision_seconds"
    for bound, count in zip(bounds, up_to, strict=True):
        add(name, count, "+Inf" if bound == math.inf else str(bound), suffix="_bucket")
    add(name, up_to[-1], suffix="_count")
    add(name, statistics.decisions_s, suffix="_sum")


def _add_device(add: _Add, device: DeviceView) -> None:
    labels = (*_place(device), _label(device.model), _label(device.node))
    name = "dovetail_device"
    add(f"{name}_info", 1, *labels, _uuid(device), _label(device.id))
    add(f"{name}_available", not device.trouble, *labels)
    add(f"{name}_jobs", len(device.jobs), *labels)
    add(f"{name}_memory_bytes", device.memory_mib * _MIB, *labels)
    add(f"{name}_memory_used_bytes", _bytes(device.used_mib), *labels)
    add(f"{name}_power_watts", device.power_w, *labels)
    add(f"{name}_energy_joules_total", device.energy_j, *labels)
    for metric, figure in device.metrics.items():
        if metric in FRACTIONS:
            add(f"{name}_active_ratio", figure, *labels, metric, _label(device.source))
        elif metric.endswith("_bytes_s"):
            what = metric.removesuffix("_bytes_s")
            add(f"{name}_traffic_bytes_per_second", figure, *labels, what, _label(device.source))


def _add_job(add: _Add, job: JobView) -> None:
    labels = (_label(job.id), _label(job.owner))
    names = map(_label, (str(job.uid), job.name or "", job.workload, job.priority, job.state.value))
    name = "dovetail_job"
    add(f"{name}_info", 1, *labels, *names)
    add(f"{name}_submit_time_seconds", job.submitted_s, *labels)
    add(f"{name}_start_time_seconds", job.started_s, *labels)
    add(f"{name}_restarts_total", max(job.runs - 1, 0), *labels)
    add(f"{name}_iterations_total", job.iterations, *labels)
    add(f"{name}_iterations_per_second", job.rate, *labels)
    add(f"{name}_slowdown", job.slowdown, *labels)
    add(f"{name}_slowdown_predicted", job.predicted, *labels)
    add(f"{name}_slowdown_bound", job.upper, *labels)
    add(f"{name}_gsla", job.gsla, *labels)
    add(f"{name}_promise_margin", promise_margin(job), *labels)
    promise = promise_of(job)
    for state in Promise if promise is not Promise.NONE else ():
        if state is not Promise.NONE:
            add(f"{name}_promise", state is promise, *labels, state.name.lower())
    add(f"{name}_memory_used_bytes", _bytes(job.memory_used_mib), *labels)
    add(f"{name}_memory_limit_bytes", _bytes(job.memory_limit_mib), *labels)
    add(f"{name}_energy_joules_total", job.energy_j, *labels)
    add(f"{name}_device_seconds_total", job.device_s, *labels)


def _add_shares(add: _Add, job: JobView, devices: dict[str, DeviceView]) -> None:
    for gpu, share in zip(job.gpus, job.shares, strict=True):
        if gpu in devices:
            ratio = 1.0 if share is None else 0.0 if share == IDLE else float(share) / 100
            add("dovetail_job_sm_share_ratio", ratio, *_seat(job, devices[gpu]))


def _add_parts(add: _Add, device: DeviceView, jobs: dict[str, JobView]) -> None:
    for part in device.parts:
        # A job that has just ended may still be part of the last reading.
        if part.job in jobs:
            labels = _seat(jobs[part.job], device)
            add("dovetail_job_time_ratio", part.time, *labels, part.time_source)
            add("dovetail_job_power_watts", part.power_w, *labels, part.power_source)


def _seat(job: JobView, device: DeviceView) -> tuple[str, ...]:
    return (_label(job.id), _label(job.owner), *_place(device), _label(device.node))


def _place(device: DeviceView) -> tuple[str, str]:
    """Return the labels ``UUID`` and ``gpu``; what has neither is named by its id."""
    number = device.id if device.number is None else str(device.number)
    return _uuid(device), _label(number)


def _uuid(device: DeviceView) -> str:
    return _label(device.uuid or device.id)


def _bytes(mib: float | None) -> float | None:
    return None if mib is None else mib * _MIB


def _label(text: str) -> str:
    """Return a text of bounded length that can be written as UTF-8."""
    return text[:_LONGEST_LABEL].encode(errors="replace").decode()
