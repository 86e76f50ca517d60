"""One entry of the known slowdowns, as a user writes and sees it."""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple, Self, get_args

from pydantic import Field, model_validator

from dovetail.instances._record import (
    IDLE,
    AnyShare,
    Confidence,
    Name,
    Positive,
    Record,
    SeatShare,
    Slowdown,
    rule_broken,
)
from dovetail.instances.slowdowns.shares import refuse_caps, share_code

SharingMode = Literal["mps", "time_sliced"]
"""How the jobs on a GPU share it: as clients of MPS, with or without caps, or taking turns on the
whole GPU (time slicing: without MPS)."""

MODES: Final[tuple[SharingMode, ...]] = get_args(SharingMode)

Members = tuple[tuple[str, int], ...]
"""Workloads, each with the code of its share."""

EntryKey = tuple[str | None, Members, SharingMode]
"""GPU model, sorted members, and how they share the GPU."""


class GpuKind(NamedTuple):
    """The GPUs on which the same slowdowns hold: a model, and how jobs share a GPU there."""

    model: str
    sharing: SharingMode


Source = Literal["measured", "model", "estimate", "assumed"]
"""The origin of slowdowns: a measurement of these jobs together; a model of the user's
measurements, with a bound of its error; an estimate without a bound; or a number that the owner
declares (``Cluster.assumed``)."""

SOURCES: Final[tuple[Source, ...]] = get_args(Source)

EACH: Final = ("slowdown", "upper", "p99")
"""The figures of an entry of which each workload has its own."""

SINGLE: Final = ("power_w", "confidence")
"""The figures of an entry as a whole."""

FIGURES: Final = (*EACH, *SINGLE)


class SlowdownEntry(Record):
    """Measured or predicted slowdowns of workloads that share a GPU at the given shares.

    Two workloads are a ``pair``, three or more a ``set``. ``slowdown: null`` means that they may
    not share (for example, they ran out of memory). At a share of ``idle`` a job's thread blocks
    run while its co-runners have none (``isolation: blocks`` of its workload); at least one job
    has another share.
    """

    pair: tuple[Name, Name] | None = None
    set: Annotated[tuple[Name, ...], Field(min_length=3)] | None = None
    share: tuple[SeatShare | None, ...] | None = None
    slowdown: tuple[Slowdown, ...] | None
    upper: tuple[Slowdown, ...] | None = None
    p99: tuple[Slowdown, ...] | None = None
    power_w: Positive | None = None
    gpu_model: Name | None = None
    source: Source | None = None
    confidence: Confidence | None = None
    mode: SharingMode = "mps"

    @model_validator(mode="after")
    def _pair_or_set(self) -> Self:
        if (self.pair is None) == (self.set is None):
            raise rule_broken("", "must have either pair or set")
        return self

    @model_validator(mode="after")
    def _one_value_each(self) -> Self:
        for name in ("share", "slowdown", "upper", "p99"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.workloads):
                rule = f"must have {len(self.workloads)} items, got {len(values)}"
                raise rule_broken(name, rule)
        if self.share is not None and all(share == IDLE for share in self.share):
            raise rule_broken("share", "at least one must not be idle")
        refuse_caps(self.mode, self.shares, "share", "mode")
        return self

    @model_validator(mode="after")
    def _upper_is_above(self) -> Self:
        if self.slowdown is None:
            for name in ("upper", "p99", "power_w"):
                if getattr(self, name) is not None:
                    raise rule_broken(name, "must be absent if slowdown is null")
        if self.upper is None and self.confidence is not None:
            raise rule_broken("confidence", "must be absent without upper")
        for k, (low, high) in enumerate(zip(self.slowdown or (), self.upper or (), strict=False)):
            if high < low:
                raise rule_broken(f"upper[{k}]", f"must be >= slowdown[{k}] ({low}), got {high}")
        return self

    @model_validator(mode="after")
    def _mirror_of_itself(self) -> Self:
        seen: dict[tuple[str, AnyShare], int] = {}
        for k, member in enumerate(zip(self.workloads, self.shares, strict=True)):
            first = seen.setdefault(member, k)
            for name in ("slowdown", "upper", "p99"):
                values = getattr(self, name)
                if values is not None and values[first] != values[k]:
                    rule = f"must equal {name}[{first}] ({values[first]}), as {member[0]!r}"
                    raise rule_broken(
                        f"{name}[{k}]", f"{rule} runs with itself at one share, got {values[k]}"
                    )
        return self

    @property
    def workloads(self) -> tuple[str, ...]:
        """The names of ``pair`` or of ``set``."""
        return self.pair or self.set or ()

    @property
    def shares(self) -> tuple[AnyShare, ...]:
        """The share of each workload, with ``share`` expanded."""
        return self.share if self.share is not None else (None,) * len(self.workloads)

    @property
    def key(self) -> EntryKey:
        """The unique key in an instance: GPU model, sorted (workload, code of the share), mode."""
        members = zip(self.workloads, self.shares, strict=True)
        codes = sorted((name, share_code(share)) for name, share in members)
        return self.gpu_model, tuple(codes), self.mode
