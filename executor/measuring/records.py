"""What is measured, and what was found: the words that the parts of a campaign share."""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from dovetail.executor.measuring.campaign import Mode
from dovetail.instances._record import (
    Count,
    FrozenMapping,
    Name,
    NonNegative,
    Positive,
    Record,
    Share,
    rule_broken,
)
from dovetail.instances.datasets.records import Date
from dovetail.instances.instance import MetricName

LEDGER_FORMAT: Final = "dovetail-ledger/1"

Amount = Annotated[int, Field(ge=1)]
"""So many iterations or requests: in seconds, there may be millions."""


class Seat(NamedTuple):
    """One worker process as it must be started; processes of equal seats can stand in for another.

    Attributes
    ----------
    workload : str
        What it runs.
    mode : str
        ``mps`` or ``time-sliced``.
    share : int or None
        Its cap on SMs in per cent; None = no cap.
    first : bool
        Whether MPS is told to prefer it to its partner.
    """

    workload: str
    mode: Mode
    share: int | None = None
    first: bool = False


class Experiment(NamedTuple):
    """One window to be measured: one seat alone, or two together.

    Attributes
    ----------
    stage : int
        Index of its stage in the campaign.
    seats : tuple of Seat
        Who runs.
    repeat : int
        From 0, within the stage.
    """

    stage: int
    seats: tuple[Seat, ...]
    repeat: int

    @property
    def key(self) -> str:
        """Its name in the ledger, the same for the same campaign."""
        told = "+".join(_told(seat) for seat in self.seats)
        return f"{self.stage}:{self.seats[0].mode}:{told}#{self.repeat}"


def _told(seat: Seat) -> str:
    cap = "" if seat.share is None else f"@{seat.share}"
    return f"{seat.workload}{cap}{'!' if seat.first else ''}"


class Facts(Record):
    """What a device is; absent is what it has not, or does not tell.

    ``stand_in`` says in words what stands in for a GPU, and is absent where it is one.
    ``gpu_model`` is the name under which results go into data sets.
    """

    gpu_model: Name
    stand_in: Name | None = None
    uuid: Name | None = None
    driver: Name | None = None
    sms: Count | None = None
    memory_mib: NonNegative | None = None


class Machine(Facts):
    """On what a campaign runs: the ledger's first entry. A ledger is of one machine alone.

    ``fingerprint`` is that of ``ledger.fingerprint``. Of equal machines (model, driver, cuBLAS)
    another may go on; then it stands in the ledger before its results.
    """

    format: Literal["dovetail-ledger/1"] = LEDGER_FORMAT
    campaign: Name
    fingerprint: Name
    cublas: Name | None = None
    torch: Name | None = None
    host_cores: Count
    dovetail: Name
    date: Date


class Latency(Record):
    """Of the requests that were answered within a window, from arrival to answer, in seconds."""

    p50_s: NonNegative
    p99_s: NonNegative
    mean_s: NonNegative
    requests: Amount


class Throughput(Record):
    """How fast one worker was within a window.

    ``iterations_s`` counts iterations a second of busy time: a worker that waits for requests is
    not slow. ``relative_error`` is the standard error of the mean iteration time over this mean.
    """

    iterations_s: Positive
    iterations: Amount
    relative_error: NonNegative
    latency: Latency | None = None
    memory_mib: NonNegative | None = None
    sms: Count | None = None

    @property
    def p99_s(self) -> float | None:
        """The 99th percentile of latency, where it has one."""
        return self.latency.p99_s if self.latency else None


class Conditions(Record):
    """What was read of a device over a window.

    ``energy_j`` and ``power_w`` are of the whole device. ``metrics`` are means over the window, by
    the means that ``metrics_source`` names, ``metrics_variance`` is that of readings of a second
    (of a single one it is not known). ``throttled`` says why clocks were lowered at any reading,
    ``disturbed_by`` which processes of others were there, ``others_busy`` what part of the time
    the device gave to others, where that cannot be avoided.
    """

    energy_j: NonNegative | None = None
    power_w: NonNegative | None = None
    metrics: FrozenMapping[MetricName, NonNegative] = Field({})
    metrics_variance: FrozenMapping[MetricName, NonNegative] = Field({})
    metrics_source: str = ""
    clock_mhz: NonNegative | None = None
    temperature_c: NonNegative | None = None
    throttled: tuple[Name, ...] = ()
    disturbed_by: tuple[int, ...] = ()
    others_busy: NonNegative | None = None


class Result(Conditions):
    """What came of one experiment; an entry of the ledger.

    ``paces`` has one item for each of ``workloads`` and is absent where ``status`` is not ``ok``.
    ``out-of-memory`` is a finding; ``failed`` is trouble that ``told`` names; ``refused`` means
    that the setting could not be had or may not be used (a share that the split gate does not
    let through, say). ``families`` and ``batch_sizes`` are what workers told of themselves when
    they were ready; absent where nobody came so far.
    """

    key: Name
    stage: Annotated[int, Field(ge=0)]
    repeat: Annotated[int, Field(ge=0)]
    mode: Mode
    workloads: Annotated[tuple[Name, ...], Field(min_length=1, max_length=2)]
    shares: tuple[Share | None, ...]
    first: tuple[bool, ...]
    families: tuple[Name | None, ...] | None = None
    batch_sizes: tuple[Count | None, ...] | None = None
    status: Literal["ok", "out-of-memory", "failed", "refused"]
    told: str = ""
    paces: tuple[Throughput, ...] | None = None
    window_s: Positive | None = None
    residents: Count
    date: Date

    @model_validator(mode="after")
    def _one_value_each(self) -> Self:
        for name in ("shares", "first", "families", "batch_sizes", "paces"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.workloads):
                rule = f"must have {len(self.workloads)} items, got {len(values)}"
                raise rule_broken(name, rule)
        if (self.paces is not None) != (self.status == "ok"):
            raise rule_broken("paces", "must be there where status is ok, and only there")
        return self

    @property
    def sound(self) -> bool:
        """Whether its paces say something of the setting: measured, and by nobody disturbed."""
        return self.status == "ok" and not self.disturbed_by

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Who ran."""
        told = zip(self.workloads, self.shares, self.first, strict=True)
        return tuple(Seat(name, self.mode, share, first) for name, share, first in told)
