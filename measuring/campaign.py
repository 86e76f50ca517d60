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

from dovetail.instances._record import (
    IDLE,
    AnyShare,
    Count,
    Name,
    Positive,
    Record,
    Share,
    listed,
    rule_broken,
    shown,
)
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import read_data
from dovetail.instances.reading.contents import FilePath

CAMPAIGN_FORMAT: Final = "dovetail-campaign/1"

Mode = Literal["mps", "time-sliced", "isolated"]
"""How workloads share a GPU: as clients of one MPS server, time-sliced without MPS, or under MPS
with their kernel launches intercepted, so that one has the GPU before the others."""

Arrivals = Literal["poisson", "fixed"]
"""When requests come: independently of each other, or at equal distances."""

Measured = Literal["solos", "pairs", "triples"]
"""What a stage measures: each workload alone, every two, every three."""

_SIZES: Final[Mapping[Measured, int]] = {"solos": 1, "pairs": 2, "triples": 3}


class OwnWorkload(Record):
    """A workload of the user's own."""

    name: Name
    program: Name
    family: Name | None = None


class Load(Record):
    """Requests that come at this part of a workload's throughput alone, answered or not.

    They wait for no answer (an open loop), and latency counts from the time that each is due.
    """

    part: Annotated[float, Field(strict=True, gt=0, le=1)]
    arrivals: Arrivals = "poisson"

    @property
    def text(self) -> str:
        """The load as it is written in names: ``0.5``, ``0.5-fixed``."""
        return f"{self.part:g}{'' if self.arrivals == 'poisson' else f'-{self.arrivals}'}"


class Stage(Record):
    """Experiments of one kind in one setting, in random order."""

    measure: Measured
    mode: Mode = "mps"
    shares: tuple[Share | None, ...] | None = None
    workloads: tuple[Name, ...] | None = None
    first: tuple[Name, ...] = ()
    latency: tuple[Name, ...] = ()
    load: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    arrivals: Arrivals = "poisson"
    most: Count | None = None
    repeats: Count = 1

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        wanted = _SIZES[self.measure]
        if self.shares is not None and len(self.shares) != wanted:
            items = "1 item" if wanted == 1 else f"{wanted} items"
            rule = f"must have {items} for {self.measure}, got {len(self.shares)}"
            raise rule_broken("shares", rule)
        if self.mode != "mps":
            why = "without MPS" if self.mode == "time-sliced" else "with isolation"
            if self.caps != (None,) * wanted:
                raise rule_broken("shares", f"must be absent {why}, got {_texts(self.caps)}")
            if self.first:
                raise rule_broken("first", f"must be absent {why}, got {_texts(self.first)}")
        return self

    @model_validator(mode="after")
    def _load_fits(self) -> Self:
        if self.mode == "isolated" and not self.latency:
            raise rule_broken("latency", "must name who has the GPU first with isolation")
        if self.latency and self.load is None:
            raise rule_broken("load", "must be given with latency")
        for field in ("load", "arrivals"):
            value = getattr(self, field)
            if not self.latency and value != type(self).model_fields[field].default:
                raise rule_broken(field, f"must be absent without latency, got {shown(value)}")
        return self

    def seat(self, workload: str, cap: int | None) -> WorkerSeat:
        """Return how a workload runs in this stage, given its item of ``shares``."""
        critical = workload in self.latency and self.load is not None
        load = Load(part=self.load, arrivals=self.arrivals) if critical else None
        share: AnyShare = IDLE if self.mode == "isolated" and not critical else cap
        return WorkerSeat(workload, self.mode, share, workload in self.first, load)

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

    def usual_s(self, stage: Stage) -> float:
        """Return the estimated seconds of an experiment: settling, and a window.

        That of requests at a load has its greatest length, any other a medium one.
        """
        least_s = self.most_s if stage.latency else self.least_s
        return self.settle_s + (least_s + self.most_s) / 2


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
            for field in ("workloads", "first", "latency"):
                for name in getattr(stage, field) or ():
                    if name not in names:
                        rule = f"must be one of the workloads, got {shown(name)}"
                        raise rule_broken(f"stages[{at}].{field}", rule)
            if stage.latency and not any(_settings(self, stage)):
                rule = "must leave pairs or triples with exactly one of them"
                raise rule_broken(f"stages[{at}].latency", f"{rule}, got {_texts(stage.latency)}")
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
    """How one worker runs in an experiment.

    Attributes
    ----------
    workload : str
        Name of its workload.
    mode : str
        ``mps``, ``time-sliced`` or ``isolated``.
    share : int, "idle" or None
        Limit on its SMs in per cent; ``idle``: it runs in the idle time of the others.
    first : bool
        Whether it has MPS priority over its partner.
    load : Load or None
        The requests that it answers; None: those of its own, or iterations without a pause.
    """

    workload: str
    mode: Mode
    share: AnyShare = None
    first: bool = False
    load: Load | None = None

    @property
    def process(self) -> WorkerSeat:
        """How its process is started; those of equal ones are interchangeable."""
        return self._replace(load=None)

    @property
    def leads(self) -> bool:
        """Whether others run in its idle time."""
        return self.mode == "isolated" and self.share != IDLE

    @property
    def label(self) -> str:
        """The name of its workload at this load, in data sets."""
        return self.workload if self.load is None else f"{self.workload}-load{self.load.text}"

    @property
    def text(self) -> str:
        """The seat without its mode: ``conv@50``, ``encoder~0.5``."""
        share = "" if self.share is None else f"@{self.share}"
        return f"{self.workload}{'' if self.load is None else f'~{self.load.text}'}{share}"


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
        workers = "+".join(f"{seat.text}{'!' if seat.first else ''}" for seat in self.seats)
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
    """Return how many processes of each kind are needed at once: two for a pair with itself."""
    needed: Counter[WorkerSeat] = Counter()
    for one in planned:
        needed |= Counter(seat.process for seat in one.seats)
    return needed


def _texts(values: Iterable[object]) -> str:
    return listed(["null" if value is None else str(value) for value in values])


def _settings(campaign: Campaign, stage: Stage) -> Iterator[tuple[WorkerSeat, ...]]:
    """Yield the seats of each experiment of a stage, once for each set of workers.

    Pairs and triples of a stage with latency-critical workloads have exactly one of them.
    """
    chosen, pairs = stage.workloads or campaign.names, combinations_with_replacement
    size = _SIZES[stage.measure]
    groups = [one for one in pairs(campaign.names, size) if not set(chosen).isdisjoint(one)]
    seen = set()
    if stage.latency and size > 1:
        groups = [one for one in groups if sum(name in stage.latency for name in one) == 1]
    for names in groups:
        for ordered in dict.fromkeys(permutations(names)):
            seats = tuple(
                stage.seat(name, cap) for name, cap in zip(ordered, stage.caps, strict=True)
            )
            workers = frozenset(Counter(seats).items())
            if workers not in seen:
                seen.add(workers)
                yield seats
