"""The words of the doctor: findings, how they stand, and what can be done in the end."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How a finding stands."""

    GOOD = "good"
    NOTE = "note"
    """It works, and somebody should know."""
    LACKING = "lacking"
    """Less can be done without it."""
    BROKEN = "broken"
    """GPUs, or one of them, cannot be used."""


class Seen(NamedTuple):
    """What a probe has seen of one thing.

    Attributes
    ----------
    told : str
        What was seen.
    level : Level
        How it stands.
    remedy : str
        What to do; empty where nothing need be done.
    """

    told: str
    level: Level = Level.GOOD
    remedy: str = ""


def note(told: str, remedy: str) -> Seen:
    """Return what somebody should know."""
    return Seen(told, Level.NOTE, remedy)


def lacking(told: str, remedy: str) -> Seen:
    """Return what is lacking."""
    return Seen(told, Level.LACKING, remedy)


def broken(told: str, remedy: str) -> Seen:
    """Return what keeps GPUs, or the service, from use."""
    return Seen(told, Level.BROKEN, remedy)


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes
    ----------
    id : str
        What was looked at, ``part.thing``: it stays the same from version to version.
    told, level, remedy
        As in ``Seen``.
    gpu : str
        Which GPU it is about; empty where it is about none.
    """

    id: str
    told: str
    level: Level
    remedy: str
    gpu: str

    @property
    def part(self) -> str:
        """Return the part of the machine that it belongs to."""
        return self.id.partition(".")[0]

    @property
    def about(self) -> str:
        """Return what people call it."""
        return self.id.partition(".")[2].replace("-", " ")


class Usable(IntEnum):
    """What can be done with the GPUs; the value is the exit status of ``dovetail doctor``."""

    PARTITIONED = 0
    NOT = 1
    UNPARTITIONED = 3

    @property
    def told(self) -> str:
        """In words."""
        return {
            Usable.PARTITIONED: "usable: jobs can share GPUs, with SM shares",
            Usable.UNPARTITIONED: "usable without partitioning: jobs can share GPUs, no SM shares",
            Usable.NOT: "not usable: there is nothing that Dovetail could run GPU jobs on",
        }[self]
