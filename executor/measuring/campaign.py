"""The campaign file: which workloads are measured, in which settings, and in which order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from dovetail.instances._record import Count, Name, Positive, Record, Share, rule_broken, shown
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import FilePath, read_data

CAMPAIGN_FORMAT: Final = "dovetail-campaign/1"

Mode = Literal["mps", "time-sliced"]
"""How workloads share a GPU: as clients of one MPS server, or by turns, as without MPS."""


class OwnWorkload(Record):
    """A workload of the user's: a Python file as ``workloads/__init__.py`` describes it."""

    name: Name
    program: Name
    family: Name | None = None


class Stage(Record):
    """Experiments of one kind in one setting; within a stage their order is drawn.

    ``shares`` are caps in per cent, null for none: one number for ``solos``, two for ``pairs``.
    ``first`` names workloads that answer requests: MPS is told to prefer them to their partners.
    ``workloads`` restricts the stage; ``pairs`` then are those with at least one of them.
    """

    measure: Literal["solos", "pairs"]
    mode: Mode = "mps"
    shares: tuple[Share | None, ...] | None = None
    workloads: tuple[Name, ...] | None = None
    first: tuple[Name, ...] = ()
    repeats: Count = 1

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        wanted = 1 if self.measure == "solos" else 2
        if self.shares is not None and len(self.shares) != wanted:
            items = "1 item" if wanted == 1 else f"{wanted} items"
            rule = f"must have {items} for {self.measure}, got {len(self.shares)}"
            raise rule_broken("shares", rule)
        if self.mode == "time-sliced" and self.caps != (None,) * wanted:
            raise rule_broken("shares", f"must be absent without MPS, got {shown(self.shares)}")
        if self.mode == "time-sliced" and self.first:
            raise rule_broken("first", f"must be absent without MPS, got {shown(self.first)}")
        return self

    @property
    def caps(self) -> tuple[int | None, ...]:
        """``shares`` written out."""
        return self.shares or (None,) * (1 if self.measure == "solos" else 2)


class Windows(Record):
    """How long is measured: after ``settle_s``, until the rates are stable.

    A window ends when the standard error of every worker's iteration time is below
    ``relative_error`` of its mean, not before ``least_s`` and not after ``most_s``.
    """

    settle_s: Annotated[float, Field(ge=0)] = 1.0
    least_s: Positive = 3.0
    most_s: Positive = 10.0
    relative_error: Positive = 0.01

    @model_validator(mode="after")
    def _least_is_least(self) -> Self:
        if self.most_s < self.least_s:
            rule = f"must be >= least_s ({shown(self.least_s)}), got {shown(self.most_s)}"
            raise rule_broken("most_s", rule)
        return self

    @property
    def usual_s(self) -> float:
        """What a window may take: settling, and half-way between the shortest and the longest."""
        return self.settle_s + (self.least_s + self.most_s) / 2


class Campaign(Record):
    """What ``dovetail measure`` reads.

    Stages are carried out in their order, so the most valuable stand first. ``size`` is that of
    the built-in workloads: ``tiny`` suits a processor core. ``seed`` draws the order within
    stages, and the data and weights of the workloads.
    """

    format: Literal["dovetail-campaign/1"]
    name: Name
    workloads: Annotated[tuple[Name | OwnWorkload, ...], Field(min_length=1)]
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    windows: Windows = Windows()
    size: Literal["full", "tiny"] = "full"
    seed: Annotated[int, Field(ge=0)] = 1

    @property
    def names(self) -> tuple[str, ...]:
        """The workloads' names, in their order."""
        return tuple(one if isinstance(one, str) else one.name for one in self.workloads)

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        names = self.names
        for at, name in enumerate(names):
            if name in names[:at]:
                raise rule_broken(
                    f"workloads[{at}]", f"must be named once, got {shown(name)} again"
                )
        for at, stage in enumerate(self.stages):
            for field in ("workloads", "first"):
                for name in getattr(stage, field) or ():
                    if name not in names:
                        rule = f"must be one of the workloads, got {shown(name)}"
                        raise rule_broken(f"stages[{at}].{field}", rule)
        return self


def read_campaign(path: FilePath) -> Campaign:
    """Read a campaign; the programs of own workloads are found from the file's folder.

    Raises
    ------
    InputError
        When it cannot be read or breaks a rule.
    """
    data = read_data(path)
    source = source_name(path)
    if not isinstance(data, dict) or data.get("format") != CAMPAIGN_FORMAT:
        raise InputError(f"must be a file of the format {CAMPAIGN_FORMAT}", "", source)
    campaign, folder = Campaign.from_data(data, source), Path(os.path.realpath(path)).parent
    return campaign.replace(
        workloads=tuple(
            one if isinstance(one, str) else one.replace(program=str(folder / one.program))
            for one in campaign.workloads
        )
    )
