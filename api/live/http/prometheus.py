"""The service's figures in Prometheus' text format, in its base units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.views import DeviceView, JobView, ServiceView

_MIB = 2**20
_JOB_LABELS = ("job", "user", "workload")


def exposition(service: ServiceView, jobs: Sequence[JobView]) -> tuple[bytes, str]:
    """Return the figures as text, and the type of that text.

    Parameters
    ----------
    service : ServiceView
        The service and its devices.
    jobs : sequence of JobView
        Jobs that are not over.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Views(service, jobs))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Views(Collector):
    def __init__(self, service: ServiceView, jobs: Sequence[JobView]) -> None:
        self._service = service
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        yield from _of_service(self._service)
        yield from _of_devices(self._service.devices)
        yield from _of_jobs([job for job in self._jobs if job.gpus])


def _of_service(service: ServiceView) -> Iterator[Metric]:
    labels = {"version": service.version, "pool": service.pool, "policy": service.policy}
    yield InfoMetricFamily("dovetail", "The service; pools other than gpu run stand-ins.", labels)
    yield GaugeMetricFamily(
        "dovetail_start_time_seconds", "When the service started.", service.started_s
    )
    yield CounterMetricFamily("dovetail_journal_events", "Events in the journal.", service.sequence)
    states = GaugeMetricFamily("dovetail_jobs", "Jobs in each state.", labels=["state"])
    for state in JobState:
        states.add_metric([state.value], service.jobs.get(state.value, 0))
    yield states
    yield GaugeMetricFamily(
        "dovetail_in_trouble", "1 while the service reports trouble.", bool(service.trouble)
    )
    if service.decide_s is not None:
        yield GaugeMetricFamily(
            "dovetail_decision_seconds", "How long the last decision took.", service.decide_s
        )
    if service.gap is not None:
        yield GaugeMetricFamily(
            "dovetail_decision_gap", "Proven gap of the last decision.", service.gap
        )


def _of_devices(devices: Sequence[DeviceView]) -> Iterator[Metric]:
    labels = ("device", "model")

    def gauge(name: str, text: str, figures: Sequence[tuple[DeviceView, float | None]]) -> Metric:
        family = GaugeMetricFamily(f"dovetail_device_{name}", text, labels=labels)
        for device, figure in figures:
            if figure is not None:
                family.add_metric([device.id, device.model], figure)
        return family

    def each(name: str, text: str, *figures: float | None) -> Metric:
        return gauge(name, text, list(zip(devices, figures, strict=True)))

    yield each("jobs", "Jobs on the device.", *(len(d.jobs) for d in devices))
    yield each("available", "Whether it takes new jobs.", *(not d.trouble for d in devices))
    yield each("memory_bytes", "Its memory.", *(d.memory_mib * _MIB for d in devices))
    used = (None if d.used_mib is None else d.used_mib * _MIB for d in devices)
    yield each("memory_used_bytes", "Memory in use.", *used)
    yield each("power_watts", "Power drawn.", *(d.power_w for d in devices))
    energy = CounterMetricFamily(
        "dovetail_device_energy_joules", "Energy drawn since an arbitrary moment.", labels=labels
    )
    for device in devices:
        if device.energy_j is not None:
            energy.add_metric([device.id, device.model], device.energy_j)
    yield energy
    profile = GaugeMetricFamily(
        "dovetail_device_metric",
        "Means over the last interval; source says where they come from.",
        labels=("device", "model", "metric", "source"),
    )
    for device in devices:
        for name, figure in device.metrics.items():
            profile.add_metric([device.id, device.model, name, device.source], figure)
    yield profile


def _of_jobs(jobs: Sequence[JobView]) -> Iterator[Metric]:
    def gauge(name: str, text: str, figures: Sequence[float | None]) -> Metric:
        family = GaugeMetricFamily(f"dovetail_job_{name}", text, labels=_JOB_LABELS)
        for job, figure in zip(jobs, figures, strict=True):
            if figure is not None:
                family.add_metric([job.id, job.owner, job.workload], figure)
        return family

    yield gauge("slowdown", "Measured: rate alone / rate now.", [j.slowdown for j in jobs])
    yield gauge("predicted_slowdown", "Predicted when it was placed.", [j.predicted for j in jobs])
    yield gauge("upper_slowdown", "Upper bound of the prediction.", [j.upper for j in jobs])
    yield gauge("gsla", "The largest slowdown its owner accepts.", [j.gsla for j in jobs])
    yield gauge("iterations", "Iterations done in this run.", [j.iterations for j in jobs])
    yield gauge("iterations_per_second", "Its rate now.", [j.rate for j in jobs])
