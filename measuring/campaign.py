"""Campaigns: the file that declares measurements, and its experiments in order."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations_with_replacement, permutations
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from dovetail.instances._record import Count, Name, Positive, Record, Share, rule_broken, shown
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import read_data
from dovetail.instances.reading.contents import FilePath

CAMPAIGN_FORMAT: Final = "dovetail-campaign/1"

Mode = Literal["mps", "time-sliced"]
"""How workloads share a GPU: as clients of one MPS server, or time-sliced without MPS."""

Measured = Literal["solos", "pairs", "triples"]
"""What a stage measures: each workload alone, every two, every three."""

_SIZES: Final[Mapping[Measured, int]] = {"solos": 1, "pairs": 2, "triples": 3}


class OwnWorkload(Record):
    """A workload of the user's own."""

    name: Name
    program: Name
    family: Name | None = None


class Stage(Record):
    """Experiments of one kind in one setting, in random order."""

    measure: Measured
    mode: Mode = "mps"
    shares: tuple[Share | None, ...] | None = None
    workloads: tuple[Name, ...] | None = None
    first: tuple[Name, ...] = ()
    most: Count | None = None
    repeats: Count = 1

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        wanted = _SIZES[self.measure]
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
        """``shares``, with None for each worker if absent."""
        return self.shares or (None,) * _SIZES[self.measure]


class Windows(Record):
    """Length of the measurement window, which begins ``settle_s`` after the workers."""

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
        """Estimated seconds of an experiment: settling, and a window of medium length."""
        return self.settle_s + (self.least_s + self.most_s) / 2


class Campaign(Record):
    """The campaign file of ``dovetail measure``, whose stages run in order."""

    format: Literal["dovetail-campaign/1"]
    name: Name
    workloads: Annotated[tuple[Name | OwnWorkload, ...], Field(min_length=1)]
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    windows: Windows = Windows()
    size: Literal["full", "tiny"] = "full"
    seed: Annotated[int, Field(ge=0)] = 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the workloads."""
        return tuple(one if isinstance(one, str) else one.name for one in self.workloads)

    @property
    def own(self) -> dict[str, OwnWorkload]:
        """The user's workloads by name."""
        return {one.name: one for one in self.workloads if isinstance(one, OwnWorkload)}

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
    """Read a campaign; programs of own workloads are relative to its folder.

    Raises
    ------
    InputError
        If it cannot be read or breaks a rule.
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


class WorkerSeat(NamedTuple):
    """How one worker process is started; workers of equal seats are interchangeable.

    Attributes
    ----------
    workload : str
        Name of its workload.
    mode : str
        ``mps`` or ``time-sliced``.
    share : int or None
        Limit on its SMs in per cent.
    first : bool
        Whether it has MPS priority over its partner.
    """

    workload: str
    mode: Mode
    share: int | None = None
    first: bool = False


class Experiment(NamedTuple):
    """One window to be measured.

    Attributes
    ----------
    stage : int
        Index of its stage in the campaign.
    seats : tuple of WorkerSeat
        The workers, one to three.
    repeat : int
        Index of the repeat within the stage.
    """

    stage: int
    seats: tuple[WorkerSeat, ...]
    repeat: int

    @property
    def key(self) -> str:
        """Its name in the ledger, such as ``1:mps:conv@50+burst@50!#0``."""
        workers = "+".join(
            f"{seat.workload}{'' if seat.share is None else f'@{seat.share}'}"
            f"{'!' if seat.first else ''}"
            for seat in self.seats
        )
        return f"{self.stage}:{self.seats[0].mode}:{workers}#{self.repeat}"


def experiments(campaign: Campaign) -> tuple[Experiment, ...]:
    """Return all experiments of a campaign, in order.

    A stage runs in complete rounds, one per repeat, and each round is a random permutation of its
    own (a randomised complete block design: Montgomery, Design and Analysis of Experiments, ch. 4),
    so that a drift of the machine is not attributed to a workload. The order of a round depends
    only on seed, stage and repeat: it stays the same if the campaign grows. A stage of ``most``
    experiments has the same ones in every round, drawn at random.
    """
    found: list[Experiment] = []
    for at, stage in enumerate(campaign.stages):
        settings = list(_settings(campaign, stage))
        if stage.most is not None:
            random.Random(f"{campaign.seed}:{at}").shuffle(settings)
            settings = settings[: stage.most]
        for repeat in range(stage.repeats):
            order = list(settings)
            random.Random(f"{campaign.seed}:{at}:{repeat}").shuffle(order)
            found += (Experiment(at, seats, repeat) for seats in order)
    return tuple(found)


def workers_needed(planned: Iterable[Experiment]) -> Counter[WorkerSeat]:
    """Return how many workers of each seat are needed at once: two for a pair with itself."""
    needed: Counter[WorkerSeat] = Counter()
    for one in planned:
        needed |= Counter(one.seats)
    return needed


def _settings(campaign: Campaign, stage: Stage) -> Iterator[tuple[WorkerSeat, ...]]:
    """Yield the seats of each experiment of a stage, once for each set of workers."""
    chosen, pairs = stage.workloads or campaign.names, combinations_with_replacement
    size = _SIZES[stage.measure]
    groups = [one for one in pairs(campaign.names, size) if not set(chosen).isdisjoint(one)]
    seen = set()
    for names in groups:
        for ordered in dict.fromkeys(permutations(names)):
            seats = tuple(
                WorkerSeat(name, stage.mode, cap, name in stage.first)
                for name, cap in zip(ordered, stage.caps, strict=True)
            )
            workers = frozenset(Counter(seats).items())
            if workers not in seen:
                seen.add(workers)
                yield seats
