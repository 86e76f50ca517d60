"""Records of a campaign's results, as they are stored."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dovetail.instances._record import (
    Count,
    FrozenMapping,
    Name,
    NonNegative,
    Positive,
    Record,
    SeatShare,
    Variance,
    rule_broken,
)
from dovetail.instances.datasets.records import Date
from dovetail.instances.metrics import MetricName
from dovetail.measuring.campaign import Load, Mode, WorkerSeat

Amount = Annotated[int, Field(ge=1)]
"""A number of iterations or requests, of which there may be millions."""


class Facts(Record):
    """A device; facts that it lacks or does not report are absent.

    ``gpu_model`` is its name in data sets. ``stand_in`` describes what stands in for a GPU.
    """

    gpu_model: Name
    stand_in: Name | None = None
    uuid: Name | None = None
    driver: Name | None = None
    sms: Count | None = None
    memory_mib: NonNegative | None = None


class Machine(Facts):
    """The machine that a campaign runs on.

    Another machine may continue the campaign if model, driver and cuBLAS are equal.
    ``fingerprint`` is made by ``ledger.fingerprint``.
    """

    campaign: Name
    fingerprint: Name
    cublas: Name | None = None
    torch: Name | None = None
    host_cores: Count
    dovetail: Name
    date: Date


class Latency(Record):
    """Latency in seconds, from arrival to answer, of the requests answered within a window.

    A request arrives when it is due, even if the one before is still worked on.
    """

    p50_s: NonNegative
    p99_s: NonNegative
    mean_s: NonNegative
    requests: Amount
    requests_s: Positive | None = None


class Throughput(Record):
    """Speed of one worker within a window."""

    iterations_s: Positive
    iterations: Amount
    relative_error: NonNegative
    latency: Latency | None = None
    memory_mib: NonNegative | None = None
    sms: Count | None = None

    @property
    def p99_s(self) -> float | None:
        """The 99th percentile of latency, if it has one."""
        return self.latency.p99_s if self.latency else None


class ProfiledKernels(Record):
    """What a workload launched under a profiler, alone, after its window.

    ``launches`` is the number of kernels an iteration, ``metrics`` describes them, and ``cost_s``
    is what profiling took.
    """

    profiler: Name
    launches: Positive
    metrics: FrozenMapping[MetricName, NonNegative]
    iterations: Amount
    cost_s: NonNegative


class ExperimentResult(Record):
    """Outcome of one experiment, and the device during its window.

    ``kernels`` were profiled after the window, or ``kernels_lack`` says why they could not be.
    ``starved``: a worker did too little for a throughput in the longest window; its rate is only
    known to be below ``most_iterations_s``. ``known``: not measured, because a data set has it.
    """

    key: Name
    stage: Annotated[int, Field(ge=0)]
    repeat: Annotated[int, Field(ge=0)]
    mode: Mode
    workloads: Annotated[tuple[Name, ...], Field(min_length=1, max_length=3)]
    shares: tuple[SeatShare | None, ...]
    first: tuple[bool, ...]
    loads: tuple[Load | None, ...] | None = None
    families: tuple[Name | None, ...] | None = None
    batch_sizes: tuple[Count | None, ...] | None = None
    status: Literal["ok", "starved", "out-of-memory", "failed", "refused", "known"]
    reason: str = ""
    paces: tuple[Throughput, ...] | None = None
    most_iterations_s: tuple[Positive, ...] | None = None
    window_s: Positive | None = None
    energy_j: NonNegative | None = None
    power_w: NonNegative | None = None
    metrics: FrozenMapping[MetricName, NonNegative] = Field({})
    metrics_variance: FrozenMapping[MetricName, Variance] = Field({})
    metrics_source: str = ""
    kernels: ProfiledKernels | None = None
    kernels_lack: str = ""
    clock_mhz: NonNegative | None = None
    temperature_c: NonNegative | None = None
    throttled: tuple[Name, ...] = ()
    launches: FrozenMapping[Name, Annotated[int, Field(ge=0)]] = Field({})
    escapes: FrozenMapping[Name, Name] = Field({})
    disturbed_by: tuple[int, ...] = ()
    others_busy: NonNegative | None = None
    residents: Count
    date: Date

    @model_validator(mode="after")
    def _one_value_each(self) -> Self:
        each = ("shares", "first", "loads", "families", "batch_sizes")
        for name in (*each, "paces", "most_iterations_s"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.workloads):
                rule = f"must have {len(self.workloads)} items, got {len(values)}"
                raise rule_broken(name, rule)
        for name, status in (("paces", "ok"), ("most_iterations_s", "starved")):
            if (getattr(self, name) is not None) != (self.status == status):
                raise rule_broken(name, f"must be given if status is {status}, and only then")
        return self

    @property
    def sound(self) -> bool:
        """Whether its paces are valid for the setting: measured and undisturbed."""
        return self.status == "ok" and not self.disturbed_by

    @property
    def final(self) -> bool:
        """Whether measuring it again would give nothing new."""
        starved = self.status == "starved" and not self.disturbed_by
        return self.sound or starved or self.status in ("out-of-memory", "known")

    @property
    def seats(self) -> tuple[WorkerSeat, ...]:
        """The workers."""
        loads = self.loads or (None,) * len(self.workloads)
        each = zip(self.workloads, self.shares, self.first, loads, strict=True)
        return tuple(
            WorkerSeat(name, self.mode, share, first, load) for name, share, first, load in each
        )
