"""Findings of the doctor, their levels, and the verdict on a machine."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from dovetail.instances.plugins import OWN, plugins

PARTS: Final = ("machine", "service", "driver", "gpu", "mps", "memory", "jobs", "shares", "plugins")
"""The parts that are checked, in the order of the output."""


class Severity(StrEnum):
    """Severity of a finding."""

    GOOD = "good"
    NOTE = "note"
    """Worth knowing, but everything works."""
    LACKING = "lacking"
    """Something is missing, and less works without it."""
    BROKEN = "broken"
    """A GPU cannot be used, or the service cannot start."""


class Finding(NamedTuple):
    """Result of one check.

    Attributes
    ----------
    text : str
        The finding in words.
    level : Severity
        Its severity.
    remedy : str
        How to fix it; may be empty.
    id : str
        The check, ``part.thing``; it is stable across versions.
    gpu : str
        Start of the GPU's UUID; empty if the finding is not about a GPU.
    fix : tuple of str
        Shell commands that carry out the remedy, in order; empty if no command can.
    """

    text: str
    level: Severity = Severity.GOOD
    remedy: str = ""
    id: str = ""
    gpu: str = ""
    fix: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        """The part of the machine that was checked."""
        return self.id.partition(".")[0]

    @property
    def title(self) -> str:
        """The check in words."""
        return self.id.partition(".")[2].replace("-", " ")


def note(text: str, remedy: str, *fix: str) -> Finding:
    """Return a finding of the level NOTE."""
    return Finding(text, Severity.NOTE, remedy, fix=fix)


def lacking(text: str, remedy: str, *fix: str) -> Finding:
    """Return a finding of the level LACKING."""
    return Finding(text, Severity.LACKING, remedy, fix=fix)


def broken(text: str, remedy: str, *fix: str) -> Finding:
    """Return a finding of the level BROKEN."""
    return Finding(text, Severity.BROKEN, remedy, fix=fix)


def shares_are_measured() -> bool:
    """Return whether the part of Dovetail that measures SM shares is installed."""
    measuring = plugins("options").get("doctor")
    return measuring is not None and measuring.package == OWN


def measuring_shares(options: str = "") -> str:
    """Return the command that measures SM shares, or a text that it is not installed."""
    if not shares_are_measured():
        return "shares are measured by the part measuring of Dovetail, which is not installed"
    return f"dovetail doctor --splits {options}".rstrip()


class Usable(IntEnum):
    """The verdict on a machine; its value is the exit status of ``dovetail doctor``."""

    PARTITIONED = 0
    NOT = 1
    UNPARTITIONED = 3

    @property
    def text(self) -> str:
        """The verdict in words."""
        return {
            Usable.PARTITIONED: "usable: jobs can share GPUs, with SM shares",
            Usable.UNPARTITIONED: "usable without partitioning: jobs can share GPUs, no SM shares",
            Usable.NOT: "not usable: Dovetail cannot run GPU jobs here",
        }[self]
